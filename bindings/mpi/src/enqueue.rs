//! Operations of MPI in the order of streams: a stream triggers an operation by storing its sequence number, and waits for its flag.

use crate::error::{Class, Failure};
use crate::graph;
use crate::memory;
use crate::mpi_thread;
use crate::operation::Operation;
use crate::operation::Sequence;
use crate::queue::{self, Queue};
use crate::stream::AnyStream;
use gdsync::Batch;
use gdsync::cuda;
use gdsync::cudarc::driver::sys::{self, CUstream};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Enqueues the trigger of an operation on a queue's stream.
pub(crate) fn start(queue: &Queue, operation: &Arc<Operation>) -> Result<(), Failure> {
    // The lock is held until the store is posted, so that stores are in the order of their numbers.
    let mut sequence = queue.sequence.lock();
    let sequence = match &mut *sequence {
        Some(sequence) => sequence,
        none => none.insert(Sequence::new()?),
    };
    let number = sequence.next();
    let store = Batch::new().write_value32(&number.word, number.number);
    mpi_thread::register(operation, Some(number))?;
    queue.stream.post(store, || {}).inspect_err(|_| mpi_thread::withdraw(operation))?;
    sequence.advance();
    Ok(())
}

/// Makes the queue's stream wait until operations have completed.
pub(crate) fn wait(queue: &Queue, operations: &[Arc<Operation>]) -> Result<(), Failure> {
    if operations.is_empty() {
        return Ok(());
    }
    let conditions = operations.iter().map(|operation| operation.signal.condition());
    let batch = conditions.fold(Batch::with_capacity(operations.len()), |batch, (word, condition, value)| {
        batch.wait_value32(word, condition, value)
    });
    queue.stream.post(batch, || {})
}

/// The largest stream handle that is no pointer: null, `CU_STREAM_LEGACY` (1) and `CU_STREAM_PER_THREAD` (2).
const LAST_DEFAULT: usize = 2;

/// The queues of the CUDA streams that the program has passed.
static NAMED: Mutex<Option<HashMap<Name, Named>>> = Mutex::new(None);

/// A stream's handle. That of a default stream is the same in all contexts, and that of the per-thread one in all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    stream: usize,
    /// The context and the thread, for a default stream.
    scope: (usize, u64),
}

struct Named {
    queue: Arc<Queue>,
    /// The driver's id of the stream, which is unique; the driver reuses handles.
    number: u64,
}

/// Returns whether a CUDA stream is being captured.
///
/// # Safety
/// As [`cuda_queue`].
pub(crate) unsafe fn is_captured(stream: CUstream) -> Result<bool, Failure> {
    // SAFETY: the caller passes a live stream; the driver is initialised.
    Ok(has_cuda() && unsafe { graph::is_capturing(stream) }?)
}

fn has_cuda() -> bool {
    cuda::device_count().is_ok_and(|count| count > 0)
}

/// Returns the queue of a CUDA stream. On a machine without CUDA, the null stream is a software stream of the process.
///
/// # Safety
/// The stream is alive, and its context stays for the life of the process.
pub(crate) unsafe fn cuda_queue(stream: CUstream) -> Result<Arc<Queue>, Failure> {
    let has_cuda = has_cuda();
    if !has_cuda && !stream.is_null() {
        let why = "there is no CUDA: pass the null stream, or use MPIX_QUEUE_GDSYNC_SOFTWARE";
        return Err(Failure::new(Class::Argument, format!("the stream is {:#x}, and {why}", stream.addr())));
    }
    let mut number = 0;
    if has_cuda {
        // SAFETY: the caller passes a live stream.
        if unsafe { graph::is_capturing(stream) }? {
            let text = "the stream is being captured: launch the graph, and wait for that";
            return Err(Failure::new(Class::Unsupported, text));
        }
        // SAFETY: the caller keeps the stream alive; the driver is initialised, and `number` is valid for a write. Drivers without
        // ids leave it at 0.
        unsafe { sys::cuStreamGetId(stream, &mut number) };
    }
    let name = Name { stream: stream.addr(), scope: scope(stream, has_cuda) };
    let mut named = NAMED.lock();
    let named = named.get_or_insert_default();
    if let Some(known) = named.get(&name).filter(|known| known.number == number) {
        return Ok(known.queue.clone());
    }
    // SAFETY: the caller keeps the context; nothing is posted to the queue once the program has destroyed the stream.
    let of_cuda = || unsafe { AnyStream::cuda(stream, false) };
    let made = match has_cuda {
        false => AnyStream::software()?,
        // CUDA 11's runtime creates the context at the first call that needs it. Until then there is no default stream.
        true if stream.addr() <= LAST_DEFAULT => of_cuda().or_else(|failure| {
            memory::context(memory::current_gpu().ok_or(failure)?)?;
            of_cuda()
        })?,
        true => of_cuda()?,
    };
    let queue = Queue::unlisted(made);
    named.insert(name, Named { queue: queue.clone(), number });
    Ok(queue)
}

fn scope(stream: CUstream, has_cuda: bool) -> (usize, u64) {
    thread_local! {
        /// Identifies the thread by its address.
        static THREAD: u8 = const { 0 };
    }
    if !has_cuda || stream.addr() > LAST_DEFAULT {
        return (0, 0);
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver is initialised; `context` is valid for a write. Without a current context it stays null, and wrapping
    // the stream is refused.
    unsafe { sys::cuCtxGetCurrent(&mut context) };
    let thread = if stream.addr() == LAST_DEFAULT {
        THREAD.with(|place| std::ptr::from_ref(place).addr() as u64)
    } else {
        0
    };
    (context.addr(), thread)
}

pub(crate) fn software_queue(stream: usize) -> Result<Arc<Queue>, Failure> {
    queue::find(stream)
}
