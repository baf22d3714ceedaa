//! Queues: made, given work, waited for, and freed.

use super::{RequestHandle, handle, null, store};
use crate::error::{Failure, status};
use crate::queue::{self, Queue};
use crate::request::Request;
use crate::stream::AnyStream;
use gdsync::cudarc::driver::sys::CUstream;
use libc::{c_int, c_void};
use std::slice;
use std::sync::Arc;

/// A queue, as C has it: looked up before it is used.
type QueueHandle = *const c_void;

/// Makes a queue: of a software stream of its own, or, where `stream` is not null, of the CUDA stream that it points
/// to.
///
/// # Safety
/// `stream` is null or points to a stream that is alive until the queue is freed, and whose context stays; `made` is
/// a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_queue(stream: *const CUstream, made: *mut QueueHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let stream = match unsafe { stream.as_ref() } {
            None => AnyStream::software()?,
            // SAFETY: the caller's.
            Some(stream) => unsafe { AnyStream::cuda(*stream, true) }?,
        };
        let raw = Arc::into_raw(Queue::new(stream)?);
        // SAFETY: the caller's.
        unsafe { store(made, raw.cast()) }.inspect_err(|_| {
            // SAFETY: made above, and nothing else has it.
            drop(unsafe { Arc::from_raw(raw) });
        })
    })
}

/// Frees a queue. Its stream performs what it was given.
///
/// # Safety
/// No other thread frees the queue. Any value may be passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_queue_free(queue: QueueHandle) -> c_int {
    status(|| {
        let queue = queue::find(queue.addr())?;
        // SAFETY: the handle's share, which the handle has no more.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&queue)) };
        Ok(())
    })
}

/// Starts requests on a queue.
///
/// # Safety
/// `requests` are `number` handles, each as for [`gdsync_mpi_request_free`](super::gdsync_mpi_request_free); a null one is a request without a peer.
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
        // SAFETY: the caller's.
        let list = unsafe { slice::from_raw_parts(requests, number) };
        let with_peer = list.iter().enumerate().filter(|(_, each)| !each.is_null());
        // SAFETY: the caller's.
        let list =
            with_peer.map(|(index, each)| Ok((index, unsafe { handle::<Request>("a request", *each) }?)));
        queue.start(&list.collect::<Result<Vec<_>, Failure>>()?)
    })
}

/// Has the queue's stream wait for what was started on it.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_enqueue_wait(queue: QueueHandle) -> c_int {
    status(|| queue::find(queue.addr())?.enqueue_wait())
}

/// Waits on the CPU until the queue's stream has performed everything.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_queue_wait(queue: QueueHandle) -> c_int {
    status(|| queue::find(queue.addr())?.synchronize())
}

/// A function of the program, and its argument, for the thread of a stream.
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
        // SAFETY: the caller's.
        unsafe { (self.function)(self.argument) }
    }
}

/// Runs a function in the order of a queue's software stream.
///
/// # Safety
/// Another thread may call the function with the argument, until the stream has run it.
pub(super) unsafe fn launch(
    queue: &Queue,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> Result<(), Failure> {
    let function = Function { function: function.ok_or_else(|| null("the function"))?, argument };
    // SAFETY: the caller's.
    let run = move || unsafe { function.call() };
    Ok(queue.stream.soft("a function of the CPU")?.launch(run)?)
}

/// Runs a function in the order of a queue's software stream.
///
/// # Safety
/// Another thread may call the function with the argument, until the stream has run it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_launch(
    queue: QueueHandle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    status(|| {
        let queue = queue::find(queue.addr())?;
        // SAFETY: the caller's.
        unsafe { launch(&queue, function, argument) }
    })
}
