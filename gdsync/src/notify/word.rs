//! Notifications as streams see them, and how one in GPU memory is taken.

use crate::batch::Batch;
use crate::cuda::{self, CudaError, GpuMemory};
use crate::memop::{Condition, GpuWord32, Named, Place, StreamWord, Word32};
use crate::memory::PinnedMemory;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A notification of a [`super::Segment`] of this rank: a word that streams can wait for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotificationWord {
    /// In host memory.
    Host(Word32),
    /// In GPU memory.
    Gpu(GpuWord32),
}

impl Named for NotificationWord {
    fn place(&self) -> Place {
        match self {
            NotificationWord::Host(word) => word.place(),
            NotificationWord::Gpu(word) => word.place(),
        }
    }
}

impl StreamWord<u32> for NotificationWord {}

impl Batch {
    /// Adds: wait until a notification is there, and take it away. Whatever follows sees what was written before it.
    ///
    /// A stream has no operation that does both: one of the same number that comes between the two is lost. So who notifies waits until
    /// it is told that the last one of that number was taken, or uses numbers in turn.
    ///
    /// The wait is for any bit (`AND` with all of them): a wait for "at least 1" compares cyclically, and would miss values above 2^31.
    pub fn wait_notification(self, word: &super::NotificationWord) -> Self {
        self.wait_value32(word, Condition::And, u32::MAX).write_value32(word, 0)
    }
}

/// `take(word, result)`: exchanges the word with 0, as one step for the whole system, and says what it was.
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

/// Takes notifications in GPU memory: a kernel, on a stream of its own. The GPU's memory performs atomics and a card's writes one
/// after the other, so none is lost between a look and a write.
#[derive(Debug)]
pub(super) struct Taker {
    function: CudaFunction,
    stream: Arc<CudaStream>,
    /// Where the kernel puts what it has found, and the GPU's address of that. One at a time uses it.
    result: Mutex<PinnedMemory>,
    result_address: u64,
}

impl Taker {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let failed = |call| move |error: cudarc::driver::DriverError| CudaError::call(call, error.0);
        let module = context.load_module(Ptx::from_src(PTX)).map_err(failed("cuModuleLoadData"))?;
        let function = module.load_function("take").map_err(failed("cuModuleGetFunction"))?;
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        let result = PinnedMemory::allocate(size_of::<u32>())
            .map_err(|error| CudaError::NoHostMemory { len: size_of::<u32>(), reason: error.to_string() })?;
        let result_address = cuda::pin(context, &result)?;
        let taker = Taker { function, stream, result: Mutex::new(result), result_address };
        // A kernel is loaded at its first launch, which waits for blocked streams; better now.
        let none = GpuMemory::allocate(context, size_of::<u32>())?;
        taker.run(&taker.result.lock(), none.address())?;
        Ok(taker)
    }

    /// The value of the word, which is 0 now.
    pub(super) fn take(&self, word: &GpuWord32) -> Result<u32, CudaError> {
        self.run(&self.result.lock(), word.address())
    }

    fn run(&self, result: &PinnedMemory, word: u64) -> Result<u32, CudaError> {
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.function);
        launch.arg(&word).arg(&self.result_address);
        // SAFETY: the arguments are the kernel's; the word is alive as long as the caller holds it, and the result as long as `self`,
        // whose lock the caller holds. Both are waited for here.
        unsafe { launch.launch(config) }.map_err(|error| CudaError::call("cuLaunchKernel", error.0))?;
        self.stream.synchronize().map_err(|error| CudaError::call("cuStreamSynchronize", error.0))?;
        Ok(result.words32()[0].load(Ordering::Acquire))
    }
}
