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

impl PeerOp {
    /// The address that it names, if it names one.
    pub(crate) fn addr(self) -> Option<HostAddr> {
        match self {
            PeerOp::Fence => None,
            PeerOp::StoreDword { addr, .. }
            | PeerOp::StoreQword { addr, .. }
            | PeerOp::PollAnd { addr, .. }
            | PeerOp::PollNor { addr, .. } => Some(addr),
        }
    }
}
