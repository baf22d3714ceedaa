//! `gdsync/ext.h`: persistent requests.

use super::trigger::TRIGGERS;
use crate::error::{self, CallError, list, non_null, non_null_mut};
use crate::persistent::{self, Work};
use crate::types::{CUstream, gds_qp, gds_send_wr, gdsync_request, gdsync_trigger, ibv_recv_wr};
use crate::{objects, streams, work};
use gdsync::QueueError;
use gdsync::persistent::{ListError, PersistentError, Request};
use gdsync::queue::StateError;
use gdsync_sys::verbs::ibv_wc;
use libc::{c_int, c_uint, size_t};
use std::time::Duration;

/// `gdsync_send_init`.
///
/// # Safety
/// The pointers are null or valid; the memory stays registered until the request is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_send_init(qp: *mut gds_qp, wr: *const gds_send_wr) -> *mut gdsync_request {
    error::pointer("gdsync_send_init", || {
        // SAFETY: the caller keeps the queue pair alive, and passes a pointer that is null or valid.
        let (object, wr) = unsafe { (objects::queue_pair(qp)?, &*non_null("the work request", wr)?) };
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        let send = unsafe { work::persistent_send(object, wr) }?;
        persistent::keep(qp.addr(), wr.wr_id, Work::Send(send))
    })
}

/// `gdsync_recv_init`.
///
/// # Safety
/// As [`gdsync_send_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_recv_init(qp: *mut gds_qp, wr: *const ibv_recv_wr) -> *mut gdsync_request {
    error::pointer("gdsync_recv_init", || {
        // SAFETY: the caller keeps the queue pair alive, and passes a pointer that is null or valid.
        let (object, wr) = unsafe { (objects::queue_pair(qp)?, &*non_null("the work request", wr)?) };
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        let receive = unsafe { work::persistent_receive(object, wr) }?;
        persistent::keep(qp.addr(), wr.wr_id, Work::Receive(receive))
    })
}

const LIST: &str = "the list of requests";

/// `gdsync_start_all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_start_all(
    stream: CUstream,
    number: size_t,
    requests: *const *mut gdsync_request,
) -> c_int {
    error::status("gdsync_start_all", || {
        // SAFETY: the caller keeps the objects alive, and passes an array of that length.
        let (list, stream) = unsafe { (list(LIST, number, requests)?, streams::find(stream)?) };
        // SAFETY: the caller lets no other thread free the object.
        unsafe { start(list, |list| stream.start_all(list)) }
    })
}

/// `gdsync_start_all_by_trigger`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_start_all_by_trigger(
    stream: CUstream,
    trigger: *mut gdsync_trigger,
    number: size_t,
    requests: *const *mut gdsync_request,
) -> c_int {
    error::status("gdsync_start_all_by_trigger", || {
        // SAFETY: the caller keeps the objects alive, and passes an array of that length.
        let (list, stream) = unsafe { (list(LIST, number, requests)?, streams::find(stream)?) };
        // SAFETY: the caller lets no other thread free the object.
        let trigger = &unsafe { TRIGGERS.find(trigger) }?.trigger;
        // SAFETY: the caller lets no other thread free the object.
        unsafe { start(list, |list| stream.start_all_by_trigger(list, trigger)) }
    })
}

/// Starts a list. If a queue pair is not connected, adopts the states that the program may have set without gdsync, and retries.
///
/// # Safety
/// No other thread frees the requests, or destroys their queue pairs.
unsafe fn start(
    list: &[*mut gdsync_request],
    start: impl Fn(&mut [&mut dyn Request]) -> Result<(), CallError>,
) -> Result<(), CallError> {
    // SAFETY: the caller lets no other thread free the object.
    let start = || unsafe { persistent::with_all(list, &start) };
    match start() {
        Err(error) if is_not_connected(&error) => {
            // SAFETY: the caller lets no other thread free the object.
            for owner in unsafe { persistent::owners(list) }? {
                // SAFETY: the caller lets no other thread destroy the object.
                unsafe { objects::queue_pair(owner) }?.queue_pair.adopt_state();
            }
            start()
        }
        done => done,
    }
}

/// Returns whether a queue pair was not connected; the program may have connected it without gdsync.
fn is_not_connected(error: &CallError) -> bool {
    let CallError::Persistent(ListError { source: PersistentError::Queue(error), .. }) = error else {
        return false;
    };
    matches!(error, QueueError::State(StateError::NotConnected { .. }))
}

/// `gdsync_wait_all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_wait_all(
    stream: CUstream,
    number: size_t,
    requests: *const *mut gdsync_request,
) -> c_int {
    error::status("gdsync_wait_all", || {
        // SAFETY: the caller keeps the objects alive, and passes an array of that length.
        let (list, stream) = unsafe { (list(LIST, number, requests)?, streams::find(stream)?) };
        // SAFETY: the caller lets no other thread free the object.
        unsafe { persistent::with_all(list, |list| stream.wait_all(list)) }
    })
}

/// `gdsync_request_complete`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_request_complete(
    request: *mut gdsync_request,
    wc: *mut ibv_wc,
    timeout_ms: c_uint,
) -> c_int {
    error::status("gdsync_request_complete", || {
        let wc = non_null_mut("wc", wc)?;
        // SAFETY: the caller lets no other thread free the object.
        let completion = unsafe { persistent::complete(request, Duration::from_millis(timeout_ms.into())) }?;
        // SAFETY: the place is valid for a write.
        unsafe { wc.write(completion) };
        Ok(())
    })
}

/// `gdsync_request_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_request_free(request: *mut gdsync_request) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::status("gdsync_request_free", || unsafe { persistent::free(request) })
}
