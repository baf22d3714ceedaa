//! Words of notifications: as streams wait for them, and as the CPU and kernels change them.

use crate::error::Result;
use gdsync::cuda::{self, CudaError, GpuMemory};
use gdsync::cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::memop::{Condition, GpuWord32, StreamWord, WaitCause, Word32};
use gdsync::{Batch, PinnedMemory};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A notification of this rank's part of a [`Segment`](crate::Segment), for [`WaitNotification::wait_notification`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotificationWord {
    /// In host memory.
    Host(Word32),
    /// In GPU memory.
    Gpu(GpuWord32),
}

impl NotificationWord {
    /// Sets what writes it, for [`gdsync::Stream::explain_wait`].
    pub(crate) fn written_by(self, cause: Arc<dyn WaitCause>) -> Self {
        match self {
            NotificationWord::Host(word) => NotificationWord::Host(word.written_by(cause)),
            NotificationWord::Gpu(word) => NotificationWord::Gpu(word.written_by(cause)),
        }
    }

    /// Sets the name that [`gdsync::Stream::oldest_wait`] reports.
    pub(crate) fn named(self, name: String) -> Self {
        match self {
            NotificationWord::Host(word) => NotificationWord::Host(word.named(name)),
            NotificationWord::Gpu(word) => NotificationWord::Gpu(word.named(name)),
        }
    }
}

/// Waits for notifications in batches.
pub trait WaitNotification {
    /// Adds a wait until a notification is set, and clears it. Later operations of the stream see data written before it.
    ///
    /// No single stream operation does both: a second notification of the same number between the two is lost. A sender
    /// therefore waits until the receiver has confirmed the last notification of that number, or uses several in turn.
    ///
    /// The wait is for any bit (`AND` with all ones). "At least 1" compares cyclically and would miss values above 2^31.
    #[must_use = "a batch does nothing until it is posted"]
    fn wait_notification(self, word: &NotificationWord) -> Self;
}

impl WaitNotification for Batch {
    fn wait_notification(self, word: &NotificationWord) -> Self {
        fn wait(batch: Batch, word: &impl StreamWord<u32>) -> Batch {
            batch.wait_value32(word, Condition::And, u32::MAX).write_value32(word, 0)
        }
        match word {
            NotificationWord::Host(word) => wait(self, word),
            NotificationWord::Gpu(word) => wait(self, word),
        }
    }
}

/// `take(word, result)` exchanges the word with 0 atomically at system scope and stores the old value. `change(words,
/// from, to, count)`: each thread changes one word that has the value `from`.
const PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry change(.param .u64 words, .param .u32 from, .param .u32 to, .param .u32 count) {
    .reg .pred %p1; .reg .b32 %r<9>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [words]; ld.param.u32 %r1, [from]; ld.param.u32 %r2, [to]; ld.param.u32 %r3, [count];
    mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ntid.x; mov.u32 %r6, %tid.x;
    mad.lo.u32 %r7, %r4, %r5, %r6;
    setp.ge.u32 %p1, %r7, %r3;
    @%p1 ret;
    mul.wide.u32 %rd2, %r7, 4;
    add.u64 %rd1, %rd1, %rd2;
    atom.acq_rel.sys.global.cas.b32 %r8, [%rd1], %r1, %r2;
    ret;
}
.visible .entry take(.param .u64 word, .param .u64 result) {
    .reg .b32 %r<3>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [word]; ld.param.u64 %rd2, [result];
    mov.u32 %r1, 0;
    atom.acq_rel.sys.global.exch.b32 %r2, [%rd1], %r1;
    st.global.u32 [%rd2], %r2;
    ret;
}
";

/// The kernels that take and change notifications in GPU memory, on their own stream. The GPU's memory serializes
/// atomics and a card's writes, so no notification is lost between load and store.
#[derive(Debug)]
pub(crate) struct NotificationKernels {
    take: CudaFunction,
    change: CudaFunction,
    stream: Arc<CudaStream>,
    /// The word that receives the old value, for one caller at a time.
    result: Mutex<PinnedMemory>,
    result_address: u64,
}

impl NotificationKernels {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let failed = |call| move |error: DriverError| CudaError::call(call, error.0);
        let module = context.load_module(Ptx::from_src(PTX)).map_err(failed("cuModuleLoadData"))?;
        let function = |name| module.load_function(name).map_err(failed("cuModuleGetFunction"));
        let (take, change) = (function("take")?, function("change")?);
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        cuda::claim_channel(&stream)?;
        let result = PinnedMemory::allocate(size_of::<u32>())
            .map_err(|error| CudaError::NoHostMemory { len: size_of::<u32>(), reason: error.to_string() })?;
        let result_address = cuda::pin(context, &result)?;
        let kernels =
            NotificationKernels { take, change, stream, result: Mutex::new(result), result_address };
        // The driver loads a kernel at its first launch and then waits for blocked streams, so the first launch is here.
        let scratch = GpuMemory::allocate(context, size_of::<u32>())?;
        kernels.take(&GpuWord32::new(&scratch, 0)?)?;
        kernels.change(&scratch, 0..1, 0, 0)?;
        Ok(kernels)
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Changes the words of a range, counted from the memory's start, that have the value `from`.
    fn change(&self, memory: &GpuMemory, words: Range<u32>, from: u32, to: u32) -> Result<(), CudaError> {
        const THREADS: u32 = 256;
        let (address, count) = (memory.address() + u64::from(words.start) * 4, words.len() as u32);
        let grid = (count.div_ceil(THREADS), 1, 1);
        let config = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.change);
        launch.arg(&address).arg(&from).arg(&to).arg(&count);
        // SAFETY: the arguments match the kernel, which touches `count` words of `memory`: the caller keeps the range
        // inside, and `synchronize` returns after the kernel has ended.
        unsafe { launch.launch(config) }.map_err(|error| CudaError::call("cuLaunchKernel", error.0))?;
        self.stream.synchronize().map_err(|error| CudaError::call("cuStreamSynchronize", error.0))
    }

    pub(crate) fn take(&self, word: &GpuWord32) -> Result<u32, CudaError> {
        let result = self.result.lock();
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.take);
        let address = word.address();
        launch.arg(&address).arg(&self.result_address);
        // SAFETY: the arguments match the kernel. `word` and `self` keep the memory until the kernel has ended, for
        // which `synchronize` waits; the lock, held until then, keeps other kernels from the result.
        unsafe { launch.launch(config) }.map_err(|error| CudaError::call("cuLaunchKernel", error.0))?;
        self.stream.synchronize().map_err(|error| CudaError::call("cuStreamSynchronize", error.0))?;
        Ok(result.words32()[0].load(Ordering::Acquire))
    }
}

/// The words of this rank's notifications, from the index `first` of the memory on.
#[derive(Debug)]
pub(crate) enum NotificationWords {
    Host { memory: PinnedMemory, first: usize },
    Gpu { memory: GpuMemory, first: usize, kernels: Option<Arc<NotificationKernels>> },
}

impl NotificationWords {
    /// Atomically changes each notification that has the value `from`. `ids` ascend.
    pub(crate) fn exchange(&self, ids: &[u32], from: u32, to: u32) -> Result<(), CudaError> {
        match self {
            NotificationWords::Host { memory, first } => {
                let words = &memory.words32()[*first..];
                for id in ids {
                    // Release: a reader that sees the word sees earlier writes. Any other value is a notification and
                    // stays.
                    _ = words[*id as usize].compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
                }
                Ok(())
            }
            NotificationWords::Gpu { kernels: None, .. } => Ok(()),
            NotificationWords::Gpu { memory, first, kernels: Some(kernels) } => {
                let runs = ids.chunk_by(|one, next| one + 1 == *next);
                runs.filter_map(|run| Some(*run.first()?..*run.last()? + 1)).try_for_each(|run| {
                    let first = *first as u32;
                    kernels.change(memory, first + run.start..first + run.end, from, to)
                })
            }
        }
    }
}
