//! A CUDA stream as a backend.

pub(crate) mod capture;
pub(crate) mod graph;
pub(crate) mod params;
mod timing;

use crate::cuda::{Consistency, CudaError, GpuCapabilities, GpuContext, GpuMemory, StreamHandle, check};
use crate::memop::{Condition, EndProbe, MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError};
use crate::memory::arena::Block;
use crate::memory::peer_map::MapError;
use crate::memory::{HostAddr, StreamAddr};
use crate::stream::trace;
use cudarc::driver::sys;
use gdsync_gdr::driver;
use gdsync_sys::pause::Pause;
use params::with_params;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A CUDA stream: the backend whose memory operations (`cuStreamBatchMemOp`) the GPU performs between kernels.
/// [`crate::cuda`] has an example.
///
/// Batches are ordered with all other work that the program enqueues on the stream. See [`crate::cuda`] for driver
/// calls that hang while a stream waits.
///
/// A post to a stream that is being captured is refused. No other thread may begin to capture the stream during a
/// post: a post asks whether the stream is being captured, and then submits. If a capture begins in between, the driver
/// records the operations, and each launch of that graph stores to queues that may be gone.
#[derive(Debug)]
pub struct CudaStream {
    pub(super) handle: Arc<StreamHandle>,
    pub(super) context: Arc<GpuContext>,
}

impl CudaStream {
    /// Makes a backend of a stream of cudarc, which is kept alive.
    ///
    /// The first stream of a context takes longer, for all first posts: existing queues and words of pinned memory
    /// are registered with the GPU, and the driver loads what posts need.
    ///
    /// # Errors
    /// [`CudaError`] if there is no driver, or it fails or is too old.
    pub fn new(stream: Arc<cudarc::driver::CudaStream>) -> Result<Self, CudaError> {
        let context = GpuContext::of(stream.context())?;
        Self::made(context, stream.cu_stream(), Some(stream))
    }

    /// Wraps a raw stream, for example of another library; or `CU_STREAM_LEGACY` (or null) or `CU_STREAM_PER_THREAD` of
    /// the current context. Only the thread that wraps the per-thread default stream can post to it.
    ///
    /// `owner` keeps the stream alive, and is dropped with the returned value, by the same thread, perhaps with
    /// work outstanding. Pass `()` if the program keeps the stream alive by other means.
    ///
    /// # Errors
    /// As [`Self::new`]. `owner` is dropped then.
    ///
    /// # Safety
    /// The stream is alive until `owner` is dropped; with `()`, until the returned value is dropped. Its context is
    /// alive as long as the process uses memory that this library has registered in it: GPU memory, all memory that
    /// its streams have named, and all queues and words of pinned memory that exist while it has such streams. A
    /// primary context is, as it is retained.
    pub unsafe fn from_raw(
        stream: sys::CUstream,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self, CudaError> {
        // SAFETY: the caller's.
        unsafe { Self::of_raw(stream, Some(owner)) }
    }

    /// Wraps a raw stream that the program may destroy when none of the calls below uses it. Each submission then records an
    /// event, which takes 0.3 µs of the CPU's time on an H200, and the library asks the driver about that event instead of
    /// the stream. So [`Stream::synchronize`](crate::Stream::synchronize) waits for the work of the library and what the
    /// program enqueued before it; [`Self::query`] tells about later work of the program.
    ///
    /// Like a kernel launch, and unlike a post to other streams, recording an event waits while another thread's call of
    /// the driver waits for the GPU ([blocking calls](crate::cuda#blocking-calls)).
    ///
    /// # Errors
    /// As [`Self::new`].
    ///
    /// # Safety
    /// The stream is alive during this call, and during each call that posts to it, captures it, launches a graph on it
    /// or [queries](Self::query) it. Its context is alive as long as for [`Self::from_raw`].
    pub unsafe fn borrow_raw(stream: sys::CUstream) -> Result<Self, CudaError> {
        // SAFETY: the caller's.
        unsafe { Self::of_raw(stream, None::<()>) }
    }

    /// # Safety
    /// As [`Self::from_raw`] with an owner, as [`Self::borrow_raw`] without.
    unsafe fn of_raw(
        stream: sys::CUstream,
        owner: Option<impl Send + Sync + 'static>,
    ) -> Result<Self, CudaError> {
        driver::initialise()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream is alive (the caller's), `context` a valid place.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(stream, &mut context) })?;
        // SAFETY: the caller's.
        let context = unsafe { GpuContext::of_raw(context) }?;
        Self::made(context, stream, owner)
    }

    fn made(
        context: Arc<GpuContext>,
        raw: sys::CUstream,
        owner: Option<impl Send + Sync + 'static>,
    ) -> Result<Self, CudaError> {
        let handle = context.named(StreamHandle::new(context.raw, raw, owner))?;
        context.add_stream(&handle);
        load_at_first(&context);
        context.claim_channel(&handle);
        context.collect();
        Ok(CudaStream { handle, context })
    }

    /// Makes posts skip the query whether the stream is being captured, which takes 20 ns on an H200.
    /// [`Stream::capture`](crate::Stream::capture) refuses such a stream. The query is still made for a default stream.
    ///
    /// ```no_run
    /// use gdsync::{CudaStream, Stream, cuda};
    /// let stream = CudaStream::new(cuda::context(0)?.new_stream()?)?;
    /// // SAFETY: this program captures no stream.
    /// let stream = Stream::new(unsafe { stream.never_captured() })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// Nothing captures the stream from now on: neither `cuStreamBeginCapture`, nor a wait on it for an event of a
    /// stream that is being captured. Posts would be recorded, and each launch of the graph would store to the
    /// queues of that time, which may be gone.
    #[must_use]
    pub unsafe fn never_captured(self) -> Self {
        // SAFETY: the caller's.
        unsafe { self.handle.promise_no_capture() };
        self
    }

    /// Returns the cudarc stream that this was made from, if any.
    pub fn cudarc(&self) -> Option<&Arc<cudarc::driver::CudaStream>> {
        self.handle.cudarc()
    }

    /// Returns the driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.handle.raw
    }

    /// Returns true if the GPU has done all work enqueued on the stream, by anybody.
    ///
    /// # Errors
    /// [`CudaError`], for example if the GPU has failed.
    pub fn query(&self) -> Result<bool, CudaError> {
        let _entered = self.context.enter()?;
        self.context.named(self.handle.query())
    }

    /// Returns the capabilities of the stream's GPU.
    pub fn capabilities(&self) -> GpuCapabilities {
        self.context.capabilities
    }

    /// Gives operations to the driver.
    ///
    /// # Safety
    /// As [`MemOpStream::submit`]. The context of a default stream is current.
    #[inline]
    unsafe fn enqueue(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        with_params(ops, |params| {
            let (count, params) = (params.len() as u32, params.as_mut_ptr());
            // SAFETY: the stream is alive (`CudaStream`'s promise); the array has `count` entries,
            // and the driver copies it. The addresses are the caller's promise.
            self.context.named(check("cuStreamBatchMemOp", unsafe {
                sys::cuStreamBatchMemOp_v2(self.handle.raw, count, params, 0)
            }))
        })?;
        Ok(())
    }

    /// Does so while a trace is recorded.
    ///
    /// # Safety
    /// As [`Self::enqueue`]. The stream is not being captured.
    #[cold]
    #[inline(never)]
    unsafe fn enqueue_recorded(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        let posting = trace::posting(self.handle.raw as u64, ops);
        // SAFETY: the stream is alive (`CudaStream`'s promise) and of this context; the rest is the caller's.
        let timing = unsafe { timing::begin(&self.context, self.handle.raw) };
        // SAFETY: the caller's.
        unsafe { self.enqueue(ops) }?;
        if let Some(timing) = timing {
            let number = posting.number;
            drop(posting);
            // SAFETY: as above.
            unsafe { timing.end(ops.len(), number) };
        }
        Ok(())
    }

    /// Stages bytes where the GPU can copy them without the CPU. Returns their address and owner.
    fn stage(
        &self,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> Result<(u64, Box<dyn Any + Send + Sync>), StreamError> {
        match kind {
            MemoryKind::Gpu => {
                let block = Block::holding(bytes)
                    .map_err(|error| StreamError::NoMemory { reason: error.to_string() })?;
                Ok((self.translate(block.addr(0), bytes.len())?.get(), Box::new(block)))
            }
            MemoryKind::Host => {
                let memory = GpuMemory::holding(&self.context, bytes)?;
                Ok((memory.address(), Box::new(memory)))
            }
        }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        timing::read(&self.context);
        self.context.remove_stream(&self.handle);
        self.context.collect();
    }
}

fn mem_ops(gpu: &GpuCapabilities) -> MemOpCaps {
    MemOpCaps {
        ops_64_bit: gpu.ops_64_bit,
        wait_nor: gpu.wait_nor,
        // Every write of the v2 entry points carries a system fence: they refuse the flag that would omit it.
        writes_are_fenced: true,
        flush_after_wait: gpu.consistency() == Consistency::Flushed,
        flush_remote: gpu.flush_remote_writes,
        host_atomics: gpu.host_atomics,
        ..MemOpCaps::FULL
    }
}

impl From<CudaError> for StreamError {
    fn from(error: CudaError) -> Self {
        if error.is_fatal() {
            StreamError::Failed { reason: error.to_string() }
        } else {
            StreamError::Cuda(error)
        }
    }
}

// SAFETY: addresses are the driver's for registered memory (`GpuContext`), whose epoch changes when a page is
// unregistered; the driver performs a stream's operations in order, and reports when it is idle.
unsafe impl MemOpStream for CudaStream {
    fn caps(&self) -> MemOpCaps {
        mem_ops(&self.context.capabilities)
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.context.look_up(addr, len).map_err(|error| match error {
            MapError::Unknown => StreamError::Unregistered { addr, len },
            MapError::Refused(reason) => StreamError::Unreachable { addr, reason },
        })
    }

    #[inline]
    fn epoch(&self) -> u64 {
        self.context.epoch()
    }

    fn end_probe(&self) -> Option<Arc<dyn EndProbe>> {
        Some(self.handle.last.clone()?)
    }

    fn device(&self) -> u64 {
        self.context.id
    }

    // Inlined: with known operations, the parameters are known, too.
    #[inline]
    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        self.handle.check_thread()?;
        // A default stream is that of the current context; for any other, the driver does not check which is current.
        let _entered = if self.handle.is_default() { Some(self.context.enter()?) } else { None };
        self.context.named(self.handle.check_not_capturing())?;
        let _submitting = self.context.submitting(&self.handle.busy);
        // SAFETY: the caller's; a default stream's context is current, and the stream is not being captured (see above).
        unsafe {
            if gdsync_trace::enabled() { self.enqueue_recorded(ops) } else { self.enqueue(ops) }?;
            self.handle.mark_submission();
        }
        Ok(())
    }

    fn reaches(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        if self.context.reaches(memory) {
            return Ok(());
        }
        Err(StreamError::OtherGpu { stream: self.context.ordinal, memory: memory.context().ordinal })
    }

    fn check_same_gpu(&self, memory: &GpuMemory) -> Result<(), StreamError> {
        if Arc::ptr_eq(memory.context(), &self.context) {
            return Ok(());
        }
        Err(StreamError::OtherGpu { stream: self.context.ordinal, memory: memory.context().ordinal })
    }

    /// Copies by `cuMemcpyAsync`, which the stream orders like kernels: it starts after the batches before it, and
    /// the batches after it start when its bytes are written.
    ///
    /// Into GPU memory, it copies from pinned memory. Into host memory, it copies from GPU memory: the driver
    /// performs "asynchronous" copies from host to host on the calling thread, which then waits for the stream
    /// (measured on an H200, driver 580).
    unsafe fn write_bytes(
        &self,
        to: StreamAddr,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> Result<Staged, StreamError> {
        self.handle.check_thread()?;
        let _entered = self.context.enter()?;
        self.context.named(self.handle.check_not_capturing())?;
        let (from, staged) = self.stage(kind, bytes)?;
        let _submitting = self.context.submitting(&self.handle.busy);
        // SAFETY: the stream is alive (`CudaStream`'s promise). The target is the caller's; the source holds that
        // many bytes, and the caller keeps it.
        let enqueued = check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(to.get(), from, bytes.len(), self.handle.raw)
        });
        self.context.named(enqueued)?;
        // SAFETY: as above; the stream is not being captured, and its context is current.
        unsafe { self.handle.mark_submission() };
        Ok(Some(staged))
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        let entered = self.context.enter()?;
        let mut pause = Pause::new();
        while !self.context.named(self.handle.has_ended())? {
            if pause.elapsed() >= timeout {
                return Ok(false);
            }
            pause.pause();
        }
        drop(entered);
        timing::read(&self.context);
        self.context.collect();
        Ok(true)
    }
}

/// Bytes of the memory: words that stay 0, and a part that copies overwrite.
const LEN: usize = 64;
const COPIED: u64 = 32;

/// Loads in a context's first stream what posts need. If that fails, the posts load it, and report errors.
///
/// The driver loads code when a context first uses batches of memory operations, copies, and its allocator. So the
/// first stream of a context uses all of them, on gdsync's own stream and memory, without waiting.
fn load_at_first(context: &Arc<GpuContext>) {
    let loaded = context.at_first_stream(|stream| {
        // Kept: the driver's allocator also keeps its chunk for the next small allocation.
        let memory = GpuMemory::unfilled(context, LEN)?;
        let no_memory =
            |error: std::io::Error| CudaError::NoHostMemory { len: LEN, reason: error.to_string() };
        let block = Block::holding(&[0; LEN]).map_err(no_memory)?;
        let at = context.translate(block.addr(0), LEN)?;
        let done = submit_first(context, stream, at)
            .and_then(|()| copy_first(stream, at.get() + COPIED, memory.address()));
        done.unwrap_or_else(left_to_posts);
        // Submitted work may be outstanding.
        Ok((memory, block))
    });
    loaded.unwrap_or_else(left_to_posts);
}

fn left_to_posts(error: CudaError) {
    tracing::debug!(%error, "the driver loads what posts need when the first one is made");
}

/// Submits operations of each kind that change nothing, on words that are 0.
fn submit_first(context: &Arc<GpuContext>, stream: sys::CUstream, at: StreamAddr) -> Result<(), CudaError> {
    let caps = mem_ops(&context.capabilities);
    let addr = StreamAddr::new(at.get() + 8);
    let mut ops = vec![
        MemOp::Write32 { addr: at, value: 0 },
        MemOp::Wait32 { addr: at, condition: Condition::Geq, value: 0 },
    ];
    if caps.ops_64_bit {
        ops.push(MemOp::Write64 { addr, value: 0 });
        ops.push(MemOp::Wait64 { addr, condition: Condition::Geq, value: 0 });
    }
    with_params(&ops, |params| {
        let (count, params) = (params.len() as u32, params.as_mut_ptr());
        // SAFETY: the stream is gdsync's own, and the array has `count` entries, which the driver copies. The words
        // are in a block that is kept as long as the context.
        check("cuStreamBatchMemOp", unsafe { sys::cuStreamBatchMemOp_v2(stream, count, params, 0) })
    })
}

/// Copies both ways, by the call that writes of bytes use.
fn copy_first(stream: sys::CUstream, host: u64, gpu: u64) -> Result<(), CudaError> {
    for (to, from) in [(gpu, host), (host, gpu)] {
        // SAFETY: the stream is gdsync's own. Both are gdsync's own memory, kept as long as the context, and longer
        // than the copy from these places on.
        check("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(to, from, LEN - COPIED as usize, stream) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::WritesOrdering;

    #[test]
    fn waits_are_flushed_where_the_gpu_needs_that() {
        let mut gpu = GpuCapabilities {
            ops_64_bit: true,
            wait_nor: true,
            flush_remote_writes: true,
            writes_ordering: WritesOrdering::None,
            dma_buf: true,
            host_atomics: false,
            mps: None,
        };
        assert!(mem_ops(&gpu).flush_after_wait);
        // An H200: no flush, ordered for its owner.
        (gpu.flush_remote_writes, gpu.writes_ordering) = (false, WritesOrdering::Owner);
        assert!(!mem_ops(&gpu).flush_after_wait && !mem_ops(&gpu).host_atomics);
    }
}
