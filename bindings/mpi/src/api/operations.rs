//! Operations of MPI in the order of streams: made, triggered, waited for, and freed; and the thread that calls MPI.

use super::queues::launch;
use super::{handle, null, store, take};
use crate::enqueue;
use crate::error::{Class, Failure, status};
use crate::mpi_thread::{self, Calls, Operation};
use crate::queue::Queue;
use gdsync::cudarc::driver::sys::CUstream;
use libc::{c_int, c_void};
use std::slice;
use std::sync::Arc;

/// An [`Arc`] of an operation, as C has it.
type OperationHandle = *const c_void;

/// Starts the thread that calls MPI.
///
/// # Safety
/// `calls` is null or valid for a read. Another thread may call its functions until [`gdsync_mpi_thread_stop`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_thread_start(calls: *const Calls) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let calls = unsafe { calls.as_ref() }.ok_or_else(|| null("the list of functions"))?;
        // SAFETY: the caller's.
        unsafe { mpi_thread::start(*calls) }
    })
}

/// Ends the thread that calls MPI. Operations that no stream triggers for a second are given up.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_thread_stop() -> c_int {
    status(|| {
        mpi_thread::stop();
        Ok(())
    })
}

/// Says that the C part has something outstanding that no stream triggers.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_thread_wake() -> c_int {
    status(|| {
        mpi_thread::wake();
        Ok(())
    })
}

/// Makes an operation that no stream triggers yet.
///
/// # Safety
/// `operation` is valid for `start` of the list of functions until that was called with it; `made` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation(operation: *mut c_void, made: *mut OperationHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let raw = Arc::into_raw(Arc::new(unsafe { Operation::new(operation) }?));
        // SAFETY: the caller's.
        unsafe { store(made, raw.cast()) }.inspect_err(|_| {
            // SAFETY: made above, and nothing else has it.
            drop(unsafe { Arc::from_raw(raw) });
        })
    })
}

/// Frees C's share of an operation.
///
/// # Safety
/// The operation is null or was made by this library and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation_free(operation: OperationHandle) -> c_int {
    // SAFETY: the caller's.
    status(|| unsafe { take::<Operation>("the operation", operation) }.map(drop))
}

/// Says that an operation has completed: what was written before is visible to the streams that wait for it.
///
/// # Safety
/// As [`gdsync_mpi_operation_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation_completed(operation: OperationHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        unsafe { handle::<Operation>("the operation", operation) }?.flag.set();
        Ok(())
    })
}

/// Waits on the CPU until an operation has completed.
///
/// # Safety
/// As [`gdsync_mpi_operation_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation_wait(operation: OperationHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        unsafe { handle::<Operation>("the operation", operation) }?.wait();
        Ok(())
    })
}

/// The stream that C names: `enum gdsync_mpi_stream` of `c/engine.h`, and the place of its handle.
///
/// # Safety
/// As [`gdsync_mpi_enqueue`].
pub(super) unsafe fn queue(kind: c_int, stream: *const *mut c_void) -> Result<Arc<Queue>, Failure> {
    const CUDA: c_int = 0;
    const SOFTWARE: c_int = 1;
    // SAFETY: the caller's.
    let stream = *unsafe { stream.as_ref() }.ok_or_else(|| null("the place of the stream"))?;
    match kind {
        // SAFETY: the caller's.
        CUDA => unsafe { enqueue::cuda_queue(stream.cast::<_>() as CUstream) },
        SOFTWARE => enqueue::software_queue(stream.addr()),
        _ => Err(Failure::new(Class::Argument, format!("there are no streams of kind {kind}"))),
    }
}

/// Has a stream trigger an operation.
///
/// # Safety
/// `stream` is null or points to a handle of that kind: a CUDA stream that is alive, and whose context stays, or any
/// value for a software stream. The operation is as for [`gdsync_mpi_operation_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_enqueue(
    kind: c_int,
    stream: *const *mut c_void,
    operation: OperationHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let queue = unsafe { queue(kind, stream) }?;
        // SAFETY: the caller's.
        enqueue::start(&queue, &unsafe { handle("the operation", operation) }?)
    })
}

/// Has a stream wait until operations have completed.
///
/// # Safety
/// As [`gdsync_mpi_enqueue`]; `operations` are `number` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_enqueue_waits(
    kind: c_int,
    stream: *const *mut c_void,
    number: usize,
    operations: *const OperationHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let queue = unsafe { queue(kind, stream) }?;
        if number == 0 {
            return Ok(());
        }
        if operations.is_null() {
            return Err(null("the list of operations"));
        }
        // SAFETY: the caller's.
        let list = unsafe { slice::from_raw_parts(operations, number) };
        // SAFETY: the caller's.
        let list = list.iter().map(|each| unsafe { handle("an operation", *each) });
        enqueue::wait(&queue, &list.collect::<Result<Vec<_>, Failure>>()?)
    })
}

/// Waits on the CPU until a stream has performed everything.
///
/// # Safety
/// As [`gdsync_mpi_enqueue`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_stream_wait(kind: c_int, stream: *const *mut c_void) -> c_int {
    // SAFETY: the caller's.
    status(|| unsafe { queue(kind, stream) }?.synchronize())
}

/// Runs a function in the order of a software stream.
///
/// # Safety
/// As [`gdsync_mpi_enqueue`] and [`gdsync_mpi_launch`](super::gdsync_mpi_launch).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_stream_launch(
    kind: c_int,
    stream: *const *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let queue = unsafe { queue(kind, stream) }?;
        // SAFETY: the caller's.
        unsafe { launch(&queue, function, argument) }
    })
}
