//! `gdsync/mlx5.h`: sends and waits for kernels.

use super::send::how_many;
use crate::batch::{check_flags, check_word};
use crate::error::{self, CallError, non_null, non_null_mut};
use crate::pages;
use crate::requests::{self, Pending};
use crate::stream_object::StreamObject;
use crate::streams;
use crate::types::{
    self, gds_mlx5_dword_wait_info_t, gds_mlx5_send_info_t, gds_mlx5_wait_info_t, gds_send_request_t,
    gds_wait_request_t,
};
use gdsync::PreparedSend;
use gdsync::advanced::raw::KernelSend;
use gdsync::memop::Condition;
use gdsync::memory::HostAddr;
use libc::c_int;
use std::sync::Arc;

/// Translates addresses for this thread's kernels.
struct View(Option<Arc<StreamObject>>);

impl View {
    fn new() -> Result<Self, CallError> {
        Ok(View(streams::current()?))
    }

    fn pointer<T>(&self, at: HostAddr) -> Result<*mut T, CallError> {
        let address = match &self.0 {
            Some(stream) => stream.translate(at, size_of::<T>())?,
            None => at.get(),
        };
        Ok(address as *mut T)
    }
}

/// `gds_mlx5_get_dword_wait_info`.
///
/// # Safety
/// The pointers are null or valid, and the word stays so as long as kernels use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_mlx5_get_dword_wait_info(
    ptr: *mut u32,
    value: u32,
    flags: c_int,
    mlx5_info: *mut gds_mlx5_dword_wait_info_t,
) -> c_int {
    error::status("gds_mlx5_get_dword_wait_info", || {
        check_word(ptr)?;
        let info = non_null_mut("mlx5_info", mlx5_info)?;
        let view = View::new()?;
        let ptr = if check_flags(flags, 0)? == types::GDS_MEMORY_GPU || view.0.is_none() {
            ptr
        } else {
            // SAFETY: the caller keeps the memory of the descriptors valid.
            view.pointer(unsafe { pages::word(ptr as usize) }?.addr())?
        };
        // SAFETY: the place is valid for a write.
        unsafe { info.write(gds_mlx5_dword_wait_info_t { ptr, value }) };
        Ok(())
    })
}

/// Hands sends to a kernel. The last one's doorbell rings for all.
fn give(sends: Vec<PreparedSend>) -> Result<Option<KernelSend>, CallError> {
    let mut last = None;
    for send in sends {
        last = Some(send.give_to_kernel()?);
    }
    Ok(last)
}

/// `gds_mlx5_get_send_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_mlx5_get_send_info(
    count: c_int,
    requests: *const gds_send_request_t,
    mlx5_infos: *mut gds_mlx5_send_info_t,
) -> c_int {
    error::status("gds_mlx5_get_send_info", || {
        let (requests, count) = (non_null("the requests", requests)?, how_many(count)?);
        let infos = non_null_mut("mlx5_infos", mlx5_infos)?;
        let view = View::new()?;
        for i in 0..count {
            // SAFETY: the caller passes an array of `count`.
            let name = unsafe { (*requests.add(i)).rollback_id };
            let Some(ring) = give(requests::use_up_sends(name)?)? else { continue };
            let info = gds_mlx5_send_info_t {
                // Only `membar_full` is set.
                membars: 1 << 1,
                dbrec_ptr: view.pointer(ring.record_at)?,
                dbrec_value: ring.record,
                db_ptr: view.pointer(ring.register)?,
                db_value: ring.doorbell,
            };
            // SAFETY: as above.
            unsafe { infos.add(i).write(info) };
        }
        Ok(())
    })
}

/// `gds_mlx5_get_wait_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_mlx5_get_wait_info(
    count: c_int,
    requests: *const gds_wait_request_t,
    mlx5_infos: *mut gds_mlx5_wait_info_t,
) -> c_int {
    error::status("gds_mlx5_get_wait_info", || {
        let (requests, count) = (non_null("the requests", requests)?, how_many(count)?);
        let infos = non_null_mut("mlx5_infos", mlx5_infos)?;
        let view = View::new()?;
        for i in 0..count {
            // SAFETY: the caller passes an array of `count`.
            let name = unsafe { (*requests.add(i)).peek_id };
            let Pending::Wait(wait, words) = requests::take(name, false)? else { continue };
            if !words.is_empty() {
                requests::put_back(name, Pending::Wait(wait, words));
                let remedy = "have the kernel write the words that were appended itself";
                return Err(CallError::Unsupported { what: "a kernel's wait has no words appended", remedy });
            }
            requests::used_up(name);
            let wait = wait.give_to_kernel()?;
            let cond = if wait.condition == Condition::And {
                types::GDS_WAIT_COND_AND
            } else {
                types::GDS_WAIT_COND_NOR
            };
            let info = gds_mlx5_wait_info_t {
                cond,
                cqe_ptr: view.pointer(wait.word_at)?,
                cqe_value: wait.value,
                flag_ptr: view.pointer(wait.flag_at)?,
                flag_value: wait.flag,
            };
            // SAFETY: as above.
            unsafe { infos.add(i).write(info) };
        }
        Ok(())
    })
}
