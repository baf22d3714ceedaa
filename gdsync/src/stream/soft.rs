//! A stream in software: a worker thread performs memory operations and host closures in order. Also memory
//! operations performed by a CPU thread.

mod perform;

pub(super) use perform::{pause_before_retry, try_perform, write_bytes};

use self::perform::perform;
use crate::memop::{MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError};
use crate::memory::{HostAddr, StreamAddr};
use crate::stream::trace;
use crate::util::contain::{drop_contained, log};
use gdsync_sys::contain::contain;
use gdsync_sys::pause::use_fine_timers;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A stream in software, for programs and tests without a GPU.
///
/// It behaves as a CUDA stream does: it performs work in the order of submission, submitting returns at once, and
/// *kernels* (host closures) run between memory operations. Dropping it does not wait: the worker thread performs
/// the submitted work, and then ends.
///
/// A kernel that panics, also in the drop of its captured values, fails the stream, as an illegal access fails a
/// GPU's: the stream performs nothing afterwards. Its events then count as passed, and every call names the panic.
///
/// ```
/// use gdsync::{PinnedMemory, SoftStream, Stream};
/// let stream = Stream::new(SoftStream::new()?)?;
/// let memory = PinnedMemory::allocate(8)?;
/// let kernel = memory.clone();
/// stream.launch(move || assert_eq!(kernel.write(0, b"computed"), 8))?;
/// stream.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SoftStream {
    shared: Arc<Shared>,
}

/// parking_lot's condition variables make a system call only if a thread waits, which the worker does not while
/// work keeps coming.
struct Shared {
    number: u64,
    state: Mutex<SoftState>,
    /// Signalled when there is new work, and when the stream closes.
    work: Condvar,
    /// Signalled when the queue is empty, and when the stream fails.
    idle: Condvar,
    /// Set once the stream performs nothing further.
    stopped: OnceLock<String>,
}

#[derive(Default)]
struct SoftState {
    queue: VecDeque<Item>,
    busy: bool,
    closed: bool,
    failed: Option<String>,
    /// True once no thread performs anything any more.
    ended: bool,
    /// Called then.
    at_end: Vec<Box<dyn FnOnce() + Send>>,
}

enum Item {
    Ops(Vec<MemOp>),
    Bytes(StreamAddr, Vec<u8>),
    Kernel(Box<dyn FnOnce() + Send>),
    Record(Event),
}

impl SoftStream {
    /// Starts a stream.
    ///
    /// # Errors
    /// [`StreamError::NoThread`] if its thread cannot be started.
    pub fn new() -> Result<Self, StreamError> {
        let shared = Shared::new();
        let worker = shared.clone();
        std::thread::Builder::new()
            .name("gdsync-stream".to_owned())
            .spawn(move || worker.run_to_the_end())
            .map_err(|error| StreamError::NoThread { reason: error.to_string() })?;
        Ok(SoftStream { shared })
    }

    /// Makes a stream without a thread: the returned steps do its work.
    ///
    /// ```
    /// use gdsync::memop::{Condition, Word32};
    /// use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
    /// let (stream, mut steps) = SoftStream::stepped();
    /// let stream = Stream::new(stream)?;
    /// let word = Word32::new(&PinnedMemory::allocate(8)?, 0)?;
    /// stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1).write_value32(&word, 2))?;
    /// assert!(!steps.step(), "the wait");
    /// word.store(1);
    /// assert!(steps.step() && steps.step() && word.load() == 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stepped() -> (Self, StreamSteps) {
        let shared = Shared::new();
        (SoftStream { shared: shared.clone() }, StreamSteps { shared, ops: VecDeque::new() })
    }

    /// Runs a closure in stream order, as a kernel would.
    ///
    /// # Errors
    /// [`StreamError::Failed`] if the stream has failed.
    pub fn launch(&self, kernel: impl FnOnce() + Send + 'static) -> Result<(), StreamError> {
        self.shared.push(Item::Kernel(Box::new(kernel)))
    }

    /// Marks this point of the stream.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub fn record(&self) -> Result<Event, StreamError> {
        let event = Event::default();
        self.shared.push(Item::Record(event.clone()))?;
        Ok(event)
    }

    /// Returns true if the stream has performed everything that was submitted.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub fn query(&self) -> Result<bool, StreamError> {
        self.wait_idle(Duration::ZERO)
    }
}

impl fmt::Debug for SoftStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("SoftStream")
            .field("queued", &state.queue.len())
            .field("busy", &state.busy)
            .field("failed", &state.failed)
            .finish()
    }
}

// SAFETY: stream addresses are host addresses, and one thread performs the items of the queue in order; the stream
// is idle when the queue is empty and that thread performs none.
unsafe impl MemOpStream for SoftStream {
    fn caps(&self) -> MemOpCaps {
        MemOpCaps::FULL
    }

    fn translate(&self, addr: HostAddr, _len: usize) -> Result<StreamAddr, StreamError> {
        Ok(StreamAddr::new(addr.get()))
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        let _posting = trace::posting(self.shared.number, ops);
        self.shared.push(Item::Ops(ops.to_vec()))
    }

    unsafe fn write_bytes(&self, to: StreamAddr, _: MemoryKind, bytes: &[u8]) -> Result<Staged, StreamError> {
        self.shared.push(Item::Bytes(to, bytes.to_vec())).map(|()| None)
    }

    unsafe fn stop(&self, reason: &str, then: Box<dyn FnOnce() + Send>) -> bool {
        self.shared.stopped.get_or_init(|| reason.to_owned());
        let mut state = self.shared.lock();
        if state.ended {
            drop(state);
            then();
            return true;
        }
        state.at_end.push(then);
        drop(state);
        self.shared.fail(reason);
        self.shared.work.notify_one();
        true
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.shared.lock();
        loop {
            if let Some(reason) = &state.failed {
                return Err(StreamError::Failed { reason: reason.clone() });
            }
            if state.queue.is_empty() && !state.busy {
                return Ok(true);
            }
            let left =
                deadline.map_or(Duration::from_secs(1), |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(false);
            }
            self.shared.idle.wait_for(&mut state, left);
        }
    }
}

impl Drop for SoftStream {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
    }
}

/// The steps of a stream of [`SoftStream::stepped`]. Dropping them fails the stream.
pub struct StreamSteps {
    shared: Arc<Shared>,
    /// The rest of a submission.
    ops: VecDeque<MemOp>,
}

impl StreamSteps {
    /// Performs the next operation or kernel. Returns false if there is none, if it is an unsatisfied wait, and after a
    /// failure of the stream.
    pub fn step(&mut self) -> bool {
        let stepped = contain(|| self.try_step()).and_then(|stepped| stepped);
        stepped.unwrap_or_else(|reason| {
            self.ops.clear();
            self.shared.fail(&reason);
            false
        })
    }

    fn try_step(&mut self) -> Result<bool, String> {
        if self.ops.is_empty() {
            let mut state = self.shared.lock();
            let Some(item) = state.queue.pop_front() else { return Ok(false) };
            state.busy = true;
            drop(state);
            match item {
                Item::Ops(ops) => self.ops = ops.into(),
                item => perform(item, &self.shared.stopped)?,
            }
        }
        if let Some(reason) = self.shared.stopped.get() {
            return Err(reason.clone());
        }
        if let Some(op) = self.ops.front() {
            // SAFETY: the caller of `submit` vouched for the addresses, as for those that the thread performs.
            if !unsafe { try_perform(op, false) } {
                return Ok(false);
            }
            self.ops.pop_front();
        }
        self.shared.lock().busy = !self.ops.is_empty();
        Ok(true)
    }
}

impl fmt::Debug for StreamSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSteps").field("begun", &self.ops).finish_non_exhaustive()
    }
}

impl Drop for StreamSteps {
    fn drop(&mut self) {
        self.shared.fail("its steps have ended");
        self.shared.end();
    }
}

impl Shared {
    fn new() -> Arc<Self> {
        let (work, idle) = (Condvar::new(), Condvar::new());
        let (number, stopped) = (trace::next_stream(), OnceLock::new());
        Arc::new(Shared { number, state: Mutex::default(), work, idle, stopped })
    }

    fn lock(&self) -> MutexGuard<'_, SoftState> {
        self.state.lock()
    }

    fn push(&self, item: Item) -> Result<(), StreamError> {
        let mut state = self.lock();
        if let Some(reason) = &state.failed {
            return Err(StreamError::Failed { reason: reason.clone() });
        }
        state.queue.push_back(item);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Performs all items, or fails the stream.
    fn run_to_the_end(&self) {
        use_fine_timers();
        gdsync_trace::name_thread(|| format!("stream {}", self.number));
        if let Err(reason) = contain(|| self.run()).and_then(|ended| ended) {
            self.fail(&reason);
            log(|| tracing::error!(reason, "a software stream failed"));
        }
        self.end();
    }

    /// Records that nothing is performed any more.
    fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let at_end = std::mem::take(&mut state.at_end);
        drop(state);
        at_end.into_iter().for_each(|then| then());
    }

    fn run(&self) -> Result<(), String> {
        while let Some(item) = self.next() {
            perform(item, &self.stopped)?;
        }
        Ok(())
    }

    /// Returns the next item; `None` once the stream is closed or stopped and the queue is empty.
    fn next(&self) -> Option<Item> {
        let mut state = self.lock();
        state.busy = false;
        loop {
            if let Some(item) = state.queue.pop_front() {
                state.busy = true;
                return Some(item);
            }
            self.idle.notify_all();
            if state.closed || self.stopped.get().is_some() {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    fn fail(&self, reason: &str) {
        let mut state = self.lock();
        state.failed.get_or_insert_with(|| reason.to_owned());
        state.busy = false;
        // The drop of captured values may take any lock: not under this one.
        let abandoned = std::mem::take(&mut state.queue);
        drop(state);
        self.idle.notify_all();
        // No thread and no stream may wait forever for an event of this stream, nor for the drops of earlier closures.
        for item in &abandoned {
            if let Item::Record(event) = item {
                event.complete();
            }
        }
        abandoned.into_iter().for_each(|item| drop_contained(item, "a kernel that was not performed"));
    }
}

/// A point of a [`SoftStream`]. Clones name the same point.
#[derive(Clone, Debug, Default)]
pub struct Event {
    inner: Arc<EventInner>,
}

#[derive(Debug, Default)]
struct EventInner {
    completed: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Event {
    fn complete(&self) {
        let mut completed = self.inner.completed.lock();
        completed.get_or_insert_with(Instant::now);
        self.inner.changed.notify_all();
    }

    /// Returns when the stream passed the point; `None` before. A failed stream counts as having passed all its points.
    pub fn completed_at(&self) -> Option<Instant> {
        *self.inner.completed.lock()
    }

    /// Blocks until the stream has passed the point.
    pub fn synchronize(&self) {
        let mut completed = self.inner.completed.lock();
        while completed.is_none() {
            self.inner.changed.wait(&mut completed);
        }
    }
}

#[cfg(test)]
mod tests;
