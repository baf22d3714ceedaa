//! The caller's thread as a stream: libgdsync's `gds_post_descriptors`.

use crate::memop::{MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError};
use crate::memory::{HostAddr, StreamAddr};
use crate::stream::trace;
use gdsync_sys::barrier;
use gdsync_sys::pause::Pause;
use gdsync_sys::shared::{self, SharedU32, SharedU64};
use gdsync_sys::wake::{self, Helper};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Performs memory operations on the thread that submits them, before `submit` returns. While it
/// waits, other threads can ask its [`crate::Stream`] what it waits for.
///
/// A wait that takes longer than the time-out, if there is one, fails the backend for good: later
/// operations are not performed, and the queue pairs concerned are moved to the error state.
#[derive(Debug, Default)]
pub struct Cpu {
    timeout: Option<Duration>,
    failed: Mutex<Option<StreamError>>,
    /// A submission is not performed wholly, as one of its waits was not satisfied at once.
    waiting: AtomicBool,
}

impl Cpu {
    /// Waits without a time-out. [`crate::QueuePair::abort`], called by another thread, ends a
    /// wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits at most `timeout` for each word.
    pub fn with_timeout(timeout: Duration) -> Self {
        Cpu { timeout: Some(timeout), ..Self::default() }
    }

    fn wait(&self, op: &MemOp) -> Result<(), StreamError> {
        let _waiting = trace::waiting(op);
        let mut paused = Pause::new();
        // SAFETY: the caller of `submit` vouches for the addresses.
        while !unsafe { try_perform(op, false) || pause(op, &mut paused, None) } {
            if let Some(timeout) = self.timeout
                && paused.elapsed() > timeout
            {
                let reason = format!("{op:?} was not satisfied within {timeout:?}");
                return Err(StreamError::Failed { reason });
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), StreamError> {
        self.failed.lock().clone().map_or(Ok(()), Err)
    }
}

// SAFETY: stream addresses are host addresses, and everything is performed before `submit` returns.
unsafe impl MemOpStream for Cpu {
    fn caps(&self) -> MemOpCaps {
        MemOpCaps { max_ops: usize::MAX, max_outstanding: usize::MAX, ..MemOpCaps::FULL }
    }

    fn translate(&self, addr: HostAddr, _len: usize) -> Result<StreamAddr, StreamError> {
        Ok(StreamAddr::new(addr.get()))
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        self.check()?;
        let _posting = trace::posting(0, ops);
        // SAFETY: the caller's.
        let first_open = ops.iter().position(|op| !unsafe { try_perform(op, false) });
        let Some(first_open) = first_open else { return Ok(()) };
        self.waiting.store(true, Ordering::Release);
        let result = ops[first_open..].iter().try_for_each(|op| self.wait(op));
        if let Err(error) = &result {
            *self.failed.lock() = Some(error.clone());
        }
        self.waiting.store(false, Ordering::Release);
        result
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    unsafe fn write_bytes(&self, to: StreamAddr, _: MemoryKind, bytes: &[u8]) -> Result<Staged, StreamError> {
        self.check()?;
        // SAFETY: the caller's; stream addresses of this backend are host addresses.
        unsafe { write_bytes(to, bytes) };
        Ok(None)
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        let mut pause = Pause::new();
        loop {
            // Before the failure: a submission that fails says so before it ends.
            let waiting = self.waiting.load(Ordering::Acquire);
            self.check()?;
            if !waiting || pause.elapsed() >= timeout {
                return Ok(!waiting);
            }
            pause.pause();
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memop::Condition;
    use crate::memory::PinnedMemory;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_wait_that_times_out_fails_the_backend_for_good() {
        let memory = PinnedMemory::allocate(16).unwrap();
        let cpu = Cpu::with_timeout(Duration::from_millis(5));
        let addr = cpu.translate(memory.addr(), 4).unwrap();
        let write = |value| MemOp::Write32 { addr, value };
        let wait = MemOp::Wait32 { addr, condition: Condition::Eq, value: 9 };
        // SAFETY: the memory is alive and page-aligned.
        let error = unsafe { cpu.submit(&[write(1), wait, write(2)]) }.unwrap_err();
        assert!(error.to_string().contains("not satisfied within 5ms"), "{error}");
        assert_eq!(memory.words32()[0].load(Ordering::Relaxed), 1);
        // SAFETY: as above.
        assert_eq!(unsafe { cpu.submit(&[write(3)]) }, Err(error));
        assert!(cpu.wait_idle(Duration::ZERO).is_err());
        assert_eq!(memory.words32()[0].load(Ordering::Relaxed), 1);
    }
}
