//! Persistent requests: prepared once, started many times on a stream.
//!
//! The shape is that of the MPI Forum's stream-triggered proposals. *init* remembers buffers and
//! peer, *start* and *wait* are enqueued on a stream, *complete* runs on the CPU, *free* ends the
//! request. If one stream starts a request, waits for it and starts it again, the iterations need
//! no CPU between them. [`start_all`] and [`wait_all`] do that for a list, in one batch each.
//!
//! Requests are sends, writes and receives.
//!
//! # What the stream performs
//! A start of a send rings its queue pair's doorbell (two memory operations, a list's for one queue pair
//! together). A start of a receive stores the record of the receive queue, by which the card learns of it
//! (one, a list's for one queue pair together; none, where the list also sends by the queue pair: the store
//! of the send's record announces the receives). A wait is for the entry of the completion queue (one, a
//! list's for one queue together, and one more for all). No thread of the CPU takes part, where the request's queue pair has
//! completion queues of its own ([`QueuePairConfig::completion_queues`](crate::QueuePairConfig::completion_queues)
//! shares others), and no work of the program completes there in front of the request that no wait is for. Otherwise a thread of the library looks at the completions and writes the request's
//! [`Status`], and the stream waits for that.
//!
//! [`start_all_by_trigger`] starts a list by one memory operation, whatever is in it: the card waits in front of the sends.
//!
//! # Messages that find their receive
//! A receive is posted in the stream's order. A send that is there earlier is refused (receiver not ready), and the
//! card repeats it after a while. [`PersistentSend::count`] and [`PersistentSend::behind`] spare that, on cards that
//! wait for words: the receiving side counts its starts up in a word of the sending side, and that side's card holds
//! each send back until the word has reached it.
//!
//! # Statuses
//! Every start has a [`Status`] of its own. It is written when somebody looks: [`Status::get`],
//! [`Persistent::complete`], the next start; or by a thread of the library, from the call of [`Status::word`]
//! on. A stream whose later operations read the word waits for it
//! (`wait_value32(status.word(), Condition::And, Status::OK | Status::FAILED)`).
//!
//! ```
//! use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
//! use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream};
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
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
//! # Ok(())
//! # }
//! ```

mod request;
mod start;

pub use request::Request;
pub use start::{start_all, start_all_by_trigger, wait_all};

use crate::memop::MemOpStream;
use crate::qp::{CardWord, QueuePair, Trigger};
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

/// Why [`start_all`] has started, or [`wait_all`] has waited for, nothing of a list.
#[derive(Debug, thiserror::Error)]
#[error("{}{source}", .index.map_or(String::new(), |index| format!("request {index} of the list: ")))]
pub struct ListError {
    /// Which of the requests is refused, from 0 on; none where the stream refuses whatever they are.
    pub index: Option<usize>,
    /// Why.
    pub source: PersistentError,
}

/// A request that is started again and again, with the same buffers: a [`PersistentSend`] or a
/// [`PersistentRecv`].
///
/// If it is dropped while it is active, the started work goes on unobserved. Its memory stays
/// registered until the card has completed the work.
#[derive(Debug)]
pub struct Persistent<K> {
    core: Core,
    kind: PhantomData<K>,
}

/// A send or a write that is started again and again, with the same buffers.
pub type PersistentSend = Persistent<Outgoing>;

/// A receive that is started again and again, into the same buffers.
///
/// The receive is posted when the stream reaches the start: a message that arrived earlier could
/// overwrite what the stream still reads. So the remote side may send before the receive is posted,
/// and needs receiver-not-ready retries, which take longer than the message. A program that starts the
/// receive before it sends what the remote side answers spares them, and so does one whose receives tell the sending
/// side when they start ([`PersistentSend::count`]).
///
/// Until the stream has reached it, nothing else is received by the queue pair: [`QueuePair::post_recv`] and
/// starts on other streams are refused ([`OrderError::ReceivesOnStream`](crate::queue::OrderError)).
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

    /// Starts the request on a stream: [`start_all`] of it alone, which waits for no room. The stream
    /// rings the card for a send, and posts a receive, when it reaches the start. If the stream is idle,
    /// a receive is posted now.
    ///
    /// # Errors
    /// [`PersistentError`]: starts are active that the stream does not wait for before this one,
    /// the queue pair has failed or is full, or the stream is full.
    pub fn start<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        start_all(&mut [self], stream, Duration::ZERO).map(drop).map_err(|error| error.source)
    }

    /// Has a stream wait until the newest start has completed, well or not: [`wait_all`] for it alone,
    /// which waits for no room. [`Self::status`] says which. After a receive that completed well, later
    /// operations of the stream find the message in the buffers.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`], [`PersistentError::Post`].
    pub fn wait_on<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        wait_all(&mut [self], stream, Duration::ZERO).map(drop).map_err(|error| error.source)
    }

    /// Waits on the CPU until every start has completed; then the request is inactive. `None` if
    /// that takes longer than `timeout`. Of several starts, it returns the first failure, or else
    /// the newest completion.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`].
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

    /// The outcome of the newest start; `None` if the request is inactive.
    pub fn status(&self) -> Option<Status> {
        let core = &self.core;
        let of = |claim: &Arc<Claim>| {
            let progress = Progress::new(&core.queue, &core.queue_pair, claim);
            claim.status.written_by(Arc::new(progress))
        };
        core.active.back().map(of)
    }

    /// True from a start until the CPU has completed it.
    pub fn is_active(&self) -> bool {
        !self.core.active.is_empty()
    }
}

impl PersistentSend {
    /// Remembers a send of the slices, one after the other. Each start sends what they hold when
    /// the stream reaches it.
    ///
    /// # Errors
    /// [`QueueError`]: a slice of another domain, or a limit of the queue pair.
    pub fn send(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        Self::to(queue_pair, slices, None, None)
    }

    /// Remembers an RDMA write of the slices.
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

    /// Adds immediate data, which the receiver finds in its completion.
    pub fn immediate(mut self, value: u32) -> Self {
        self.core.sending.get_or_insert_default().immediate = Some(value);
        self
    }

    /// Says which target it goes to, as requests of DC queue pairs need it. A start is refused without
    /// one there, and with one elsewhere.
    pub fn to_target(mut self, target: &DcAddress) -> Self {
        self.core.sending.get_or_insert_default().target = Some(target.clone());
        self
    }

    /// Remembers an RDMA write of the number of its start, from 1 on: of 8 bytes, as a big-endian number, into a word of
    /// the remote side behind which that side's sends are held back ([`Self::behind`]). Start it with a receive, on the
    /// same queue pair: then the word says how many receives are posted.
    ///
    /// It may be started again while it is active, as its bytes are in the work request: no stream has to wait for it.
    ///
    /// ```
    /// use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
    /// use gdsync::qp::CardWord;
    /// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream};
    /// use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = ProtectionDomain::new(&Device::software()?)?;
    /// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
    /// # left.connect(&right.endpoint()?, Default::default())?;
    /// # right.connect(&left.endpoint()?, Default::default())?;
    /// const LONG: Duration = Duration::from_secs(30);
    /// let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
    /// // The sending side has the word, and says where it is.
    /// let word = CardWord::in_region(&region, 0)?;
    /// let mut send = PersistentSend::send(&left, &[region.slice(16..32)?])?.behind(&word)?;
    /// let mut receive = PersistentRecv::new(&right, &[region.slice(32..48)?])?;
    /// let mut ready = PersistentSend::count(&right, word.remote())?;
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
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`QueueError`]: the queue pair has no room for 8 bytes inline, or no RDMA writes.
    pub fn count(queue_pair: &QueuePair, remote: RemoteMemory) -> Result<Self, QueueError> {
        let mut this = Self::to(queue_pair, &[], Some(remote), Some(bytes_of(1)))?;
        this.core.may_overlap = true;
        Ok(this)
    }

    /// Has the card hold each start back until the word has reached its number: 1 for the first one, whose work request
    /// goes behind a WAIT, as does that of every other. Later work requests of the queue pair wait behind it. A start takes
    /// one block of the send queue more; the stream performs what it performs without.
    ///
    /// While it is held back, nothing is sent, so the card does not notice that the other side has died. A program that has
    /// waited long enough lets it go by [`CardWord::raise`]: then the card repeats the message until its receive is
    /// there, or the other side does not answer.
    ///
    /// The word holds big-endian numbers, and is 0 at first. The other side counts it up by [`Self::count`], or by writes of
    /// its own of [`Trigger::word_of`].
    ///
    /// # Errors
    /// [`QueuePairError::NoCardWaits`] where the card waits for no words; [`QueuePairError::OtherDomain`] for a word
    /// of another protection domain; [`QueuePairError::MasterWaits`] where the queue pair's trigger has a master.
    pub fn behind(mut self, word: &CardWord) -> Result<Self, Error> {
        self.set_behind(word)?;
        Ok(self)
    }

    /// As [`Self::behind`], for the starts from now on: the number is counted from the first start on, as before. Where
    /// it fails, nothing has changed.
    ///
    /// # Errors
    /// Those of [`Self::behind`].
    pub fn set_behind(&mut self, word: &CardWord) -> Result<(), Error> {
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
    /// Remembers a receive into the slices, one after the other.
    ///
    /// # Errors
    /// [`QueueError`]: a slice of another domain or not writable, or too many.
    pub fn new(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        queue_pair.inner.recv_segments(slices)?;
        Self::new_with(queue_pair, slices, None)
    }
}

/// What the word of the other side holds from that start on.
pub(super) fn bytes_of(start: u64) -> [u8; size_of::<u64>()] {
    Trigger::word_of(start).to_ne_bytes()
}
