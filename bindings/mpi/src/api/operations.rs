//! Operations of MPI in the order of streams and in graphs, and the thread that calls MPI.

use super::queues::launch;
use super::{give, handle, null, store, take, with};
use crate::enqueue;
use crate::error::{Class, Failure, status};
use crate::graph::{self, SoftGraph, Target};
use crate::mpi_thread;
use crate::operation::{Calls, Operation};
use crate::queue::Queue;
use gdsync::cudarc::driver::sys::CUstream;
use libc::{c_int, c_void};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// An [`Arc`] of an operation, as a pointer of C.
type OperationHandle = *const c_void;

/// Starts the thread that calls MPI.
///
/// # Safety
/// `calls` is null or valid for a read, and its functions may be called by the thread until [`gdsync_mpi_thread_stop`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_thread_start(calls: *const Calls) -> c_int {
    status(|| {
        // SAFETY: the caller passes a pointer that is null or valid.
        let calls = unsafe { calls.as_ref() }.ok_or_else(|| null("the list of functions"))?;
        // SAFETY: the caller lets another thread call the functions.
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

/// Tells the thread that the C part has outstanding work that no stream triggers.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_thread_wake() -> c_int {
    status(|| {
        mpi_thread::wake();
        Ok(())
    })
}

/// Makes an operation for a stream or, if `is_in_graph` is not 0, for a graph.
///
/// # Safety
/// `operation` is valid for `start` of `struct gdsync_mpi_calls` until that was called with it, in a graph until `retire` was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation(
    operation: *mut c_void,
    is_in_graph: c_int,
    made: *mut OperationHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller keeps the promises of `new`.
        let made_operation = unsafe { Operation::new(operation, is_in_graph != 0) }?;
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { give(Arc::new(made_operation), made) }
    })
}

/// Frees C's reference to an operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation_free(operation: OperationHandle) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and does not use it again.
    status(|| unsafe { take::<Operation>("the operation", operation) }.map(drop))
}

/// Completes an operation. Earlier writes are visible to the streams that wait for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation_completed(operation: OperationHandle) -> c_int {
    let act = |operation: &Arc<Operation>| {
        operation.signal.set();
        Ok(())
    };
    // SAFETY: the caller passes a handle that is null or not freed.
    unsafe { with("the operation", operation, act) }
}

/// Waits on the CPU until an operation has completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_operation_wait(operation: OperationHandle) -> c_int {
    let act = |operation: &Arc<Operation>| {
        operation.wait();
        Ok(())
    };
    // SAFETY: the caller passes a handle that is null or not freed.
    unsafe { with("the operation", operation, act) }
}

/// `enum gdsync_mpi_stream` of `c/engine.h`.
const CUDA: c_int = 0;
const SOFTWARE: c_int = 1;
const CUDA_GRAPH: c_int = 2;
const SOFTWARE_GRAPH: c_int = 3;

/// Returns the queue of C's stream, to whose handle the pointer points.
pub(super) unsafe fn queue(kind: c_int, stream: *const *mut c_void) -> Result<Arc<Queue>, Failure> {
    if matches!(kind, CUDA_GRAPH | SOFTWARE_GRAPH) {
        return Err(Failure::new(Class::Argument, "the queue is a graph, and this takes a stream: pass one"));
    }
    // SAFETY: the caller passes the place of a live stream of that kind.
    let stream = *unsafe { stream.as_ref() }.ok_or_else(|| null("the place of the stream"))?;
    match kind {
        // SAFETY: the caller passes the place of a live stream of that kind.
        CUDA => unsafe { enqueue::cuda_queue(stream.cast::<_>() as CUstream) },
        SOFTWARE => enqueue::software_queue(stream.addr()),
        _ => Err(Failure::new(Class::Argument, format!("there are no streams of kind {kind}"))),
    }
}

/// Returns what gets the nodes of a graph, or none for a stream that is not captured.
unsafe fn target(kind: c_int, stream: *const *mut c_void) -> Result<Option<Target>, Failure> {
    let place = NonNull::new(stream.cast_mut()).ok_or_else(|| null("the place of the stream or graph"))?;
    Ok(match kind {
        CUDA_GRAPH => Some(Target::Cuda(place.cast())),
        SOFTWARE_GRAPH => Some(Target::Software(place.cast())),
        CUDA => {
            // SAFETY: the caller passes the place of a live stream of that kind.
            let stream = unsafe { place.read() }.cast::<_>() as CUstream;
            // SAFETY: the caller passes the place of a live stream of that kind.
            unsafe { enqueue::is_captured(stream) }?.then_some(Target::Captured(stream))
        }
        _ => None,
    })
}

/// Returns whether an operation goes into a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_is_graph(
    kind: c_int,
    stream: *const *mut c_void,
    into: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes the place of a live stream of that kind.
        let is_graph = unsafe { target(kind, stream) }?.is_some();
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { store(into, is_graph.into()) }
    })
}

/// Launches a graph of software streams on a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_graph_launch(
    graph: *const c_void,
    kind: c_int,
    stream: *const *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes handles that are null or not freed.
        let graph = unsafe { handle::<SoftGraph>("the graph", graph) }?;
        // SAFETY: the caller passes the place of a live stream of that kind.
        let queue = unsafe { queue(kind, stream) }?;
        graph.launch(&queue)
    })
}

/// Frees a graph of software streams. Its launches continue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_graph_free(graph: *const c_void) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed, and does not use it again.
    status(|| unsafe { take::<SoftGraph>("the graph", graph) }.map(drop))
}

/// Ends the operations in graphs; after the thread and all outstanding operations.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_graphs_end() -> c_int {
    status(|| {
        mpi_thread::end_graphs();
        Ok(())
    })
}

/// Enqueues the trigger of an operation on a stream or in a graph.
///
/// # Safety
/// The operation was made for a graph if [`gdsync_mpi_is_graph`] returns 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_enqueue(
    kind: c_int,
    stream: *const *mut c_void,
    operation: OperationHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes handles that are null or not freed.
        let operation = unsafe { handle("the operation", operation) }?;
        // SAFETY: the caller passes the place of a live stream of that kind.
        if let Some(target) = unsafe { target(kind, stream) }? {
            // SAFETY: the caller passes a live stream, or a place for a graph.
            return unsafe { graph::start(target, &operation) };
        }
        // SAFETY: the caller passes the place of a live stream of that kind.
        let queue = unsafe { queue(kind, stream) }?;
        enqueue::start(&queue, &operation)
    })
}

/// Makes a stream or a graph wait until operations have completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_enqueue_waits(
    kind: c_int,
    stream: *const *mut c_void,
    number: usize,
    operations: *const OperationHandle,
) -> c_int {
    status(|| {
        let list = match number {
            0 => &[],
            _ if operations.is_null() => return Err(null("the list of operations")),
            // SAFETY: the caller passes as many handles as it says.
            _ => unsafe { slice::from_raw_parts(operations, number) },
        };
        // SAFETY: the caller passes handles that are null or not freed.
        let list = list.iter().map(|each| unsafe { handle("an operation", *each) });
        let list = list.collect::<Result<Vec<_>, Failure>>()?;
        // SAFETY: the caller passes the place of a live stream of that kind.
        if let Some(target) = unsafe { target(kind, stream) }? {
            // SAFETY: the caller passes a live stream, or a place for a graph.
            return unsafe { graph::wait(target, &list) };
        }
        // SAFETY: the caller passes the place of a live stream of that kind.
        let queue = unsafe { queue(kind, stream) }?;
        enqueue::wait(&queue, &list)
    })
}

/// Waits on the CPU until a stream has performed everything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_stream_wait(kind: c_int, stream: *const *mut c_void) -> c_int {
    // SAFETY: the caller passes the place of a live stream of that kind.
    status(|| unsafe { queue(kind, stream) }?.synchronize())
}

/// Runs a function in the order of a software stream.
///
/// # Safety
/// As [`gdsync_mpi_launch`](super::gdsync_mpi_launch).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_stream_launch(
    kind: c_int,
    stream: *const *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes the place of a live stream of that kind.
        let queue = unsafe { queue(kind, stream) }?;
        // SAFETY: the caller lets another thread call the function.
        unsafe { launch(&queue, function, argument) }
    })
}
