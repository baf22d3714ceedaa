//! Copies between GPU memory and the CPU, on a stream of gdsync's own.
//!
//! The stream is non-blocking, so that it never waits for the program's work, nor that for it; and
//! what it copies passes through pinned memory, so that no copy waits for the driver to find a
//! buffer of its own.

#[cfg(feature = "software-card")]
use crate::cuda::peer_copies::StridedCopy;
use crate::cuda::{CudaError, check};
use crate::memory::{HostAddr, PinnedMemory, StreamAddr};
use cudarc::driver::sys;
use std::time::{Duration, Instant};

/// Bytes of the pinned buffer: one copy of the software card fits in.
const STAGING: usize = 1 << 20;
/// How long a new stream may take to write one word ([`Copier::claim_channel`]).
const CLAIM: Duration = Duration::from_millis(100);

/// The stream and its buffer.
pub(crate) struct Copier {
    stream: sys::CUstream,
    staging: PinnedMemory,
    /// The GPU's address of the word that new streams write, and which has no reader.
    scratch: u64,
    _scratch: PinnedMemory,
}

// SAFETY: a stream may be used from any thread; one at a time has it, under the context's lock.
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
        // SAFETY: `stream` is a valid place; the context is current (the caller's). It lives as
        // long as the context.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        let copier = Copier { stream, staging, scratch, _scratch: word };
        // SAFETY: the stream is the copier's own.
        unsafe { copier.claim_channel(stream) };
        Ok(copier)
    }

    /// Has the driver give an idle stream its channel of the GPU, by writing one word in its order, and waits for that.
    ///
    /// A stream gets its channel with its first work. Threads that give several streams their first work at the same time
    /// may have them all put on one channel, although others are free (`scripts/gpu/channels.cu`): then a stream that waits
    /// for another one that shares its channel waits for ever. So streams do their first work here, one after the other:
    /// the caller holds the lock of the context's copier.
    ///
    /// # Safety
    /// The stream is alive, and not being captured.
    pub(super) unsafe fn claim_channel(&self, stream: sys::CUstream) {
        // SAFETY: the stream is the caller's; the word is pinned, kept as long as the context, and has no reader.
        let written = check("cuStreamWriteValue32", unsafe {
            sys::cuStreamWriteValue32_v2(stream, self.scratch, 0, 0)
        });
        if let Err(error) = written {
            // The stream's first post says what is wrong.
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

    fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is ours, and alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Copies out of GPU memory.
    ///
    /// # Safety
    /// `from..from + into.len()` is memory of a GPU that this context reaches.
    pub(super) unsafe fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), CudaError> {
        for (i, chunk) in into.chunks_mut(STAGING).enumerate() {
            let at = from + (i * STAGING) as u64;
            let staging = self.staging.as_ptr();
            // SAFETY: the GPU's side is the caller's; the buffer is pinned, long enough, and ours
            // until we have waited.
            check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(staging.cast(), at, chunk.len(), self.stream)
            })?;
            self.synchronize()?;
            // SAFETY: the copy is done: nothing else touches the buffer, which is as long as the
            // chunk at least.
            unsafe { staging.copy_to_nonoverlapping(chunk.as_mut_ptr(), chunk.len()) };
        }
        Ok(())
    }

    /// Copies into GPU memory.
    ///
    /// # Safety
    /// `to..to + from.len()` is memory of a GPU that this context reaches.
    pub(super) unsafe fn write(&mut self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        for (i, chunk) in from.chunks(STAGING).enumerate() {
            let at = to + (i * STAGING) as u64;
            let staging = self.staging.as_ptr();
            // SAFETY: the last copy is done: nothing else touches the buffer, which is as long as
            // the chunk at least.
            unsafe { staging.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
            // SAFETY: as in `read`.
            check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(at, staging.cast(), chunk.len(), self.stream)
            })?;
            self.synchronize()?;
        }
        Ok(())
    }

    /// Copies between GPU memory and pinned memory, and waits for the copies.
    ///
    /// # Errors
    /// The driver's first. The other copies are performed where it lets them.
    ///
    /// # Safety
    /// The GPU's side is memory of a GPU that this context reaches. Until this returns, the pinned side stays
    /// pinned, and readable; where it is written to, it is writable, and no other code reads or writes it.
    #[cfg(feature = "software-card")]
    pub(super) unsafe fn copy_strided(&mut self, copies: &[StridedCopy]) -> Result<(), CudaError> {
        let mut outcome = Ok(());
        for copy in copies {
            let copy = copy.description();
            // SAFETY: the caller's; the description lives through the call.
            let begun = check("cuMemcpy2DAsync", unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream) });
            outcome = outcome.and(begun);
        }
        outcome.and(self.synchronize())
    }

    /// Fills GPU memory with zeroes.
    ///
    /// # Safety
    /// `at..at + len` is memory of a GPU that this context reaches.
    pub(super) unsafe fn zero(&mut self, at: u64, len: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(at, 0, len, self.stream) })?;
        self.synchronize()
    }
}
