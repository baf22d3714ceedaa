//! Memory operations performed by a CPU thread, for the backends that run on one.

use crate::memop::MemOp;
use crate::memory::StreamAddr;
use crate::stream::trace;
use gdsync_sys::barrier;
use gdsync_sys::pause::Pause;
use gdsync_sys::shared::{self, SharedU32, SharedU64};
use gdsync_sys::wake::{self, Helper};
use std::sync::atomic::Ordering;

/// Performs an operation, unless it is a wait that is not satisfied: then it returns false.
/// `lends_itself`: the thread may do a software card's work, if the operation is its doorbell
/// ([`wake::rung`]).
///
/// # Safety
/// The operation's address is a host address, valid and aligned.
pub(super) unsafe fn try_perform(op: &MemOp, lends_itself: bool) -> bool {
    match *op {
        // As on a GPU, earlier writes become visible first, also those to GPU memory that is mapped
        // for the CPU.
        MemOp::Write32 { addr, value } => {
            let _storing = trace::storing(op);
            barrier::drain();
            // SAFETY: the caller's.
            unsafe { word32(&addr) }.store(value, Ordering::Release);
            true
        }
        MemOp::Write64 { addr, value } => {
            let _storing = trace::storing(op);
            barrier::drain();
            // SAFETY: the caller's.
            unsafe { word64(&addr) }.store(value, Ordering::Release);
            // The address may be a doorbell register.
            barrier::drain();
            wake::rung(addr.get() as usize, lends_itself);
            true
        }
        MemOp::Wait32 { addr, condition, value } => {
            // SAFETY: the caller's. Acquire: later operations see what the card wrote before the
            // word.
            condition.holds32(unsafe { word32(&addr) }.load(Ordering::Acquire), value)
        }
        MemOp::Wait64 { addr, condition, value } => {
            // SAFETY: the caller's. Acquire: as above.
            condition.holds64(unsafe { word64(&addr) }.load(Ordering::Acquire), value)
        }
        // A CPU sees a card's writes in order, so a fence is enough.
        MemOp::Barrier | MemOp::FlushRemote => {
            std::sync::atomic::fence(Ordering::SeqCst);
            true
        }
    }
}

/// Pauses between two attempts at a wait. Returns whether the wait is satisfied now.
///
/// # Safety
/// As [`try_perform`].
pub(super) unsafe fn pause(op: &MemOp, pause: &mut Pause, helper: Option<&mut Helper>) -> bool {
    match op {
        MemOp::Wait32 { addr, .. } | MemOp::Wait64 { addr, .. } => {
            // SAFETY: the caller's.
            pause.pause_at(addr.get() as usize, helper, || unsafe { try_perform(op, false) })
        }
        _ => {
            pause.pause();
            false
        }
    }
}

/// Copies bytes to an address of a stream. A reader that sees them also sees what was written
/// before.
///
/// # Safety
/// `to..to + bytes.len()` are host addresses, valid for writing as [`shared`] does.
pub(super) unsafe fn write_bytes(to: StreamAddr, bytes: &[u8]) {
    barrier::drain();
    // SAFETY: the caller's.
    unsafe { shared::copy(to.get() as *mut u8, bytes.as_ptr(), bytes.len()) };
}

/// # Safety
/// The address is a host address, valid and aligned to 4 bytes for as long as the borrow is used.
unsafe fn word32(addr: &StreamAddr) -> &SharedU32 {
    // SAFETY: the caller's.
    unsafe { SharedU32::from_ptr(addr.get() as *mut u32) }
}

/// # Safety
/// The address is a host address, valid and aligned to 8 bytes for as long as the borrow is used.
unsafe fn word64(addr: &StreamAddr) -> &SharedU64 {
    // SAFETY: the caller's.
    unsafe { SharedU64::from_ptr(addr.get() as *mut u64) }
}
