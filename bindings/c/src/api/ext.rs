//! `gdsync/ext.h`: the software card, streams, cancelling and aborting.

use crate::error::{self, CallError, bad_bits, check, made, non_null, non_null_mut};
use crate::providers::{self, ObjectKind};
use crate::stream_object::StreamObject;
use crate::types::{CUstream, GDSYNC_STREAM_NEVER_CAPTURED, gds_qp, gds_send_request_t, gds_wait_request_t};
use crate::{log, objects, pages, requests, streams};
use gdsync::verbs::{OpenError, provider};
use gdsync_sys::verbs::ibv_context;
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ffi::CStr;
use std::ptr;
use std::time::{Duration, Instant};

/// `gdsync_error_text`.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_error_text() -> *const c_char {
    error::text()
}

/// `gdsync_soft_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_soft_open(name: *const c_char) -> *mut ibv_context {
    log::start();
    error::pointer("gdsync_soft_open", || {
        // SAFETY: the caller passes a string.
        let wanted = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
        let (api, mut count) = (provider::software(), 0);
        // This call reports a bad setting in the environment.
        let present = gdsync::Device::names(api)?;
        // SAFETY: `count` is valid for a write; the list has `count` entries with names until it is freed.
        let context = unsafe {
            let list = made("ibv_get_device_list", (api.get_device_list)(&mut count))?;
            let devices = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0));
            let is_wanted =
                |device| wanted.is_none_or(|wanted| CStr::from_ptr((api.get_device_name)(device)) == wanted);
            let found = devices.iter().copied().find(|device| is_wanted(*device));
            let opened = found.map(|device| (api.open_device)(device));
            (api.free_device_list)(list);
            opened
        };
        match context {
            Some(context) => {
                let context = made("ibv_open_device", context)?;
                Ok(providers::note(api, ObjectKind::Context, context, ptr::null::<c_void>()))
            }
            None => Err(gdsync::Error::Open(OpenError::NoDevice {
                name: wanted.map(|name| name.to_string_lossy().into_owned()),
                provider: "software",
                present,
            })
            .into()),
        }
    })
}

/// `gdsync_soft_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_soft_close(context: *mut ibv_context) -> c_int {
    error::status("gdsync_soft_close", || {
        let done = providers::end_software(ObjectKind::Context, context, |api| {
            // SAFETY: the context is known, and so open.
            check("ibv_close_device", unsafe { (api.close_device)(context) })
        });
        providers::name_left(ObjectKind::Context, context, done)
    })
}

/// `gdsync_soft_stream_create`.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_soft_stream_create() -> CUstream {
    error::pointer("gdsync_soft_stream_create", streams::create_soft)
}

/// `gdsync_soft_stream_destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_soft_stream_destroy(stream: CUstream) -> c_int {
    error::status("gdsync_soft_stream_destroy", || {
        non_null_mut("the stream", stream)?;
        streams::forget(stream, true)
    })
}

struct Kernel(unsafe extern "C" fn(*mut c_void), *mut c_void);

// SAFETY: the program lets the stream's thread call the function with its argument.
unsafe impl Send for Kernel {}

impl Kernel {
    fn run(self) {
        // SAFETY: the caller of `gdsync_soft_stream_launch` lets another thread call the function.
        unsafe { (self.0)(self.1) };
    }
}

/// `gdsync_soft_stream_launch`.
///
/// # Safety
/// The function may be called with the argument on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_soft_stream_launch(
    stream: CUstream,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    error::status("gdsync_soft_stream_launch", || {
        non_null_mut("the stream", stream)?;
        let kernel = Kernel(function.ok_or(CallError::Null { what: "the function" })?, argument);
        let stream = streams::find_soft(stream)?;
        if let Some(stream) = stream.soft() {
            stream.launch(move || kernel.run())?;
        }
        Ok(())
    })
}

/// `gdsync_stream_synchronize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_synchronize(stream: CUstream, timeout_ms: c_uint) -> c_int {
    error::status("gdsync_stream_synchronize", || {
        // SAFETY: the caller passes a stream that is alive.
        let stream = unsafe { streams::find(stream) }?;
        let (begun, timeout) = (Instant::now(), Duration::from_millis(timeout_ms.into()));
        stream.synchronize(timeout)?;
        // Of a stream that the program has not promised to keep, the library knows the end of its own work only.
        while let StreamObject::Cuda(cuda, Some(_)) = &*stream
            && !cuda.query()?
        {
            if begun.elapsed() >= timeout {
                return Err(CallError::TimedOut { timeout_ms: timeout_ms.into(), cause: None });
            }
            std::thread::yield_now();
        }
        Ok(())
    })
}

/// `gdsync_stream_go_on`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_go_on(stream: CUstream) -> c_int {
    error::status("gdsync_stream_go_on", || {
        // SAFETY: the caller passes a stream that is alive.
        unsafe { streams::find(stream) }?.go_on();
        Ok(())
    })
}

/// `gdsync_stream_keep`.
///
/// # Safety
/// As the flags promise: the stream is alive until `gdsync_stream_forget` of it has returned, and with `GDSYNC_STREAM_NEVER_CAPTURED`
/// nothing captures it. No other thread uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_keep(stream: CUstream, flags: c_uint) -> c_int {
    error::status("gdsync_stream_keep", || {
        if flags & !GDSYNC_STREAM_NEVER_CAPTURED != 0 {
            return Err(bad_bits("flags", flags, "GDSYNC_STREAM_NEVER_CAPTURED (1) is the only flag"));
        }
        // SAFETY: the caller passes a stream that is alive.
        unsafe { streams::keep(stream, flags & GDSYNC_STREAM_NEVER_CAPTURED != 0) }
    })
}

/// `gdsync_stream_forget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_forget(stream: CUstream) -> c_int {
    error::status("gdsync_stream_forget", || streams::forget(stream, false))
}

/// `gdsync_cancel_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cancel_send(request: *mut gds_send_request_t) -> c_int {
    error::status("gdsync_cancel_send", || {
        let request = non_null_mut("the request", request)?;
        // SAFETY: the caller passes a valid pointer.
        let name = unsafe { (*request).rollback_id };
        // The newest first, as cancelling the newest send leaves no NOP.
        requests::use_up_sends(name)?.into_iter().rev().for_each(drop);
        Ok(())
    })
}

/// `gdsync_cancel_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cancel_wait(request: *mut gds_wait_request_t) -> c_int {
    error::status("gdsync_cancel_wait", || {
        let request = non_null_mut("the request", request)?;
        // SAFETY: the caller passes a valid pointer.
        requests::use_up_wait(unsafe { (*request).peek_id }).map(drop)
    })
}

/// `gdsync_abort_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_abort_qp(qp: *mut gds_qp) -> c_int {
    // SAFETY: the caller lets no other thread destroy the object.
    error::status("gdsync_abort_qp", || Ok(unsafe { objects::queue_pair(qp) }?.queue_pair.abort()?))
}

/// `gdsync_forget_memory`.
///
/// # Safety
/// No stream still has to pass work that uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_forget_memory(addr: *const c_void, length: size_t) -> c_int {
    error::status("gdsync_forget_memory", || {
        pages::forget(non_null("the memory", addr)? as usize, length);
        Ok(())
    })
}
