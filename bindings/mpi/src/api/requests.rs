//! Creates, matches and frees requests, and waits for them on the CPU; partitioned requests also start here.

use super::{RequestHandle, get, give, handle, length, null, store, take, with};
use crate::collective::{Reduction, check_defined, element, operation};
use crate::connection::{INFO_BYTES, refusal, to_bytes};
use crate::error::{Class, Failure, status};
use crate::memory::Buffer;
use crate::partitions::Layout;
use crate::queue;
use crate::request::{Request, RequestKind, poll_partition_flags};
use libc::{c_char, c_int, c_void};
use std::sync::Arc;

/// # Safety
/// As [`Request::new`] and [`store`].
pub(super) unsafe fn make(kind: RequestKind, made: *mut RequestHandle) -> Result<(), Failure> {
    // SAFETY: the caller keeps the promises of `new`.
    let request = Arc::new(unsafe { Request::new(kind) });
    // SAFETY: the caller passes a place that is null or valid for a write.
    unsafe { give(request, made) }
}

/// Makes a request that sends, if `sends` is not 0, or receives `bytes` bytes.
///
/// # Safety
/// The memory stays until the request is freed and its work has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_transfer(
    sends: c_int,
    buffer: *mut c_void,
    bytes: u64,
    made: *mut RequestHandle,
) -> c_int {
    status(|| {
        let buffer = Buffer { address: buffer.expose_provenance(), bytes: length(bytes)? };
        // SAFETY: the caller keeps the promises of `new`.
        unsafe { make(RequestKind::Transfer { sends: sends != 0, buffer }, made) }
    })
}

fn place(rank: c_int, size: c_int) -> Result<(u32, u32), Failure> {
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        _ => Err(Failure::new(Class::Argument, format!("there is no rank {rank} among {size}"))),
    }
}

/// Makes a barrier among `size` ranks, of which this one is `rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_barrier(rank: c_int, size: c_int, made: *mut RequestHandle) -> c_int {
    status(|| {
        let (rank, size) = place(rank, size)?;
        // SAFETY: a barrier has no buffers; the caller passes a valid `made`.
        unsafe { make(RequestKind::Barrier { rank, size }, made) }
    })
}

/// An all-reduce: `struct gdsync_mpi_reduction` of `c/engine.h`.
#[repr(C)]
#[derive(Debug)]
pub struct ReductionOfC {
    /// The input; null if it is in the output.
    pub source: *const c_void,
    /// The output.
    pub target: *mut c_void,
    /// The number of elements.
    pub count: u64,
    /// The kind of elements, a value of `enum gdsync_mpi_element`.
    pub element: u32,
    /// The reduction, a value of `enum gdsync_mpi_operation`.
    pub operation: u32,
    /// This rank.
    pub rank: c_int,
    /// The number of ranks.
    pub size: c_int,
}

/// Makes an all-reduce.
///
/// # Safety
/// As [`gdsync_mpi_transfer`], for both buffers; `what` is null or valid for a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_allreduce(what: *const ReductionOfC, made: *mut RequestHandle) -> c_int {
    status(|| {
        // SAFETY: the caller passes a pointer that is null or valid.
        let what = unsafe { what.as_ref() }.ok_or_else(|| null("the all-reduce"))?;
        let (rank, size) = place(what.rank, what.size)?;
        let (element, operation) = (element(what.element)?, operation(what.operation)?);
        check_defined(element, operation)?;
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
        // SAFETY: the caller keeps the promises of `new`.
        unsafe { make(RequestKind::Allreduce { reduction, rank, size }, made) }
    })
}

fn overlap(one: Buffer, other: Buffer) -> bool {
    let end = |buffer: Buffer| buffer.address.saturating_add(buffer.bytes);
    one.address < end(other) && other.address < end(one)
}

/// Frees a request. Its work continues; the program gets its memory back once that has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_request_free(request: RequestHandle) -> c_int {
    status(|| {
        // SAFETY: the caller passes a handle that is null or not freed, and does not use it again.
        let request: Arc<Request> = unsafe { take("the request", request) }?;
        queue::free_request(request);
        Ok(())
    })
}

/// Returns the number of a request's peers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_peers(request: RequestHandle, number: *mut c_int) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and a place that is null or valid for a write.
    unsafe {
        get("the request", request, number, |request: &Arc<Request>| {
            Ok(request.state.lock().peers.len() as c_int)
        })
    }
}

/// Returns the rank of a collective's peer, and whether this side sends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_peer(
    request: RequestHandle,
    index: c_int,
    peer: *mut c_int,
    sends: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes handles that are null or not freed.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let found =
            request.state.lock().peers.get(index as usize).map(|peer| (peer.side.rank, peer.side.sends));
        let text = || format!("there is no leg with the index {index}");
        let (of, is_send) = found.ok_or_else(|| Failure::new(Class::Argument, text()))?;
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe {
            store(peer, of as c_int)?;
            store(sends, is_send.into())
        }
    })
}

/// Makes this side of the connection with a peer. `info` gets the line for the peer; after a failure, a refusal.
///
/// # Safety
/// `info` has `GDSYNC_MPI_INFO_BYTES` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_connection_info(
    request: RequestHandle,
    index: c_int,
    info: *mut c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes handles that are null or not freed.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let made = request.connection_info(index as usize);
        let line = made.as_ref().map_or_else(refusal, ToString::to_string);
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { store(info.cast(), to_bytes(&line)) }?;
        made.map(drop)
    })
}

/// Connects with a peer, whose line is `theirs`. After a failure, `refused` gets the line for the peer.
///
/// # Safety
/// As [`gdsync_mpi_connection_info`]; `theirs` has `GDSYNC_MPI_INFO_BYTES` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_connect(
    request: RequestHandle,
    index: c_int,
    theirs: *const c_char,
    refused: *mut c_char,
) -> c_int {
    status(|| {
        if theirs.is_null() {
            return Err(null("the offer"));
        }
        // SAFETY: the caller passes that many bytes, which need no alignment.
        let theirs = unsafe { theirs.cast::<[u8; INFO_BYTES]>().read() };
        // SAFETY: the caller passes handles that are null or not freed.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        request.connect(index as usize, &theirs).or_else(|failure| {
            // SAFETY: the caller passes a place that is null or valid for a write.
            unsafe { store(refused.cast(), to_bytes(&refusal(&failure))) }?;
            Err(failure)
        })
    })
}

/// Ends the connections of a request that has failed to match.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_abandon_match(request: RequestHandle) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed.
    unsafe {
        with("the request", request, |request: &Arc<Request>| {
            request.abandon_match();
            Ok(())
        })
    }
}

/// Makes the work of a request whose peers are connected. `bytes` gets the length of a transfer's message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_complete_match(request: RequestHandle, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and a place that is null or valid for a write.
    unsafe { get("the request", request, bytes, |request: &Arc<Request>| request.complete_match()) }
}

/// Waits on the CPU until a request has completed. `bytes` gets the bytes received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_wait(request: RequestHandle, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and a place that is null or valid for a write.
    unsafe { get("the request", request, bytes, |request: &Arc<Request>| request.wait()) }
}

/// The most partitions of a request: a queue has a work request for each, in two rounds.
const MOST: c_int = 8192;

/// Makes a partitioned request that sends, if `sends` is not 0, or receives `partitions` adjacent partitions of `bytes` bytes each.
///
/// # Safety
/// As [`gdsync_mpi_transfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partitioned(
    sends: c_int,
    buffer: *mut c_void,
    partitions: c_int,
    bytes: u64,
    made: *mut RequestHandle,
) -> c_int {
    status(|| {
        if !(1..=MOST).contains(&partitions) {
            let text = format!("the request has {partitions} partitions: pass a number from 1 to {MOST}");
            return Err(Failure::new(Class::Argument, text));
        }
        let layout = Layout { partitions: partitions.unsigned_abs(), bytes };
        let all = length(bytes.saturating_mul(layout.partitions.into()))?;
        let buffer = Buffer { address: buffer.expose_provenance(), bytes: all };
        // SAFETY: the caller keeps the promises of `new`.
        unsafe { make(RequestKind::Partitioned { sends: sends != 0, buffer, layout }, made) }
    })
}

/// Starts a round of a partitioned request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partitions_start(request: RequestHandle) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed.
    unsafe {
        with("the request", request, |request: &Arc<Request>| {
            request.with_partitions(|partitions, route| partitions.start(route))
        })
    }
}

/// Sends a partition, which is ready.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partition_ready(request: RequestHandle, partition: c_int) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed.
    unsafe {
        with("the request", request, |request: &Arc<Request>| {
            request.with_partitions(|partitions, route| partitions.ready(partition, route))
        })
    }
}

/// Returns whether a partition has arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partition_arrived(
    request: RequestHandle,
    partition: c_int,
    arrived: *mut c_int,
) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and a place that is null or valid for a write.
    unsafe {
        get("the request", request, arrived, |request: &Arc<Request>| {
            Ok(request.with_partitions(|partitions, route| partitions.arrived(partition, route))?.into())
        })
    }
}

/// Returns the address of a request's partition flags, for kernels of the current context's GPU, or else for the CPU. The request
/// keeps the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partition_flags(request: RequestHandle, address: *mut u64) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and a place that is null or valid for a write.
    unsafe { get("the request", request, address, |request: &Arc<Request>| request.partition_flags()) }
}

/// Sends the partitions that kernels have flagged, and flags those that have arrived. `rounds` gets the number of incomplete rounds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_poll_partition_flags(rounds: *mut c_int) -> c_int {
    status(|| {
        let going = c_int::try_from(poll_partition_flags()).unwrap_or(c_int::MAX);
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { store(rounds, going) }
    })
}
