//! Items and memory operations, performed by the calling thread.

use super::Item;
use crate::memop::MemOp;
use crate::memory::StreamAddr;
use crate::stream::trace;
use gdsync_sys::barrier;
use gdsync_sys::contain::contain;
use gdsync_sys::pause::Pause;
use gdsync_sys::shared::{self, SharedU32, SharedU64};
use gdsync_sys::wake::{self, Helper};
use gdsync_trace::EventKind;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Performs an item, up to the reason in `stopped`.
pub(super) fn perform(item: Item, stopped: &OnceLock<String>) -> Result<(), String> {
    let check = || stopped.get().map_or(Ok(()), |reason| Err(reason.clone()));
    match item {
        Item::Ops(ops) => {
            for op in &ops {
                check()?;
                let _waiting = trace::waiting(op);
                let (mut pause, mut helper) = (Pause::new(), Helper::default());
                // SAFETY: the caller of `submit` vouched that the addresses are aligned, and valid until the
                // operation has been performed. Stream addresses of this backend are host addresses. The worker
                // holds no lock, so it may do the card's work.
                while !unsafe {
                    try_perform(op, true) || pause_before_retry(op, &mut pause, Some(&mut helper))
                } {
                    check()?;
                }
            }
        }
        Item::Bytes(to, bytes) => {
            check()?;
            // SAFETY: the caller of `write_bytes` vouched that the addresses are valid until the bytes have been written.
            unsafe { write_bytes(to, &bytes) }
        }
        Item::Kernel(kernel) => {
            check()?;
            let _kernel = gdsync_trace::span(EventKind::Kernel, || [0; 3]);
            contain(kernel).map_err(|message| format!("a kernel panicked: {message}"))?;
        }
        Item::Record(event) => event.complete(),
    }
    Ok(())
}

/// Performs an operation; returns false for an unsatisfied wait. With `may_serve`, the thread may do a software
/// card's work if the operation is its doorbell ([`wake::report_doorbell`]).
///
/// # Safety
/// The operation's address is a host address, valid and aligned.
pub(in crate::stream) unsafe fn try_perform(op: &MemOp, may_serve: bool) -> bool {
    match *op {
        // As on a GPU, earlier writes become visible first, including those to GPU memory mapped for the CPU.
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
            wake::report_doorbell(addr.get() as usize, may_serve);
            true
        }
        MemOp::Wait32 { addr, condition, value } => {
            // SAFETY: the caller's. Acquire: later operations see the card's writes from before the word.
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
pub(in crate::stream) unsafe fn pause_before_retry(
    op: &MemOp,
    pause: &mut Pause,
    helper: Option<&mut Helper>,
) -> bool {
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

/// Copies bytes to an address of a stream. A reader that sees them also sees all earlier writes.
///
/// # Safety
/// `to..to + bytes.len()` are host addresses, valid for writing as [`shared`] does.
pub(in crate::stream) unsafe fn write_bytes(to: StreamAddr, bytes: &[u8]) {
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
