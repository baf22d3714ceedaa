//! Queue pairs and completion queues.

// # Invariants
// - A completion entry returns to the card only when the CPU has polled it *and* the timeline of every stream that
//   waits for it has reached the wait's point. Posting checks for room and returns an error; nothing spins, and
//   nothing overruns.
// - A wait is for an entry of a completion queue, not for a queue pair. A prepared wait holds every queue pair whose
//   completion may satisfy it, so the entries are written. Destroying a queue pair unreserves its entries, and marks
//   those in the ring, under the completion queue's lock, before its number can be reused (`life/create.rs`).
// - A failed send never hangs a stream: an error entry flips the owner bit, too, and all work of a failed queue
//   pair is flushed, including prepared work (`life/fail.rs`). A send is refused on a stream where it would follow
//   the wait for its own completion (`post/mod.rs`).
// - One driver at a time: while kernels drive a queue pair, `is_ready` is false, which every post checks under the
//   queues' locks, and all places of its completion queue are taken.
//
// # Lock order
// 1. A stream's state, then a completion queue, then a send or receive queue, then the master of a trigger, then the
//    master's own queues, then the tickets of a trigger. A queue pair with a master is reset under its queues' locks.
//    The reset may restart the master: its queue pair is failed, reset and connected under these locks, too.
// 2. The doorbell proxy's list, then a stream's doorbells, then a send queue.
// 3. The state of an attached device queue pair, then its mailbox or the queues.
// 4. A send queue, then its known regions, then the queues that a region was posted to; and a send queue, then its
//    keeper's regions. Both are innermost.
//
// Two completion queues are locked in the order of their addresses. The lock of a peer map is innermost, except
// for calls of the CUDA driver. A software card has one lock, its engine's.

pub(crate) mod card;
#[deny(unsafe_code)]
pub(crate) mod card_word;
#[deny(unsafe_code)]
mod cause;
pub(crate) mod complete;
pub(crate) mod life;
pub(crate) mod make;
pub(crate) mod post;
#[deny(unsafe_code)]
mod queue_pair;
#[cfg(test)]
mod spoilt_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use card::collector::{Collector, CollectorConfig};
pub(crate) use card::trigger::PreparedTicket;
pub(crate) use cause::Completing;
pub(crate) use complete::CompletionQueueInner;
pub(crate) use life::state::QpState;
pub(crate) use post::receives::PreparedReceives;

pub use card::trigger::Trigger;
pub use card_word::CardWord;
pub use complete::channel::{ArmFor, CompletionChannel};
#[cfg(feature = "tokio")]
pub use complete::tokio::AsyncCompletionQueue;
pub use complete::wait::{CheckedWait, PreparedWait};
pub use complete::{CompletionQueue, CompletionQueueConfig, WaitError};
pub use life::fail::ResetError;
pub use life::target::{DcTarget, DcTargetConfig};
pub use post::PreparedSend;
pub use post::shared::{SharedReceiveQueue, SharedReceiveQueueConfig};

use self::card::trigger::{Master, TriggerInner};
use self::life::state::Life;
use self::make::{QpObject, QueueDomain};
use self::post::shared::SrqAttachment;
use crate::cuda::QueuePlacement;
use crate::memory::spans::Span;
use crate::queue::recv::RecvState;
use crate::queue::regions::KnownRegions;
use crate::queue::request::Limits;
use crate::queue::send::SendState;
use crate::util::options::options;
use crate::verbs::{Access, ConnectOptions, DEFAULT_PORT, GidEntry, QueueApi, Transport};
use parking_lot::Mutex;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::Yield;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A send queue and a receive queue, by which a program exchanges messages with a remote queue pair. It has its own
/// doorbell register, and its own completion queues unless the configuration names shared ones.
///
/// The transport is a reliable connection unless [`QueuePairConfig::transport`] says otherwise. A [`Transport::Dc`]
/// queue pair sends to any number of targets ([`DcTarget`]).
///
/// Dropping a queue pair moves it to the error state if work is in flight, or a prepared send, a prepared wait or a
/// persistent request is left, so that streams that wait for it now or later wake. Posting the rest of its work is
/// refused. Its memory is released when the last of them has passed its wait. Polling returns no completion of a dropped queue pair, as
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
    pub(crate) config: QueuePairConfig<'static>,
    limits: Limits,
    recv_segments: u32,
    pub(crate) life: Life,
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

    pub(crate) fn is_target(&self) -> bool {
        matches!(self.object, QpObject::Target(_))
    }
}
