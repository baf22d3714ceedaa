//! Creates and frees queues, starts requests on them, and waits for them.

use super::{RequestHandle, give, handle, null};
use crate::error::{Failure, status};
use crate::queue::{self, Queue};
use crate::request::Request;
use crate::stream::AnyStream;
use gdsync::cudarc::driver::sys::CUstream;
use libc::{c_int, c_void};
use std::slice;
use std::sync::Arc;

/// A queue, as a pointer of C. [`queue::find`] checks it.
type QueueHandle = *const c_void;

/// Makes a queue with a software stream, or, if `stream` is not null, with the CUDA stream to which it points.
///
/// # Safety
/// The CUDA stream is alive until the queue is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_queue(stream: *const CUstream, made: *mut QueueHandle) -> c_int {
    status(|| {
        // SAFETY: the caller passes the place of a live stream of that kind.
        let stream = match unsafe { stream.as_ref() } {
            None => AnyStream::software()?,
            // SAFETY: the caller passes the place of a live stream of that kind.
            Some(stream) => unsafe { AnyStream::cuda(*stream, true) }?,
        };
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { give(Queue::new(stream)?, made) }
    })
}

/// Frees a queue. Its stream still performs what was enqueued.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_queue_free(queue: QueueHandle) -> c_int {
    status(|| {
        let queue = queue::find(queue.addr())?;
        // SAFETY: the reference of the handle, which is not used again.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&queue)) };
        Ok(())
    })
}

/// Starts requests on a queue. A null handle is a request without a peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_start(
    queue: QueueHandle,
    number: usize,
    requests: *const RequestHandle,
) -> c_int {
    status(|| {
        let queue = queue::find(queue.addr())?;
        if number == 0 {
            return Ok(());
        }
        if requests.is_null() {
            return Err(null("the list of requests"));
        }
        // SAFETY: the caller passes as many handles as it says.
        let list = unsafe { slice::from_raw_parts(requests, number) };
        let with_peer = list.iter().enumerate().filter(|(_, each)| !each.is_null());
        // SAFETY: the caller passes handles that are null or not freed.
        let list =
            with_peer.map(|(index, each)| Ok((index, unsafe { handle::<Request>("a request", *each) }?)));
        queue.start(&list.collect::<Result<Vec<_>, Failure>>()?)
    })
}

/// Makes the queue's stream wait for the requests that were started on it.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_enqueue_wait(queue: QueueHandle) -> c_int {
    status(|| queue::find(queue.addr())?.enqueue_wait())
}

/// Waits on the CPU until the queue's stream has performed everything.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_queue_wait(queue: QueueHandle) -> c_int {
    status(|| queue::find(queue.addr())?.synchronize())
}

struct Function {
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: the caller of `launch` lets another thread call the function with the argument.
unsafe impl Send for Function {}

impl Function {
    /// # Safety
    /// As [`launch`].
    unsafe fn call(&self) {
        // SAFETY: the caller lets another thread call the function.
        unsafe { (self.function)(self.argument) }
    }
}

/// Runs a function in the order of a queue's software stream.
///
/// # Safety
/// Another thread may call the function with the argument until the stream has run it.
pub(super) unsafe fn launch(
    queue: &Queue,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> Result<(), Failure> {
    let function = Function { function: function.ok_or_else(|| null("the function"))?, argument };
    // SAFETY: the caller lets another thread call the function.
    let run = move || unsafe { function.call() };
    Ok(queue.stream.soft("a function of the CPU")?.launch(run)?)
}

/// Runs a function in the order of a queue's software stream.
///
/// # Safety
/// Another thread may call the function with the argument until the stream has run it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_launch(
    queue: QueueHandle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    status(|| {
        let queue = queue::find(queue.addr())?;
        // SAFETY: the caller lets another thread call the function.
        unsafe { launch(&queue, function, argument) }
    })
}
