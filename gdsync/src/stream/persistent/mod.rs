//! Persistent requests: prepared once, started many times on a stream.
//!
//! They have the shape of the MPI Forum's stream-triggered proposals. *init* records buffers and peer, *start* and
//! *wait* are enqueued on a stream, *complete* runs on the CPU, *free* ends the request. If one stream starts a
//! request, waits for it and starts it again, the iterations need no CPU between them. [`start_all`] and
//! [`wait_all`] do that for a list, in one batch each.
//!
//! Requests are sends, writes and receives.
//!
//! # Memory operations of the stream
//! - A start of a send rings its queue pair's doorbell: two memory operations, for all of a list's sends by one
//!   queue pair.
//! - A start of a receive stores the record of the receive queue, which announces it to the card: one, for all of a
//!   list's receives by one queue pair; none if the list also sends by that queue pair, as the store of the send's
//!   record announces them.
//! - A wait is for the entry of the completion queue: one for all of a list's requests that complete in one queue,
//!   and one more for all.
//!
//! No CPU thread takes part if the request's queue pair has its own completion queues
//! ([`QueuePairConfig::completion_queues`](crate::QueuePairConfig::completion_queues) shares others), and no work
//! of the program without a wait completes there before the request. Otherwise, a library thread reads the
//! completions and writes the request's [`Status`], and the stream waits for that.
//!
//! [`start_all_by_trigger`] starts any list by one memory operation: the card waits in front of the sends.
//!
//! # Receiver not ready
//! A receive is posted in the stream's order. A send that arrives earlier is refused (receiver not ready), and the
//! card repeats it after a while. [`PersistentSend::write_start_count`] and [`PersistentSend::card_wait`] avoid that,
//! on cards that wait for words: the receiving side counts its starts in a word of the sending side, and that side's
//! card holds each send back until the word has reached it.
//!
//! # Statuses
//! Every start has its own [`Status`]. It is written when it is queried, by [`Status::get`], [`Persistent::complete`]
//! or the next start; or by a library thread, after a call of [`Status::word`]. A stream whose later operations read
//! the word waits for it (`wait_value32(status.word(), Condition::And, Status::OK | Status::FAILED)`).
//!
//! ```
//! use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
//! use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream};
//! use std::time::Duration;
//! # let pd = ProtectionDomain::new(&Device::software()?)?;
//! # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
//! # left.connect(&right.endpoint()?, Default::default())?;
//! # right.connect(&left.endpoint()?, Default::default())?;
//! const LONG: Duration = Duration::from_secs(30);
//! let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE)?;
//! let mut there = PersistentSend::send(&left, &[region.slice(..16)?])?;
//! let mut back = PersistentSend::send(&right, &[region.slice(16..32)?])?;
//! let mut arrival = PersistentRecv::new(&right, &[region.slice(32..48)?])?;
//! let mut answer = PersistentRecv::new(&left, &[region.slice(48..)?])?;
//! let stream = Stream::new(SoftStream::new()?)?;
//! for _round in 0..3 {
//!     let mut all: [&mut dyn Request; 4] = [&mut there, &mut back, &mut arrival, &mut answer];
//!     start_all(&mut all, &stream, LONG)?;
//!     wait_all(&mut all, &stream, LONG)?;
//!     stream.launch(|| { /* reads what has arrived, and writes what is sent next */ })?;
//! }
//! for request in [&mut there, &mut back] {
//!     request.complete(LONG)?.ok_or("it takes too long")?.status?;
//! }
//! for request in [&mut arrival, &mut answer] {
//!     assert_eq!(request.complete(LONG)?.ok_or("it takes too long")?.byte_len, 16);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod by_trigger;
mod request;
mod start;

pub use by_trigger::start_all_by_trigger;
pub use request::Request;
pub use start::{start_all, wait_all};

use crate::memop::MemOpStream;
use crate::qp::post::receives;
use crate::qp::{CardWord, Completing, QueuePair, Trigger};
use crate::queue::request::Rules;
use crate::queue::{Claim, Completion, QueueError, Status};
use crate::stream::{PostFailure, Stream};
use crate::verbs::{DcAddress, Error, QueuePairError, RemoteMemory, Slice};
use gdsync_sys::pause::Pause;
use request::Progress;
use request::sealed::{Core, Sending, Work};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// Errors of persistent requests. None of them starts or loses anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PersistentError {
    /// The last start has not completed, and the stream does not wait for it before this start.
    #[error(
        "the request is active: complete() it, or have the same stream wait for it before it is started again"
    )]
    Active,
    /// The request was not started.
    #[error("the request is not active: start it first")]
    Inactive,
    /// The queue pair refuses the request.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The stream refuses the operations.
    #[error(transparent)]
    Post(#[from] PostFailure),
    /// The library's thread could not be started, or there is no memory for the status.
    #[error(transparent)]
    Resources(#[from] Error),
}

/// Why [`start_all`] has started, or [`wait_all`] has waited for, no request of a list.
#[derive(Debug, thiserror::Error)]
#[error("{}{source}", .index.map_or(String::new(), |index| format!("request {index} of the list: ")))]
pub struct ListError {
    /// Index of the refused request; none if the stream refuses any.
    pub index: Option<usize>,
    /// The reason.
    pub source: PersistentError,
}

/// A request that is started again and again: a [`PersistentSend`] or a [`PersistentRecv`]. See the [module](self) for
/// an example.
///
/// If it is dropped while active, the started work continues unobserved. Its memory stays registered until the card
/// has completed the work.
#[derive(Debug)]
pub struct Persistent<K> {
    core: Core,
    kind: PhantomData<K>,
}

/// A send or a write that is started again and again, with the same buffers. The [module](self) has an example.
pub type PersistentSend = Persistent<Outgoing>;

/// A receive that is started again and again, into the same buffers. The [module](self) has an example.
///
/// The receive is posted when the stream reaches the start, as a message that arrived earlier could overwrite what
/// the stream still reads. So the remote side may send before the receive is posted, which causes
/// receiver-not-ready retries that take longer than the message. A program avoids them if it starts the receive
/// before it sends the message that the remote side answers, or if its receives tell the sending side when they
/// start ([`PersistentSend::write_start_count`]).
///
/// Until the stream has reached it, the queue pair receives nothing else: [`QueuePair::post_recv`] and starts on
/// other streams are refused ([`OrderError::ReceivesOnStream`](crate::queue::OrderError)).
pub type PersistentRecv = Persistent<Incoming>;

/// The kind of a [`PersistentSend`].
#[derive(Debug)]
pub struct Outgoing(());

/// The kind of a [`PersistentRecv`].
#[derive(Debug)]
pub struct Incoming(());

impl<K: fmt::Debug> Persistent<K> {
    fn new_with(
        queue_pair: &QueuePair,
        slices: &[Slice],
        sending: Option<Sending>,
    ) -> Result<Self, QueueError> {
        let queue_pair = &queue_pair.inner;
        slices.iter().try_for_each(|slice| queue_pair.check(slice, sending.is_none()))?;
        let queue = if sending.is_some() { &queue_pair.send_cq } else { &queue_pair.recv_cq };
        let core = Core::new(queue_pair.clone(), queue.clone(), slices.to_vec(), sending);
        Ok(Persistent { core, kind: PhantomData })
    }

    /// Starts the request alone on a stream, as [`start_all`] does without waiting for room. The stream rings the card
    /// for a send, and posts a receive, when it reaches the start. If the stream is idle, a receive is posted now.
    ///
    /// # Errors
    /// [`PersistentError`] if starts are active that the stream does not wait for before this one, the queue pair has
    /// failed or is full, or the stream is full.
    pub fn start<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        start_all(&mut [self], stream, Duration::ZERO).map(drop).map_err(|error| error.source)
    }

    /// Makes a stream wait until the newest start has completed or failed, as [`wait_all`] does without waiting for
    /// room. [`Self::status`] is the outcome. After a successful receive, later operations of the stream find the
    /// message in the buffers.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`] before a start, [`PersistentError::Post`] if the stream refuses the wait.
    pub fn wait_on<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        wait_all(&mut [self], stream, Duration::ZERO).map(drop).map_err(|error| error.source)
    }

    /// Waits on the CPU until every start has completed; then the request is inactive. Returns `None` after
    /// `timeout`. Of several starts, it returns the first failure, or else the newest completion.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`] if no start is active.
    pub fn complete(&mut self, timeout: Duration) -> Result<Option<Completion>, PersistentError> {
        let core = &mut self.core;
        if core.active.is_empty() && core.done.is_none() {
            return Err(PersistentError::Inactive);
        }
        let mut pause = Pause::new();
        loop {
            core.progress();
            if core.active.is_empty() {
                core.awaited_on = None;
                return Ok(core.done.take());
            }
            if pause.elapsed() >= timeout {
                return Ok(None);
            }
            pause.pause();
        }
    }

    /// Returns the outcome of the newest start; `None` if the request is inactive.
    pub fn status(&self) -> Option<Status> {
        let core = &self.core;
        let of = |claim: &Arc<Claim>| {
            let progress = Progress::new(&core.queue, &core.queue_pair, claim);
            let cause = Completing::of(std::slice::from_ref(&core.queue_pair));
            claim.status().written_by(Arc::new(progress)).written_after(Arc::new(cause))
        };
        core.active.back().map(of)
    }

    /// Returns true from a start until the CPU has completed it.
    pub fn is_active(&self) -> bool {
        !self.core.active.is_empty()
    }
}

impl PersistentSend {
    /// Makes a send of the slices, in order. Each start sends their content at the time when the stream reaches it.
    ///
    /// # Errors
    /// [`QueueError`] if a slice is of another domain, or a limit of the queue pair is exceeded.
    pub fn send(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        Self::to(queue_pair, slices, None, None)
    }

    /// Makes an RDMA write of the slices.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn write(queue_pair: &QueuePair, slices: &[Slice], remote: RemoteMemory) -> Result<Self, QueueError> {
        Self::to(queue_pair, slices, Some(remote), None)
    }

    fn to(
        queue_pair: &QueuePair,
        slices: &[Slice],
        remote: Option<RemoteMemory>,
        count: Option<[u8; size_of::<u64>()]>,
    ) -> Result<Self, QueueError> {
        let sending = Sending { remote, count, ..Sending::default() };
        let this = Self::new_with(queue_pair, slices, Some(sending))?;
        if let Work::Send(request) = this.core.work() {
            request.most_units(queue_pair.inner.limits())?;
        }
        Ok(this)
    }

    /// Adds immediate data, which is in the receiver's completion.
    pub fn immediate(mut self, value: u32) -> Self {
        self.core.sending.get_or_insert_default().immediate = Some(value);
        self
    }

    /// Sets the target, which requests of DC queue pairs need. A start is refused without one there, and with one
    /// elsewhere.
    pub fn to_target(mut self, target: &DcAddress) -> Self {
        self.core.sending.get_or_insert_default().target = Some(target.clone());
        self
    }

    /// Makes an RDMA write of the number of its start, from 1 on, as 8 big-endian bytes, into a word of the remote
    /// side behind which that side holds its sends back ([`Self::card_wait`]). Start it with a receive, on the same
    /// queue pair: then the word is the number of posted receives.
    ///
    /// It may be started again while it is active, without a stream's wait, as its bytes are in the work request.
    ///
    /// ```
    /// use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
    /// use gdsync::qp::CardWord;
    /// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream};
    /// use std::time::Duration;
    /// # let pd = ProtectionDomain::new(&Device::software()?)?;
    /// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
    /// # left.connect(&right.endpoint()?, Default::default())?;
    /// # right.connect(&left.endpoint()?, Default::default())?;
    /// const LONG: Duration = Duration::from_secs(30);
    /// let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
    /// // The sending side has the word, and says where it is.
    /// let word = CardWord::in_region(&region, 0)?;
    /// let mut send = PersistentSend::send(&left, &[region.slice(16..32)?])?.card_wait(&word)?;
    /// let mut receive = PersistentRecv::new(&right, &[region.slice(32..48)?])?;
    /// let mut ready = PersistentSend::write_start_count(&right, word.remote())?;
    /// let (sender, receiver) = (Stream::new(SoftStream::new()?)?, Stream::new(SoftStream::new()?)?);
    /// for _round in 0..3 {
    ///     // The card holds the send back until the other stream has come to the receive.
    ///     start_all(&mut [&mut send], &sender, LONG)?;
    ///     start_all(&mut [&mut receive, &mut ready], &receiver, LONG)?;
    ///     wait_all(&mut [&mut send], &sender, LONG)?;
    ///     wait_all(&mut [&mut receive], &receiver, LONG)?;
    /// }
    /// for request in [&mut send, &mut ready] {
    ///     request.complete(LONG)?.ok_or("it takes too long")?.status?;
    /// }
    /// receive.complete(LONG)?.ok_or("it takes too long")?.status?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError`] if the queue pair has no room for 8 bytes inline, or no RDMA writes.
    pub fn write_start_count(queue_pair: &QueuePair, remote: RemoteMemory) -> Result<Self, QueueError> {
        let mut this = Self::to(queue_pair, &[], Some(remote), Some(bytes_of(1)))?;
        this.core.may_overlap = true;
        Ok(this)
    }

    /// Makes the card hold each start back until the word has reached the start's number, from 1 on. Each start's
    /// work request is behind a WAIT, which also holds up later work requests of the queue pair. A start takes one
    /// more block of the send queue; the stream's operations do not change.
    ///
    /// While it is held back, nothing is sent, so the card does not notice that the other side has died. A program
    /// that has waited long enough releases it by [`CardWord::raise`]: then the card repeats the message until its
    /// receive is posted, or the other side does not answer.
    ///
    /// The word holds big-endian numbers, and is 0 at first. The other side increments it by
    /// [`Self::write_start_count`], or by its own writes of [`Trigger::word_of`].
    ///
    /// # Errors
    /// [`QueuePairError::NoCardWaits`] if the card cannot wait for words; [`QueuePairError::OtherDomain`] for a
    /// word of another protection domain; [`QueuePairError::MasterWaits`] if the queue pair's trigger has a master.
    pub fn card_wait(mut self, word: &CardWord) -> Result<Self, Error> {
        self.set_card_wait(word)?;
        Ok(self)
    }

    /// Sets the word of [`Self::card_wait`] for later starts. Numbers still count from the first start. On an error,
    /// nothing has changed.
    ///
    /// # Errors
    /// Those of [`Self::card_wait`].
    pub fn set_card_wait(&mut self, word: &CardWord) -> Result<(), Error> {
        let Core { queue_pair, .. } = &self.core;
        let device = &queue_pair.domain.pd.device;
        let refusal = if !device.card_waits()?.data {
            QueuePairError::NoCardWaits { device: device.name.to_owned(), what: "words in memory" }
        } else if !word.protection_domain().inner.is(&queue_pair.domain.pd) {
            QueuePairError::OtherDomain
        } else if queue_pair.trigger.as_ref().is_some_and(|trigger| trigger.master.is_some()) {
            QueuePairError::MasterWaits { qpn: queue_pair.number }
        } else {
            self.core.wait_word = Some(word.clone());
            return Ok(());
        };
        Err(Error::QueuePair(refusal))
    }
}

impl PersistentRecv {
    /// Makes a receive into the slices, in order.
    ///
    /// # Errors
    /// [`QueueError`] if a slice is of another domain or not writable, or there are too many.
    pub fn new(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        receives::segments(&queue_pair.inner, slices)?;
        Self::new_with(queue_pair, slices, None)
    }
}

/// Returns the content of the other side's word from that start on.
pub(super) fn bytes_of(start: u64) -> [u8; size_of::<u64>()] {
    Trigger::word_of(start).to_ne_bytes()
}
