//! The processor that multiplies: a GPU, or CPU threads instead.

use crate::device::{self, Failure, Source};
use crate::work::{Cut, Memory, SIDE, Service};
use gdsync::advanced::mapped::MappedMemory;
use gdsync::cuda::{self, GpuMemory, Placement, QueuePlacement, WritesOrdering};
use gdsync::cudarc::driver::sys::CUdevice_attribute;
use gdsync::cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use gdsync::device::{DeviceQpData, DeviceQpOptions};
use gdsync::memop::MemOpStream;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, CudaStream, MemoryRegion, PinnedMemory, ProtectionDomain, SoftStream, Stream};
use gdsync_sys::shared::SharedU32;
use libloading::Library;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MATVEC: Source = Source { name: "matvec.cu", text: include_str!("../kernels/matvec.cu") };

/// Addresses and number of vectors of a multiplication.
pub(crate) struct Operands<'a> {
    pub(crate) matrix: &'a Memory,
    pub(crate) inputs: &'a Memory,
    pub(crate) results: &'a Memory,
    pub(crate) vectors: usize,
}

/// A processor that runs kernels.
pub(crate) trait Machine: Sync {
    /// The backend of its streams.
    type Backend: MemOpStream;

    fn describe(&self) -> String;
    fn stream(&self) -> &Stream<Self::Backend>;
    /// Allocates memory close to the kernels: GPU memory if there is a GPU.
    fn near(&self, pd: &ProtectionDomain, len: usize) -> Result<Memory, Failure>;
    /// Allocates host memory that kernels can access.
    fn host(&self, pd: &ProtectionDomain, len: usize) -> Result<Memory, Failure>;
    /// Returns the placement of queues driven by kernels.
    fn placement(&self) -> QueuePlacement {
        QueuePlacement::HOST
    }
    /// Returns the options to attach them to the kernels' device.
    fn attach_options(&self) -> Result<DeviceQpOptions, Failure> {
        Ok(DeviceQpOptions::default())
    }
    fn multiply(&self, operands: &Operands<'_>) -> Result<(), Failure>;
    /// Waits for the stream, as a program does that uses nothing else.
    fn wait(&self) -> Result<(), Failure>;
    /// Returns the reason if there is no persistent kernel.
    fn no_service(&self) -> Option<&str> {
        None
    }
    /// Returns how many blocks of the persistent kernel share a piece.
    fn sharers(&self, _cut: Cut) -> u32 {
        1
    }
    /// Returns the most pieces of the persistent kernel, whose blocks all run at the same time.
    fn most_pieces(&self) -> usize {
        usize::MAX
    }
    /// Runs the persistent kernel until it has served all rounds.
    ///
    /// # Safety
    /// Queue pairs and memory are the kernel's arguments, and live until this returns.
    unsafe fn serve(&self, qps: &[DeviceQpData], service: Service) -> Result<(), Failure>;
}

pub(crate) struct Threads {
    stream: Stream<SoftStream>,
    /// The library, or the reason why there is no persistent kernel: no C++ compiler.
    library: Result<Library, String>,
}

impl Threads {
    pub(crate) fn new() -> Result<Self, Failure> {
        let library = device::load_for_host(&MATVEC).map_err(|reason| reason.to_string());
        Ok(Threads { stream: Stream::new(SoftStream::new()?)?, library })
    }
}

fn words(memory: &Memory) -> &[SharedU32] {
    match memory {
        Memory::Host(region) => region.words32(),
        // `Threads` never returns it.
        Memory::Gpu(_) => &[],
    }
}

impl Machine for Threads {
    type Backend = SoftStream;

    fn describe(&self) -> String {
        "threads of the CPU, a software stream".to_owned()
    }

    fn stream(&self) -> &Stream<SoftStream> {
        &self.stream
    }

    fn near(&self, pd: &ProtectionDomain, len: usize) -> Result<Memory, Failure> {
        self.host(pd, len)
    }

    fn host(&self, pd: &ProtectionDomain, len: usize) -> Result<Memory, Failure> {
        Ok(Memory::Host(MemoryRegion::allocate(pd, len, Access::all())?))
    }

    fn multiply(&self, operands: &Operands<'_>) -> Result<(), Failure> {
        let Operands { matrix, inputs, results, vectors } = *operands;
        let (matrix, inputs, results) = (matrix.clone(), inputs.clone(), results.clone());
        let kernel = move || {
            let get = |word: &SharedU32| f32::from_bits(word.load(Ordering::Relaxed));
            let matrix: Vec<f32> = words(&matrix).iter().map(get).collect();
            let (inputs, results) = (words(&inputs).chunks(SIDE), words(&results).chunks(SIDE));
            for (input, result) in inputs.zip(results).take(vectors) {
                let input: Vec<f32> = input.iter().map(get).collect();
                for (row, result) in matrix.chunks(SIDE).zip(result) {
                    let sum: f32 = row.iter().zip(&input).map(|(a, b)| a * b).sum();
                    result.store(sum.to_bits(), Ordering::Relaxed);
                }
            }
        };
        Ok(self.stream.launch(kernel)?)
    }

    fn wait(&self) -> Result<(), Failure> {
        Ok(self.stream.synchronize()?)
    }

    fn no_service(&self) -> Option<&str> {
        self.library.as_ref().err().map(String::as_str)
    }

    unsafe fn serve(&self, qps: &[DeviceQpData], service: Service) -> Result<(), Failure> {
        type Serve = unsafe extern "C" fn(*const DeviceQpData, *const Service, u32);
        let library = self.library.as_ref().map_err(|reason| reason.clone())?;
        // SAFETY: matvec.cu defines the function with this type.
        let serve = unsafe { library.get::<Serve>(b"serve") }?;
        std::thread::scope(|scope| {
            for piece in 0..qps.len() as u32 {
                let (serve, service) = (&serve, &service);
                // SAFETY: the caller's.
                scope.spawn(move || unsafe { serve(qps.as_ptr(), service, piece) });
            }
        });
        Ok(())
    }
}

pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    stream: Stream<CudaStream>,
    multiply: CudaFunction,
    serve: CudaFunction,
    processors: usize,
    /// Origin of the kernels.
    origin: String,
    /// Reason why the CPU, and thus the software card, cannot map its memory; empty if it can.
    unmapped: String,
}

const BLOCK: u32 = 512;
/// Fewest vectors for a block: four for each warp.
const VECTORS_OF_BLOCK: usize = 4 * BLOCK as usize / SIDE;
/// Bytes of the threads' shared indices.
const STATE: usize = 320;

impl Gpu {
    pub(crate) fn new(ordinal: u32) -> Result<Self, Failure> {
        let context = cuda::context(ordinal)?;
        if cuda::capabilities(&context)?.writes_ordering == WritesOrdering::None {
            return Err(
                "this GPU shows a running kernel what cards write to its memory in no order: see gdsync/device_verbs.cuh".into(),
            );
        }
        let (module, origin) = device::load(&context, &MATVEC)?;
        let stream = Stream::new(CudaStream::new(context.new_stream()?)?)?;
        let unmapped = MappedMemory::allocate(&context, 1).err().map(|reason| reason.to_string());
        let (multiply, serve) = (module.load_function("multiply")?, module.load_function("serve")?);
        let unmapped = unmapped.unwrap_or_default();
        let processors = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let processors = usize::try_from(processors)?;
        Ok(Gpu { context, stream, multiply, serve, processors, origin, unmapped })
    }

    fn launch_on(&self) -> Result<&Arc<gdsync::cudarc::driver::CudaStream>, Failure> {
        Ok(self.stream.cudarc().ok_or("the stream is not cudarc's")?)
    }
}

fn grid(blocks: usize) -> Result<LaunchConfig, Failure> {
    Ok(LaunchConfig { grid_dim: (blocks.try_into()?, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 })
}

impl Machine for Gpu {
    type Backend = CudaStream;

    fn describe(&self) -> String {
        let name = self.context.name().unwrap_or_else(|error| error.to_string());
        let mapped = match &self.unmapped[..] {
            "" => String::new(),
            reason => format!("; its memory is reached by copies of the driver: {reason}"),
        };
        format!("{name}, kernels {}{mapped}", self.origin)
    }

    fn stream(&self) -> &Stream<CudaStream> {
        &self.stream
    }

    fn near(&self, pd: &ProtectionDomain, len: usize) -> Result<Memory, Failure> {
        // The region keeps the mapping that exists at its registration.
        let mapped =
            self.unmapped.is_empty().then(|| MappedMemory::allocate(&self.context, len)).transpose()?;
        let memory = match &mapped {
            Some(mapped) => mapped.gpu().clone(),
            None => GpuMemory::allocate(&self.context, len)?,
        };
        Ok(Memory::Gpu(GpuMemoryRegion::register(pd, memory, Access::all())?))
    }

    fn host(&self, pd: &ProtectionDomain, len: usize) -> Result<Memory, Failure> {
        let region = MemoryRegion::allocate(pd, len, Access::all())?;
        let (pinned, card) = (cuda::pin(&self.context, region.memory())?, region.remote().addr);
        if pinned != card {
            return Err("this GPU knows the host's memory by other addresses than the host".into());
        }
        Ok(Memory::Host(region))
    }

    /// Completions near the polling kernel. Requests stay in host memory: the software card, a CPU, reads them.
    fn placement(&self) -> QueuePlacement {
        let gpu = u32::try_from(self.context.ordinal()).ok().filter(|_| self.unmapped.is_empty());
        QueuePlacement::HOST.completions(gpu.map_or(Placement::Host, Placement::Gpu))
    }

    fn attach_options(&self) -> Result<DeviceQpOptions, Failure> {
        Ok(DeviceQpOptions::default().state(&GpuMemory::allocate(&self.context, STATE)?))
    }

    fn multiply(&self, operands: &Operands<'_>) -> Result<(), Failure> {
        let Operands { matrix, inputs, results, vectors } = operands;
        let addresses = [matrix.address(), inputs.address(), results.address()];
        let mut launch = self.launch_on()?.launch_builder(&self.multiply);
        let count = u32::try_from(*vectors)?;
        launch.arg(&addresses[0]).arg(&addresses[1]).arg(&addresses[2]).arg(&count);
        let blocks = vectors.div_ceil(VECTORS_OF_BLOCK);
        // SAFETY: the arguments match the kernel's parameters; the memory is the server's, which waits for the stream
        // before dropping it.
        unsafe { launch.launch(grid(blocks)?) }?;
        Ok(())
    }

    fn wait(&self) -> Result<(), Failure> {
        Ok(self.launch_on()?.synchronize()?)
    }

    /// As many as the GPU holds, as long as each warp has a few vectors.
    fn sharers(&self, cut: Cut) -> u32 {
        let (room, useful) = (self.processors / cut.pieces, cut.vectors / cut.pieces / VECTORS_OF_BLOCK);
        u32::try_from(room.min(useful)).unwrap_or(u32::MAX).max(1)
    }

    fn most_pieces(&self) -> usize {
        self.processors
    }

    unsafe fn serve(&self, qps: &[DeviceQpData], service: Service) -> Result<(), Failure> {
        let list = PinnedMemory::allocate(size_of_val(qps))?;
        // SAFETY: structures of integers without padding.
        let bytes = unsafe { std::slice::from_raw_parts(qps.as_ptr().cast::<u8>(), size_of_val(qps)) };
        list.write(0, bytes);
        let address = cuda::pin(&self.context, &list)?;
        let mut launch = self.launch_on()?.launch_builder(&self.serve);
        launch.arg(&address).arg(&service);
        // SAFETY: the arguments match the kernel's parameters; the list lives until the stream has passed it, the
        // rest is the caller's. All blocks run at the same time: there are at most as many as the GPU has processors.
        unsafe { launch.launch(grid(qps.len() * service.sharers as usize)?) }?;
        Ok(self.stream.synchronize()?)
    }
}
