//! Queue pairs and completion queues.
//!
//! # Invariants
//! - A completion entry returns to the card only when the CPU has polled it *and* the timeline of every stream that
//!   waits for it has reached the wait's point. Posting checks for room and returns an error; nothing spins, and
//!   nothing overruns.
//! - A wait is for an entry of a completion queue, not for a queue pair. A prepared wait holds every queue pair whose
//!   completion may satisfy it, so the entries are written. Destroying a queue pair unreserves its entries, and marks
//!   those in the ring, under the completion queue's lock, before its number can be reused (`life/create.rs`).
//! - A failed send never hangs a stream: an error entry flips the owner bit, too, and all work of a failed queue
//!   pair is flushed, including prepared work (`life/fail.rs`). A send is refused on a stream where it would follow
//!   the wait for its own completion (`post/mod.rs`).
//! - One driver at a time: while kernels drive a queue pair, `is_ready` is false, which every post checks under the
//!   queues' locks, and all places of its completion queue are taken.
//!
//! # Lock order
//! 1. A stream's state, then a completion queue, then a send or receive queue, then the master of a trigger, then the
//!    master's own queues, then the tickets of a trigger. A queue pair with a master is reset under its queues' locks.
//!    The reset may restart the master: its queue pair is failed, reset and connected under these locks, too.
//! 2. The doorbell proxy's list, then a stream's doorbells, then a send queue.
//! 3. The state of an attached device queue pair, then its mailbox or the queues.
//! 4. A send queue, then its known regions, then the queues that a region was posted to; and a send queue, then its
//!    keeper's regions. Both are innermost.
//!
//! Two completion queues are locked in the order of their addresses. The lock of a peer map is innermost, except
//! for calls of the CUDA driver. A software card has one lock, its engine's.

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

/// A send queue and a receive queue, by which a program exchanges messages with a remote queue pair. It has its own
/// doorbell register, and its own completion queues unless the configuration names shared ones.
///
/// The transport is a reliable connection unless [`QueuePairConfig::transport`] says otherwise. A [`Transport::Dc`]
/// queue pair sends to any number of targets ([`DcTarget`]).
///
/// Dropping a queue pair with work in flight moves it to the error state, so that waiting streams wake. Its memory
/// is released when the last of them has passed its wait. Polling returns no completion of a dropped queue pair, as
/// after `ibv_destroy_qp`.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
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
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) inner: Arc<QueuePairInner>,
}

options! {
    /// The configuration of a [`QueuePair`]: transport, sizes and shared objects. The provider may grant larger sizes.
    ///
    /// ```
    /// use gdsync::{CompletionQueue, Device, ProtectionDomain, QueuePair, QueuePairConfig};
    /// let device = Device::software()?;
    /// let pd = ProtectionDomain::new(&device)?;
    /// let shared = CompletionQueue::new(&device, 256)?;
    /// let config = QueuePairConfig::default().send_depth(32).recv_depth(32).completion_queues(&shared, &shared);
    /// let (left, right) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, config)?);
    /// assert_ne!(left.number(), right.number());
    /// # Ok::<(), gdsync::Error>(())
    /// ```
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct QueuePairConfig<'a>
    /// A reliable connection, 128 sends and receives of up to 4 slices, 44 bytes inline (what fits one 64-byte
    /// block for a send), remote reads and writes allowed, port 1, its best GID, the partition key at index 0, made
    /// by verbs, with its own completion queues.
    default {
        /// Transport service.
        transport: Transport = Transport::Rc,
        /// Q_Key of a UD queue pair, which datagrams to it must carry. Setting the top bit needs privileges. Other
        /// transports have none.
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
        /// Access of the remote side to this side's memory regions.
        access: Access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        /// Physical port, from 1 on.
        port: u8 = DEFAULT_PORT,
        /// Index of the port's global identifier; by default chosen by the rule of [`crate::Device::choose_gid`].
        gid_index: Option<u32> = None,
        /// Index of the partition key in the port's table. Both sides must be members of the same
        /// partition; index 0 is the default partition unless an administrator changed it.
        pkey_index: u16 = 0,
        /// Memory of its queues, its records and, unless they are shared, its completion queues.
        placement: QueuePlacement = QueuePlacement::HOST,
        /// Interface that makes its queues.
        queues: QueueApi = QueueApi::Verbs,
        /// Attributes of the connections that a DC queue pair's card makes. (Others take them from
        /// [`crate::QueuePair::connect`].) Service level and route come with each address
        /// ([`crate::QueuePair::dc_address`]).
        connections: ConnectOptions = ConnectOptions::default(),
    }
    no setters {
        /// Completion queue of its sends: a shared one, or by default its own.
        send_cq: Option<&'a CompletionQueue> = None,
        /// Completion queue of its receives; it may be the same as [`Self::send_cq`](#structfield.send_cq).
        recv_cq: Option<&'a CompletionQueue> = None,
        /// Shared queue that it takes receives from; by default it has its own receive queue.
        shared_receives: Option<&'a SharedReceiveQueue> = None,
        /// Trigger that releases its sends instead of doorbells.
        trigger: Option<&'a Trigger> = None,
    }
}

impl<'a> QueuePairConfig<'a> {
    /// Sets the completion queues of sends and of receives. Both may be the same.
    #[must_use]
    pub fn completion_queues(self, send: &'a CompletionQueue, recv: &'a CompletionQueue) -> Self {
        QueuePairConfig { send_cq: Some(send), recv_cq: Some(recv), ..self }
    }

    /// Makes it take receives from a shared queue, which also determines depth and segments. Verbs make such a
    /// queue pair.
    #[must_use]
    pub fn shared_receive_queue(self, receives: &'a SharedReceiveQueue) -> Self {
        QueuePairConfig { shared_receives: Some(receives), ..self }
    }

    /// Releases its sends by a word that the card waits for, instead of doorbells. The send queue is made twice as
    /// deep, for the WAIT in front of each send, unless the trigger has a master ([`Trigger::with_master`]), whose
    /// queue has the WAITs.
    #[must_use]
    pub fn trigger(self, trigger: &'a Trigger) -> Self {
        QueuePairConfig { trigger: Some(trigger), ..self }
    }

    pub(crate) fn to_static(self) -> QueuePairConfig<'static> {
        QueuePairConfig { send_cq: None, recv_cq: None, shared_receives: None, trigger: None, ..self }
    }
}

#[derive(Debug)]
pub(crate) struct QueuePairInner {
    pub(crate) object: QpObject,
    pub(crate) number: u32,
    /// The local address: an entry of the port's GID table.
    pub(crate) gid: GidEntry,
    /// First packet sequence number of its sends. A reset changes it.
    pub(crate) psn: AtomicU32,
    pub(crate) config: QueuePairConfig<'static>,
    limits: Limits,
    recv_segments: u32,
    /// `IBV_QPS_*`, with the first error.
    status: Mutex<QpState>,
    /// True if it takes posts: connected, not failed, and not driven by kernels. Changes under the status lock, and
    /// is read without it.
    pub(crate) is_ready: AtomicBool,
    /// True once the card has it in the error state: outstanding work is flushed. An aborted queue pair fails a
    /// moment earlier.
    pub(crate) is_flushed: AtomicBool,
    /// True once the program has dropped its handle: polling returns no more of its completions. Prepared waits and
    /// posted batches keep its memory.
    pub(crate) is_dropped: AtomicBool,
    pub(crate) send: SpinMutex<SendState, Yield>,
    /// Regions that posts of the CPU need not hold.
    known: KnownRegions,
    /// Empty with a shared receive queue.
    pub(crate) recv: Mutex<RecvState>,
    pub(crate) shared: Option<SrqAttachment>,
    /// True while a library thread flushes it after a failure.
    is_watched: AtomicBool,
    pub(crate) send_cq: Arc<CompletionQueueInner>,
    pub(crate) recv_cq: Arc<CompletionQueueInner>,
    pub(crate) trigger: Option<Arc<TriggerInner>>,
    /// Announces the doorbell register's page to streams. A DC target has none.
    _registers: Option<Arc<Span>>,
    pub(crate) domain: Arc<QueueDomain>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum QpState {
    Initialised,
    Connected,
    Failed(FailureCause),
}

/// Source of initial packet sequence numbers. Any value works, but one of an earlier connection should not recur soon.
static NEXT_PSN: AtomicU32 = AtomicU32::new(0);

pub(crate) fn next_psn() -> u32 {
    NEXT_PSN.fetch_add(0x1_0001, Ordering::Relaxed) & 0xff_ffff
}

impl QueuePair {
    /// Makes a queue pair that can be connected and takes receives. A UD or DC queue pair can also send.
    ///
    /// # Errors
    /// - [`PortError::NotActive`](crate::verbs::PortError::NotActive),
    ///   [`PortError::NoGid`](crate::verbs::PortError::NoGid),
    ///   [`QueuePairError::NoTransport`](crate::verbs::QueuePairError), [`Error::Verbs`] if the provider refuses.
    /// - [`QueuePairError::OtherDevice`](crate::verbs::QueuePairError) for a completion queue of another device,
    ///   and [`QueuePairError::PrivateCompletionQueue`](crate::verbs::QueuePairError) for another queue pair's own completion
    ///   queue, if persistent requests wait there.
    /// - DC: [`OutOfRange`](crate::verbs::OutOfRange) for [`QueuePairConfig::connections`], and
    ///   [`QueuePairError::DcInitiatorCannotReceive`](crate::verbs::QueuePairError),
    ///   [`QueuePairError::NotTriggered`](crate::verbs::QueuePairError) and
    ///   [`DevxError::NoDc`](crate::verbs::DevxError) for options that exclude DC.
    /// - Queues made by commands ([`QueuePairConfig::queues`], and those of a trigger with a master): also
    ///   [`OutOfRange`](crate::verbs::OutOfRange) and [`Error::Devx`].
    pub fn new(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        Self::in_reset(pd, config).and_then(Self::started)
    }

    /// Moves a new queue pair to INIT, and a UD or DC one on to RTS.
    pub(crate) fn started(self) -> Result<Self, Error> {
        self.inner.to_init()?;
        if self.transport().is_addressed() {
            self.inner.to_ready()?;
        }
        Ok(self)
    }

    /// Returns its transport.
    pub fn transport(&self) -> Transport {
        self.inner.config.transport
    }

    /// Returns the most bytes that a request can carry inline: at least those asked for.
    pub fn max_inline(&self) -> u32 {
        self.inner.limits.inline
    }

    /// Returns the longest message in bytes. For a datagram, that is the port's MTU.
    pub fn max_message(&self) -> u64 {
        self.inner.limits.message
    }

    /// Returns its number.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Returns its address, for the remote side.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the port cannot be queried.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.inner.endpoint()
    }

    /// Connects to a remote queue pair, which must do the same with this one's [`QueuePair::endpoint`].
    ///
    /// # Errors
    /// [`QueuePairError::State`](crate::verbs::QueuePairError) if it is connected already,
    /// [`QueuePairError::Connectionless`](crate::verbs::QueuePairError) for UD and DC,
    /// [`OutOfRange`](crate::verbs::OutOfRange) for an option,
    /// [`PortError::GidKindMismatch`](crate::verbs::PortError::GidKindMismatch) if the remote port speaks another protocol,
    /// [`Error::Verbs`] if the provider refuses.
    pub fn connect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), Error> {
        self.inner.connect(remote, options)
    }

    /// Returns the completion queue of its sends.
    pub fn send_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.send_cq.clone() }
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.recv_cq.clone() }
    }
}

impl QueuePairInner {
    /// Locks the send queue. Lock order: completion queue first.
    ///
    /// A store releases the lock, as another read-modify-write would be a large part of a post's cost. A thread
    /// that finds it taken yields: only a reset of the queue pair holds it for long.
    #[inline(always)]
    pub(crate) fn send(&self) -> SpinMutexGuard<'_, SendState, Yield> {
        self.send.lock()
    }

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

    /// Refuses sends unless it is connected, has not failed, and is not driven by kernels.
    #[inline(always)]
    pub(crate) fn check_connected(&self) -> Result<(), QueueError> {
        if self.is_ready.load(Ordering::Acquire) { Ok(()) } else { self.why_not_connected() }
    }

    #[cold]
    #[inline(never)]
    fn why_not_connected(&self) -> Result<(), QueueError> {
        let qpn = self.number;
        match *self.status() {
            // A connected queue pair is not ready only while kernels drive it.
            QpState::Connected => Err(QueueError::State(StateError::DeviceAttached { qpn })),
            QpState::Initialised => Err(QueueError::State(StateError::NotConnected { qpn })),
            QpState::Failed(cause) => Err(QueueError::State(StateError::Failed { qpn, cause })),
        }
    }

    pub(crate) fn is_target(&self) -> bool {
        matches!(self.object, QpObject::Target(_))
    }

    /// Refuses receives of a failed queue pair.
    fn check_not_failed(&self) -> Result<(), QueueError> {
        match self.failure() {
            Some(cause) => Err(QueueError::State(StateError::Failed { qpn: self.number, cause })),
            None => Ok(()),
        }
    }
}
