//! Completions, as polling returns them, failures, and the sources of datagrams.

use crate::memory::Blocked;
use crate::verbs::{AsyncEventKind, Endpoint, Error, Gid, LinkLayer, ParseError};
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, L3_IPV4, L3_IPV6, Syndrome};
use gdsync_sys::prm::wqe::Opcode;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// The kind of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkKind {
    /// A send, with or without immediate.
    Send,
    /// An RDMA write, with or without immediate.
    RdmaWrite,
    /// An RDMA read.
    RdmaRead,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A request that does nothing.
    Nop,
    /// A receive that a send consumed.
    Receive,
    /// A receive that an RDMA write with immediate consumed: the data is where the write put it.
    ReceiveRdmaWithImmediate,
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The work request's number, chosen by the poster.
    pub wr_id: u64,
    /// Index of the completion in its queue, counted as [`crate::PreparedWait::index`] counts. None if the card
    /// never got the work.
    pub index: Option<u32>,
    /// The local queue pair.
    pub qp_num: u32,
    /// Its kind.
    pub kind: WorkKind,
    /// Bytes received (for a datagram, including the [`crate::queue::GRH_BYTES`] before it), read, or fetched; 0
    /// for other sends and on error.
    pub byte_len: u32,
    /// Immediate data of the sender, in host order.
    pub immediate: Option<u32>,
    /// The local key that the sender invalidated.
    pub invalidated: Option<u32>,
    /// Source of a datagram.
    pub source: Option<DatagramSource>,
    /// False for a send that was prepared but not posted when its queue pair failed, and was flushed.
    pub was_posted: bool,
    /// Its outcome.
    pub status: Result<(), WorkError>,
}

/// Error of a work request. Two errors are equal if the card reports the same.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkError {
    /// The card's syndrome byte (`mlx5dv.h`, `MLX5_CQE_SYNDROME_*`).
    pub syndrome: u8,
    /// The vendor's syndrome byte, which the vendor's support understands.
    pub vendor: u8,
    /// The failure that a flush follows, if it is known.
    earlier: Option<Earlier>,
}

/// A failure of a queue pair before it flushed a request.
#[derive(Clone, Copy, Debug)]
struct Earlier {
    what: EarlierFailure,
    milliseconds: u32,
}

/// A [`FailureCause`], with the bytes of a [`WorkError`] that is no flush.
#[derive(Clone, Copy, Debug)]
enum EarlierFailure {
    Work { syndrome: u8, vendor: u8 },
    Aborted,
    Master,
    Event(AsyncEventKind),
}

impl PartialEq for WorkError {
    fn eq(&self, other: &Self) -> bool {
        (self.syndrome, self.vendor) == (other.syndrome, other.vendor)
    }
}

impl Eq for WorkError {}

impl Hash for WorkError {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.syndrome, self.vendor).hash(state);
    }
}

impl WorkError {
    /// Makes an error of the card's syndrome and the vendor's.
    pub const fn new(syndrome: u8, vendor: u8) -> Self {
        WorkError { syndrome, vendor, earlier: None }
    }

    /// Returns the error with the failure of its queue pair that it follows after this time; the error itself if that is
    /// another flush.
    pub(crate) fn after(self, cause: FailureCause, time: Duration) -> Self {
        let what = match cause {
            FailureCause::Work(error) if error.is_flush() => return self,
            FailureCause::Work(WorkError { syndrome, vendor, .. }) => {
                EarlierFailure::Work { syndrome, vendor }
            }
            FailureCause::Aborted => EarlierFailure::Aborted,
            FailureCause::Master => EarlierFailure::Master,
            FailureCause::Event(kind) => EarlierFailure::Event(kind),
        };
        let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        WorkError { earlier: Some(Earlier { what, milliseconds }), ..self }
    }

    /// Returns the failure of the queue pair that a flush follows, and how long before the flush that one was found, in
    /// whole milliseconds. `None` if that is not known, and for errors other than a flush.
    ///
    /// ```
    /// # use gdsync::{ProtectionDomain, Device, QueuePair, QueuePairConfig};
    /// # let pd = ProtectionDomain::new(&Device::software()?)?;
    /// use gdsync::queue::FailureCause;
    /// let queue_pair = QueuePair::new(&pd, QueuePairConfig::default())?;
    /// queue_pair.connect(&queue_pair.endpoint()?, Default::default())?; // to itself
    /// queue_pair.post_recv(&[], 1)?;
    /// queue_pair.abort()?;
    /// let flushed = loop {
    ///     if let Some(completion) = queue_pair.recv_cq().poll()? {
    ///         break completion.status.unwrap_err();
    ///     }
    /// };
    /// assert!(matches!(flushed.flushed_after(), Some((FailureCause::Aborted, _))));
    /// assert!(flushed.to_string().ends_with(" ms before: aborted"), "{flushed}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flushed_after(self) -> Option<(FailureCause, Duration)> {
        let Earlier { what, milliseconds } = self.earlier?;
        let cause = match what {
            EarlierFailure::Work { syndrome, vendor } => FailureCause::Work(WorkError::new(syndrome, vendor)),
            EarlierFailure::Aborted => FailureCause::Aborted,
            EarlierFailure::Master => FailureCause::Master,
            EarlierFailure::Event(kind) => FailureCause::Event(kind),
        };
        Some((cause, Duration::from_millis(milliseconds.into())))
    }

    /// Returns the syndrome, if it is a known one.
    pub fn kind(self) -> Option<Syndrome> {
        Syndrome::try_from(self.syndrome).ok()
    }

    /// Returns true if the request did not fail itself, but was flushed after the queue pair had failed.
    pub fn is_flush(self) -> bool {
        self.kind() == Some(Syndrome::WrFlush)
    }
}

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind() {
            Some(Syndrome::LocalLength) => {
                "local length error: the receive is too short, or the message too long"
            }
            Some(Syndrome::LocalQpOperation) => {
                "local queue pair operation error: the work request is malformed"
            }
            Some(Syndrome::LocalProtection) => "local protection error: wrong lkey, bounds or access flags",
            Some(Syndrome::WrFlush) => "flushed: the queue pair had failed before",
            Some(Syndrome::MwBind) => {
                "memory window error: the window was not closed, not this queue pair's, or its region does not allow the bind"
            }
            Some(Syndrome::BadResponse) => "bad response from the remote side",
            Some(Syndrome::LocalAccess) => {
                "local access error: the remote side used a wrong rkey, bounds or access"
            }
            Some(Syndrome::RemoteInvalidRequest) => "remote invalid request: the remote receive is too short",
            Some(Syndrome::RemoteAccess) => "remote access error: wrong rkey, bounds or access flags",
            Some(Syndrome::RemoteOperation) => {
                "remote operation error: the remote side failed on its own memory"
            }
            Some(Syndrome::RetryExceeded) => {
                "transport retries exceeded: the remote side does not answer, or the address or the number of its queue pair is wrong"
            }
            Some(Syndrome::RnrRetryExceeded) => "receiver-not-ready retries exceeded: no receive was posted",
            Some(Syndrome::RemoteAborted) => "aborted by the remote side",
            _ => "unknown error",
        };
        write!(f, "{text} (syndrome {:#04x}, vendor {:#04x})", self.syndrome, self.vendor)?;
        match self.flushed_after() {
            Some((cause, time)) => write!(f, "; {} ms before: {cause}", time.as_millis()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for WorkError {}

/// Returns the byte count of a successful completion.
pub(crate) fn bytes_of(kind: WorkKind, cqe: &Cqe64) -> u32 {
    match kind {
        WorkKind::Send | WorkKind::RdmaWrite | WorkKind::Nop => 0,
        // Cards differ in the entry's byte count for these.
        WorkKind::CompareSwap | WorkKind::FetchAdd => 8,
        _ => cqe.byte_count(),
    }
}

/// Returns the kind of a requester's completion, from the opcode that the card copied out of the WQE.
///
/// # Errors
/// The reason why the entry cannot be a completion of this library's work.
pub(crate) fn requester_kind(cqe: &Cqe64) -> Result<WorkKind, String> {
    match Opcode::try_from(cqe.wqe_opcode()) {
        Ok(Opcode::Nop) => Ok(WorkKind::Nop),
        Ok(Opcode::Send | Opcode::SendImm) => Ok(WorkKind::Send),
        Ok(Opcode::RdmaWrite | Opcode::RdmaWriteImm) => Ok(WorkKind::RdmaWrite),
        Ok(Opcode::RdmaRead) => Ok(WorkKind::RdmaRead),
        Ok(Opcode::AtomicCs) => Ok(WorkKind::CompareSwap),
        Ok(Opcode::AtomicFa) => Ok(WorkKind::FetchAdd),
        _ => Err(format!("work request opcode {:#04x}", cqe.wqe_opcode())),
    }
}

/// Returns the outcome of a completion entry's work.
pub(crate) fn outcome(cqe: &Cqe64) -> Result<(), WorkError> {
    match cqe.opcode() {
        Ok(CqeOpcode::RequesterError | CqeOpcode::ResponderError) | Err(_) => {
            Err(WorkError::new(cqe.raw_syndrome(), cqe.vendor_syndrome()))
        }
        Ok(_) => Ok(()),
    }
}

/// Why a queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailureCause {
    /// A work request failed.
    #[error("{0}")]
    Work(WorkError),
    /// [`crate::QueuePair::abort`] was called.
    #[error("aborted")]
    Aborted,
    /// The master of its trigger, which releases its sends, has failed.
    #[error("the master of its trigger failed")]
    Master,
    /// The card reported an asynchronous event.
    #[error("{0}")]
    Event(AsyncEventKind),
}

impl FailureCause {
    /// Returns true for a flush, whose cause is unknown.
    pub(crate) fn is_flush(self) -> bool {
        matches!(self, FailureCause::Work(error) if error.is_flush())
    }
}

/// An obstacle to [`crate::QueuePair::reset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResetBlocker {
    /// A stream has not rung for its sends yet.
    #[error("a stream still has to post sends of it ({0}): let the stream go on and synchronize it")]
    Stream(Blocked),
    /// The proxy has not rung for a stream yet.
    #[error("{0} doorbells that a stream handed to the proxy are not rung yet: synchronize the stream")]
    Doorbells(u32),
    /// Sends are prepared, or posted and their completions not polled.
    #[error(
        "{0} sends have not completed: abort() it, then poll its send completion queue until it is empty"
    )]
    Sends(u32),
    /// Receives are posted, and their completions not polled.
    #[error(
        "{0} receives have not completed: abort() it, then poll its receive completion queue until it is empty"
    )]
    Receives(u32),
    /// Its failure has ended waits for receives of a shared queue, which streams have not passed.
    #[error("streams have still to pass waits for its receives that its failure has ended: synchronize them")]
    ReceiveWaits,
    /// One of its completion queues has overrun: outstanding work will never complete.
    #[error("its completion queue {0:#x} has overrun and is lost: make a new queue pair")]
    CompletionQueueLost(u32),
    /// Kernels drive it.
    #[error("kernels drive it: end them, and call DeviceQp::detach_device")]
    Kernel,
}

/// Bytes before the data in every receive of a UD queue pair: the network header, or undefined bytes if there was none.
pub const GRH_BYTES: usize = 40;

/// The network header of a datagram, in the first [`GRH_BYTES`] of its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NetworkHeader {
    /// InfiniBand's global route header (RoCE v1 has it, too).
    Grh,
    /// An IPv6 header (RoCE v2), which has the same fields in the same places.
    Ipv6,
    /// An IPv4 header (RoCE v2), in the last 20 of the 40 bytes.
    Ipv4,
}

/// Source of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DatagramSource {
    /// The queue pair that sent it.
    pub qp_num: u32,
    /// The LID of its port; 0 on Ethernet.
    pub lid: u16,
    /// InfiniBand's service level; 0 on Ethernet.
    pub service_level: u8,
    /// The header in the first [`GRH_BYTES`] of the receive, if there is one.
    pub header: Option<NetworkHeader>,
}

impl DatagramSource {
    /// Reads the source from a responder's entry on a port of that kind.
    pub(crate) fn new(cqe: &Cqe64, link: LinkLayer) -> Self {
        let (path, ethernet) = (cqe.path(), link == LinkLayer::Ethernet);
        let header = path.has_grh.then_some(match path.level_or_l3_type {
            L3_IPV4 if ethernet => NetworkHeader::Ipv4,
            L3_IPV6 if ethernet => NetworkHeader::Ipv6,
            // InfiniBand has no other, and the field is the service level.
            _ => NetworkHeader::Grh,
        });
        let service_level = if ethernet { 0 } else { path.level_or_l3_type };
        DatagramSource { qp_num: cqe.remote_qpn(), lid: path.slid, service_level, header }
    }

    /// Returns the endpoint that sent the datagram, for an answer. `own` is the endpoint of the queue pair that
    /// received it, `receive` the start of the receive. The packet sequence number is unknown, and datagrams do not
    /// need it.
    ///
    /// # Errors
    /// [`ParseError`](crate::verbs::ParseError) if the header is shorter than [`GRH_BYTES`], or is missing where
    /// only it names the sender.
    pub fn endpoint(&self, own: &Endpoint, receive: &[u8]) -> Result<Endpoint, Error> {
        let bad = |reason: String| Error::Parse(ParseError { what: "network header of a datagram", reason });
        let header: Option<&[u8; GRH_BYTES]> = receive.first_chunk();
        let gid = match (self.header, header) {
            (Some(_), None) => {
                return Err(bad(format!("{} bytes are given, it has {GRH_BYTES}", receive.len())));
            }
            (Some(NetworkHeader::Ipv4), Some(header)) => ipv4_source(header),
            (Some(_), Some(header)) => ipv6_source(header),
            (None, _) if own.kind.link() == LinkLayer::Ethernet => {
                return Err(bad("there is none, and an Ethernet port is named by nothing else".to_owned()));
            }
            // In the same subnet, the LID is enough.
            (None, _) => own.gid,
        };
        Ok(Endpoint { qpn: self.qp_num, psn: 0, lid: self.lid, gid, ..*own })
    }
}

/// Reads the source at byte 8 (IB specification, 8.3; the same in RFC 8200).
fn ipv6_source(header: &[u8; GRH_BYTES]) -> Gid {
    let mut gid = [0; 16];
    gid.copy_from_slice(&header[8..24]);
    Gid(gid)
}

/// Reads the source at byte 12 of the header from byte 20 on (RFC 791), as a GID that is an IPv4-mapped IPv6 address.
fn ipv4_source(header: &[u8; GRH_BYTES]) -> Gid {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&header[32..36]);
    Gid(gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{GidKind, Mtu};
    use gdsync_sys::prm::cqe::{CqeOpcode, PathFields};

    fn source(link: LinkLayer, level_or_l3_type: u8, has_grh: bool) -> DatagramSource {
        let cqe = Cqe64::responder(CqeOpcode::RespSend, 1, 0x77, 0, 0, [0; 4], false);
        DatagramSource::new(&cqe.with_path(PathFields { slid: 5, level_or_l3_type, has_grh }), link)
    }

    fn own(kind: GidKind) -> Endpoint {
        Endpoint { qpn: 1, psn: 2, kind, lid: 3, gid: Gid([9; 16]), mtu: Mtu::Bytes4096 }
    }

    #[test]
    fn the_field_is_a_level_on_infiniband_and_a_header_on_ethernet() {
        let told = |link, field, grh| {
            let source = source(link, field, grh);
            (source.service_level, source.header)
        };
        assert_eq!(told(LinkLayer::InfiniBand, 2, false), (2, None));
        assert_eq!(told(LinkLayer::InfiniBand, 2, true), (2, Some(NetworkHeader::Grh)));
        assert_eq!(told(LinkLayer::Ethernet, 0, true), (0, Some(NetworkHeader::Grh)));
        assert_eq!(told(LinkLayer::Ethernet, 1, true), (0, Some(NetworkHeader::Ipv6)));
        assert_eq!(told(LinkLayer::Ethernet, 2, true), (0, Some(NetworkHeader::Ipv4)));
    }

    #[test]
    fn the_sender_is_read_from_the_header() {
        let header: Vec<u8> = (0..40).collect();
        let ib = source(LinkLayer::InfiniBand, 0, true).endpoint(&own(GidKind::InfiniBand), &header).unwrap();
        assert_eq!((ib.qpn, ib.lid, ib.gid.0), (0x77, 5, std::array::from_fn(|i| i as u8 + 8)));
        let near = source(LinkLayer::InfiniBand, 0, false).endpoint(&own(GidKind::InfiniBand), &[]).unwrap();
        assert_eq!((near.lid, near.gid), (5, Gid([9; 16])));
        let v4 = source(LinkLayer::Ethernet, 2, true).endpoint(&own(GidKind::RoceV2), &header).unwrap();
        assert_eq!(v4.gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 32, 33, 34, 35]);
        let short = source(LinkLayer::Ethernet, 1, true).endpoint(&own(GidKind::RoceV2), &header[..39]);
        assert!(short.unwrap_err().to_string().contains("39 bytes"));
        let none = source(LinkLayer::Ethernet, 1, false).endpoint(&own(GidKind::RoceV2), &header);
        assert!(none.unwrap_err().to_string().contains("there is none"));
    }
}
