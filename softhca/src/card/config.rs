//! What a card is told: sizes, addresses of queues, attributes of queue pairs. Plain data.

use std::fmt;
use std::time::Duration;

/// What a card can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Scatter/gather elements of a send: what 63 segments hold besides control and remote address.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// RDMA reads and atomics in flight of one queue pair.
    pub max_rd_atomic: u8,
    /// Bytes of a message on a connection.
    pub max_message: u32,
    /// Bytes of a datagram: the port's MTU.
    pub max_datagram: u32,
}

/// The limits of every software card.
pub const LIMITS: Limits = Limits {
    max_qp: 1 << 16,
    max_qp_wr: 1 << 15,
    max_cq: 1 << 16,
    max_cqe: 1 << 22,
    max_mr: 1 << 20,
    max_pd: 1 << 16,
    max_send_sge: 61,
    max_recv_sge: 64,
    max_rd_atomic: 16,
    max_message: 1 << 30,
    max_datagram: 4096,
};

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
        /// The card may reorder its writes on the bus; a software card has no bus.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// A completion queue's memory. The addresses stay valid until it is destroyed.
#[derive(Clone, Copy, Debug)]
pub struct CqConfig {
    /// First byte of the ring, aligned to 64.
    pub ring: *mut u8,
    /// Entries of 64 bytes, a power of two.
    pub entries: u32,
    /// Consumer index and arm word; the card changes the latter.
    pub dbrec: *mut u32,
}

/// Where a completion queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqAttributes {
    /// Entries of its ring.
    pub entries: u32,
    /// Entries that the card has written, modulo 2^24.
    pub produced: u32,
    /// Entries that the program has consumed, as its record says, modulo 2^24.
    pub consumed: u32,
    /// Whether it is armed, and then whether for solicited entries and errors only.
    pub armed: Option<bool>,
    /// It was full when an entry came, and is dead.
    pub overrun: bool,
}

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
        })
    }
}

/// A queue pair's memory and relations. The addresses stay valid until it is destroyed.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Transport service.
    pub transport: Transport,
    /// Protection domain.
    pub pdn: u32,
    /// Where sends complete.
    pub send_cq: u32,
    /// Where receives complete.
    pub recv_cq: u32,
    /// Whose doorbells ring it.
    pub uar: u32,
    /// First byte of the send ring, aligned to 64; not looked at where there is none.
    pub sq: *mut u8,
    /// Its basic blocks, a power of two, or 0: then there is no send queue.
    pub sq_blocks: u32,
    /// First byte of the receive ring; not looked at where there is none.
    pub rq: *mut u8,
    /// Its entries, a power of two, or 0: then there is no receive queue.
    pub rq_entries: u32,
    /// Bytes from one entry to the next, a multiple of 16.
    pub rq_stride: u32,
    /// Receive and send doorbell records.
    pub dbrec: *mut u32,
    /// Every send completes with an entry.
    pub signal_all: bool,
    /// What completion entries of the queue pair carry in `srqn_uidx`, 24 bits (CQE version 1: libmlx5 finds the queue pair
    /// by it); without it that field is 0.
    pub user_index: Option<u32>,
}

// SAFETY: addresses and numbers; only the engine uses the addresses, under its lock.
unsafe impl Send for CqConfig {}
// SAFETY: as above.
unsafe impl Send for QpConfig {}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Takes nothing.
    Reset,
    /// Takes receives.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Failed: all work is flushed.
    Err,
}

/// Where a queue pair's packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Destination LID.
    pub dlid: u16,
    /// Destination GID, where a global route is used.
    pub gid: Option<[u8; 16]>,
}

/// A change of a queue pair: the attributes that are set, as `ibv_modify_qp`'s mask says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpChange {
    /// State to go to.
    pub state: Option<QpState>,
    /// State that the caller believes it is in.
    pub current: Option<QpState>,
    /// Partition key index: only 0 is there.
    pub pkey_index: Option<u16>,
    /// Port: only 1 is there.
    pub port: Option<u8>,
    /// Rights of the remote side.
    pub access: Option<Access>,
    /// Where packets go.
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
    /// RNR retries; 7 for ever.
    pub rnr_retry: Option<u8>,
    /// Q_Key of datagrams.
    pub qkey: Option<u32>,
    /// Path migration state: accepted and without effect.
    pub path_migration: bool,
    /// An alternate path is given: refused.
    pub alternate_path: bool,
}

/// Attributes that a queue pair has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Rights of the remote side.
    pub access: Access,
    /// Where packets go.
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
}

impl Default for QpAttributes {
    fn default() -> Self {
        QpAttributes {
            state: QpState::Reset,
            pkey_index: 0,
            port: 0,
            qkey: 0,
            access: Access::empty(),
            address: Address::default(),
            path_mtu: 0,
            dest_qpn: 0,
            rq_psn: 0,
            sq_psn: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
        }
    }
}

/// Local ACK timeout of a code: 4.096 µs * 2^code, none for 0 (IB specification, 9.7.6.1.3).
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << u32::from(code & 31)))
}

/// RNR NAK timer of a code, in 10 µs units (IB specification, table 45); code 0 is the longest.
pub(crate) fn rnr_timer(code: u8) -> Duration {
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(UNITS[usize::from(code & 31)]) * 10)
}
