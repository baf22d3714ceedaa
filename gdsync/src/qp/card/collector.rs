//! Collectors: the card waits for many completions in one queue, and then writes one word.

use crate::cuda::{GpuMemory, Placement};
use crate::memop::{Location, Named};
use crate::qp::complete::wait::{CHECKER, Entry, PreparedWait, start_checker};
use crate::qp::{CardWord, CompletionQueueInner, QueuePair, QueuePairConfig, QueuePairInner};
use crate::queue::send::{CardWait, PostMode, WaitRequest};
use crate::queue::{QueueError, RequestError, StateError, WorkRequest};
use crate::util::options::options;
use crate::util::poller::{Polled, Task, now};
use crate::verbs::{
    Access, ConnectOptions, DEFAULT_PORT, Device, DeviceInner, Error, GpuMemoryRegion, MemoryRegion,
    ProtectionDomain, QueuePairError,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// 64-byte blocks of a collector's send queue: one for each awaited completion queue, and one for each write of the
/// word.
const BLOCKS: u32 = 2048;
/// Time after which the CPU assumes that the card does not count an entry that it has written.
const GRACE: Duration = Duration::from_millis(5);

/// A queue of the card that waits for completions of any number of queues, and counts them in one 64-bit word, the
/// *arrival word*. A stream or kernel that needs all of them waits for that word alone.
///
/// A collector is a reliable queue pair that is connected to itself. Each [`Self::collect`] adds one WAIT for each
/// completion queue to its send queue, and a write of the next number to the word. They execute in the order of the
/// calls. A stream collects automatically if [`StreamOptions::collect_from`](crate::stream::StreamOptions) says so.
///
/// # Failures
/// An error entry is an entry: failed work counts, and so does work flushed because a peer has died. A library
/// thread releases awaited work that never gets an entry, or one that the card does not count. Where an awaited queue
/// pair has failed, even if it was reset since, the thread takes over the collector's queue, and writes the word
/// instead of the card. The work's outcome is in its completion and in [`crate::QueuePair::failure`].
///
/// A collector is a cheap handle; clones name the same one.
///
/// ```
/// use gdsync::memop::Condition;
/// use gdsync::advanced::Collector;
/// use gdsync::{Access, Batch, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// let collector = Collector::new(&device)?;
/// right.post_recv(&[], 0)?;
/// left.post_send(WorkRequest::send(&[]))?;
/// let all = [left.send_cq().prepare_wait()?, right.recv_cq().prepare_wait()?];
/// let number = collector.collect(all)?;
/// let stream = Stream::new(SoftStream::new()?)?;
/// stream.post(Batch::new().wait_value64(collector.word(), Condition::Geq, number))?;
/// stream.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Collector {
    pub(crate) inner: Arc<CollectorInner>,
}

#[derive(Debug)]
pub(crate) struct CollectorInner {
    word: CardWord,
    pub(crate) device: Arc<DeviceInner>,
    pd: ProtectionDomain,
    port: u8,
    state: Mutex<CollectorState>,
}

#[derive(Debug)]
struct CollectorState {
    queue_pair: QueuePair,
    writer: Writer,
    newest: u64,
    /// The number that the word has reached, as far as the collector's completions show. (Reading a word of GPU
    /// memory takes too long.)
    reached: u64,
    /// Numbers that the word has not reached, oldest first.
    awaited: VecDeque<Awaited>,
    watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Card,
    /// The card, until its queue has been flushed.
    Leaving,
    /// The library's thread, until nothing is awaited.
    Cpu,
}

#[derive(Debug)]
struct Awaited {
    number: u64,
    entries: Vec<AwaitedEntry>,
    /// When the CPU first saw all entries, if the card may not count one.
    overdue: Option<Instant>,
}

#[derive(Debug)]
struct AwaitedEntry {
    queue: Arc<CompletionQueueInner>,
    index: u32,
    /// How many of the queue's ended waits had been opened again, as a reset does.
    reopened: u32,
    /// The queue pairs that may complete there, kept until they have.
    queue_pairs: Vec<Arc<QueuePairInner>>,
}

options! {
    /// Configuration of a [`Collector`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub struct CollectorConfig
    /// Port 1, with the arrival word in host memory.
    default {
        /// Port of the device, from 1 on.
        port: u8 = DEFAULT_PORT,
        /// Memory of the arrival word. A GPU waits for a word of its own memory in less time than for one of the
        /// host's. PCI Express does not order writes to different places: data that arrives outside that GPU's
        /// memory may become visible after the word.
        word: Placement = Placement::Host,
    }
}

impl Collector {
    /// Makes a collector with [`CollectorConfig::default`].
    ///
    /// # Errors
    /// As [`Self::with_config`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::with_config(device, CollectorConfig::default())
    }

    /// Makes a collector on a device, in its own protection domain.
    ///
    /// # Errors
    /// [`QueuePairError::NoCardWaits`](crate::verbs::QueuePairError::NoCardWaits) if the card cannot wait for queues;
    /// those of [`ProtectionDomain::new`], [`MemoryRegion::allocate`] and [`QueuePair::new`]; for a word in GPU memory
    /// [`Error::Cuda`] and those of [`GpuMemoryRegion::register`]; [`Error::Thread`] if the thread cannot be started.
    pub fn with_config(device: &Device, config: CollectorConfig) -> Result<Self, Error> {
        if !device.card_waits()?.queues {
            return Err(Error::QueuePair(QueuePairError::NoCardWaits {
                device: device.inner.name.to_owned(),
                what: "completion queues",
            }));
        }
        start_checker()?;
        let pd = ProtectionDomain::new(device)?;
        let word = arrival_word(&pd, config.word)?;
        let state = Mutex::new(CollectorState {
            queue_pair: queue_pair(&pd, config.port)?,
            writer: Writer::Card,
            newest: 0,
            reached: 0,
            awaited: VecDeque::new(),
            watched: false,
        });
        let device = pd.inner.device.clone();
        Ok(Collector { inner: Arc::new(CollectorInner { word, device, pd, port: config.port, state }) })
    }

    /// Returns the arrival word: the number of the newest [`Self::collect`] whose completions have all arrived.
    /// Wait for it with [`Condition::Geq`](crate::memop::Condition::Geq).
    pub fn word(&self) -> &CardWord {
        &self.inner.word
    }

    /// Makes the card wait for these completions; no stream waits for them. Returns the number that the arrival
    /// word then reaches.
    ///
    /// # Errors
    /// [`QueueError::Full`] while the card waits for too many;
    /// [`RequestError::OtherDevice`](crate::queue::RequestError::OtherDevice) for a completion queue of another
    /// device. The waits are dropped then.
    pub fn collect(&self, waits: impl IntoIterator<Item = PreparedWait>) -> Result<u64, QueueError> {
        let waits: Vec<PreparedWait> = waits.into_iter().collect();
        let entries: Vec<Entry<'_>> = waits.iter().map(PreparedWait::entry).collect();
        let number = self.inner.collect(&entries)?;
        waits.into_iter().for_each(PreparedWait::give_up);
        Ok(number)
    }
}

fn arrival_word(pd: &ProtectionDomain, placement: Placement) -> Result<CardWord, Error> {
    let (access, len) = (Access::LOCAL_WRITE | Access::REMOTE_WRITE, size_of::<u64>());
    let word = match placement {
        Placement::Host | Placement::StandIn => {
            CardWord::in_region(&MemoryRegion::allocate(pd, len, access)?, 0)?
        }
        Placement::Gpu(ordinal) => {
            let memory = GpuMemory::allocate(&crate::cuda::context(ordinal)?, len)?;
            CardWord::in_gpu_region(&GpuMemoryRegion::register(pd, memory, access)?, 0)?
        }
    };
    word.store(0)?;
    Ok(word)
}

fn queue_pair(pd: &ProtectionDomain, port: u8) -> Result<QueuePair, Error> {
    let config = QueuePairConfig::default().send_depth(BLOCKS).recv_depth(1).port(port);
    let queue_pair = QueuePair::new(pd, config)?;
    queue_pair.connect(&queue_pair.endpoint()?, ConnectOptions::default())?;
    Ok(queue_pair)
}

impl CollectorInner {
    pub(crate) fn location(&self) -> Location {
        self.word.location()
    }

    pub(crate) fn has_room(&self, entries: usize) -> bool {
        let mut state = self.state.lock();
        state.retire();
        let requests = u32::try_from(entries + 1).unwrap_or(u32::MAX);
        let own = &state.queue_pair.inner;
        own.send_cq.lock().has_room(requests) && own.send().check_room(requests).is_ok()
    }

    /// Makes the card wait for entries and then write the next number, which it returns. Takes the last entry of
    /// each queue; the caller keeps all of them from returning to the card.
    pub(crate) fn collect(self: &Arc<Self>, entries: &[Entry<'_>]) -> Result<u64, QueueError> {
        if let Some((queue, ..)) =
            entries.iter().find(|(queue, ..)| !Arc::ptr_eq(&queue.device, &self.device))
        {
            return Err(QueueError::Request(RequestError::OtherDevice { cqn: queue.number() }));
        }
        let mut state = self.state.lock();
        state.retire();
        if state.writer == Writer::Cpu && state.awaited.is_empty() {
            state.replace(self);
        }
        let number = state.newest + 1;
        if state.writer == Writer::Card {
            let wait = |(queue, index, _): &Entry<'_>| CardWait::Entry { cqn: queue.number(), index: *index };
            let waits = entries.iter().map(|entry| WaitRequest { wait: wait(entry), region: None });
            let bytes = number.to_ne_bytes();
            let write = WorkRequest::write_inline(&bytes, self.word.remote()).wr_id(number);
            match state.queue_pair.inner.enqueue(&write, PostMode::Behind(waits)) {
                // The collector's own queue failed: the library's thread notices, and writes the number.
                Ok(_) | Err(QueueError::State(StateError::Failed { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        state.newest = number;
        let entries = entries.iter().map(AwaitedEntry::new).collect();
        state.awaited.push_back(Awaited { number, entries, overdue: None });
        if !std::mem::replace(&mut state.watched, true) {
            CHECKER.add(Arc::new(Watch(self.clone())));
        }
        Ok(number)
    }
}

impl CollectorState {
    /// Polls the collector's completions, which frees queue places and shows the number that the card has written.
    fn retire(&mut self) {
        while let Ok(Some(completion)) = self.queue_pair.inner.send_cq.poll() {
            match completion.status {
                Ok(()) => self.reached = completion.wr_id,
                Err(error) => {
                    tracing::debug!(%error, number = completion.wr_id, "a collector's write did not go");
                }
            }
        }
    }

    /// Makes the CPU continue after the card's last write. A write may have executed and still be reported as
    /// flushed, and the word never goes back.
    fn take_over(&mut self, word: &CardWord) {
        match word.load() {
            Ok(number) => (self.reached, self.writer) = (self.reached.max(number), Writer::Cpu),
            Err(error) => tracing::debug!(%error, "an arrival word cannot be read; the CPU tries again"),
        }
    }

    fn write(&mut self, word: &CardWord, number: u64) {
        match word.store(number) {
            Ok(()) => self.reached = number,
            Err(error) => {
                tracing::debug!(%error, number, "an arrival word cannot be written; the CPU tries again")
            }
        }
    }

    /// Gives the card a new queue. On an error, the CPU goes on.
    fn replace(&mut self, collector: &CollectorInner) {
        match queue_pair(&collector.pd, collector.port) {
            Ok(queue_pair) => (self.queue_pair, self.writer) = (queue_pair, Writer::Card),
            Err(error) => tracing::warn!(%error, "a collector has no queue: the CPU counts in its place"),
        }
    }

    fn look(&mut self, collector: &CollectorInner, past: &mut Vec<Awaited>) -> Polled {
        self.retire();
        while self.awaited.front().is_some_and(|front| front.number <= self.reached) {
            past.extend(self.awaited.pop_front());
        }
        let own_failure = self.queue_pair.failure().is_some();
        let Some(front) = self.awaited.front_mut() else {
            self.watched = false;
            return Polled::Done;
        };
        if front.overdue.is_none() && front.entries.iter().any(AwaitedEntry::is_in_doubt) {
            // Flushes prepared work, so that its entries are written.
            let queue_pairs = front.entries.iter().flat_map(|entry| &entry.queue_pairs);
            let failed = queue_pairs.filter(|queue_pair| queue_pair.life.failure().is_some());
            failed.for_each(|queue_pair| queue_pair.flush_collected());
            if front.has_come() {
                front.overdue = Some(now());
            }
        }
        match self.writer {
            Writer::Card
                if own_failure || front.overdue.is_some_and(|since| now().duration_since(since) > GRACE) =>
            {
                tracing::debug!(number = front.number, "the CPU counts in the place of a collector's card");
                if let Err(error) = self.queue_pair.abort() {
                    tracing::error!(%error, "a collector's queue could not be aborted");
                }
                self.writer = Writer::Leaving;
            }
            Writer::Card => {}
            // After the flush, none of the card's own writes is in flight.
            Writer::Leaving if self.queue_pair.inner.send().outstanding().entries == 0 => {
                self.take_over(&collector.word);
            }
            Writer::Leaving => {}
            Writer::Cpu if front.overdue.is_some() || front.has_come() => {
                let number = front.number;
                self.write(&collector.word, number);
            }
            Writer::Cpu => {}
        }
        if past.is_empty() { Polled::Nothing } else { Polled::Progress }
    }
}

impl Awaited {
    /// Returns whether all entries have been written, or will never be, as the CPU sees it.
    fn has_come(&self) -> bool {
        self.entries.iter().all(AwaitedEntry::has_come)
    }
}

impl AwaitedEntry {
    fn new((queue, index, queue_pairs): &Entry<'_>) -> Self {
        let reopened = queue.lock().reopened;
        AwaitedEntry { queue: (*queue).clone(), index: *index, reopened, queue_pairs: queue_pairs.to_vec() }
    }

    fn has_come(&self) -> bool {
        let queue = self.queue.lock();
        queue.has_come(self.index) || queue.reopened != self.reopened
    }

    /// Returns whether the card may never count it.
    fn is_in_doubt(&self) -> bool {
        let has_failed = |queue_pair: &Arc<QueuePairInner>| queue_pair.life.failure().is_some();
        if self.queue_pairs.iter().any(has_failed) {
            return true;
        }
        let queue = self.queue.lock();
        queue.may_hold_waits() || queue.reopened != self.reopened
    }
}

struct Watch(Arc<CollectorInner>);

impl Task for Watch {
    fn poll(&self) -> Polled {
        let collector = &*self.0;
        let mut past = Vec::new();
        let mut state = collector.state.lock();
        let polled = state.look(collector, &mut past);
        drop(state);
        // Outside the lock: they may hold the last handles of queues.
        drop(past);
        polled
    }
}

#[cfg(test)]
mod tests;
