//! Queue pairs and completion queues: making, connecting, preparing sends, posting receives,
//! failing, resetting.
//!
//! # Invariants
//! - A completion entry returns to the card only when the CPU has polled it *and* the timeline of
//!   every stream that waits for it has reached the wait's point. Posting checks for room and
//!   returns an error; nothing spins, and nothing overruns.
//! - A wait is for an entry, whichever queue pair it is of. A prepared wait holds every queue pair
//!   that it may count on, so their entries are written. A queue pair that is destroyed unbooks its
//!   entries, and marks those in the ring, under the completion queue's lock, before its number can
//!   be used again (`create.rs`).
//! - A stream never hangs because a send failed: an error entry flips the owner bit, too, and a
//!   failed queue pair has everything flushed, including what was only prepared (`fail.rs`). A send
//!   that only its own stream would ring, behind the wait for it, is refused (`prepared.rs`).
//! - One driver at a time: while kernels drive a queue pair, it is not ready (`is_ready`), which every post checks
//!   under the queues' locks, and all places of its completion queue are taken.
//!
//! # Lock order
//! 1. A stream's state, then a completion queue, then a send or receive queue, then the master of a
//!    trigger, then the master's own queues, then the tickets of a trigger. A queue pair with a master
//!    is reset under its queues' locks, and has the master renewed there: the master's queue pair is
//!    failed, reset and connected under these locks, too.
//! 2. The doorbell proxy's list, then a stream's doorbells, then a send queue.
//! 3. The state of an attached device queue pair, then its mailbox or the queues.
//!
//! 4. A send queue, then the regions that it knows, then the queues that a region was posted to; and a send queue, then
//!    what its keeper keeps. Both are innermost.
//!

pub(crate) mod card;
#[deny(unsafe_code)]
pub(crate) mod card_word;
pub(crate) mod complete;
pub(crate) mod life;
pub(crate) mod make;
pub(crate) mod post;
#[cfg(test)]
mod spoilt_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use card::trigger::PreparedTicket;
pub(crate) use complete::CompletionQueueInner;
pub(crate) use post::receives::PreparedReceives;

pub use card::collector::{Collector, CollectorConfig};
pub use card::trigger::{MasterConfig, Trigger};
pub use card_word::CardWord;
pub use complete::channel::{ArmFor, CompletionChannel};
#[cfg(feature = "tokio")]
pub use complete::tokio::AsyncCompletionQueue;
pub use complete::wait::{CheckedWait, PreparedWait};
pub use complete::{CompletionQueue, CompletionQueueConfig, WaitError};
pub use life::connect::ResetError;
pub use life::target::{DcTarget, DcTargetConfig};
pub use post::PreparedSend;
pub use post::shared::{SharedReceiveQueue, SharedReceiveQueueConfig};

use self::card::trigger::{Master, TriggerInner};
use self::make::{QpObject, QueueDomain};
use self::post::shared::SrqAttachment;
use crate::cuda::QueuePlacement;
use crate::memory::spans::Span;
use crate::queue::recv::RecvState;
use crate::queue::regions::KnownRegions;
use crate::queue::request::Limits;
use crate::queue::send::SendState;
use crate::queue::{FailureCause, QueueError, StateError};
use crate::util::options::options;
use crate::verbs::{
    Access, ConnectOptions, DEFAULT_PORT, Endpoint, Error, GidEntry, ProtectionDomain, QueueApi, Transport,
};
use parking_lot::{Mutex, MutexGuard};
use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::Yield;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A queue pair with a doorbell register of its own, and with completion queues of its own unless
/// it was given some.
///
/// Its transport is a reliable connection unless [`QueuePairConfig::transport`] says otherwise. One of
/// [`Transport::Dc`] sends to any number of targets ([`DcTarget`]).
///
/// Dropping it while work is in flight moves it to the error state, so that streams that wait for
/// it wake; its memory is released when the last of them has passed. Polling returns no completion
/// of a queue pair that was dropped, as after `ibv_destroy_qp`.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = ProtectionDomain::new(&Device::software()?)?;
/// let config = QueuePairConfig::default().send_depth(16).recv_depth(16);
/// let (left, right) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, config)?);
/// // Each side needs the other's endpoint, which has a text form.
/// left.connect(&right.endpoint()?.to_string().parse()?, Default::default())?;
/// right.connect(&left.endpoint()?, Default::default())?;
/// let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE)?;
/// right.post_recv(&[region.slice(..32)?], 7)?;
/// left.post_send(WorkRequest::send(&[region.slice(32..)?]))?;
/// let arrived = loop {
///     if let Some(completion) = right.recv_cq().poll()? {
///         break completion;
///     }
/// };
/// assert_eq!((arrived.wr_id, arrived.byte_len), (7, 32));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) inner: Arc<QueuePairInner>,
}

options! {
    /// How a [`crate::QueuePair`] is made. The provider may grant larger sizes than asked for.
    ///
    /// ```
    /// use gdsync::{CompletionQueue, Device, ProtectionDomain, QueuePair, QueuePairConfig};
    /// # fn main() -> Result<(), gdsync::Error> {
    /// let device = Device::software()?;
    /// let pd = ProtectionDomain::new(&device)?;
    /// let shared = CompletionQueue::new(&device, 256)?;
    /// let config = QueuePairConfig::default().send_depth(32).recv_depth(32).completion_queues(&shared, &shared);
    /// let (left, right) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, config)?);
    /// assert_ne!(left.number(), right.number());
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct QueuePairConfig<'a>
    /// A reliable connection, 128 sends and receives of up to 4 slices, 44 bytes inline (what fits
    /// one 64-byte block for a send), remote reads and writes allowed, port 1, its best GID, the
    /// partition key at index 0, made by verbs, with completion queues of its own.
    default {
        /// Transport service.
        transport: Transport = Transport::Rc,
        /// Q_Key of a UD queue pair: what datagrams to it must carry. The top bit set needs
        /// privileges. Others have none.
        qkey: u32 = 0x1111_1111,
        /// Send work requests in flight.
        send_depth: u32 = 128,
        /// Receives posted at a time.
        recv_depth: u32 = 128,
        /// Slices of one send.
        send_segments: u32 = 4,
        /// Slices of one receive.
        recv_segments: u32 = 4,
        /// Bytes that a send can carry inline.
        inline: u32 = 44,
        /// What the remote side may do to this side's memory regions.
        access: Access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        /// Physical port, from 1 on.
        port: u8 = DEFAULT_PORT,
        /// Index of the port's global identifier; by default chosen by the rule of
        /// [`crate::Device::choose_gid`].
        gid_index: Option<u32> = None,
        /// Index of the partition key in the port's table. Both sides must be members of the same
        /// partition; index 0 is the default partition unless an administrator changed it.
        pkey_index: u16 = 0,
        /// Whose memory its queues, records and (where they are its own) completion queues lie in.
        placement: QueuePlacement = QueuePlacement::HOST,
        /// The interface that makes its queues.
        queues: QueueApi = QueueApi::Verbs,
        /// Of DC: the attributes of the connections that its card makes. (Of others,
        /// [`crate::QueuePair::connect`] is given them.) Service level and route come with each address
        /// ([`crate::QueuePair::dc_address`]).
        connections: ConnectOptions = ConnectOptions::default(),
    }
    no setters {
        /// Where its sends complete: a completion queue that it shares, or by default one of its
        /// own.
        send_cq: Option<&'a CompletionQueue> = None,
        /// Where its receives complete; as [`Self::send_cq`](#structfield.send_cq), and it may be
        /// the same queue.
        recv_cq: Option<&'a CompletionQueue> = None,
        /// Where it takes its receives from: a queue that it shares, or by default one of its own.
        shared_receives: Option<&'a SharedReceiveQueue> = None,
        /// What releases its sends: a word for which the card waits, or by default doorbells.
        trigger: Option<&'a Trigger> = None,
    }
}

impl<'a> QueuePairConfig<'a> {
    /// Sets where its work requests complete: sends, and receives. Both may be the same queue.
    #[must_use]
    pub fn completion_queues(self, send: &'a CompletionQueue, recv: &'a CompletionQueue) -> Self {
        QueuePairConfig { send_cq: Some(send), recv_cq: Some(recv), ..self }
    }

    /// Has it take its receives from a shared queue, in the place of one of its own: the depth and the
    /// segments of receives are that queue's. It is made by verbs.
    #[must_use]
    pub fn shared_receive_queue(self, receives: &'a SharedReceiveQueue) -> Self {
        QueuePairConfig { shared_receives: Some(receives), ..self }
    }

    /// Has a word release its sends, for which the card waits, in the place of doorbells. Its send
    /// queue is made twice as deep, as each send has a WAIT in front of it; not where the trigger has a
    /// master ([`Trigger::with_master`]), in whose queue the WAITs are.
    #[must_use]
    pub fn trigger(self, trigger: &'a Trigger) -> Self {
        QueuePairConfig { trigger: Some(trigger), ..self }
    }

    /// The same without references, to be kept.
    pub(crate) fn to_static(self) -> QueuePairConfig<'static> {
        QueuePairConfig { send_cq: None, recv_cq: None, shared_receives: None, trigger: None, ..self }
    }
}

#[derive(Debug)]
pub(crate) struct QueuePairInner {
    pub(crate) object: QpObject,
    pub(crate) number: u32,
    /// Its address: an entry of the port's table.
    pub(crate) gid: GidEntry,
    /// First sequence number of what it sends: another one after each reset.
    pub(crate) psn: AtomicU32,
    pub(crate) config: QueuePairConfig<'static>,
    limits: Limits,
    recv_segments: u32,
    /// `IBV_QPS_*`, and the first error with it.
    status: Mutex<QpState>,
    /// The same in short, to be read without the lock that it is changed under: whether it takes posts. It is
    /// connected, has not failed, and is not handed over to kernels.
    pub(crate) is_ready: AtomicBool,
    /// The card has it in the error state: what has not completed by now is flushed. A queue pair
    /// that is being aborted has failed a moment before.
    pub(crate) is_flushed: AtomicBool,
    /// The program has dropped its handle: polling returns no more completions of this queue pair.
    /// Its memory stays while prepared waits and posted batches need it.
    pub(crate) is_dropped: AtomicBool,
    pub(crate) send: SpinMutex<SendState, Yield>,
    /// Regions that need not be held by what the CPU posts.
    known: KnownRegions,
    /// Empty beside a shared receive queue.
    pub(crate) recv: Mutex<RecvState>,
    pub(crate) shared: Option<SrqAttachment>,
    /// A thread watches for waits that its failure is to end.
    is_watched: AtomicBool,
    pub(crate) send_cq: Arc<CompletionQueueInner>,
    pub(crate) recv_cq: Arc<CompletionQueueInner>,
    /// What releases its sends, in the place of doorbells.
    pub(crate) trigger: Option<Arc<TriggerInner>>,
    /// Tells streams of the page of doorbell registers; a DC target has none.
    _registers: Option<Arc<Span>>,
    pub(crate) domain: Arc<QueueDomain>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum QpState {
    Initialised,
    Connected,
    Failed(FailureCause),
}

/// Source of initial packet sequence numbers: any value serves, but a number from an earlier
/// connection should not be used again soon.
static NEXT_PSN: AtomicU32 = AtomicU32::new(0);

pub(crate) fn next_psn() -> u32 {
    NEXT_PSN.fetch_add(0x1_0001, Ordering::Relaxed) & 0xff_ffff
}

impl QueuePair {
    /// Makes a queue pair: ready to take receives and to be connected; of UD and DC, ready for everything.
    ///
    /// # Errors
    /// [`PortError::NotActive`](crate::verbs::PortError::NotActive),
    /// [`PortError::NoGid`](crate::verbs::PortError::NoGid),
    /// [`QueuePairError::NoTransport`](crate::verbs::QueuePairError), [`Error::Verbs`] where the
    /// provider refuses; [`QueuePairError::OtherDevice`](crate::verbs::QueuePairError) for a completion
    /// queue of another device, and
    /// [`QueuePairError::AwaitedAlone`](crate::verbs::QueuePairError) for one that another queue pair has
    /// made for itself and has persistent requests awaited in; of DC, [`OutOfRange`](crate::verbs::OutOfRange) for
    /// [`QueuePairConfig::connections`] outside their ranges, and
    /// [`QueuePairError::InitiatorOnly`](crate::verbs::QueuePairError),
    /// [`QueuePairError::NotTriggered`](crate::verbs::QueuePairError) and
    /// [`DevxError::NoDc`](crate::verbs::DevxError) for what it cannot have; of queues made by commands ([`QueuePairConfig::queues`], and those of a
    /// trigger with a master), [`OutOfRange`](crate::verbs::OutOfRange) and [`Error::Devx`], too.
    pub fn new(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        Self::in_reset(pd, config).and_then(Self::started)
    }

    /// Ready to take receives and to be connected; of UD and DC, ready for everything.
    pub(crate) fn started(self) -> Result<Self, Error> {
        self.inner.to_init()?;
        if self.transport().is_addressed() {
            self.inner.to_ready()?;
        }
        Ok(self)
    }

    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.inner.config.transport
    }

    /// Bytes that a request can carry inline: those asked for, or more.
    pub fn max_inline(&self) -> u32 {
        self.inner.limits.inline
    }

    /// Bytes of the longest message: of a datagram, the port's MTU.
    pub fn max_message(&self) -> u64 {
        self.inner.limits.message
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Its address, for the remote side.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the port cannot be queried.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.inner.endpoint()
    }

    /// Connects to a remote queue pair, which has to do the same with this one's
    /// [`QueuePair::endpoint`].
    ///
    /// # Errors
    /// [`QueuePairError::State`](crate::verbs::QueuePairError) where it is connected already,
    /// [`QueuePairError::Connectionless`](crate::verbs::QueuePairError) where it is UD or DC,
    /// [`OutOfRange`](crate::verbs::OutOfRange) for options outside their ranges,
    /// [`PortError::OtherWire`](crate::verbs::PortError::OtherWire) where the remote port speaks
    /// another protocol, [`Error::Verbs`] where the provider refuses.
    pub fn connect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), Error> {
        self.inner.connect(remote, options)
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.send_cq.clone() }
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.recv_cq.clone() }
    }
}

impl QueuePairInner {
    /// The send queue. Lock order: completion queue first.
    ///
    /// A lock that is released by a store: another read-modify-write would be a large part of the
    /// cost of a post. A thread that finds it taken yields, as only a reset of the queue pair holds
    /// it for long.
    #[inline(always)]
    pub(crate) fn send(&self) -> SpinMutexGuard<'_, SendState, Yield> {
        self.send.lock()
    }

    /// What releases its sends, where it has a master.
    fn master(&self) -> Option<(&TriggerInner, &Master)> {
        let trigger = self.trigger.as_deref()?;
        Some((trigger, trigger.master.as_ref()?))
    }

    pub(crate) fn recv(&self) -> MutexGuard<'_, RecvState> {
        self.recv.lock()
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, QpState> {
        self.status.lock()
    }

    /// Sends may be prepared: connected, not failed, and not handed over to kernels.
    #[inline(always)]
    pub(crate) fn check_connected(&self) -> Result<(), QueueError> {
        if self.is_ready.load(Ordering::Acquire) { Ok(()) } else { self.why_not_connected() }
    }

    #[cold]
    #[inline(never)]
    fn why_not_connected(&self) -> Result<(), QueueError> {
        let qpn = self.number;
        match *self.status() {
            // Only kernels keep a queue pair that is connected from being ready.
            QpState::Connected => Err(QueueError::State(StateError::DeviceAttached { qpn })),
            QpState::Initialised => Err(QueueError::State(StateError::NotConnected { qpn })),
            QpState::Failed(cause) => Err(QueueError::State(StateError::Failed { qpn, cause })),
        }
    }

    /// It is a DC target.
    pub(crate) fn is_target(&self) -> bool {
        matches!(self.object, QpObject::Target(_))
    }

    /// Refuses receives of a queue pair that has failed.
    fn check_not_failed(&self) -> Result<(), QueueError> {
        match self.failure() {
            Some(cause) => Err(QueueError::State(StateError::Failed { qpn: self.number, cause })),
            None => Ok(()),
        }
    }
}
