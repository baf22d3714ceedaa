//! `gdsync/core.h`: sends.

use crate::batch::Builder;
use crate::error::{self, CallError, bad, non_null_mut};
use crate::objects::QueuePairObject;
use crate::requests::{self, Pending};
use crate::types::{CUstream, gds_qp, gds_send_request_t, gds_send_wr};
use crate::work::{self, SIGNALED, opcode, remote};
use crate::{objects, streams};
use gdsync::advanced::raw::BorrowedSlice;
use gdsync::{Batch, PreparedSend, WorkRequest};
use libc::c_int;

/// The most frequent request: a single signaled send or write of one element. With this much known at compile time, posting takes half
/// the time.
struct SingleSend<'a> {
    wr: &'a gds_send_wr,
    borrowed: BorrowedSlice<'a>,
}

impl<'a> SingleSend<'a> {
    /// Returns `None` for any other request, and for errors, which the general path handles.
    ///
    /// # Safety
    /// The pointer is null, or of a valid request, whose memory stays registered until it has completed.
    #[inline(always)]
    unsafe fn of(qp: &'a QueuePairObject, wr: *const gds_send_wr) -> Option<Self> {
        // SAFETY: the caller passes a pointer that is null or valid.
        let wr = unsafe { wr.as_ref() }?;
        if !wr.next.is_null() || wr.exp_send_flags != SIGNALED || wr.num_sge != 1 || qp.is_datagram {
            return None;
        }
        // SAFETY: the caller passes valid pointers.
        let borrowed = unsafe {
            let sge = wr.sg_list.as_ref()?;
            qp.memory.borrow(sge.addr, sge.length as usize, sge.lkey)
        };
        Some(SingleSend { wr, borrowed })
    }

    /// The request, as a value and not as an argument of a call: such large arguments are copied, and the copy stalls on the preceding
    /// stores.
    #[inline(always)]
    fn request(&self) -> Option<WorkRequest<'_>> {
        let request = match self.wr.exp_opcode {
            opcode::SEND => WorkRequest::send(self.borrowed.slices()),
            opcode::RDMA_WRITE => WorkRequest::write(self.borrowed.slices(), remote(self.wr)),
            _ => return None,
        };
        Some(request.wr_id(self.wr.wr_id))
    }
}

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
    // SAFETY: the caller passes valid pointers.
    let single = || unsafe {
        let qp = objects::queue_pair(qp).ok()?;
        let single = SingleSend::of(qp, wr)?;
        qp.queue_pair.post_send(single.request()?).ok()
    };
    if error::quietly(single).is_some() {
        return 0;
    }
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { post_any(qp, wr, bad_wr) }
}

/// As [`queue_any`].
#[cold]
#[inline(never)]
unsafe fn post_any(qp: *mut gds_qp, wr: *mut gds_send_wr, bad_wr: *mut *mut gds_send_wr) -> c_int {
    error::status("gds_post_send", || {
        // SAFETY: the caller lets no other thread destroy the object.
        unsafe { work::post_sends(objects::queue_pair(qp)?, wr, bad_wr) }
    })
}

/// A list of prepared sends, most often a single one.
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
    // SAFETY: the caller passes valid pointers.
    let single = || unsafe {
        let (qp, request) = (objects::queue_pair(qp).ok()?, request.as_mut()?);
        let single = SingleSend::of(qp, wr)?;
        let send = qp.queue_pair.prepare(single.request()?).ok()?;
        name_it(request, requests::keep(qp.name(), Pending::Send(send)));
        Some(())
    };
    if error::quietly(single).is_some() {
        return 0;
    }
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
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
        // SAFETY: the caller lets no other thread destroy the object.
        let qp = unsafe { objects::queue_pair(qp) }?;
        let mut prepared = Prepared::default();
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        unsafe { work::prepare_sends(qp, wr, bad_wr, |send| prepared.push(send)) }?;
        let name = prepared.pending().map_or(0, |pending| requests::keep(qp.name(), pending));
        // SAFETY: the caller passes a place that is valid for a write.
        name_it(unsafe { &mut *request }, name);
        Ok(())
    })
}

/// Writes the request's number. The library reads nothing else of the struct.
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
    // SAFETY: the caller passes valid pointers.
    let single = || unsafe {
        let (qp, stream) = (objects::queue_pair(qp).ok()?, streams::remembered(stream)?);
        let single = SingleSend::of(qp, wr)?;
        stream.queue_send(&qp.queue_pair, single.request()?).ok()
    };
    if error::quietly(single).is_some() {
        return 0;
    }
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    unsafe { queue_any(stream, qp, wr, bad_wr) }
}

/// The general path, which also reports errors. It is a separate function so that the fast path needs no stack frame for it.
#[cold]
#[inline(never)]
unsafe fn queue_any(
    stream: CUstream,
    qp: *mut gds_qp,
    wr: *mut gds_send_wr,
    bad_wr: *mut *mut gds_send_wr,
) -> c_int {
    error::status("gds_stream_queue_send", || {
        // SAFETY: the caller keeps the stream and the object alive.
        let (qp, stream) = unsafe { (objects::queue_pair(qp)?, streams::find(stream)?) };
        let mut batch = Batch::new();
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        unsafe { work::prepare_sends(qp, wr, bad_wr, |send| batch = std::mem::take(&mut batch).send(send)) }?;
        stream.post(batch)
    })
}

/// `gds_stream_post_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_post_send(stream: CUstream, request: *mut gds_send_request_t) -> c_int {
    error::status("gds_stream_post_send", || {
        // SAFETY: the caller passes a stream that is alive.
        if let (Some(stream), Some(request)) = unsafe { (streams::remembered(stream), request.as_ref()) }
            && let Some(send) = requests::take_send(request.rollback_id)
        {
            return stream.post_send(send);
        }
        // SAFETY: the caller keeps the memory of the descriptors valid.
        unsafe { post_all(stream, 1, request) }
    })
}

/// `gds_stream_post_send_all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_post_send_all(
    stream: CUstream,
    count: c_int,
    request: *mut gds_send_request_t,
) -> c_int {
    // SAFETY: the caller passes valid pointers, and keeps the memory registered.
    error::status("gds_stream_post_send_all", || unsafe { post_all(stream, count, request) })
}

#[inline(never)]
unsafe fn post_all(
    stream: CUstream,
    count: c_int,
    request: *mut gds_send_request_t,
) -> Result<(), CallError> {
    // SAFETY: the caller keeps the memory of the descriptors valid.
    unsafe { post_requests(stream, count, request, |request| (request.rollback_id, true)) }
}

/// Posts an array of requests as one batch. `name` returns a request's number, and whether it is a send.
///
/// # Safety
/// `requests` is null or an array of `count`; the stream is alive, and words that were appended to waits are valid.
pub(super) unsafe fn post_requests<T>(
    stream: CUstream,
    count: c_int,
    requests: *mut T,
    name: impl Fn(&T) -> (u64, bool),
) -> Result<(), CallError> {
    let (requests, count) = (non_null_mut("the request", requests)?, how_many(count)?);
    // SAFETY: the caller passes a stream that is alive.
    let stream = unsafe { streams::find(stream) }?;
    let mut builder = Builder::new(stream.target(), count);
    for i in 0..count {
        // SAFETY: the caller passes an array of `count`.
        let (name, is_send) = name(unsafe { &*requests.add(i) });
        builder.request(name, is_send)?;
    }
    // SAFETY: the batch has only requests, and words of waits that the caller keeps valid.
    stream.post(unsafe { builder.finish() }?)
}

pub(super) fn how_many(count: c_int) -> Result<usize, CallError> {
    let known = usize::try_from(count).ok().filter(|count| *count > 0);
    known.ok_or_else(|| bad("the count", count, "it must be at least 1"))
}
