//! A GPU, if there is one, with a pair of queue pairs on the software card and a few kernels.

use crate::kernels;
use crate::pair::{LONG, Pair};
use crate::{skipped, skipped_unless_required};
use gdsync::cuda::{self, GpuList, GpuMemory};
use gdsync::cudarc::driver::{self, CudaContext, CudaFunction, CudaModule, LaunchConfig, PushKernelArg};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::device::nvrtc::{self, CompileError};
use gdsync::stream::{DoorbellPath, StreamOptions};
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, CudaStream, Stream};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// Kernels on 32-bit words: `fill(address, count, value)`, `add(address, count, value)`, and `crash()`.
const PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 at, .param .u32 count, .param .u32 value) {
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [at]; ld.param.u32 %r1, [count]; ld.param.u32 %r2, [value];
    mov.u32 %r3, %tid.x;
    setp.ge.u32 %p1, %r3, %r1; @%p1 ret;
    mul.wide.u32 %rd2, %r3, 4; add.s64 %rd3, %rd1, %rd2; add.u32 %r4, %r2, %r3; st.global.u32 [%rd3], %r4;
    ret;
}
.visible .entry add(.param .u64 at, .param .u32 count, .param .u32 value) {
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [at]; ld.param.u32 %r1, [count]; ld.param.u32 %r2, [value];
    mov.u32 %r3, %tid.x;
    setp.ge.u32 %p1, %r3, %r1; @%p1 ret;
    mul.wide.u32 %rd2, %r3, 4; add.s64 %rd3, %rd1, %rd2; ld.global.u32 %r4, [%rd3]; add.u32 %r5, %r4, %r2; st.global.u32 [%rd3], %r5;
    ret;
}
.visible .entry crash() { trap; }
";

/// Returns true under a slow tool: `scripts/gpu/tests sanitize` sets how many messages suffice.
pub fn is_sanitized() -> bool {
    std::env::var_os("GDSYNC_DEVICE_MESSAGES").is_some()
}

/// A source of `kernels/`, and its compute capability.
type Compiled = (&'static str, (i32, i32));

/// Serializes tests: a deliberately blocked stream delays calls of other tests (see `gdsync::cuda`).
static ONE: Mutex<()> = Mutex::new(());

/// The first GPU, two queue pairs and the kernels.
#[derive(Debug)]
pub struct Rig {
    /// Queue pairs on the software card.
    pub pair: Pair,
    /// The GPU's primary context.
    pub context: Arc<CudaContext>,
    /// Sets word `i` to `value + i`.
    pub fill: CudaFunction,
    /// Adds `value` to each word.
    pub add: CudaFunction,
    /// Traps, which loses the context.
    pub crash: CudaFunction,
    /// Held by the first rig of a test.
    _alone: Option<MutexGuard<'static, ()>>,
}

impl Rig {
    /// `None` without a GPU: the test is skipped.
    pub fn new(test: &str) -> Option<Rig> {
        let alone = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match cuda::context(0) {
            Ok(context) => Some(Self::of(context, Some(alone))),
            Err(error) => {
                skipped(test, &error.to_string());
                None
            }
        }
    }

    /// Returns rigs of the first two GPUs, or twice of the only one. `None` without a GPU: the test is skipped.
    pub fn two(test: &str) -> Option<[Rig; 2]> {
        let first = Self::new(test)?;
        let gpus = "all".parse::<GpuList>().unwrap().resolve().unwrap();
        let second = Self::of(cuda::context(gpus.of_rank(1)).unwrap(), None);
        Some([first, second])
    }

    /// Like [`Self::two`], but skips the test with one GPU.
    pub fn two_gpus(test: &str) -> Option<[Rig; 2]> {
        let rigs = Self::two(test)?;
        if rigs[0].number() == rigs[1].number() {
            skipped(test, "there is one GPU");
            return None;
        }
        Some(rigs)
    }

    /// Returns the GPU's number.
    pub fn number(&self) -> u32 {
        self.context.ordinal() as u32
    }

    fn of(context: Arc<CudaContext>, alone: Option<MutexGuard<'static, ()>>) -> Rig {
        // SAFETY: kernels receive raw addresses here, so cudarc has nothing to track.
        unsafe { context.disable_event_tracking() };
        let module = context.load_module(Ptx::from_src(PTX)).unwrap();
        let function = |name| module.load_function(name).unwrap();
        let rig = Rig {
            pair: Pair::new(),
            fill: function("fill"),
            add: function("add"),
            crash: function("crash"),
            context,
            _alone: alone,
        };
        // Kernels are loaded at their first launch, which must not wait for a blocked stream.
        let (scratch, stream) = (rig.memory(64), rig.stream());
        rig.launch(&stream, &rig.fill, &scratch, 1);
        rig.launch(&stream, &rig.add, &scratch, 1);
        synchronize(&stream);
        rig
    }

    /// Compiles a source of `kernels/` for this GPU, and loads it. `None` without NVRTC: the test is skipped, or
    /// fails if `GDSYNC_REQUIRE_NVRTC` is 1.
    pub fn compile(&self, test: &str, name: &'static str) -> Option<Arc<CudaModule>> {
        // Compiled once for all tests of a process, because it takes a second or two.
        static COMPILED: LazyLock<Mutex<HashMap<Compiled, String>>> = LazyLock::new(Mutex::default);
        let capability = self.context.compute_capability().unwrap();
        let mut compiled = COMPILED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let ptx = match compiled.entry((name, capability)) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(place) => match nvrtc::compile(name, kernels::source(name), capability) {
                Ok(ptx) => place.insert(ptx).clone(),
                Err(error @ CompileError::Library { .. }) => {
                    skipped_unless_required("GDSYNC_REQUIRE_NVRTC", test, &error.to_string());
                    return None;
                }
                Err(error) => panic!("{error}"),
            },
        };
        Some(self.context.load_module(Ptx::from_src(ptx)).unwrap())
    }

    /// Creates a stream of the driver.
    pub fn raw_stream(&self) -> Arc<driver::CudaStream> {
        self.context.new_stream().unwrap()
    }

    /// Creates a stream whose doorbells the GPU rings.
    pub fn stream(&self) -> Stream<CudaStream> {
        Stream::new(CudaStream::new(self.raw_stream()).unwrap()).unwrap()
    }

    /// Creates a stream whose doorbells the proxy rings.
    pub fn proxied(&self) -> Stream<CudaStream> {
        let options = StreamOptions::default().doorbells(DoorbellPath::Proxy);
        Stream::with_options(CudaStream::new(self.raw_stream()).unwrap(), options).unwrap()
    }

    /// Allocates GPU memory.
    pub fn memory(&self, len: usize) -> GpuMemory {
        GpuMemory::allocate(&self.context, len).unwrap()
    }

    /// Allocates registered GPU memory.
    pub fn region(&self, len: usize) -> GpuMemoryRegion {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        GpuMemoryRegion::register(&self.pair.pd, self.memory(len), access).unwrap()
    }

    /// Launches a kernel over at most the first 16 words.
    pub fn launch(&self, stream: &CudaStream, kernel: &CudaFunction, memory: &GpuMemory, value: u32) {
        self.launch_on(stream, kernel, (memory.address(), (memory.len() / 4).min(16) as u32), value);
    }

    /// Launches a kernel over 16 words of memory from a byte offset on.
    pub fn launch_at(
        &self,
        stream: &CudaStream,
        kernel: &CudaFunction,
        (memory, offset): (&GpuMemory, usize),
        value: u32,
    ) {
        assert!(offset + 64 <= memory.len(), "16 words from {offset} on leave {} bytes", memory.len());
        self.launch_on(stream, kernel, (memory.address() + offset as u64, 16), value);
    }

    fn launch_on(
        &self,
        stream: &CudaStream,
        kernel: &CudaFunction,
        (address, count): (u64, u32),
        value: u32,
    ) {
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        let mut launch = stream.cudarc().unwrap().launch_builder(kernel);
        launch.arg(&address).arg(&count).arg(&value);
        // SAFETY: the arguments match the kernel's parameters; the memory has as many words.
        unsafe { launch.launch(config) }.unwrap();
    }
}

/// Waits for a stream.
pub fn synchronize(stream: &Stream<CudaStream>) {
    assert!(
        stream.synchronize_timeout(LONG).unwrap(),
        "the stream is stuck: {stream:?}, {:?}",
        stream.oldest_wait()
    );
}

/// Returns the 32-bit words of GPU memory.
pub fn words(memory: &GpuMemory) -> Vec<u32> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}
