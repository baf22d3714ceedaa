//! `gdsync/core.h`: waits for completions.

use super::send::post_requests;
use crate::batch::check_word;
use crate::error::{self, CallError, cause_of, no_flags, non_null_mut};
use crate::handles::Named;
use crate::requests::{self, Pending};
use crate::types::{CUstream, GDS_INFO_MAX_OPS, gds_cq, gds_wait_request_t, gdsync_status};
use crate::{objects, streams};
use gdsync::queue::Status;
use gdsync::{Batch, PreparedWait};
use gdsync_sys::pause::Pause;
use libc::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// libgdsync counts two operations for a wait: the wait, and the write that marks its end.
const OWN_OPS: usize = 2;

/// Prepares the next wait of a queue, and writes the index of the following one to the program's struct.
///
/// # Safety
/// No other thread destroys the queue.
pub(super) unsafe fn prepare(cq: *mut gds_cq) -> Result<(PreparedWait, usize), CallError> {
    // SAFETY: the caller lets no other thread destroy the object.
    let (queue, owner) = unsafe { objects::queue(cq) }?;
    let wait = queue.prepare_wait()?;
    // SAFETY: the caller passes a valid struct, whose field is aligned; other threads access it atomically, too.
    let next = unsafe { AtomicU32::from_ptr(&raw mut (*cq).curr_offset) };
    next.store(wait.index().wrapping_add(1), Ordering::Relaxed);
    Ok((wait, owner))
}

/// `gds_prepare_wait_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_prepare_wait_cq(
    cq: *mut gds_cq,
    request: *mut gds_wait_request_t,
    flags: c_int,
) -> c_int {
    error::status("gds_prepare_wait_cq", || {
        let request = non_null_mut("the request", request)?;
        no_flags(flags)?;
        // SAFETY: the caller lets no other thread destroy the object.
        let (wait, owner) = unsafe { prepare(cq) }?;
        let offset = wait.index();
        let name = requests::keep(owner, Pending::Wait(wait, Vec::new()));
        // SAFETY: the caller passes a place that is valid for a write. The library reads nothing else of it.
        unsafe {
            (*request).storage = std::ptr::null_mut();
            ((*request).entries, (*request).whence, (*request).offset) = (0, 0, offset);
            ((*request).peek_id, (*request).comp_mask) = (name, 0);
        }
        Ok(())
    })
}

/// `gds_append_wait_cq`.
///
/// # Safety
/// The request is null or valid; the word stays valid until the stream has written it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_append_wait_cq(
    request: *mut gds_wait_request_t,
    dw: *mut u32,
    val: u32,
) -> c_int {
    error::status("gds_append_wait_cq", || {
        let request = non_null_mut("the request", request)?;
        check_word(dw)?;
        // SAFETY: the caller passes a valid pointer.
        unsafe {
            let words = requests::append((*request).peek_id, (dw as usize, val), GDS_INFO_MAX_OPS - OWN_OPS)?;
            (*request).entries = words;
        }
        Ok(())
    })
}

/// `gds_stream_post_wait_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_post_wait_cq(
    stream: CUstream,
    request: *mut gds_wait_request_t,
) -> c_int {
    error::status("gds_stream_post_wait_cq", || {
        // SAFETY: the caller passes a stream that is alive.
        if let (Some(stream), Some(request)) = unsafe { (streams::remembered(stream), request.as_ref()) }
            && let Some(wait) = requests::take_wait(request.peek_id)
        {
            return stream.post(Batch::new().wait(wait));
        }
        // SAFETY: the caller keeps the memory of the descriptors valid.
        unsafe { post_all(stream, 1, request) }
    })
}

/// `gds_stream_post_wait_cq_all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_post_wait_cq_all(
    stream: CUstream,
    count: c_int,
    request: *mut gds_wait_request_t,
) -> c_int {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    error::status("gds_stream_post_wait_cq_all", || unsafe { post_all(stream, count, request) })
}

#[inline(never)]
unsafe fn post_all(
    stream: CUstream,
    count: c_int,
    request: *mut gds_wait_request_t,
) -> Result<(), CallError> {
    // SAFETY: the caller passes an array of `count`, and keeps appended words valid.
    unsafe { post_requests(stream, count, request, |request| (request.peek_id, false)) }
}

/// `gds_stream_wait_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_wait_cq(stream: CUstream, cq: *mut gds_cq, flags: c_int) -> c_int {
    error::status("gds_stream_wait_cq", || {
        no_flags(flags)?;
        non_null_mut("the completion queue", cq)?;
        // SAFETY: the caller passes a stream that is alive.
        let remembered = unsafe { streams::remembered(stream) };
        let found;
        let stream = match remembered {
            Some(stream) => stream,
            None => {
                // SAFETY: the caller passes a stream that is alive.
                found = unsafe { streams::find(stream) }?;
                &found
            }
        };
        // SAFETY: the caller lets no other thread destroy the object.
        let (wait, _) = unsafe { prepare(cq) }?;
        stream.post(Batch::new().wait(wait))
    })
}

/// `gds_post_wait_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_post_wait_cq(
    cq: *mut gds_cq,
    request: *mut gds_wait_request_t,
    flags: c_int,
) -> c_int {
    error::status("gds_post_wait_cq", || {
        no_flags(flags)?;
        // SAFETY: the caller lets no other thread destroy the object.
        unsafe { abort_wait(cq, request) }
    })
}

/// `gds_abort_wait_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_abort_wait_cq(cq: *mut gds_cq, request: *mut gds_wait_request_t) -> c_int {
    // SAFETY: the caller lets no other thread destroy the object.
    error::status("gds_abort_wait_cq", || unsafe { abort_wait(cq, request) })
}

unsafe fn abort_wait(cq: *mut gds_cq, request: *mut gds_wait_request_t) -> Result<(), CallError> {
    // SAFETY: the caller lets no other thread destroy the object.
    unsafe { objects::queue(cq) }?;
    let request = non_null_mut("the request", request)?;
    // SAFETY: the caller passes a valid pointer.
    let name = unsafe { (*request).peek_id };
    requests::use_up_wait(name)?.leave_completion_to_cpu();
    Ok(())
}

/// The objects of `gdsync_status_t *`.
static STATUSES: Named<gdsync_status, Status> =
    Named::new("the status", "pass what gdsync_stream_wait_cq_checked returned, until gdsync_status_free");

/// `gdsync_stream_wait_cq_checked`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_wait_cq_checked(
    stream: CUstream,
    cq: *mut gds_cq,
) -> *mut gdsync_status {
    error::pointer("gdsync_stream_wait_cq_checked", || {
        // SAFETY: the caller passes a stream that is alive.
        let stream = unsafe { streams::find(stream) }?;
        // SAFETY: the caller lets no other thread destroy the object.
        let (wait, _) = unsafe { prepare(cq) }?;
        let wait = wait.checked()?;
        let status = wait.status();
        let word = status.word().addr().get() as usize;
        stream.post(Batch::new().wait_checked(wait))?;
        STATUSES.keep(status, |_| gdsync_status { word: std::ptr::with_exposed_provenance(word) })
    })
}

/// `gdsync_status_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_status_wait(status: *mut gdsync_status, timeout_ms: c_uint) -> c_int {
    error::status("gdsync_status_wait", || {
        // SAFETY: the caller lets no other thread free the object.
        let status = unsafe { STATUSES.find(status) }?;
        let (mut pause, timeout) = (Pause::new(), Duration::from_millis(timeout_ms.into()));
        loop {
            match status.get() {
                Some(outcome) => return Ok(outcome?),
                None if pause.elapsed() >= timeout => {
                    let cause = cause_of(timeout, || status.explain());
                    return Err(CallError::NotCompleted { timeout_ms: timeout_ms.into(), cause });
                }
                None => pause.pause(),
            }
        }
    })
}

/// `gdsync_status_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_status_free(status: *mut gdsync_status) -> c_int {
    error::status("gdsync_status_free", || STATUSES.take(status).map(drop))
}
