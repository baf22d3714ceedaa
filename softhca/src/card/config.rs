//! Configuration of a card's objects: sizes, addresses of queues, attributes of queue pairs. Plain data.

mod checks;
mod limits;
mod ordering;
mod pkeys;
mod queues;
mod stopped;

pub use checks::CHECKS_VARIABLE;
pub(crate) use checks::Checks;
pub use limits::{LIMITS, Limits, OBJECTS_VARIABLE, WAITS_VARIABLE, WaitRules};
pub use ordering::DataOrdering;
pub(crate) use pkeys::are_partners;
pub use pkeys::{FULL_MEMBER, PKEYS_VARIABLE, PkeyTable};
pub use queues::{
    CqAttributes, CqConfig, CqModeration, QpConfig, ScatterToCqe, SrqAttributes, SrqConfig, Transport,
    XrcConfig,
};
pub use stopped::STOPPED_VARIABLE;
pub(crate) use stopped::StoppedPeers;

use gdsync_sys::verbs;
use std::ffi::c_int;
use std::time::Duration;

/// Queue pair numbers and user indices have 24 bits.
pub(crate) const NUMBERS: u32 = 0xff_ffff;

// The kinds of objects in error texts.
pub(crate) const PD: &str = "protection domain";
pub(crate) const CQ: &str = "completion queue";
pub(crate) const QP: &str = "queue pair";
pub(crate) const SRQ: &str = "shared receive queue";
pub(crate) const XRCD: &str = "XRC domain";

/// A value that the card does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value:#x}: {limit}")]
pub struct InvalidValue {
    /// The attribute.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// The allowed values.
    pub limit: &'static str,
}

impl InvalidValue {
    pub(super) fn new(what: &'static str, value: u32, limit: &'static str) -> Self {
        InvalidValue { what, value: value.into(), limit }
    }

    pub(super) fn unless(
        fits: bool,
        what: &'static str,
        value: u32,
        limit: &'static str,
    ) -> Result<(), Self> {
        if fits { Ok(()) } else { Err(Self::new(what, value, limit)) }
    }
}

bitflags::bitflags! {
    /// Access rights, as libibverbs numbers them (`IBV_ACCESS_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local card may write.
        const LOCAL_WRITE = 1 << 0;
        /// Remote writes.
        const REMOTE_WRITE = 1 << 1;
        /// Remote reads.
        const REMOTE_READ = 1 << 2;
        /// Remote atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Requests name the first byte by 0.
        const ZERO_BASED = 1 << 5;
        /// The memory need not be mapped until it is accessed.
        const ON_DEMAND = 1 << 6;
        /// The memory has huge pages. No effect on a software card.
        const HUGETLB = 1 << 7;
        /// The card may reorder its writes on the bus. A software card does so with [liberties](crate::liberties).
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// A memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// Protection domain.
    pub pdn: u32,
    /// First byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address by which requests name the first byte.
    pub iova: u64,
    /// Access rights.
    pub access: Access,
    /// Last 8 bits of the key; the card chooses them if `None`.
    pub tag: Option<u8>,
}

impl RegionConfig {
    /// Creates a region that requests name by its own addresses.
    pub fn new(pdn: u32, addr: u64, len: u64, access: Access) -> Self {
        RegionConfig { pdn, addr, len, iova: addr, access, tag: None }
    }
}

/// Type of a memory window (InfiniBand specification, 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Bound by a verb; usable through every queue pair of the domain.
    Type1,
    /// Bound by a work request to the queue pair of that request; another work request invalidates it.
    Type2,
}

/// The local key of the null region, valid in every domain: it reads as zeros and ignores writes.
pub const NULL_KEY: u32 = 0x8000_0000;

/// A key that refers to ranges of other keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyConfig<'a> {
    /// Protection domain.
    pub pdn: u32,
    /// Last 8 bits of the key.
    pub tag: u8,
    /// Access rights.
    pub access: Access,
    /// Address by which requests name the first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// True if requests that use the key fail until a work request opens it.
    pub closed: bool,
    /// True if work requests may change the key.
    pub changeable: bool,
    /// True if a send of the peer may invalidate the key.
    pub remote_invalidate: bool,
    /// Maximum number of entries of the translation.
    pub room: u32,
    /// Size of all ranges as a power of two; if `None`, each has its own length.
    pub log_entity_size: Option<u32>,
    /// The ranges: data segments of 16 bytes (`struct mlx5_wqe_data_seg`).
    pub entries: &'a [u8],
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Accepts no work requests.
    #[default]
    Reset,
    /// Accepts receives.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Failed: all work is flushed.
    Err,
}

impl QpState {
    /// Returns the state of a code of `enum ibv_qp_state`; `None` for a state that the card does not have.
    pub fn from_ibv(code: c_int) -> Option<Self> {
        use QpState::{Err, Init, Reset, Rtr, Rts};
        [Reset, Init, Rtr, Rts, Err].into_iter().find(|state| state.to_ibv() == code)
    }

    /// Returns the code of `enum ibv_qp_state`.
    pub fn to_ibv(self) -> c_int {
        match self {
            QpState::Reset => verbs::IBV_QPS_RESET,
            QpState::Init => verbs::IBV_QPS_INIT,
            QpState::Rtr => verbs::IBV_QPS_RTR,
            QpState::Rts => verbs::IBV_QPS_RTS,
            QpState::Err => verbs::IBV_QPS_ERR,
        }
    }
}

/// Destination of a queue pair's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Destination LID.
    pub dlid: u16,
    /// Destination GID of a global route.
    pub gid: Option<[u8; 16]>,
}

/// A change of a queue pair: the attributes that the mask of `ibv_modify_qp` selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpChange {
    /// New state.
    pub state: Option<QpState>,
    /// State that the caller expects.
    pub current: Option<QpState>,
    /// Index of its partition key in the port's table.
    pub pkey_index: Option<u16>,
    /// Port; only 1 exists.
    pub port: Option<u8>,
    /// Rights of the remote side.
    pub access: Option<Access>,
    /// Destination of its packets.
    pub address: Option<Address>,
    /// Path MTU code, 1 to 5.
    pub path_mtu: Option<i32>,
    /// Number of the remote queue pair.
    pub dest_qpn: Option<u32>,
    /// First packet expected.
    pub rq_psn: Option<u32>,
    /// First packet sent.
    pub sq_psn: Option<u32>,
    /// Reads in flight as initiator.
    pub max_rd_atomic: Option<u8>,
    /// Reads in flight as target.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR timer code.
    pub min_rnr_timer: Option<u8>,
    /// ACK timeout code.
    pub timeout: Option<u8>,
    /// Transport retries.
    pub retry_cnt: Option<u8>,
    /// RNR retries; 7 means without limit.
    pub rnr_retry: Option<u8>,
    /// Q_Key of datagrams.
    pub qkey: Option<u32>,
    /// The longest message that it sends, as a power of two; 0 for the card's longest.
    pub log_msg_max: Option<u8>,
    /// The order in which its messages reach memory, whatever the network's is.
    pub ordering: Option<DataOrdering>,
    /// Path migration state: accepted and ignored.
    pub path_migration: bool,
    /// An alternate path, which the card refuses.
    pub alternate_path: bool,
}

/// Attributes of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttributes {
    /// State.
    pub state: QpState,
    /// Partition key index.
    pub pkey_index: u16,
    /// Port; 0 before INIT.
    pub port: u8,
    /// Q_Key of datagrams.
    pub qkey: u32,
    /// The longest message that it sends, as a power of two; 0 for the card's longest.
    pub log_msg_max: u8,
    /// Rights of the remote side.
    pub access: Access,
    /// Destination of its packets.
    pub address: Address,
    /// Path MTU code.
    pub path_mtu: i32,
    /// Number of the remote queue pair.
    pub dest_qpn: u32,
    /// Next packet expected.
    pub rq_psn: u32,
    /// Next packet sent.
    pub sq_psn: u32,
    /// Reads in flight as initiator.
    pub max_rd_atomic: u8,
    /// Reads in flight as target.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// ACK timeout code.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// The order in which its messages reach memory; `None` for the network's ([`Card::network_ordering`]).
    ///
    /// [`Card::network_ordering`]: super::Card::network_ordering
    pub ordering: Option<DataOrdering>,
}

/// Returns the local ACK timeout of a code: 4.096 µs * 2^code, none for 0 (IB specification, 9.7.6.1.3).
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << u32::from(code & 31)))
}

/// Returns the RNR NAK timer of a code, in 10 µs units (IB specification, table 45); code 0 is the longest.
pub(crate) fn rnr_timer(code: u8) -> Duration {
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(UNITS[usize::from(code & 31)]) * 10)
}
