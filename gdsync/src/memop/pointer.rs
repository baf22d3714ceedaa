//! Backends in boxes, so that streams of different kinds fit one type.
//!
//! Not behind shared pointers: two streams could then submit to one backend at the same time.

use super::{MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError};
use crate::cuda::GpuMemory;
use crate::memory::{HostAddr, StreamAddr};
use std::sync::Arc;
use std::time::Duration;

/// Methods that are those of the backend in the box.
macro_rules! forwarded {
    ($(fn $method:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?;)+) => {
        $(
            fn $method(&self, $($argument: $type),*) $(-> $answer)? {
                (**self).$method($($argument),*)
            }
        )+
    };
}

// SAFETY: every method is that of the backend in the box.
unsafe impl<B: MemOpStream + ?Sized> MemOpStream for Box<B> {
    forwarded! {
        fn caps() -> MemOpCaps;
        fn translate(addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError>;
        fn epoch() -> u64;
        fn idle_probe(probe: Arc<dyn Fn() -> bool + Send + Sync>);
        fn is_synchronous() -> bool;
        fn device() -> u64;
        fn reaches(memory: &GpuMemory) -> Result<(), StreamError>;
        fn owns(memory: &GpuMemory) -> Result<(), StreamError>;
        fn wait_idle(timeout: Duration) -> Result<bool, StreamError>;
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        // SAFETY: the caller's.
        unsafe { (**self).submit(ops) }
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
}
