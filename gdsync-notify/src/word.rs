//! Notifications as streams see them, and the kernel that takes one in GPU memory.

use crate::error::NotifyError;
use gdsync::cuda::{self, CudaError, GpuMemory};
use gdsync::cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::memop::{Condition, GpuWord32, StreamWord, Word32};
use gdsync::{Batch, PinnedMemory};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A notification of this rank's part of a [`Segment`](crate::Segment). A stream waits for it with
/// [`WaitNotification::wait_notification`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotificationWord {
    /// In host memory.
    Host(Word32),
    /// In GPU memory.
    Gpu(GpuWord32),
}

/// Batches that wait for notifications.
pub trait WaitNotification {
    /// Adds: wait until a notification is set, and clear it. What follows in the stream sees what
    /// was written before the notification.
    ///
    /// A stream has no single operation for that: a second notification of the same number between
    /// the two operations is lost. A sender therefore waits until the receiver has confirmed the
    /// last notification of that number, or uses several numbers in turn.
    ///
    /// The wait is for any bit (`AND` with all ones). A wait for "at least 1" compares cyclically
    /// and would miss values above 2^31.
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

/// `take(word, result)`: exchanges the word with 0 in one step for the whole system, and stores its
/// old value.
const PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry take(.param .u64 word, .param .u64 result) {
    .reg .b32 %r<3>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [word]; ld.param.u64 %rd2, [result];
    mov.u32 %r1, 0;
    atom.acq_rel.sys.global.exch.b32 %r2, [%rd1], %r1;
    st.global.u32 [%rd2], %r2;
    ret;
}
";

/// Takes notifications in GPU memory: a kernel on a stream of its own. The GPU's memory performs
/// atomics and a card's writes one after the other, so no notification is lost between the load and
/// the store.
#[derive(Debug)]
pub(crate) struct Taker {
    function: CudaFunction,
    stream: Arc<CudaStream>,
    /// The word into which the kernel stores the old value, for one caller at a time.
    result: Mutex<PinnedMemory>,
    /// The GPU's address of that word.
    result_address: u64,
}

impl Taker {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, NotifyError> {
        let failed = |call| move |error: DriverError| CudaError::call(call, error.0);
        let module = context.load_module(Ptx::from_src(PTX)).map_err(failed("cuModuleLoadData"))?;
        let function = module.load_function("take").map_err(failed("cuModuleGetFunction"))?;
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        let result = PinnedMemory::allocate(size_of::<u32>())
            .map_err(|error| CudaError::NoHostMemory { len: size_of::<u32>(), reason: error.to_string() })?;
        let result_address = cuda::pin(context, &result)?;
        let taker = Taker { function, stream, result: Mutex::new(result), result_address };
        // The driver loads a kernel at its first launch, and waits for blocked streams then; so the
        // first launch is here.
        let scratch = GpuMemory::allocate(context, size_of::<u32>())?;
        taker.take(&GpuWord32::new(&scratch, 0)?)?;
        Ok(taker)
    }

    /// Clears the word, and returns its old value.
    pub(crate) fn take(&self, word: &GpuWord32) -> Result<u32, CudaError> {
        let result = self.result.lock();
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.function);
        let address = word.address();
        launch.arg(&address).arg(&self.result_address);
        // SAFETY: the arguments are those of the kernel. `word` keeps its memory and `self` the
        // result until the kernel has ended, which `synchronize` waits for; the lock, held until
        // then, keeps other kernels from the result.
        unsafe { launch.launch(config) }.map_err(|error| CudaError::call("cuLaunchKernel", error.0))?;
        self.stream.synchronize().map_err(|error| CudaError::call("cuStreamSynchronize", error.0))?;
        Ok(result.words32()[0].load(Ordering::Acquire))
    }
}
