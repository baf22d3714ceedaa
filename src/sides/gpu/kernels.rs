//! The kernels of `kernels/pingpong.cu`, their launches, and the words that they write.

use crate::failure::Failure;
use gdsync::PinnedMemory;
use gdsync::cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The PTX of `kernels/pingpong.cu`, chosen by `build.rs`, as a C string. The driver compiles it for the GPU.
const PTX: &str = concat!(include_str!(concat!(env!("OUT_DIR"), "/ptx/pingpong.ptx")), "\0");

/// Threads of a full block, and full blocks that a multiprocessor runs at a time.
const THREADS: u32 = 256;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// The kernels of one stream. Their module stays loaded until the process ends: unloading would wait for every stream
/// of the context.
pub(super) struct Kernels {
    stream: Arc<CudaStream>,
    most_blocks: u32,
    fill: sys::CUfunction,
    check: sys::CUfunction,
    stamp: sys::CUfunction,
}

impl Kernels {
    /// Loads a separate module, as its globals belong to one stream.
    pub(super) fn load(stream: Arc<CudaStream>) -> Result<Self, Failure> {
        let context = stream.context();
        context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = context.attribute(attribute).map_err(failed("cuDeviceGetAttribute"))?;
        // SAFETY: the PTX ends with a zero; the stream's context is current.
        let module =
            unsafe { result::module::load_data(PTX.as_ptr().cast()) }.map_err(failed("cuModuleLoadData"))?;
        let function = |name: &str| {
            let name = CString::new(name)?;
            // SAFETY: the module is loaded and stays loaded.
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
    /// The bytes are memory of the stream's GPU, or mapped for it, aligned to 8, and valid until the stream has passed.
    pub(super) unsafe fn fill(&self, to: u64, len: u64, seed: u64) -> Result<(), Failure> {
        // SAFETY: the caller's promise; the parameters are those of `fill`.
        unsafe { self.launch(self.fill, self.grid(len), &[to, len, seed]) }
    }

    /// Compares `len` bytes from `from` on with the message of `seed`; reports the first wrong message in the two words
    /// at `mismatch`; writes the time to the word at `time`, unless that is 0.
    ///
    /// # Safety
    /// As for [`Self::fill`], also for the words.
    pub(super) unsafe fn check(
        &self,
        from: u64,
        len: u64,
        seed: u64,
        sequence: u64,
        mismatch: u64,
        time: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the caller's promise; the parameters are those of `check`.
        unsafe { self.launch(self.check, self.grid(len), &[from, len, seed, sequence, mismatch, time]) }
    }

    /// Writes the time to the word at `time`.
    ///
    /// # Safety
    /// As for [`Self::fill`], for the word.
    pub(super) unsafe fn stamp(&self, time: u64) -> Result<(), Failure> {
        // SAFETY: the caller's promise; the parameters are those of `stamp`.
        unsafe { self.launch(self.stamp, (1, 1), &[time]) }
    }

    /// Returns the blocks for a message and the threads of each: a thread for every word, up to what the GPU runs at a
    /// time.
    fn grid(&self, len: u64) -> (u32, u32) {
        grid(len, self.most_blocks)
    }

    /// # Safety
    /// The kernel takes this many 64-bit parameters; the caller answers for their effects.
    unsafe fn launch(
        &self,
        kernel: sys::CUfunction,
        (blocks, threads): (u32, u32),
        parameters: &[u64],
    ) -> Result<(), Failure> {
        self.stream.context().bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        let mut places: Vec<*mut c_void> =
            parameters.iter().map(|place| std::ptr::from_ref(place).cast_mut().cast()).collect();
        // SAFETY: the kernel's module stays loaded, the stream is alive, and the driver copies the parameters, which it
        // only reads, before it returns.
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

/// Words of pinned host memory, written by kernels and read by the CPU.
pub(super) struct Words {
    memory: PinnedMemory,
    address: u64,
}

impl Words {
    pub(super) fn new(context: &Arc<CudaContext>, count: u64) -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(usize::try_from(count * 8)?)?;
        let address = gdsync::cuda::pin(context, &memory)?;
        Ok(Words { memory, address })
    }

    pub(super) fn address(&self, index: u64) -> u64 {
        self.address + 8 * index
    }

    /// Returns a word's value. The last kernel that writes it must have ended, which the CPU knows from an event.
    pub(super) fn load(&self, index: u64) -> u64 {
        self.memory.words64()[index as usize].load(Ordering::Acquire)
    }
}

pub(super) fn failed(call: &'static str) -> impl Fn(DriverError) -> String {
    move |error| match error.error_name() {
        Ok(name) => format!("{call} failed: {} ({})", name.to_string_lossy(), error.0 as u32),
        Err(_) => format!("{call} failed ({})", error.0 as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;
    use std::io::Write;

    #[test]
    fn the_ptx_is_a_c_string() {
        assert_eq!(PTX.find('\0'), Some(PTX.len() - 1), "one zero, at the end");
    }

    #[test]
    fn grids_are_as_large_as_the_message_and_no_larger_than_the_gpu() {
        assert_eq!(grid(0, 100), (1, 32));
        assert_eq!(grid(8, 100), (1, 32));
        assert_eq!(grid(8 * 33, 100), (1, 64));
        assert_eq!(grid(8 * 257, 100), (2, 256));
        assert_eq!(grid(1 << 30, 100), (100, 256));
    }

    /// Returns a GPU's context, its kernels and words for them; without a GPU, reports the test as skipped.
    fn gpu(test: &str) -> Option<(Arc<CudaContext>, Kernels, Words)> {
        let context = match gdsync::cuda::context(0) {
            Ok(context) => context,
            Err(error) => {
                writeln!(std::io::stderr(), "SKIPPED {test}: {error}").unwrap();
                return None;
            }
        };
        let kernels = Kernels::load(context.new_stream().unwrap()).unwrap();
        let words = Words::new(&context, 3).unwrap();
        Some((context, kernels, words))
    }

    /// Lengths with and without a tail, of one thread, several blocks, and more than the GPU runs at a time.
    const LENGTHS: [u64; 9] = [0, 1, 7, 8, 15, 1000, 4096, 100_003, (8 << 20) + 5];

    #[test]
    fn kernels_and_the_cpu_agree_on_messages() {
        let Some((context, kernels, words)) = gpu("kernels_and_the_cpu_agree_on_messages") else { return };
        for (sequence, len) in LENGTHS.into_iter().enumerate() {
            let memory = PinnedMemory::allocate(len as usize).unwrap();
            let address = gdsync::cuda::pin(&context, &memory).unwrap();
            let pattern = Pattern::new(1, sequence as u64);
            // SAFETY: the memory, which is page-aligned, and the words outlive the work, which is waited for.
            unsafe {
                kernels.fill(address, len, pattern.seed).unwrap();
                kernels
                    .check(address, len, pattern.seed, sequence as u64, words.address(0), words.address(2))
                    .unwrap();
            }
            kernels.stream().synchronize().unwrap();
            assert_eq!(pattern.check(&memory, 0, 0, len as usize), Ok(()), "{len} bytes");
            assert_eq!(words.load(0), 0, "{len} bytes are right, but wrong at {}", words.load(1));
            assert_ne!(words.load(2), 0, "the time was taken");
        }
    }

    #[test]
    fn the_first_wrong_message_is_told_by_its_first_wrong_word() {
        let test = "the_first_wrong_message_is_told_by_its_first_wrong_word";
        for len in LENGTHS.into_iter().filter(|len| *len > 0) {
            // A module reports only its first wrong message, so each case loads its own.
            let Some((context, kernels, words)) = gpu(test) else { return };
            let memory = PinnedMemory::allocate(len as usize).unwrap();
            let address = gdsync::cuda::pin(&context, &memory).unwrap();
            let pattern = Pattern::new(0, 5);
            pattern.fill(&memory, 0, len as usize);
            for at in [len * 2 / 3, len - 1] {
                let byte = &memory.bytes()[at as usize];
                byte.store(byte.load(Ordering::Relaxed) ^ 0x10, Ordering::Relaxed);
            }
            for sequence in [5, 6] {
                // SAFETY: the memory, which is page-aligned, and the words outlive the work, which is waited for.
                unsafe { kernels.check(address, len, pattern.seed, sequence, words.address(0), 0) }.unwrap();
            }
            kernels.stream().synchronize().unwrap();
            if len == 1 {
                // Both flips hit the same byte.
                assert_eq!(words.load(0), 0);
                continue;
            }
            let expected = pattern.check(&memory, 0, 0, len as usize).unwrap_err() as u64;
            assert_eq!((words.load(0), words.load(1)), (6, expected), "{len} bytes");
        }
    }
}
