//! `gdsync/ext.h`: waits with a status.

use super::wait;
use crate::error::{self, CallError};
use crate::named::Named;
use crate::streams;
use crate::types::{CUstream, gds_cq, gdsync_status};
use gdsync::Batch;
use gdsync::queue::Status;
use gdsync_sys::pause::Pause;
use libc::{c_int, c_uint};
use std::time::Duration;

/// What `gdsync_status_t *` stand for.
static STATUSES: Named<gdsync_status, Status> =
    Named::new("the status", "pass what gdsync_stream_wait_cq_checked returned, until gdsync_status_free");

/// `gdsync_stream_wait_cq_checked`.
///
/// # Safety
/// The stream is alive, and no other thread destroys the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_wait_cq_checked(
    stream: CUstream,
    cq: *mut gds_cq,
) -> *mut gdsync_status {
    error::pointer("gdsync_stream_wait_cq_checked", || {
        // SAFETY: the caller's.
        let stream = unsafe { streams::find(stream) }?;
        // SAFETY: the caller's.
        let (wait, _) = unsafe { wait::prepare(cq) }?;
        let wait = wait.checked()?;
        let status = wait.status();
        let word = status.word().addr().get() as usize;
        stream.post(Batch::new().wait_checked(wait))?;
        STATUSES.keep(status, |_| gdsync_status { word: std::ptr::with_exposed_provenance(word) })
    })
}

/// `gdsync_status_wait`.
///
/// # Safety
/// No other thread frees the status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_status_wait(status: *mut gdsync_status, timeout_ms: c_uint) -> c_int {
    error::status("gdsync_status_wait", || {
        // SAFETY: the caller's.
        let status = unsafe { STATUSES.find(status) }?;
        let (mut pause, timeout) = (Pause::new(), Duration::from_millis(timeout_ms.into()));
        loop {
            match status.get() {
                Some(outcome) => return Ok(outcome?),
                None if pause.elapsed() >= timeout => {
                    return Err(CallError::NotCompleted { timeout_ms: timeout_ms.into() });
                }
                None => pause.pause(),
            }
        }
    })
}

/// `gdsync_status_free`.
///
/// # Safety
/// No other thread uses the status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_status_free(status: *mut gdsync_status) -> c_int {
    error::status("gdsync_status_free", || STATUSES.take(status).map(drop))
}
