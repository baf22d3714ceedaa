//! Triggers: words that cards wait for in front of sends.

mod master;

pub(crate) use master::Master;
pub use master::MasterConfig;

use crate::memop::{Location, Named};
use crate::memory::{Timeline, TimelinePoint};
use crate::qp::card_word::is_behind;
use crate::qp::complete::wait::{CHECKER, start_checker};
use crate::qp::{CardWord, QueuePairInner};
use crate::queue::send::{CardWait, LastPost, PreviousPost, WaitRequest};
use crate::queue::{OrderError, QueueError};
use crate::util::poller::{Polled, Task};
use crate::verbs::{
    Access, Error, GpuMemoryRegion, MemoryRegion, ProtectionDomain, ProtectionDomainInner, QueuePairError,
};
use gdsync_sys::prm::wait;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};

/// A 64-bit word that cards wait for in front of sends: one store to it releases sends of any number of queue pairs.
///
/// Queue pairs are made for a trigger ([`crate::QueuePairConfig::trigger`]). Each prepared send takes a *ticket*,
/// the trigger's next number, from 1 on. The CPU rings the card at once, and the card waits until the word has
/// reached the ticket. A batch posted on a stream writes the word once, however many such sends it has, and rings
/// no doorbell. Kernels, graph nodes and the CPU may write the word themselves
/// ([`crate::PreparedSend::into_ticket`], [`Trigger::release`]).
///
/// # Order
/// A ticket releases all sends with lower ones. So the sends of a trigger are posted in the order of their
/// preparation, across all its queue pairs. Another order is refused
/// ([`OrderError::TicketOutOfOrder`](crate::queue::OrderError::TicketOutOfOrder)), and so is another stream before
/// the first has written the word
/// ([`OrderError::TriggerOnOtherStream`](crate::queue::OrderError::TriggerOnOtherStream)). Independent sends need
/// different triggers. As with doorbells, the effects of sends on different queue pairs are not ordered.
///
/// # Dropping
/// A dropped send becomes a NOP in the ring, if the card has not fetched it yet. It is released once all tickets before
/// it are written. (In GPU memory: or by a later ticket.)
///
/// A trigger is a cheap handle; clones name the same word. Queue pairs hold it.
///
/// ```
/// use gdsync::{Access, Batch, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, SoftStream, Stream, Trigger, WorkRequest};
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// let trigger = Trigger::new(&pd)?;
/// let config = QueuePairConfig::default().trigger(&trigger);
/// let (left, right) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let stream = Stream::new(SoftStream::new()?)?;
/// let slices = [region.slice(..8)?];
/// let first = left.prepare(WorkRequest::write(&slices, region.remote().slice(8..16)?))?;
/// let second = left.prepare(WorkRequest::write(&slices, region.remote().slice(16..24)?))?;
/// let waits = [left.send_cq().prepare_wait()?, left.send_cq().prepare_wait()?];
/// let batch = waits.into_iter().fold(Batch::new().send(first).send(second), Batch::wait);
/// let posted = stream.post(batch)?; // the word, the wait, the point of the timeline
/// assert_eq!(posted.operations, 3);
/// stream.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trigger {
    pub(crate) inner: Arc<TriggerInner>,
}

#[derive(Debug)]
pub(crate) struct TriggerInner {
    /// The queue that waits for the word, instead of the sends' own queues. Declared above the word, so that it is
    /// destroyed first.
    pub(crate) master: Option<Master>,
    word: CardWord,
    pub(crate) pd: Arc<ProtectionDomainInner>,
    state: Mutex<Tickets>,
    /// Held from taking a ticket for a list until it is posted. Precedes all other locks.
    pub(crate) turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Tickets {
    newest: u64,
    /// Tickets of sends that are prepared and not posted.
    prepared: BTreeSet<u64>,
    /// Tickets of dropped sends, which nothing has released.
    dropped: BTreeSet<u64>,
    /// The highest ticket that the program releases itself.
    handed_out: u64,
    /// The highest ticket given to a stream.
    posted: u64,
    last_post: Option<LastPost>,
    /// True while a thread of the library looks for the time to release dropped sends.
    is_watched: bool,
}

impl Trigger {
    /// Makes a trigger in newly allocated host memory.
    ///
    /// # Errors
    /// [`QueuePairError::NoCardWaits`](crate::verbs::QueuePairError::NoCardWaits) if the card cannot wait for
    /// words; [`Error::Memory`], [`Error::Verbs`] if the provider refuses to register it.
    pub fn new(pd: &ProtectionDomain) -> Result<Self, Error> {
        Self::in_region(&MemoryRegion::allocate(pd, size_of::<u64>(), Access::empty())?, 0)
    }

    /// Makes a trigger at a byte offset of a region of host memory. The word is set to 0.
    ///
    /// # Errors
    /// [`Error::Word`] if the offset is not aligned to 8 bytes or is outside;
    /// [`QueuePairError::NoCardWaits`](crate::verbs::QueuePairError::NoCardWaits) as for [`Self::new`].
    pub fn in_region(region: &MemoryRegion, offset: usize) -> Result<Self, Error> {
        Self::with(CardWord::in_region(region, offset)?)
    }

    /// Makes a trigger at a byte offset of GPU memory. Kernels of that GPU store to it in less time than to host
    /// memory; the card reads it over PCIe. The word is set to 0.
    ///
    /// # Errors
    /// As [`Self::in_region`]; [`Error::Cuda`] if the driver cannot write the word.
    pub fn in_gpu_region(region: &GpuMemoryRegion, offset: usize) -> Result<Self, Error> {
        Self::with(CardWord::in_gpu_region(region, offset)?)
    }

    fn with(word: CardWord) -> Result<Self, Error> {
        let pd = word.protection_domain().inner;
        if !pd.device.card_waits()?.data {
            return Err(Error::QueuePair(QueuePairError::NoCardWaits {
                device: pd.device.name.to_owned(),
                what: "words in memory",
            }));
        }
        word.store(wait::word(0))?;
        let inner = TriggerInner { master: None, word, pd, state: Mutex::default(), turn: Mutex::default() };
        Ok(Trigger { inner: Arc::new(inner) })
    }

    /// Adds a *master* to the trigger: a queue of the library that waits for the word and releases the sends of all
    /// the trigger's queue pairs (SEND_EN), so that the card polls the word in one queue. It is made with the first
    /// queue pair, on the same port. Commands of the device make the queue pairs, whatever
    /// [`crate::QueuePairConfig::queues`] says, with the depth asked for: the WAITs are in the master's queue.
    ///
    /// Order, dropping, failing and tickets are the same, with these exceptions:
    /// - **Room.** The master holds at least [`MasterConfig::sends`] unreleased sends; beyond that, preparing is
    ///   eventually refused ([`QueueFull::Master`](crate::queue::QueueFull::Master)).
    /// - **Posts of the CPU** ([`crate::QueuePair::post_send`]) on a queue pair are refused while it has
    ///   outstanding sends that the master releases, and preparing is refused while it has outstanding posts of the
    ///   CPU ([`OrderError::MixedCpuAndMasterSends`](crate::queue::OrderError)).
    /// - **Resetting or destroying a queue pair** with unreleased sends stops the master and restarts it without
    ///   them, which delays the other queue pairs' releases.
    /// - **A failed master** fails every queue pair with sends that it has not released
    ///   ([`FailureCause::Master`](crate::queue::FailureCause::Master)), so that no stream waits forever. Then it
    ///   restarts.
    ///
    /// A library thread polls the master while sends are unreleased, and sleeps otherwise.
    ///
    /// ```
    /// use gdsync::advanced::MasterConfig;
    /// use gdsync::{Device, ProtectionDomain, QueuePair, QueuePairConfig, Trigger};
    /// let pd = ProtectionDomain::new(&Device::software()?)?;
    /// let trigger = Trigger::new(&pd)?.with_master(MasterConfig::default().sends(64))?;
    /// let config = QueuePairConfig::default().trigger(&trigger);
    /// let peers = (0..4).map(|_| QueuePair::new(&pd, config)).collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError::NoMasters`](crate::verbs::QueuePairError::NoMasters) if the card has no SEND_EN, or takes no
    /// commands; [`QueuePairError::TriggerInUse`](crate::verbs::QueuePairError) if the trigger has clones or queue
    /// pairs; [`OutOfRange`](crate::verbs::OutOfRange) for the number of sends; [`Error::Thread`] without a thread.
    pub fn with_master(mut self, config: MasterConfig) -> Result<Self, Error> {
        let master = Master::new(&self.inner.pd.device, config)?;
        let in_use = || Error::QueuePair(QueuePairError::TriggerInUse);
        Arc::get_mut(&mut self.inner).ok_or_else(in_use)?.master = Some(master);
        Ok(self)
    }

    /// Returns the word's content once a ticket is released, as a native number for a kernel, a graph node or an
    /// RDMA write to store. Cards compare big-endian numbers: these 8 bytes are the ticket in that order, and the
    /// lower half of a ticket below 2^32 is the second 32-bit word.
    pub const fn word_of(ticket: u64) -> u64 {
        wait::word(ticket)
    }

    /// Returns the word's address: a host address, or for GPU memory the GPU's.
    pub fn address(&self) -> u64 {
        self.inner.word.address()
    }

    /// Releases a ticket, and all below it, by the CPU. Does nothing if the word has reached it. A trigger has one
    /// writer at a time: use this for tickets that no stream writes ([`crate::PreparedSend::into_ticket`]).
    ///
    /// # Errors
    /// [`Error::Cuda`] if the word is in GPU memory and the driver cannot write it.
    pub fn release(&self, ticket: u64) -> Result<(), Error> {
        let _state = self.inner.state.lock();
        Ok(self.inner.word.raise(ticket)?)
    }
}

impl TriggerInner {
    /// Returns the newest post, if its stream may not have written it yet. The word shows what the stream reports
    /// only now and then; reading a word in GPU memory would take a call of the driver.
    fn pending_post<'a>(&self, state: &'a Tickets) -> Option<&'a LastPost> {
        let last = state.last_post.as_ref()?;
        let is_written = self.word.peek().is_some_and(|word| !is_behind(word, state.posted));
        (!is_written && !last.timeline.has_passed(last.point)).then_some(last)
    }

    pub(crate) fn word(&self) -> &CardWord {
        &self.word
    }

    pub(crate) fn location(&self) -> Location {
        self.word.location()
    }

    /// Takes the next ticket; returns it with its WAIT. The caller holds the lock of the send queue, of the master,
    /// or of a list's turn, so that a queue's WAITs are in ticket order.
    pub(crate) fn take_ticket(&self) -> (u64, CardWait) {
        let mut state = self.state.lock();
        state.newest += 1;
        let ticket = state.newest;
        state.prepared.insert(ticket);
        (ticket, self.wait_for(ticket))
    }

    /// Says which ticket has to be written before the card goes on, and by what; `None` if the word has reached all.
    pub(crate) fn missing(&self) -> Option<String> {
        let state = self.state.lock();
        let reached = self.word.peek().map(wait::word);
        // Of a word in GPU memory it is not known.
        let is_missing = |ticket: u64| ticket > reached.unwrap_or(0);
        let (ticket, by) = match state.prepared.first() {
            _ if is_missing(state.handed_out) => {
                (state.handed_out, "the program has taken it to write it itself")
            }
            _ if is_missing(state.posted) => (state.posted, "its stream has not come to it"),
            Some(first) if is_missing(*first) => (*first, "its send is prepared and not posted"),
            _ => return None,
        };
        let reached =
            reached.map_or("is in GPU memory".to_owned(), |reached| format!("has ticket {reached}"));
        Some(format!("ticket {ticket} was never written to its trigger's word, which {reached}: {by}"))
    }

    pub(crate) fn wait_for(&self, ticket: u64) -> CardWait {
        CardWait::Ticket { lkey: self.word.lkey(), addr: self.word.address(), ticket }
    }

    pub(crate) fn cancel(self: &Arc<Self>, ticket: u64) {
        let mut state = self.state.lock();
        if state.prepared.remove(&ticket) {
            state.dropped.insert(ticket);
            self.release_dropped(&mut state);
        }
    }

    /// Releases dropped sends now, or has a thread of the library do that: a stream may wait for the completion of one, in
    /// front of all later tickets.
    fn release_dropped(self: &Arc<Self>, state: &mut Tickets) {
        if state.is_watched || self.try_release_dropped(state) {
            return;
        }
        match start_checker() {
            Ok(()) => {
                state.is_watched = true;
                CHECKER.add(Arc::new(Dropped(Arc::downgrade(self))));
            }
            Err(error) => {
                tracing::warn!(%error, "dropped sends stay in their queue until the next ticket is written")
            }
        }
    }

    /// Releases the NOPs of dropped sends whose earlier tickets are written. Returns false if some are left that need no other
    /// ticket to be posted.
    fn try_release_dropped(&self, state: &mut Tickets) -> bool {
        if state.handed_out > 0 {
            // The program's own writes may come, once it has taken tickets.
            state.dropped.clear();
        }
        if state.dropped.is_empty() {
            return true;
        }
        let last = state.prepared.first().map_or(state.newest, |first| first - 1);
        if self.pending_post(state).is_none() {
            if last > state.posted
                && let Err(error) = self.word.raise(last)
            {
                tracing::warn!(%error, last, "a dropped send stays in its queue until the next ticket is written");
            }
            state.dropped = state.dropped.split_off(&(last + 1));
            return true;
        }
        // A stream may write the word now. Only a stray write puts the largest number there, and no ticket follows it.
        if let Some(reached) = self.word.peek().map(wait::word)
            && let Some(first) = reached.checked_add(1)
        {
            let next = (first..=u64::MAX).find(|ticket| !state.dropped.contains(ticket)).unwrap_or(first);
            if next == first || self.word.replace(reached, next - 1) {
                state.dropped = state.dropped.split_off(&next);
            }
        }
        state.dropped.first().is_none_or(|first| *first > last)
    }

    /// Records that a stream will write a ticket when it has reached `point`, if it is the next one. Returns the
    /// previous post, for [`Self::undo_post`].
    pub(crate) fn post(
        self: &Arc<Self>,
        ticket: u64,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Result<PreviousPost, QueueError> {
        let mut state = self.state.lock();
        state.check_next(ticket)?;
        let is_same = |last: &LastPost| Arc::ptr_eq(&last.timeline, timeline);
        if !state.last_post.as_ref().is_none_or(is_same)
            && let Some(last) = self.pending_post(&state)
        {
            let blocked = last.timeline.blocked_on(last.point);
            return Err(QueueError::Order(OrderError::TriggerOnOtherStream { blocked }));
        }
        state.prepared.remove(&ticket);
        state.posted = ticket;
        let before = LastPost::renew(&mut state.last_post, timeline, point);
        self.release_dropped(&mut state);
        Ok(before)
    }

    /// Undoes [`Self::post`], as the stream refused the batch. Groups are undone newest first.
    pub(crate) fn undo_post(&self, ticket: u64, before: PreviousPost) {
        let mut state = self.state.lock();
        state.prepared.insert(ticket);
        state.posted = ticket - 1;
        LastPost::restore(&mut state.last_post, before);
    }

    /// Leaves the release of a ticket to the program.
    pub(crate) fn hand_out(&self, ticket: u64) -> Result<(), QueueError> {
        let mut state = self.state.lock();
        state.check_next(ticket)?;
        state.prepared.remove(&ticket);
        state.handed_out = ticket;
        Ok(())
    }
}

struct Dropped(Weak<TriggerInner>);

impl Task for Dropped {
    fn poll(&self) -> Polled {
        let Some(trigger) = self.0.upgrade() else { return Polled::Done };
        let mut state = trigger.state.lock();
        if !trigger.try_release_dropped(&mut state) {
            return Polled::Nothing;
        }
        state.is_watched = false;
        Polled::Done
    }
}

impl Tickets {
    fn check_next(&self, ticket: u64) -> Result<(), QueueError> {
        match self.prepared.first() {
            Some(expected) if *expected < ticket => {
                Err(QueueError::Order(OrderError::TicketOutOfOrder { ticket, expected: *expected }))
            }
            _ => Ok(()),
        }
    }
}

/// A trigger's next number, not given to a stream yet. Dropping it takes it back.
#[derive(Debug)]
#[must_use = "a ticket releases nothing until it is posted; dropping it takes it back"]
pub(crate) struct PreparedTicket {
    trigger: Arc<TriggerInner>,
    number: u64,
    wait: CardWait,
    posted: Option<PreviousPost>,
    /// Queue pairs with sends that wait for it. They are kept until the stream has passed it, and fail with the stream.
    pub(crate) queue_pairs: Vec<Arc<QueuePairInner>>,
}

impl PreparedTicket {
    /// The caller holds the trigger's turn, so that tickets are posted in the order of their numbers.
    pub(crate) fn new(trigger: &Trigger) -> Self {
        let trigger = trigger.inner.clone();
        let (number, wait) = trigger.take_ticket();
        PreparedTicket { trigger, number, wait, posted: None, queue_pairs: Vec::new() }
    }

    /// Returns the WAIT for it, for a send of any queue pair of the trigger's domain.
    pub(crate) fn wait(&self) -> WaitRequest {
        WaitRequest { wait: self.wait, region: Some(self.trigger.word.region()) }
    }

    /// Marks it as posted. Returns the number that the stream writes.
    ///
    /// # Errors
    /// Earlier tickets that are not posted; another stream that has not written its ticket yet.
    pub(crate) fn commit(
        &mut self,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Result<u64, QueueError> {
        self.posted = Some(self.trigger.post(self.number, timeline, point)?);
        Ok(self.number)
    }

    pub(crate) fn undo(&mut self) {
        if let Some(before) = self.posted.take() {
            self.trigger.undo_post(self.number, before);
        }
    }

    pub(crate) fn location(&self) -> Location {
        self.trigger.location()
    }
}

impl Drop for PreparedTicket {
    fn drop(&mut self) {
        if self.posted.is_none() {
            self.trigger.cancel(self.number);
        }
    }
}

impl fmt::Display for PreparedTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "release ticket {}", self.number)
    }
}
