//! Performing memory operations on a CPU thread, for the backends that do.

use crate::memop::{Condition, MemOp};
use crate::memory::StreamAddr;
use gdsync_sys::barrier;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

impl Condition {
    pub(crate) fn holds32(self, word: u32, value: u32) -> bool {
        match self {
            Condition::Geq => word.wrapping_sub(value) as i32 >= 0,
            Condition::Eq => word == value,
            Condition::And => word & value != 0,
            Condition::Nor => !(word | value) != 0,
        }
    }

    pub(crate) fn holds64(self, word: u64, value: u64) -> bool {
        match self {
            Condition::Geq => word.wrapping_sub(value) as i64 >= 0,
            Condition::Eq => word == value,
            Condition::And => word & value != 0,
            Condition::Nor => !(word | value) != 0,
        }
    }
}

/// Performs an operation if it can be performed now: false for a wait that is not satisfied.
///
/// # Safety
/// The operation's address is a host address, valid and aligned.
pub(super) unsafe fn try_perform(op: &MemOp) -> bool {
    match *op {
        // As a GPU does: what was written before is visible first, in GPU memory that is mapped for the CPU, too.
        MemOp::Write32 { addr, value } => {
            barrier::drain();
            // SAFETY: the caller's.
            unsafe { word32(&addr) }.store(value, Ordering::Release);
            true
        }
        MemOp::Write64 { addr, value } => {
            barrier::drain();
            // SAFETY: the caller's.
            unsafe { word64(&addr) }.store(value, Ordering::Release);
            // It may be a doorbell register.
            barrier::drain();
            true
        }
        MemOp::Wait32 { addr, condition, value } => {
            // SAFETY: the caller's. Acquire: what the card wrote before the word is visible to whatever comes after.
            condition.holds32(unsafe { word32(&addr) }.load(Ordering::Acquire), value)
        }
        MemOp::Wait64 { addr, condition, value } => {
            // SAFETY: the caller's. Acquire: as above.
            condition.holds64(unsafe { word64(&addr) }.load(Ordering::Acquire), value)
        }
        // A CPU sees a card's writes in order: a fence is all that is left to do.
        MemOp::Barrier | MemOp::FlushRemote => {
            std::sync::atomic::fence(Ordering::SeqCst);
            true
        }
    }
}

/// Copies bytes to where a stream was told to. What was written before is visible to whoever sees them.
///
/// # Safety
/// `to..to + bytes.len()` are host addresses, valid for writing by atomics.
pub(super) unsafe fn write_bytes(to: StreamAddr, bytes: &[u8]) {
    barrier::drain();
    for (address, byte) in (to.get()..).zip(bytes) {
        // SAFETY: the caller's; a byte needs no alignment.
        unsafe { AtomicU8::from_ptr(address as *mut u8) }.store(*byte, Ordering::Relaxed);
    }
}

/// # Safety
/// The address is a host address, valid and aligned to 4 bytes for as long as the borrow is used.
unsafe fn word32(addr: &StreamAddr) -> &AtomicU32 {
    // SAFETY: the caller's.
    unsafe { AtomicU32::from_ptr(addr.get() as *mut u32) }
}

/// # Safety
/// The address is a host address, valid and aligned to 8 bytes for as long as the borrow is used.
unsafe fn word64(addr: &StreamAddr) -> &AtomicU64 {
    // SAFETY: the caller's.
    unsafe { AtomicU64::from_ptr(addr.get() as *mut u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn greater_or_equal_is_cyclic() {
        assert!(Condition::Geq.holds32(0, u32::MAX) && !Condition::Geq.holds32(u32::MAX, 0));
        assert!(Condition::Geq.holds64(5, 5) && !Condition::Geq.holds64(4, 5));
        assert!(Condition::Geq.holds64(1, u64::MAX));
    }

    proptest! {
        #[test]
        fn and_waits_for_a_set_bit_and_nor_for_a_clear_one(word: u32, bit in 0u32..32) {
            let mask = 1u32 << bit;
            prop_assert_eq!(Condition::And.holds32(word, mask), word & mask != 0);
            prop_assert_eq!(Condition::Nor.holds32(word, !mask), word & mask == 0);
            prop_assert_eq!(Condition::Nor.holds64(u64::from(word), !u64::from(mask)), word & mask == 0);
            prop_assert_eq!(Condition::And.holds64(u64::from(word) << 32, u64::from(mask) << 32), word & mask != 0);
            prop_assert!(Condition::Eq.holds32(word, word) && !Condition::Eq.holds32(word, word ^ mask));
        }
    }
}
