//! The kernels of `kernels/pingpong.cu`, their launches, and the words that they write.

use crate::failure::Failure;
use gdsync::PinnedMemory;
use gdsync::cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The PTX of `kernels/pingpong.cu` as a C string; `build.rs` says which. The GPU's driver compiles
/// it for its GPU.
const PTX: &str = concat!(include_str!(concat!(env!("OUT_DIR"), "/ptx/pingpong.ptx")), "\0");

/// Threads of a full block, and full blocks that a multiprocessor runs at a time.
const THREADS: u32 = 256;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// The kernels, for one stream.
///
/// Their module stays loaded until the process ends: unloading would wait for every stream of the
/// context.
pub(super) struct Kernels {
    stream: Arc<CudaStream>,
    most_blocks: u32,
    fill: sys::CUfunction,
    check: sys::CUfunction,
    stamp: sys::CUfunction,
}

impl Kernels {
    /// Loads a module of its own: its globals are for one stream.
    pub(super) fn load(stream: Arc<CudaStream>) -> Result<Self, Failure> {
        let context = stream.context();
        context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = context.attribute(attribute).map_err(failed("cuDeviceGetAttribute"))?;
        // SAFETY: PTX that ends with a zero; the context of the stream is current.
        let module =
            unsafe { result::module::load_data(PTX.as_ptr().cast()) }.map_err(failed("cuModuleLoadData"))?;
        let function = |name: &str| {
            let name = CString::new(name)?;
            // SAFETY: the module is loaded, and stays so.
            let found = unsafe { result::module::get_function(module, name) };
            found.map_err(failed("cuModuleGetFunction")).map_err(Failure::from)
        };
        let (fill, check, stamp) = (function("fill")?, function("check")?, function("stamp")?);
        let most_blocks = BLOCKS_PER_MULTIPROCESSOR * u32::try_from(multiprocessors).unwrap_or(1).max(1);
        Ok(Kernels { stream, most_blocks, fill, check, stamp })
    }

    pub(super) fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Writes the message of `seed` to `len` bytes from `to` on.
    ///
    /// # Safety
    /// The bytes are memory of the stream's GPU, or mapped for it; aligned to 8, and there until
    /// the stream has passed.
    pub(super) unsafe fn fill(&self, to: u64, len: u64, seed: u64) -> Result<(), Failure> {
        // SAFETY: the caller's; the parameters are those of `fill`.
        unsafe { self.launch(self.fill, self.grid(len), &[to, len, seed]) }
    }

    /// Compares `len` bytes from `from` on with the message of `seed`; tells of the first wrong
    /// message in the two words at `mismatch`; puts the time into the word at `time`, unless that
    /// is 0.
    ///
    /// # Safety
    /// As [`Self::fill`], also for the words.
    pub(super) unsafe fn check(
        &self,
        from: u64,
        len: u64,
        seed: u64,
        sequence: u64,
        mismatch: u64,
        time: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the caller's; the parameters are those of `check`.
        unsafe { self.launch(self.check, self.grid(len), &[from, len, seed, sequence, mismatch, time]) }
    }

    /// Puts the time into the word at `time`.
    ///
    /// # Safety
    /// As [`Self::fill`], for the word.
    pub(super) unsafe fn stamp(&self, time: u64) -> Result<(), Failure> {
        // SAFETY: the caller's; the parameters are those of `stamp`.
        unsafe { self.launch(self.stamp, (1, 1), &[time]) }
    }

    /// Blocks, and threads of each, for a message: a thread for every word, as far as the GPU runs
    /// them at a time.
    fn grid(&self, len: u64) -> (u32, u32) {
        grid(len, self.most_blocks)
    }

    /// # Safety
    /// The kernel takes as many 64-bit parameters; what it does with them is the caller's promise.
    unsafe fn launch(
        &self,
        kernel: sys::CUfunction,
        (blocks, threads): (u32, u32),
        parameters: &[u64],
    ) -> Result<(), Failure> {
        self.stream.context().bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        let mut places: Vec<*mut c_void> =
            parameters.iter().map(|place| std::ptr::from_ref(place).cast_mut().cast()).collect();
        // SAFETY: the kernel's module stays loaded, the stream is alive, and the driver copies the
        // parameters, which it only reads, before it returns.
        unsafe {
            result::launch_kernel(
                kernel,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                self.stream.cu_stream(),
                &mut places,
            )
        }
        .map_err(failed("cuLaunchKernel"))?;
        Ok(())
    }
}

fn grid(len: u64, most_blocks: u32) -> (u32, u32) {
    let words = len / 8;
    let threads = words.next_multiple_of(32).clamp(32, THREADS.into());
    let blocks = words.div_ceil(threads).clamp(1, most_blocks.into());
    (blocks as u32, threads as u32)
}

/// Words of pinned host memory that kernels write, and the CPU reads.
pub(super) struct Words {
    memory: PinnedMemory,
    address: u64,
}

impl Words {
    /// Zeroes.
    pub(super) fn new(context: &Arc<CudaContext>, count: u64) -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(usize::try_from(count * 8)?)?;
        let address = gdsync::cuda::pin(context, &memory)?;
        Ok(Words { memory, address })
    }

    /// The GPU's address of a word.
    pub(super) fn address(&self, index: u64) -> u64 {
        self.address + 8 * index
    }

    /// The value of a word. The last kernel that writes it must have ended, as the CPU knows by an
    /// event.
    pub(super) fn load(&self, index: u64) -> u64 {
        self.memory.words64()[index as usize].load(Ordering::Acquire)
    }
}

/// What the driver said of a call.
pub(super) fn failed(call: &'static str) -> impl Fn(DriverError) -> String {
    move |error| match error.error_name() {
        Ok(name) => format!("{call} failed: {} ({})", name.to_string_lossy(), error.0 as u32),
        Err(_) => format!("{call} failed ({})", error.0 as u32),
    }
}

#[cfg(test)]
mod tests;
