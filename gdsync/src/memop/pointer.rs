//! Backends in boxes, so that streams of different kinds fit one type.
//!
//! Not behind shared pointers: two streams could then submit to one backend at the same time.

use super::{MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError};
use crate::cuda::GpuMemory;
use crate::memory::{HostAddr, StreamAddr};
use std::sync::Arc;
use std::time::Duration;

// SAFETY: every method is that of the backend in the box.
unsafe impl<B: MemOpStream + ?Sized> MemOpStream for Box<B> {
    fn caps(&self) -> MemOpCaps {
        (**self).caps()
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        (**self).translate(addr, len)
    }

    fn epoch(&self) -> u64 {
        (**self).epoch()
    }

    fn idle_probe(&self, probe: Arc<dyn Fn() -> bool + Send + Sync>) {
        (**self).idle_probe(probe)
    }

    fn is_synchronous(&self) -> bool {
        (**self).is_synchronous()
    }

    fn device(&self) -> u64 {
        (**self).device()
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        // SAFETY: the caller's.
        unsafe { (**self).submit(ops) }
    }

    fn reaches(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        (**self).reaches(memory)
    }

    fn owns(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        (**self).owns(memory)
    }

    unsafe fn write_bytes(
        &self,
        to: StreamAddr,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> Result<Staged, StreamError> {
        // SAFETY: the caller's.
        unsafe { (**self).write_bytes(to, kind, bytes) }
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        (**self).wait_idle(timeout)
    }
}
