//! Copies between GPU memory and the CPU, on gdsync's own stream.
//!
//! The stream is non-blocking, so that neither it nor the program's streams wait for each other. The copies use
//! pinned memory, so that none waits until the driver finds a staging buffer.

#[cfg(feature = "software-card")]
use crate::cuda::peer_copies::{PeerCopy, StridedCopy};
use crate::cuda::{CudaError, check};
use crate::memory::{HostAddr, PinnedMemory, StreamAddr};
use cudarc::driver::sys;
use std::time::{Duration, Instant};

/// Size of the pinned buffer in bytes: room for one copy of the software card.
const STAGING: usize = 1 << 20;
/// How long a new stream may take to write one word ([`Copier::claim_channel`]).
const CLAIM: Duration = Duration::from_millis(100);

pub(crate) struct Copier {
    stream: sys::CUstream,
    staging: PinnedMemory,
    /// The GPU's address of the word that new streams write. Nothing reads it.
    scratch: u64,
    _scratch: PinnedMemory,
}

// SAFETY: a stream may be used from any thread, and the context's lock admits one at a time.
unsafe impl Send for Copier {}

impl Copier {
    /// `translate` returns the GPU's address of host memory. The context is current (the caller's).
    pub(super) fn new(
        translate: impl Fn(HostAddr, usize) -> Result<StreamAddr, CudaError>,
    ) -> Result<Self, CudaError> {
        let no_memory =
            |len| move |error: std::io::Error| CudaError::NoHostMemory { len, reason: error.to_string() };
        let staging = PinnedMemory::allocate_whole(STAGING).map_err(no_memory(STAGING))?;
        translate(staging.addr(), 1)?;
        let word = PinnedMemory::allocate(size_of::<u32>()).map_err(no_memory(size_of::<u32>()))?;
        let scratch = translate(word.addr(), word.len())?.get();
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is a valid place; the context is current (the caller's), and the stream lives as long.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        let copier = Copier { stream, staging, scratch, _scratch: word };
        // SAFETY: the stream is the copier's own.
        unsafe { copier.claim_channel(stream) };
        Ok(copier)
    }

    /// Makes the driver assign a channel of the GPU to an idle stream: enqueues the write of one word, and waits for
    /// it.
    ///
    /// The driver assigns the channel with the first work. If several threads give several streams their first work
    /// at the same time, the driver may put them all on one channel although others are free
    /// (`scripts/gpu/channels.cu`), and a stream that waits for another stream on its channel then waits forever. The
    /// caller holds the lock of the context's copier, so that streams do their first work one after the other.
    ///
    /// # Safety
    /// The stream is alive, and not being captured.
    pub(super) unsafe fn claim_channel(&self, stream: sys::CUstream) {
        // SAFETY: the stream is alive (the caller's); the word is pinned, lives as long as the context, and is not
        // read.
        let written = check("cuStreamWriteValue32", unsafe {
            sys::cuStreamWriteValue32_v2(stream, self.scratch, 0, 0)
        });
        if let Err(error) = written {
            // The stream's first post reports the error.
            return tracing::debug!(%error, "a new stream writes no word");
        }
        let begun = Instant::now();
        // SAFETY: the caller's.
        while unsafe { sys::cuStreamQuery(stream) } == sys::CUresult::CUDA_ERROR_NOT_READY {
            if begun.elapsed() > CLAIM {
                return tracing::warn!(
                    "a new stream stands behind others that wait: the GPU has no channel left for it. Set CUDA_DEVICE_MAX_CONNECTIONS (8 by default, 32 at most) above the number of streams that wait at a time"
                );
            }
            std::hint::spin_loop();
        }
    }

    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Waits for the stream.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is ours, and alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Copies from GPU memory.
    ///
    /// # Safety
    /// The context reaches the GPU memory `from..from + into.len()`.
    pub(super) unsafe fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), CudaError> {
        for (i, chunk) in into.chunks_mut(STAGING).enumerate() {
            let at = from + (i * STAGING) as u64;
            let staging = self.staging.as_ptr();
            // SAFETY: the GPU memory is the caller's; the buffer is pinned, long enough, and ours until the copy is
            // done.
            check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(staging.cast(), at, chunk.len(), self.stream)
            })?;
            self.synchronize()?;
            // SAFETY: the copy is done, so nothing else accesses the buffer, which is at least as long as the chunk.
            unsafe { staging.copy_to_nonoverlapping(chunk.as_mut_ptr(), chunk.len()) };
        }
        Ok(())
    }

    /// Copies to GPU memory.
    ///
    /// # Safety
    /// The context reaches the GPU memory `to..to + from.len()`.
    pub(super) unsafe fn write(&mut self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        for (i, chunk) in from.chunks(STAGING).enumerate() {
            let at = to + (i * STAGING) as u64;
            let staging = self.staging.as_ptr();
            // SAFETY: the last copy is done, so nothing else uses the buffer, which is as long as the chunk.
            unsafe { staging.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
            // SAFETY: as in `read`.
            check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(at, staging.cast(), chunk.len(), self.stream)
            })?;
            self.synchronize()?;
        }
        Ok(())
    }

    /// Begins to copy between GPU memory and pinned memory, until [`Self::synchronize`].
    ///
    /// # Errors
    /// The driver's first error. The other copies begin if the driver allows it.
    ///
    /// # Safety
    /// The context reaches the GPU memory. Until the stream has performed the copies, the host memory stays pinned and
    /// readable; a destination is writable, and no other code accesses it.
    #[cfg(feature = "software-card")]
    pub(super) unsafe fn begin_strided(&self, copies: &[StridedCopy]) -> Result<(), CudaError> {
        let mut outcome = Ok(());
        for copy in copies {
            // SAFETY: the caller's.
            outcome = outcome.and(unsafe { self.begin_copy(copy) });
        }
        outcome
    }

    /// Begins copies. One alone has no distances.
    ///
    /// # Safety
    /// As [`Self::begin_strided`].
    #[cfg(feature = "software-card")]
    unsafe fn begin_copy(&self, copies: &StridedCopy) -> Result<(), CudaError> {
        let StridedCopy { first: PeerCopy { gpu, host, len, is_read, .. }, count, .. } = *copies;
        let host = std::ptr::with_exposed_provenance_mut(host);
        // SAFETY: the caller's; the description lives through the call.
        unsafe {
            match (count, is_read) {
                (1, true) => {
                    check("cuMemcpyDtoHAsync", sys::cuMemcpyDtoHAsync_v2(host, gpu, len, self.stream))
                }
                (1, false) => {
                    check("cuMemcpyHtoDAsync", sys::cuMemcpyHtoDAsync_v2(gpu, host, len, self.stream))
                }
                _ => check("cuMemcpy2DAsync", sys::cuMemcpy2DAsync_v2(&copies.description(), self.stream)),
            }
        }
    }

    /// Fills GPU memory with zeroes.
    ///
    /// # Safety
    /// The context reaches the GPU memory `at..at + len`.
    pub(super) unsafe fn zero(&mut self, at: u64, len: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(at, 0, len, self.stream) })?;
        self.synchronize()
    }
}
