//! Peer operations: the small language between queues and streams.
//!
//! A queue says in these words what has to happen in memory for its card to act, or to be known to have acted; it does not
//! know who will do it. (libgdsync's `peer_op_wr`.) The batch compiler turns them into the operations of a stream.

use crate::memory::HostAddr;

/// One step of the card's protocol. Steps are performed in order; a store becomes visible to the card no later than the
/// stores after the next [`PeerOp::Fence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerOp {
    /// Everything before is visible to the card before anything after.
    Fence,
    /// Stores 32 bits.
    StoreDword {
        /// Where, aligned to 4 bytes.
        addr: HostAddr,
        /// The word as it stands in memory.
        value: u32,
    },
    /// Stores 64 bits, in one piece.
    StoreQword {
        /// Where, aligned to 8 bytes.
        addr: HostAddr,
        /// The word as it stands in memory.
        value: u64,
    },
    /// Waits until `word & value != 0`.
    PollAnd {
        /// Which word.
        addr: HostAddr,
        /// The mask.
        value: u32,
    },
    /// Waits until `!(word | value) != 0`.
    PollNor {
        /// Which word.
        addr: HostAddr,
        /// The mask's complement.
        value: u32,
    },
}

/// What hands send work to the card: where which record goes, and which doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doorbell {
    /// The doorbell record.
    pub(crate) record_at: HostAddr,
    /// The record as it stands in memory.
    pub(crate) record: u32,
    /// The register.
    pub(crate) register: HostAddr,
    /// What the register takes.
    pub(crate) value: u64,
}

impl Doorbell {
    /// The same in peer operations: WQE bytes (written at preparation) before the record, the record before the register.
    #[inline(always)]
    pub(crate) fn peer_ops(self) -> [PeerOp; 4] {
        [
            PeerOp::Fence,
            PeerOp::StoreDword { addr: self.record_at, value: self.record },
            PeerOp::Fence,
            PeerOp::StoreQword { addr: self.register, value: self.value },
        ]
    }
}
