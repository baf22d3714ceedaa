//! Operations in the order of streams: a stream triggers an operation by a store, and waits for its flag.

use crate::error::{Class, Failure};
use crate::graph;
use crate::memory;
use crate::mpi_thread;
use crate::operation::Operation;
use crate::queue::{self, Queue};
use crate::stream::AnyStream;
use crate::turn::Turns;
use gdsync::Batch;
use gdsync::cuda;
use gdsync::cudarc::driver::sys::{self, CUstream};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Has the queue's stream trigger an operation.
pub(crate) fn start(queue: &Queue, operation: &Arc<Operation>) -> Result<(), Failure> {
    // Held until the store is posted: stores are in the order of their numbers.
    let mut turns = queue.turns.lock();
    let turns = match &mut *turns {
        Some(turns) => turns,
        none => none.insert(Turns::new()?),
    };
    let turn = turns.next();
    let store = Batch::new().write_value32(&turn.word, turn.number);
    mpi_thread::enter(operation, Some(turn))?;
    queue.stream.post(store, || {}).inspect_err(|_| mpi_thread::take_back(operation))?;
    turns.take();
    Ok(())
}

/// Has the queue's stream wait until operations have completed.
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

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`: as null, names that are no pointers.
const LAST_DEFAULT: usize = 2;

/// The queues of the streams that the program has named.
static NAMED: Mutex<Option<HashMap<Name, Named>>> = Mutex::new(None);

/// Default streams have the same name in all contexts, and the per-thread one in all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    stream: usize,
    scope: (usize, u64),
}

struct Named {
    queue: Arc<Queue>,
    /// The driver's number of a CUDA stream, which no other one gets: names are used again.
    number: u64,
}

/// Whether a CUDA stream is being captured.
///
/// # Safety
/// As [`cuda_queue`].
pub(crate) unsafe fn is_captured(stream: CUstream) -> Result<bool, Failure> {
    // SAFETY: the caller's; there is a driver, which is initialised.
    Ok(has_cuda() && unsafe { graph::is_capturing(stream) }?)
}

fn has_cuda() -> bool {
    cuda::device_count().is_ok_and(|count| count > 0)
}

/// The queue of a CUDA stream. The null stream of a machine without CUDA is a software stream of the process.
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
        // SAFETY: the caller's.
        if unsafe { graph::is_capturing(stream) }? {
            let text = "the stream is being captured: launch the graph, and wait for that";
            return Err(Failure::new(Class::Unsupported, text));
        }
        // SAFETY: the caller's; the driver is initialised, and `number` a valid place. Drivers that have no numbers
        // leave it at 0.
        unsafe { sys::cuStreamGetId(stream, &mut number) };
    }
    let name = Name { stream: stream.addr(), scope: scope(stream, has_cuda) };
    let mut named = NAMED.lock();
    let named = named.get_or_insert_default();
    if let Some(known) = named.get(&name).filter(|known| known.number == number) {
        return Ok(known.queue.clone());
    }
    // SAFETY: the caller's. The program may destroy the stream: then nothing is posted to this queue any more.
    let of_cuda = || unsafe { AnyStream::cuda(stream, false) };
    let made = match has_cuda {
        false => AnyStream::software()?,
        // The runtime of CUDA 11 leaves it to the first call that needs the context to make that. Until then, it has no
        // default stream.
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
        /// Its address is the thread's number.
        static THREAD: u8 = const { 0 };
    }
    if !has_cuda || stream.addr() > LAST_DEFAULT {
        return (0, 0);
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver is initialised; `context` is a valid place. Without a context that is current, it stays null,
    // and wrapping the stream is refused.
    unsafe { sys::cuCtxGetCurrent(&mut context) };
    let thread = if stream.addr() == LAST_DEFAULT {
        THREAD.with(|place| std::ptr::from_ref(place).addr() as u64)
    } else {
        0
    };
    (context.addr(), thread)
}

/// The queue of a software stream that the program has made.
pub(crate) fn software_queue(stream: usize) -> Result<Arc<Queue>, Failure> {
    queue::find(stream)
}
