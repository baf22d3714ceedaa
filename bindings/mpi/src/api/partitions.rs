//! Partitioned requests: made, started, and asked about their partitions. They are matched, waited for and freed as other
//! requests are.

use super::requests::make;
use super::{RequestHandle, handle, length, store};
use crate::error::{Class, Failure, status};
use crate::memory::Buffer;
use crate::partitions::Layout;
use crate::plan::Plan;
use crate::request::{Request, look_at_marks};
use libc::{c_int, c_void};
use std::sync::Arc;

/// Partitions of a request, at most: a queue has a work request for each, and two rounds of them.
const MOST: c_int = 8192;

/// Makes a request that sends (`sends` is not 0) or receives `partitions` partitions of `bytes` bytes each, which follow
/// each other in the buffer.
///
/// # Safety
/// As [`gdsync_mpi_transfer`](super::gdsync_mpi_transfer).
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
        // SAFETY: the caller's.
        unsafe { make(Plan::Partitioned { sends: sends != 0, buffer, layout }, made) }
    })
}

/// Starts a round.
///
/// # Safety
/// As [`gdsync_mpi_request_free`](super::gdsync_mpi_request_free).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partitions_start(request: RequestHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        request.with_partitions(|partitions, route| partitions.start(route))
    })
}

/// Has the card send a partition.
///
/// # Safety
/// As [`gdsync_mpi_request_free`](super::gdsync_mpi_request_free).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partition_ready(request: RequestHandle, partition: c_int) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        request.with_partitions(|partitions, route| partitions.ready(partition, route))
    })
}

/// Whether a partition has arrived.
///
/// # Safety
/// As [`gdsync_mpi_request_free`](super::gdsync_mpi_request_free); `arrived` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_partition_arrived(
    request: RequestHandle,
    partition: c_int,
    arrived: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let has = request.with_partitions(|partitions, route| partitions.arrived(partition, route))?;
        // SAFETY: the caller's.
        unsafe { store(arrived, has.into()) }
    })
}

/// The address of a request's marks, for kernels of the GPU whose context is current, or else for the CPU. The memory is
/// the request's.
///
/// # Safety
/// As [`gdsync_mpi_request_free`](super::gdsync_mpi_request_free); `address` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_marks(request: RequestHandle, address: *mut u64) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let request: Arc<Request> = unsafe { handle("the request", request) }?;
        let marks = request.marks()?;
        // SAFETY: the caller's.
        unsafe { store(address, marks) }
    })
}

/// Sends what kernels have marked, and marks for them what has arrived. `rounds` gets how many rounds go on.
///
/// # Safety
/// `rounds` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_look_at_marks(rounds: *mut c_int) -> c_int {
    status(|| {
        let going = c_int::try_from(look_at_marks()).unwrap_or(c_int::MAX);
        // SAFETY: the caller's.
        unsafe { store(rounds, going) }
    })
}
