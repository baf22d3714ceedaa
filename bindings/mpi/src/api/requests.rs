//! Requests: made, matched, waited for by the CPU, and freed.

use super::{RequestHandle, handle, length, null, store, take};
use crate::collective::Reduction;
use crate::error::{Class, Failure, status};
use crate::memory::Buffer;
use crate::offer::{OFFER, refusal, to_bytes};
use crate::plan::Plan;
use crate::queue;
use crate::reduce;
use crate::request::{Request, retire};
use libc::{c_char, c_int, c_void};
use std::sync::Arc;

/// # Safety
/// As [`Request::new`] and [`store`].
pub(super) unsafe fn make(plan: Plan, made: *mut RequestHandle) -> Result<(), Failure> {
    // SAFETY: the caller's.
    let request = Arc::new(unsafe { Request::new(plan) });
    let raw = Arc::into_raw(request);
    // SAFETY: the caller's.
    unsafe { store(made, raw.cast()) }.inspect_err(|_| {
        // SAFETY: made above, and nothing else has it.
        drop(unsafe { Arc::from_raw(raw) });
    })
}

/// Makes a request that sends (`sends` is not 0) or receives `bytes` bytes.
///
/// # Safety
/// The memory stays until the request is freed and its work has ended; `made` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_transfer(
    sends: c_int,
    buffer: *mut c_void,
    bytes: u64,
    made: *mut RequestHandle,
) -> c_int {
    status(|| {
        let buffer = Buffer { address: buffer.expose_provenance(), bytes: length(bytes)? };
        // SAFETY: the caller's.
        unsafe { make(Plan::Transfer { sends: sends != 0, buffer }, made) }
    })
}

fn place(rank: c_int, size: c_int) -> Result<(u32, u32), Failure> {
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        _ => Err(Failure::new(Class::Argument, format!("there is no rank {rank} among {size}"))),
    }
}

/// Makes a barrier among `size` ranks, of which this one is `rank`.
///
/// # Safety
/// `made` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_barrier(rank: c_int, size: c_int, made: *mut RequestHandle) -> c_int {
    status(|| {
        let (rank, size) = place(rank, size)?;
        // SAFETY: it has no memory; the caller's.
        unsafe { make(Plan::Barrier { rank, size }, made) }
    })
}

/// An all-reduce: `struct gdsync_mpi_reduction` of `c/engine.h`.
#[repr(C)]
#[derive(Debug)]
pub struct ReductionOfC {
    /// The input; null where the output has it.
    pub source: *const c_void,
    /// The output.
    pub target: *mut c_void,
    /// How many numbers.
    pub count: u64,
    /// Their kind, from 0 on in the order of `enum gdsync_mpi_element`.
    pub element: u32,
    /// What becomes of them, from 0 on in the order of `enum gdsync_mpi_operation`.
    pub operation: u32,
    /// This rank.
    pub rank: c_int,
    /// How many there are.
    pub size: c_int,
}

/// Makes an all-reduce.
///
/// # Safety
/// As [`gdsync_mpi_transfer`], for both buffers; `what` is null or valid for a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_allreduce(what: *const ReductionOfC, made: *mut RequestHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let what = unsafe { what.as_ref() }.ok_or_else(|| null("the all-reduce"))?;
        let (rank, size) = place(what.rank, what.size)?;
        let (element, operation) = (reduce::element(what.element)?, reduce::operation(what.operation)?);
        reduce::check(element, operation)?;
        let bytes = length(what.count.saturating_mul(element.bytes() as u64))?;
        let source = Buffer { address: what.source.expose_provenance(), bytes };
        let source = (source.address != 0).then_some(source);
        let target = Buffer { address: what.target.expose_provenance(), bytes };
        if source.is_some_and(|source| overlap(source, target)) {
            let text =
                "the input and the output of an all-reduce overlap: pass MPI_IN_PLACE, or another buffer";
            return Err(Failure::new(Class::Buffer, text));
        }
        let reduction = Reduction { source, target, element, operation };
        // SAFETY: the caller's.
        unsafe { make(Plan::Allreduce { reduction, rank, size }, made) }
    })
}

fn overlap(one: Buffer, other: Buffer) -> bool {
    let end = |buffer: Buffer| buffer.address.saturating_add(buffer.bytes);
    one.address < end(other) && other.address < end(one)
}

/// Frees a request. Its work goes on; its memory is the program's again once that has ended.
///
/// # Safety
/// The request is null or was made by this library and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_request_free(request: RequestHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { take("the request", request) }?;
        queue::all().iter().for_each(|queue| queue.forget(&request));
        retire(request);
        Ok(())
    })
}

/// The number of legs of a request.
///
/// # Safety
/// As [`gdsync_mpi_request_free`]; `number` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_legs(request: RequestHandle, number: *mut c_int) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let legs = request.state.lock().legs.len() as c_int;
        // SAFETY: the caller's.
        unsafe { store(number, legs) }
    })
}

/// The peer of a collective's leg, and whether this side sends.
///
/// # Safety
/// As [`gdsync_mpi_legs`], for both places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_leg(
    request: RequestHandle,
    index: c_int,
    peer: *mut c_int,
    sends: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let found = request.state.lock().legs.get(index as usize).map(|leg| (leg.side.peer, leg.side.sends));
        let text = || format!("there is no leg with the index {index}");
        let (of, is_send) = found.ok_or_else(|| Failure::new(Class::Argument, text()))?;
        // SAFETY: the caller's.
        unsafe {
            store(peer, of as c_int)?;
            store(sends, is_send.into())
        }
    })
}

/// Makes this side of a leg. `offer` is what the other side is to get, also where this fails: a refusal then.
///
/// # Safety
/// As [`gdsync_mpi_request_free`]; `offer` has 256 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_offer(request: RequestHandle, index: c_int, offer: *mut c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let made = request.offer(index as usize);
        let line = made.as_ref().map_or_else(refusal, ToString::to_string);
        // SAFETY: the caller's.
        unsafe { store(offer.cast(), to_bytes(&line)) }?;
        made.map(drop)
    })
}

/// Takes the other side's offer, and connects the leg. Where that fails, `refused` is what the other side is to get.
///
/// # Safety
/// As [`gdsync_mpi_offer`]; `theirs` has 256 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_answer(
    request: RequestHandle,
    index: c_int,
    theirs: *const c_char,
    refused: *mut c_char,
) -> c_int {
    status(|| {
        if theirs.is_null() {
            return Err(null("the offer"));
        }
        // SAFETY: the caller's; bytes have no alignment.
        let theirs = unsafe { theirs.cast::<[u8; OFFER]>().read() };
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        request.answer(index as usize, &theirs).or_else(|failure| {
            // SAFETY: the caller's.
            unsafe { store(refused.cast(), to_bytes(&refusal(&failure))) }?;
            Err(failure)
        })
    })
}

/// Matching has failed: ends the legs that are connected.
///
/// # Safety
/// As [`gdsync_mpi_request_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_abandon(request: RequestHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        request.abandon();
        Ok(())
    })
}

/// Makes the work of a request whose legs are connected. `bytes` gets the length of a transfer's message.
///
/// # Safety
/// As [`gdsync_mpi_legs`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_matched(request: RequestHandle, bytes: *mut u64) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let message = request.matched()?;
        // SAFETY: the caller's.
        unsafe { store(bytes, message) }
    })
}

/// Waits on the CPU until a request has completed. `bytes` gets what it has received.
///
/// # Safety
/// As [`gdsync_mpi_legs`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_wait(request: RequestHandle, bytes: *mut u64) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let received = request.wait()?;
        // SAFETY: the caller's.
        unsafe { store(bytes, received) }
    })
}
