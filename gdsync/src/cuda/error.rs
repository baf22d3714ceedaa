//! Errors of the library's use of CUDA.

use crate::memory::HostAddr;
use cudarc::driver::sys;
use gdsync_gdr::Gpu;
use gdsync_gdr::driver::{self, DriverError};

/// Errors of the library's use of CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver could not be loaded, or reported an error.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A driver call failed for a GPU.
    #[error("{}: {error}", Gpu::from_device(*.gpu))]
    OnGpu {
        /// The GPU's number.
        gpu: i32,
        /// The driver's error.
        error: DriverError,
    },
    /// Streams of a GPU cannot access the memory of another GPU.
    #[error(
        "{} has no access to the memory of {}: {reason}; `gdsync doctor` lists which GPUs have: use host memory, or a stream of the memory's GPU",
        Gpu::from_device(*.gpu), Gpu::from_device(*.peer)
    )]
    NoPeerAccess {
        /// The GPU of the streams.
        gpu: i32,
        /// The GPU of the memory.
        peer: i32,
        /// The reason.
        reason: String,
    },
    /// A GPU cannot reach host memory.
    #[error("{} cannot reach {addr:?}: {reason}", Gpu::from_device(*.gpu))]
    Unreachable {
        /// The GPU's number.
        gpu: i32,
        /// The address.
        addr: HostAddr,
        /// The reason.
        reason: String,
    },
    /// Host memory for copies could not be allocated.
    #[error("cannot map {len} bytes of host memory for copies: {reason}")]
    NoHostMemory {
        /// The requested length in bytes.
        len: usize,
        /// The operating system's error.
        reason: String,
    },
    /// A range is outside its memory.
    #[error("bytes {start}..{end} lie outside the {len} bytes of GPU memory")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Length of the memory.
        len: usize,
    },
    /// The stream is being captured into a graph.
    #[error(
        "the stream is being captured: batches posted now would be replayed with old doorbells; use Stream::capture"
    )]
    Capturing,
    /// The program promised never to capture the stream
    /// ([`CudaStream::never_captured`](crate::CudaStream::never_captured)).
    #[error("the stream is one that is never captured, as its program has promised: capture another one")]
    NeverCaptured,
    /// The per-thread default stream is a different stream in every thread.
    #[error(
        "this is the per-thread default stream of another thread: post from the thread that wrapped it, or use a stream of your own"
    )]
    OtherThread,
}

impl CudaError {
    /// The error of a driver call that returned `result`.
    pub fn call(call: &'static str, result: sys::CUresult) -> Self {
        DriverError::call(call, result).into()
    }

    /// True if the context is lost: the GPU no longer accesses memory for it.
    pub(crate) fn is_fatal(&self) -> bool {
        use sys::CUresult as R;
        const FATAL: [R; 18] = [
            R::CUDA_ERROR_DEINITIALIZED,
            R::CUDA_ERROR_DEVICE_UNAVAILABLE,
            R::CUDA_ERROR_ECC_UNCORRECTABLE,
            R::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            R::CUDA_ERROR_LAUNCH_TIMEOUT,
            R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            R::CUDA_ERROR_ASSERT,
            R::CUDA_ERROR_HARDWARE_STACK_ERROR,
            R::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            R::CUDA_ERROR_MISALIGNED_ADDRESS,
            R::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            R::CUDA_ERROR_INVALID_PC,
            R::CUDA_ERROR_LAUNCH_FAILED,
            R::CUDA_ERROR_EXTERNAL_DEVICE,
            R::CUDA_ERROR_CONTAINED,
            R::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            R::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        ];
        matches!(
            self,
            CudaError::Driver(DriverError::Call { code, .. })
            | CudaError::OnGpu { error: DriverError::Call { code, .. }, .. } if FATAL.iter().any(|fatal| *fatal as u32 == *code)
        )
    }
}

#[inline]
pub(crate) fn check(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    Ok(driver::check(call, result)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_their_gpus() {
        let refused = DriverError::call("cuMemAlloc", sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let on_gpu = CudaError::OnGpu { gpu: 1 << 20, error: refused }.to_string();
        assert!(on_gpu.starts_with("GPU 1048576: cuMemAlloc failed"), "{on_gpu}");
        let reason = "no way".to_owned();
        let none = CudaError::NoPeerAccess { gpu: 1 << 20, peer: 1 << 21, reason }.to_string();
        for part in ["GPU 1048576 has no access", "memory of GPU 2097152: no way", "use host memory"] {
            assert!(none.contains(part), "{none}");
        }
    }

    #[test]
    fn only_errors_that_end_a_context_are_fatal() {
        let error = |code: sys::CUresult| {
            CudaError::Driver(DriverError::Call { call: "", code: code as u32, name: String::new() })
        };
        assert!(error(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED).is_fatal());
        assert!(!error(sys::CUresult::CUDA_ERROR_INVALID_VALUE).is_fatal());
        let lost = DriverError::Call {
            call: "",
            code: sys::CUresult::CUDA_ERROR_ASSERT as u32,
            name: String::new(),
        };
        assert!(CudaError::OnGpu { gpu: 1, error: lost }.is_fatal());
        assert!(!CudaError::Driver(DriverError::NoDriver).is_fatal());
    }
}
