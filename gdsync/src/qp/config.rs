//! How queue pairs and completion queues are made.

use super::cq::CompletionQueue;
use crate::cuda::QueuePlacement;
use crate::verbs::config::{QueueApi, setters};
use crate::verbs::device::DEFAULT_PORT;
use crate::verbs::mr::Access;
use crate::verbs::transport::Transport;

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
pub struct QueuePairConfig<'a> {
    /// Transport service.
    pub transport: Transport,
    /// Q_Key of a UD queue pair: what datagrams to it must carry. The top bit set needs privileges. Others have none.
    pub qkey: u32,
    /// Send work requests in flight.
    pub send_depth: u32,
    /// Receives posted at a time.
    pub recv_depth: u32,
    /// Slices of one send.
    pub send_segments: u32,
    /// Slices of one receive.
    pub recv_segments: u32,
    /// Bytes that a send can carry inline.
    pub inline: u32,
    /// What the remote side may do to this side's memory regions.
    pub access: Access,
    /// Physical port, from 1 on.
    pub port: u8,
    /// Index of the port's global identifier; by default chosen by the rule of [`crate::Device::choose_gid`].
    pub gid_index: Option<u32>,
    /// Index of the partition key in the port's table. Both sides must be members of the same partition; index 0 is the
    /// default partition unless an administrator changed it.
    pub pkey_index: u16,
    /// Whose memory its queues, records and (where they are its own) completion queues lie in.
    pub placement: QueuePlacement,
    /// The interface that makes its queues.
    pub queues: QueueApi,
    /// Where its sends complete: a completion queue that it shares, or by default one of its own.
    pub send_cq: Option<&'a CompletionQueue>,
    /// Where its receives complete; as [`Self::send_cq`](#structfield.send_cq), and it may be the same queue.
    pub recv_cq: Option<&'a CompletionQueue>,
}

impl Default for QueuePairConfig<'_> {
    /// A reliable connection, 128 sends and receives of up to 4 slices, 44 bytes inline (what fits one 64-byte block for a send), remote reads
    /// and writes allowed, port 1, its best GID, the partition key at index 0, made by verbs,
    /// with completion queues of its own.
    fn default() -> Self {
        QueuePairConfig {
            transport: Transport::Rc,
            qkey: 0x1111_1111,
            send_depth: 128,
            recv_depth: 128,
            send_segments: 4,
            recv_segments: 4,
            inline: 44,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
            port: DEFAULT_PORT,
            gid_index: None,
            pkey_index: 0,
            placement: QueuePlacement::HOST,
            queues: QueueApi::Verbs,
            send_cq: None,
            recv_cq: None,
        }
    }
}

setters! { QueuePairConfig<'_>:
    /// Sets [`QueuePairConfig::transport`](#structfield.transport).
    transport: Transport;
    /// Sets [`QueuePairConfig::qkey`](#structfield.qkey).
    qkey: u32;
    /// Sets [`QueuePairConfig::send_depth`](#structfield.send_depth).
    send_depth: u32;
    /// Sets [`QueuePairConfig::recv_depth`](#structfield.recv_depth).
    recv_depth: u32;
    /// Sets [`QueuePairConfig::send_segments`](#structfield.send_segments).
    send_segments: u32;
    /// Sets [`QueuePairConfig::recv_segments`](#structfield.recv_segments).
    recv_segments: u32;
    /// Sets [`QueuePairConfig::inline`](#structfield.inline).
    inline: u32;
    /// Sets [`QueuePairConfig::access`](#structfield.access).
    access: Access;
    /// Sets [`QueuePairConfig::port`](#structfield.port).
    port: u8;
    /// Sets [`QueuePairConfig::gid_index`](#structfield.gid_index).
    gid_index: Option<u32>;
    /// Sets [`QueuePairConfig::pkey_index`](#structfield.pkey_index).
    pkey_index: u16;
    /// Sets [`QueuePairConfig::placement`](#structfield.placement).
    placement: QueuePlacement;
    /// Sets [`QueuePairConfig::queues`](#structfield.queues).
    queues: QueueApi;
}

impl<'a> QueuePairConfig<'a> {
    /// Sets where its work requests complete: sends, and receives. Both may be the same queue.
    #[must_use]
    pub fn completion_queues(self, send: &'a CompletionQueue, recv: &'a CompletionQueue) -> Self {
        QueuePairConfig { send_cq: Some(send), recv_cq: Some(recv), ..self }
    }

    /// The same without references to completion queues, to be kept.
    pub(crate) fn to_static(self) -> QueuePairConfig<'static> {
        QueuePairConfig { send_cq: None, recv_cq: None, ..self }
    }
}

/// How a [`CompletionQueue`] is made. A number is the configuration of a queue with so many entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionQueueConfig {
    /// Entries, at least: at best twice as many as the work requests that may be outstanding at a time. With fewer, posting is
    /// refused early.
    pub entries: u32,
    /// The interface that makes it. In a queue made by commands of the device complete only queue pairs that are made so, too; these
    /// may also complete in one made by verbs.
    pub queues: QueueApi,
    /// Whose memory its ring and its record lie in. With a GPU's memory on the system's provider, commands make it in any case.
    pub placement: QueuePlacement,
}

impl From<u32> for CompletionQueueConfig {
    fn from(entries: u32) -> Self {
        CompletionQueueConfig { entries, queues: QueueApi::Verbs, placement: QueuePlacement::HOST }
    }
}

impl Default for CompletionQueueConfig {
    /// 256 entries in the host's memory, made by verbs.
    fn default() -> Self {
        256.into()
    }
}

setters! { CompletionQueueConfig:
    /// Sets [`CompletionQueueConfig::entries`](#structfield.entries).
    entries: u32;
    /// Sets [`CompletionQueueConfig::queues`](#structfield.queues).
    queues: QueueApi;
    /// Sets [`CompletionQueueConfig::placement`](#structfield.placement).
    placement: QueuePlacement;
}
