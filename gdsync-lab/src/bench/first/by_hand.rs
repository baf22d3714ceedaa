//! The reference of a first post: the stream's own call, with nothing of a post around it.

use crate::bench::gpu::by_hand;
use gdsync::memop::{MemOp, MemOpStream};
use gdsync::memory::StreamAddr;
use gdsync::{CudaStream, SoftStream};
use gdsync_cli::failure::Failure;

/// A stream that takes a write by its own call.
pub(super) trait ByHand: MemOpStream {
    /// Enqueues a write of 32 bits.
    ///
    /// # Safety
    /// The address is the stream's, of an aligned word that stays until the stream has written it.
    unsafe fn write_by_hand(&self, addr: StreamAddr, value: u32) -> Result<(), Failure>;
}

impl ByHand for CudaStream {
    unsafe fn write_by_hand(&self, addr: StreamAddr, value: u32) -> Result<(), Failure> {
        // SAFETY: the caller's.
        unsafe { by_hand::submit(self, &mut [by_hand::write(addr, value.into(), false)]) }
    }
}

impl ByHand for SoftStream {
    unsafe fn write_by_hand(&self, addr: StreamAddr, value: u32) -> Result<(), Failure> {
        // SAFETY: the caller's.
        Ok(unsafe { self.submit(&[MemOp::Write32 { addr, value }]) }?)
    }
}
