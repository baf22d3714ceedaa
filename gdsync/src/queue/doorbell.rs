//! Doorbells, and peer operations, the interface between queues and streams.
//!
//! Peer operations are the memory accesses that make a card act, or show that it has acted (libgdsync's `peer_op_wr`).
//! The batch compiler turns them into the operations of a stream. The CPU rings by [`ring`] and [`Doorbell::ring`].

use crate::memory::HostAddr;
use crate::queue::Ring;
use gdsync_sys::shared::{SharedU32, SharedU64};
use gdsync_sys::{barrier, wake};
use gdsync_trace::{EventKind, event};
use std::sync::atomic::Ordering;

/// One step of the card's protocol. Steps are performed in order; a store becomes visible to the card no later than
/// the stores after the next [`PeerOp::Fence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerOp {
    /// Everything before is visible to the card before anything after.
    Fence,
    /// Stores 32 bits.
    StoreDword {
        /// The address, aligned to 4 bytes.
        addr: HostAddr,
        /// The word as it is in memory.
        value: u32,
    },
    /// Stores 64 bits in one piece.
    StoreQword {
        /// The address, aligned to 8 bytes.
        addr: HostAddr,
        /// The word as it is in memory.
        value: u64,
    },
    /// Waits until `word & value != 0`.
    PollAnd {
        /// The address of the word.
        addr: HostAddr,
        /// The mask.
        value: u32,
    },
    /// Waits until `!(word | value) != 0`.
    PollNor {
        /// The address of the word.
        addr: HostAddr,
        /// The mask's complement.
        value: u32,
    },
}

/// The stores that hand send work to the card: the doorbell record, and the doorbell register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doorbell {
    pub(crate) record_at: HostAddr,
    /// The record as it is in memory.
    pub(crate) record: u32,
    pub(crate) register: HostAddr,
    pub(crate) value: u64,
}

/// How a prepared send comes to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Ring(Doorbell),
    /// A ticket of its queue pair's trigger: the card has the send, and waits for the ticket.
    Ticket(u64),
}

impl Doorbell {
    /// Returns the peer operations: WQE bytes (written at preparation) before the record, the record before the
    /// register.
    #[inline(always)]
    pub(crate) fn peer_ops(self) -> [PeerOp; 4] {
        [
            PeerOp::Fence,
            PeerOp::StoreDword { addr: self.record_at, value: self.record },
            PeerOp::Fence,
            PeerOp::StoreQword { addr: self.register, value: self.value },
        ]
    }

    /// Combines the stores of this record and of the receive counter (`MLX5_RCV_DBR`) into one. Returns `None` if
    /// that counter is not directly in front of the record.
    pub(crate) fn record_with(self, receives: PeerOp) -> Option<PeerOp> {
        match receives {
            PeerOp::StoreDword { addr, value }
                if addr.get().is_multiple_of(8) && addr.get() + 4 == self.record_at.get() =>
            {
                // The lower half is first, as hosts are little endian.
                let value = u64::from(value) | u64::from(self.record) << 32;
                Some(PeerOp::StoreQword { addr, value })
            }
            _ => None,
        }
    }

    /// Rings the card by the CPU, instead of a stream: work requests before the record, the record before the register.
    ///
    /// # Safety
    /// Record and register are valid and aligned to 4 and 8 bytes. The caller holds the lock of their queue.
    pub(crate) unsafe fn ring(self) {
        event(EventKind::Rung, || [self.register.get(), self.value, 0]);
        // The queue may be in write-combined memory: each store waits until the earlier ones have left the CPU.
        barrier::drain();
        barrier::to_device();
        // SAFETY: the caller's.
        unsafe { SharedU32::from_ptr(self.record_at.get() as *mut u32) }
            .store(self.record, Ordering::Release);
        barrier::drain();
        barrier::to_device();
        // SAFETY: the caller's.
        unsafe { SharedU64::from_ptr(self.register.get() as *mut u64) }.store(self.value, Ordering::Release);
        barrier::drain();
        wake::report_doorbell(self.register.get() as usize, false);
    }
}

/// Rings the card by the CPU: work requests before the record, the record before the register.
///
/// # Safety
/// The register is valid, and aligned to 8 bytes.
#[inline]
pub(crate) unsafe fn ring(queue: &Ring, record: u32, register: HostAddr, value: u64) {
    event(EventKind::Rung, || [register.get(), value, 0]);
    barrier::to_device();
    queue.publish(record);
    barrier::to_device();
    // SAFETY: the caller's.
    unsafe { SharedU64::from_ptr(register.get() as *mut u64) }.store(value, Ordering::Release);
    barrier::drain();
    wake::report_doorbell(register.get() as usize, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counters_of_a_record_are_stored_in_one_piece() {
        let doorbell = |record_at| Doorbell {
            record_at: HostAddr(record_at),
            record: 0x5678,
            register: HostAddr(0x2000),
            value: 9,
        };
        let receives = PeerOp::StoreDword { addr: HostAddr(0x1000), value: 0x1234 };
        let both = PeerOp::StoreQword { addr: HostAddr(0x1000), value: 0x5678_0000_1234 };
        assert_eq!(doorbell(0x1004).record_with(receives), Some(both));
        // Another record, and one that is not aligned.
        assert_eq!(doorbell(0x1044).record_with(receives), None);
        let receives = PeerOp::StoreDword { addr: HostAddr(0x1004), value: 0x1234 };
        assert_eq!(doorbell(0x1008).record_with(receives), None);
    }
}
