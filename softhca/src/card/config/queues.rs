//! Configuration of queues: memory, relations, options, and the checks of their values.

use super::{InvalidValue, LIMITS, NUMBERS, PD, SRQ, XRCD};
use std::fmt;

/// Bytes of the smallest entry of a shared receive queue: the linking segment and one data segment.
const SMALLEST_ENTRY: u32 = 32;

/// Memory of a completion queue. The addresses stay valid until it is destroyed.
#[derive(Clone, Copy, Debug)]
pub struct CqConfig {
    /// First byte of the ring, aligned to 64.
    pub ring: *mut u8,
    /// Entries of the ring, a power of two.
    pub entries: u32,
    /// Bytes between two entries: 64 or 128.
    pub stride: u32,
    /// Doorbell record: consumer index and arm word. The card writes the arm word.
    pub dbrec: *mut u32,
    /// True if the card overwrites unconsumed entries, and never overruns.
    pub ignore_overrun: bool,
    /// True if the card writes all entries to the first place of the ring.
    pub collapsed: bool,
}

impl CqConfig {
    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        Self::check_entries(self.entries)?;
        let is_allowed = [64, 128].contains(&self.stride);
        InvalidValue::unless(is_allowed, "completion queue stride", self.stride, "64 or 128")
    }

    pub(crate) fn check_entries(entries: u32) -> Result<(), InvalidValue> {
        let is_allowed = entries.is_power_of_two() && entries <= LIMITS.max_cqe;
        let limit = "a power of two, at most 2^22";
        InvalidValue::unless(is_allowed, "completion queue entries", entries, limit)
    }
}

/// Moderation of a completion queue's events: the event of an armed queue is raised after `count` entries, or `period`
/// after the first, whichever is earlier; at once if one of them is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqModeration {
    /// Entries.
    pub count: u16,
    /// Microseconds.
    pub period: u16,
}

/// State of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqAttributes {
    /// Entries of its ring.
    pub entries: u32,
    /// Bytes between two entries.
    pub stride: u32,
    /// Entries that the card has written, modulo 2^24.
    pub produced: u32,
    /// Consumer index of the doorbell record, modulo 2^24.
    pub consumed: u32,
    /// `None` if it is not armed, else whether only for solicited entries and errors.
    pub armed: Option<bool>,
    /// True if it was full when the card wrote an entry; it takes no more.
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
    /// Extended reliable connection, the side that sends requests.
    XrcInitiator,
    /// Extended reliable connection, the side that executes requests. Each request names a shared receive queue of the
    /// queue pair's XRC domain.
    XrcTarget,
    /// Initiator of dynamically connected transport (DC). Each request names its target.
    DcInitiator,
    /// Target of dynamically connected transport.
    DcTarget,
}

impl Transport {
    pub(crate) fn is_reliable(self) -> bool {
        !matches!(self, Transport::Uc | Transport::Ud)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::XrcInitiator | Transport::XrcTarget => "XRC",
            Transport::DcInitiator | Transport::DcTarget => "DC",
        })
    }
}

/// The small data that a queue pair's completion entries hold instead of the memory that work requests name
/// ([`scatter`](gdsync_sys::prm::scatter)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScatterToCqe {
    /// True for results of reads and atomics that write an entry.
    pub requests: bool,
    /// True for messages that fill receives.
    pub receives: bool,
}

impl ScatterToCqe {
    /// Returns the driver's setting for a verbs queue pair that asks for small data in its entries
    /// (`configure_requester_scat_cqe` and `create_user_qp` of the kernel's `qp.c`). `every_result`: every read and
    /// atomic writes an entry, or results may be inside although not every one does.
    pub fn of_verbs(transport: Transport, every_result: bool) -> Self {
        ScatterToCqe {
            requests: transport == Transport::Rc && every_result,
            receives: matches!(transport, Transport::Rc | Transport::Uc),
        }
    }
}

/// Memory and relations of a queue pair. The addresses stay valid until it is destroyed.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Transport service.
    pub transport: Transport,
    /// Protection domain; `None` for an XRC target.
    pub pdn: Option<u32>,
    /// Completion queue of sends; `None` for targets of XRC and DC.
    pub send_cq: Option<u32>,
    /// Completion queue of receives; `None` for XRC queue pairs and DC initiators.
    pub recv_cq: Option<u32>,
    /// Shared receive queue, which replaces its own receive queue. A DC target needs one.
    pub srq: Option<u32>,
    /// XRC domain of an XRC target; `None` for others.
    pub xrcd: Option<u32>,
    /// Access key that requests for a DC target must have.
    pub dc_key: u64,
    /// UAR whose doorbells ring it; `None` for targets of XRC and DC.
    pub uar: Option<u32>,
    /// First byte of the send ring, aligned to 64; ignored without a send queue.
    pub sq: *mut u8,
    /// Basic blocks of the send ring: a power of two, or 0 for no send queue.
    pub sq_blocks: u32,
    /// First byte of the receive ring; ignored without a receive queue.
    pub rq: *mut u8,
    /// Entries of the receive ring: a power of two, or 0 for no receive queue.
    pub rq_entries: u32,
    /// Bytes between two entries of the receive ring, a multiple of 16.
    pub rq_stride: u32,
    /// Receive and send doorbell records; may be null without queues. The card writes the send record at a reset.
    pub dbrec: *mut u32,
    /// Value of `srqn_uidx` in completion entries of the queue pair, 24 bits; 0 if `None`. With CQE version 1, libmlx5
    /// finds the queue pair by it.
    pub user_index: Option<u32>,
    /// True if it may release the sends of other queue pairs (SEND_EN).
    pub master: bool,
    /// True if its sends are released by another queue pair's SEND_EN or by its own doorbell, but by no other doorbell
    /// of its page.
    pub slave_send: bool,
    /// True if its sends have no doorbell record: it is rung at the register
    /// [`UAR_NO_RECORD`](gdsync_sys::prm::doorbell::UAR_NO_RECORD) of its page, by the producer index.
    pub no_send_record: bool,
    /// True if it does not receive its own datagrams to a multicast group that it is attached to.
    pub block_own_multicast: bool,
    /// Small data inside its completion entries.
    pub scatter: ScatterToCqe,
}

impl QpConfig {
    /// Creates a configuration without queues and relations.
    pub fn new(transport: Transport) -> Self {
        let nothing = std::ptr::null_mut();
        QpConfig {
            transport,
            pdn: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            dc_key: 0,
            uar: None,
            sq: nothing,
            sq_blocks: 0,
            rq: nothing,
            rq_entries: 0,
            rq_stride: 0,
            dbrec: std::ptr::null_mut(),
            user_index: None,
            master: false,
            slave_send: false,
            no_send_record: false,
            block_own_multicast: false,
            scatter: ScatterToCqe::default(),
        }
    }

    /// Checks values and relations; not whether the objects exist.
    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        for (what, value) in
            [("send queue blocks", self.sq_blocks), ("receive queue entries", self.rq_entries)]
        {
            let is_allowed = value == 0 || value.is_power_of_two() && value <= 1 << 16;
            InvalidValue::unless(is_allowed, what, value, "0 or a power of two, at most 2^16")?;
        }
        self.check_shape()?;
        let is_allowed = self.rq_entries == 0 || self.rq_stride != 0 && self.rq_stride.is_multiple_of(16);
        InvalidValue::unless(is_allowed, "receive queue stride", self.rq_stride, "a multiple of 16")?;
        check_user_index(self.user_index.unwrap_or(0))
    }

    /// Checks that the queue pair has exactly the relations of its transport.
    fn check_shape(&self) -> Result<(), InvalidValue> {
        use Transport::{DcInitiator, DcTarget, XrcInitiator, XrcTarget};
        let sends = !matches!(self.transport, XrcTarget | DcTarget);
        let has_own_receives = !matches!(self.transport, XrcInitiator | XrcTarget | DcInitiator | DcTarget);
        let is_dc_target = self.transport == DcTarget;
        let is_xrc_target = self.transport == XrcTarget;
        // A queue pair without a queue of its own names no completion queue for it, or one that is not used.
        let has_send_cq = sends && (self.sq_blocks != 0 || self.send_cq.is_some());
        let needs_recv_cq = self.rq_entries != 0 || self.srq.is_some() || self.recv_cq.is_some();
        let has_recv_cq = (has_own_receives || is_dc_target) && needs_recv_cq;
        let parts = [
            (PD, self.pdn.is_some(), !is_xrc_target),
            ("completion queue of sends", self.send_cq.is_some(), has_send_cq),
            ("completion queue of receives", self.recv_cq.is_some(), has_recv_cq),
            ("UAR", self.uar.is_some(), sends),
            (XRCD, self.xrcd.is_some(), is_xrc_target),
        ];
        for (what, is_there, belongs) in parts {
            let limit = "there (1) or not (0), as the transport has it";
            InvalidValue::unless(is_there == belongs, what, is_there.into(), limit)?;
        }
        let has_srq = self.srq.is_some();
        let limit = "1 for a DC target, else 0 on XRC and DC";
        InvalidValue::unless(has_own_receives || has_srq == is_dc_target, SRQ, has_srq.into(), limit)?;
        let is_allowed = self.rq_entries == 0 || has_own_receives && !has_srq;
        let limit = "0 on XRC and DC, and beside a shared receive queue";
        InvalidValue::unless(is_allowed, "receive queue entries", self.rq_entries, limit)?;
        let limit = "0 for targets of XRC and DC";
        InvalidValue::unless(self.sq_blocks == 0 || sends, "send queue blocks", self.sq_blocks, limit)
    }
}

fn check_user_index(index: u32) -> Result<(), InvalidValue> {
    InvalidValue::unless(index <= NUMBERS, "user index", index, "at most 24 bits")
}

/// Memory and relations of a shared receive queue. The addresses stay valid until it is destroyed.
#[derive(Clone, Copy, Debug)]
pub struct SrqConfig {
    /// Protection domain of its receives.
    pub pdn: u32,
    /// First byte of the ring.
    pub ring: *mut u8,
    /// Entries of the ring, a power of two.
    pub entries: u32,
    /// Bytes between two entries: a power of two, at least 32.
    pub stride: u32,
    /// Doorbell record: one word, the number of posted receives.
    pub dbrec: *mut u32,
    /// True if entries are taken in ring order, without regard to their links.
    pub cyclic: bool,
    /// Relations of an XRC queue.
    pub xrc: Option<XrcConfig>,
}

impl SrqConfig {
    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        let SrqConfig { entries, stride, xrc, .. } = *self;
        let is_allowed = entries.is_power_of_two() && entries <= LIMITS.max_srq_entries;
        let limit = "a power of two, at most 2^15";
        InvalidValue::unless(is_allowed, "shared receive queue entries", entries, limit)?;
        let largest = (LIMITS.max_srq_sge + 1) * 16;
        let is_allowed = stride.is_power_of_two() && (SMALLEST_ENTRY..=largest).contains(&stride);
        let limit = "a power of two, 32 to 512";
        InvalidValue::unless(is_allowed, "shared receive queue stride", stride, limit)?;
        check_user_index(xrc.map_or(0, |xrc| xrc.user_index))
    }
}

/// Relations of an XRC shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct XrcConfig {
    /// XRC domain whose targets use it.
    pub xrcd: u32,
    /// Completion queue of its receives.
    pub cqn: u32,
    /// Value of `srqn_uidx` in completion entries of its receives, 24 bits.
    pub user_index: u32,
}

/// State of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttributes {
    /// Entries of its ring.
    pub entries: u32,
    /// Bytes between two entries.
    pub stride: u32,
    /// Number of receives below which it raises an event; 0 for none.
    pub limit: u32,
    /// Number of posted receives that are not taken.
    pub posted: u32,
}

// SAFETY: addresses and numbers; only the engine uses the addresses, under its lock.
unsafe impl Send for CqConfig {}
// SAFETY: as above.
unsafe impl Send for QpConfig {}
// SAFETY: as above.
unsafe impl Send for SrqConfig {}
