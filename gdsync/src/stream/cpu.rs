//! The caller's thread as a stream: libgdsync's `gds_post_descriptors`.

use crate::memop::{MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError};
use crate::memory::{HostAddr, StreamAddr};
use crate::stream::soft::{pause_before_retry, try_perform, write_bytes};
use crate::stream::trace;
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The CPU as a stream: the thread that posts a batch performs it, before the post returns. While it waits, other
/// threads can ask its [`crate::Stream`] about the wait.
///
/// A wait that exceeds the time-out, if there is one, fails the backend for good: later operations are not
/// performed, and the queue pairs concerned move to the error state.
///
/// ```
/// use gdsync::memop::{Condition, Word32};
/// use gdsync::{Batch, PinnedMemory, Stream, stream::Cpu};
/// let stream = Stream::new(Cpu::with_timeout(std::time::Duration::from_millis(10)))?;
/// let word = Word32::new(&PinnedMemory::allocate(8)?, 0)?;
/// stream.post(Batch::new().write_value32(&word, 5))?;
/// assert_eq!(word.load(), 5);
/// assert!(stream.post(Batch::new().wait_value32(&word, Condition::Eq, 6)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Cpu {
    timeout: Option<Duration>,
    failed: Mutex<Option<StreamError>>,
    waiting: AtomicBool,
}

impl Cpu {
    /// Makes a backend without a time-out. [`crate::QueuePair::abort`], called by another thread, ends a wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a backend that waits at most `timeout` for each word.
    pub fn with_timeout(timeout: Duration) -> Self {
        Cpu { timeout: Some(timeout), ..Self::default() }
    }

    fn wait(&self, op: &MemOp) -> Result<(), StreamError> {
        let _waiting = trace::waiting(op);
        let mut paused = Pause::new();
        // SAFETY: the caller of `submit` vouches for the addresses.
        while !unsafe { try_perform(op, false) || pause_before_retry(op, &mut paused, None) } {
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
            // Before the failure: a failing submission records its failure before it ends.
            let waiting = self.waiting.load(Ordering::Acquire);
            self.check()?;
            if !waiting || pause.elapsed() >= timeout {
                return Ok(!waiting);
            }
            pause.pause();
        }
    }
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
