//! How queue pairs and completion queues are made.

use crate::cuda::QueuePlacement;
use crate::qp::{CompletionChannel, CompletionQueue, SharedReceiveQueue, Trigger};
use crate::util::options::options;
use crate::verbs::{Access, ConnectOptions, DEFAULT_PORT, QueueApi, Transport};

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

options! {
    /// How a [`CompletionQueue`] is made. A number is the configuration of a queue with so many
    /// entries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct CompletionQueueConfig<'a>
    /// 256 entries in the host's memory, made by verbs, without a channel.
    default {
        /// Entries, at least: at best twice as many as the work requests that may be outstanding at
        /// a time. With fewer, posting is refused early.
        entries: u32 = 256,
        /// The interface that makes it. In a queue made by commands of the device complete only
        /// queue pairs that are made so, too; these may also complete in one made by verbs.
        queues: QueueApi = QueueApi::Verbs,
        /// Whose memory its ring and its record lie in. With a GPU's memory on the system's
        /// provider, commands make it in any case.
        placement: QueuePlacement = QueuePlacement::HOST,
    }
    no setters {
        /// What tells that it has entries; none of a queue that is only polled, or waited for by
        /// streams.
        channel: Option<&'a CompletionChannel> = None,
    }
}

impl<'a> CompletionQueueConfig<'a> {
    /// Has a channel tell that the queue has entries ([`CompletionQueue::wait`],
    /// [`CompletionQueue::arm`]). Several queues may share one. The queue is made by verbs.
    #[must_use]
    pub fn channel(self, channel: &'a CompletionChannel) -> Self {
        CompletionQueueConfig { channel: Some(channel), ..self }
    }
}

impl From<u32> for CompletionQueueConfig<'_> {
    fn from(entries: u32) -> Self {
        CompletionQueueConfig::default().entries(entries)
    }
}

options! {
    /// How a [`SharedReceiveQueue`] is made. A number is the configuration of a queue that holds so many
    /// receives. The provider may grant larger sizes than asked for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct SharedReceiveQueueConfig
    /// 128 receives of up to 4 slices.
    default {
        /// Receives posted at a time.
        depth: u32 = 128,
        /// Slices of one receive.
        segments: u32 = 4,
    }
}

impl From<u32> for SharedReceiveQueueConfig {
    fn from(depth: u32) -> Self {
        SharedReceiveQueueConfig::default().depth(depth)
    }
}

options! {
    /// How a [`DcTarget`](crate::qp::DcTarget) is made.
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct DcTargetConfig
    /// Access key 0, remote reads and writes allowed, port 1, its best GID, and the partition key at index 0.
    default {
        /// Access key: requests that do not carry it are refused. It keeps out strangers who do not
        /// guess it.
        key: u64 = 0,
        /// What initiators may do to memory regions of its protection domain.
        access: Access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        /// Physical port, from 1 on.
        port: u8 = DEFAULT_PORT,
        /// Index of the port's global identifier; by default chosen by the rule of
        /// [`crate::Device::choose_gid`].
        gid_index: Option<u32> = None,
        /// Index of the partition key in the port's table.
        pkey_index: u16 = 0,
        /// The attributes of the connections to it that are its side's: path MTU, RNR timer, service level
        /// and route.
        connections: ConnectOptions = ConnectOptions::default(),
    }
}
