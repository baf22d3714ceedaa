//! Errors of the CUDA driver.

use crate::memory::HostAddr;
use cudarc::driver::sys;
use std::ffi::CStr;

/// Errors of the CUDA driver, or of finding it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no CUDA driver.
    #[error("there is no CUDA driver here (libcuda.so.1 cannot be loaded): install the NVIDIA driver")]
    NoDriver,
    /// The driver is too old.
    #[error("the CUDA driver is of version {}, but {} is the oldest that works: install a newer NVIDIA driver", version(*.found), version(*.needed))]
    TooOld {
        /// Its version, as `cuDriverGetVersion` counts.
        found: i32,
        /// The oldest that works.
        needed: i32,
    },
    /// No such GPU.
    #[error(
        "there is no GPU {ordinal}: the driver has {count}, counted from 0 (CUDA_VISIBLE_DEVICES hides the others)"
    )]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A call failed.
    #[error("{call} failed: {name} ({code})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// `CUresult`.
        code: u32,
        /// Its name.
        name: String,
    },
    /// The GPU cannot reach host memory.
    #[error("the GPU cannot reach {addr:?}: {reason}")]
    Unreachable {
        /// The address.
        addr: HostAddr,
        /// Why not.
        reason: String,
    },
    /// Host memory for copies could not be had.
    #[error("cannot map {len} bytes of host memory for copies: {reason}")]
    NoHostMemory {
        /// Bytes asked for.
        len: usize,
        /// The operating system's error.
        reason: String,
    },
    /// A range lies outside its memory.
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
    /// The per-thread default stream is another stream in every thread.
    #[error(
        "this is the per-thread default stream of another thread: post from the thread that wrapped it, or use a stream of your own"
    )]
    OtherThread,
}

fn version(code: i32) -> String {
    format!("{}.{}", code / 1000, code % 1000 / 10)
}

impl CudaError {
    /// The error of a call of the driver that returned `result`.
    pub fn call(call: &'static str, result: sys::CUresult) -> Self {
        let mut name = std::ptr::null();
        // SAFETY: `name` is a valid place; it receives a static string, or null for an unknown code.
        let known = unsafe { sys::cuGetErrorName(result, &mut name) } == sys::CUresult::CUDA_SUCCESS
            && !name.is_null();
        let name = if known {
            // SAFETY: a zero-terminated static string of the driver.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "unknown error".to_owned()
        };
        CudaError::Call { call, code: result as u32, name }
    }

    /// True where the context is lost: the GPU touches nothing any more for its sake.
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
        matches!(self, CudaError::Call { code, .. } if FATAL.iter().any(|fatal| *fatal as u32 == *code))
    }
}

/// An error, unless the call succeeded.
pub(crate) fn check(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(CudaError::call(call, result)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_value_the_limit_and_the_remedy() {
        let old = CudaError::TooOld { found: 11_080, needed: 12_000 }.to_string();
        assert!(old.contains("11.8") && old.contains("12.0"), "{old}");
        let none = CudaError::NoDevice { ordinal: 7, count: 2 }.to_string();
        assert!(none.contains("GPU 7") && none.contains("has 2"), "{none}");
    }

    #[test]
    fn only_errors_that_end_a_context_are_fatal() {
        let error =
            |code: sys::CUresult| CudaError::Call { call: "", code: code as u32, name: String::new() };
        assert!(error(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED).is_fatal());
        assert!(!error(sys::CUresult::CUDA_ERROR_INVALID_VALUE).is_fatal());
        assert!(!CudaError::NoDriver.is_fatal());
    }
}
