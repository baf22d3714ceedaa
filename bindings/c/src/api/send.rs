//! `gdsync/core.h`: sends.

use crate::batch::Builder;
use crate::error::{self, CallError, bad, non_null_mut};
use crate::requests::{self, Pending};
use crate::types::{CUstream, gds_qp, gds_send_request_t, gds_send_wr};
use crate::{objects, streams, work};
use gdsync::{Batch, PreparedSend};
use libc::c_int;

/// `gds_post_send`.
///
/// # Safety
/// The pointers are null or valid; the memory stays registered until the sends have completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_post_send(
    qp: *mut gds_qp,
    wr: *mut gds_send_wr,
    bad_wr: *mut *mut gds_send_wr,
) -> c_int {
    // SAFETY: the caller's.
    let plain = || unsafe {
        let qp = objects::queue_pair(qp).ok()?;
        let plain = work::Plain::of(qp, wr)?;
        qp.queue_pair.post_send(plain.request()?).ok()
    };
    if error::quietly(plain).is_some() {
        return 0;
    }
    // SAFETY: the caller's.
    unsafe { post_any(qp, wr, bad_wr) }
}

/// As [`queue_any`].
#[cold]
#[inline(never)]
unsafe fn post_any(qp: *mut gds_qp, wr: *mut gds_send_wr, bad_wr: *mut *mut gds_send_wr) -> c_int {
    error::status("gds_post_send", || {
        // SAFETY: the caller's.
        unsafe { work::post_sends(objects::queue_pair(qp)?, wr, bad_wr) }
    })
}

/// A list of prepared sends, of which most have one.
#[derive(Default)]
struct Prepared {
    first: Option<PreparedSend>,
    more: Vec<PreparedSend>,
}

impl Prepared {
    #[inline]
    fn push(&mut self, send: PreparedSend) {
        if self.first.is_none() {
            self.first = Some(send);
        } else {
            self.more.push(send);
        }
    }

    fn pending(self) -> Option<Pending> {
        let first = self.first?;
        if self.more.is_empty() {
            return Some(Pending::Send(first));
        }
        let mut all = vec![first];
        all.extend(self.more);
        Some(Pending::Sends(all))
    }
}

/// `gds_prepare_send`.
///
/// # Safety
/// The pointers are null or valid; the memory stays registered until the sends have completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_prepare_send(
    qp: *mut gds_qp,
    wr: *mut gds_send_wr,
    bad_wr: *mut *mut gds_send_wr,
    request: *mut gds_send_request_t,
) -> c_int {
    // SAFETY: the caller's.
    let plain = || unsafe {
        let (qp, request) = (objects::queue_pair(qp).ok()?, request.as_mut()?);
        let plain = work::Plain::of(qp, wr)?;
        let send = qp.queue_pair.prepare(plain.request()?).ok()?;
        name_it(request, requests::keep(qp.name(), Pending::Send(send)));
        Some(())
    };
    if error::quietly(plain).is_some() {
        return 0;
    }
    // SAFETY: the caller's.
    unsafe { prepare_any(qp, wr, bad_wr, request) }
}

/// As [`queue_any`].
#[cold]
#[inline(never)]
unsafe fn prepare_any(
    qp: *mut gds_qp,
    wr: *mut gds_send_wr,
    bad_wr: *mut *mut gds_send_wr,
    request: *mut gds_send_request_t,
) -> c_int {
    error::status("gds_prepare_send", || {
        let request = non_null_mut("the request", request)?;
        // SAFETY: the caller's.
        let qp = unsafe { objects::queue_pair(qp) }?;
        let mut prepared = Prepared::default();
        // SAFETY: the caller's.
        unsafe { work::prepare_sends(qp, wr, bad_wr, |send| prepared.push(send)) }?;
        let name = prepared.pending().map_or(0, |pending| requests::keep(qp.name(), pending));
        // SAFETY: a valid place, the caller's.
        name_it(unsafe { &mut *request }, name);
        Ok(())
    })
}

/// The rest of a request is never looked at.
fn name_it(request: &mut gds_send_request_t, name: u64) {
    request.storage = std::ptr::null_mut();
    (request.entries, request.rollback_id, request.comp_mask) = (0, name, 0);
}

/// `gds_stream_queue_send`.
///
/// # Safety
/// As [`gds_prepare_send`]; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_queue_send(
    stream: CUstream,
    qp: *mut gds_qp,
    wr: *mut gds_send_wr,
    bad_wr: *mut *mut gds_send_wr,
) -> c_int {
    // SAFETY: the caller's.
    let plain = || unsafe {
        let (qp, stream) = (objects::queue_pair(qp).ok()?, streams::remembered(stream)?);
        let plain = work::Plain::of(qp, wr)?;
        stream.queue_send(&qp.queue_pair, plain.request()?).ok()
    };
    if error::quietly(plain).is_some() {
        return 0;
    }
    // SAFETY: the caller's.
    unsafe { queue_any(stream, qp, wr, bad_wr) }
}

/// The general path, which also reports errors. A function of its own, so that the fast path sets
/// up no stack for it.
#[cold]
#[inline(never)]
unsafe fn queue_any(
    stream: CUstream,
    qp: *mut gds_qp,
    wr: *mut gds_send_wr,
    bad_wr: *mut *mut gds_send_wr,
) -> c_int {
    error::status("gds_stream_queue_send", || {
        // SAFETY: the caller's.
        let (qp, stream) = unsafe { (objects::queue_pair(qp)?, streams::find(stream)?) };
        let mut batch = Batch::new();
        // SAFETY: the caller's.
        unsafe { work::prepare_sends(qp, wr, bad_wr, |send| batch = std::mem::take(&mut batch).send(send)) }?;
        stream.post(batch)
    })
}

/// `gds_stream_post_send`.
///
/// # Safety
/// The request is null or valid; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_post_send(stream: CUstream, request: *mut gds_send_request_t) -> c_int {
    error::status("gds_stream_post_send", || {
        // SAFETY: the caller's.
        if let (Some(stream), Some(request)) = unsafe { (streams::remembered(stream), request.as_ref()) }
            && let Some(send) = requests::take_send(request.rollback_id)
        {
            return stream.post_send(send);
        }
        // SAFETY: the caller's.
        unsafe { post_all(stream, 1, request) }
    })
}

/// `gds_stream_post_send_all`.
///
/// # Safety
/// `request` is null or an array of `count`; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_post_send_all(
    stream: CUstream,
    count: c_int,
    request: *mut gds_send_request_t,
) -> c_int {
    // SAFETY: the caller's.
    error::status("gds_stream_post_send_all", || unsafe { post_all(stream, count, request) })
}

#[inline(never)]
unsafe fn post_all(
    stream: CUstream,
    count: c_int,
    request: *mut gds_send_request_t,
) -> Result<(), CallError> {
    // SAFETY: the caller's.
    unsafe { post_requests(stream, count, request, |request| (request.rollback_id, true)) }
}

/// Posts an array of requests as one batch. `name` tells the number of a request, and whether it is
/// a send.
///
/// # Safety
/// `requests` is null or an array of `count`; the stream is alive, and words that were appended to
/// waits are valid.
pub(super) unsafe fn post_requests<T>(
    stream: CUstream,
    count: c_int,
    requests: *mut T,
    name: impl Fn(&T) -> (u64, bool),
) -> Result<(), CallError> {
    let (requests, count) = (non_null_mut("the request", requests)?, how_many(count)?);
    // SAFETY: the caller's.
    let stream = unsafe { streams::find(stream) }?;
    let mut builder = Builder::new(stream.target(), count);
    for i in 0..count {
        // SAFETY: an array of `count`, the caller's.
        let (name, is_send) = name(unsafe { &*requests.add(i) });
        builder.request(name, is_send)?;
    }
    // SAFETY: the batch names nothing but requests, and the words of waits: the caller's.
    stream.post(unsafe { builder.finish() }?)
}

/// A count of requests, of which there is at least one.
pub(super) fn how_many(count: c_int) -> Result<usize, CallError> {
    let known = usize::try_from(count).ok().filter(|count| *count > 0);
    known.ok_or_else(|| bad("the count", count, "it must be at least 1"))
}
