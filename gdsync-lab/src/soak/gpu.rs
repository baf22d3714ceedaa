//! Drivers of the links that the CPU does not drive: a GPU, or a stand-in of software streams.

use super::region::MemoryLocation;
use gdsync::cuda::Placement;
use gdsync::cudarc::driver::{CudaContext, CudaFunction};
use gdsync::device::nvrtc;
use gdsync::memop::MemOpStream;
use gdsync::stream::StreamOptions;
use gdsync::{CudaStream, SoftStream, Stream, cuda};
use gdsync_cli::failure::Failure;
use std::sync::Arc;

const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/soak.cu"));

pub(super) type AnyStream = Stream<Box<dyn MemOpStream>>;

/// The driver of those ends of a process.
#[derive(Clone, Debug)]
pub(super) enum Gpu {
    /// Software streams only, which post; for a soak without a GPU.
    None,
    /// Software streams, threads instead of kernels, and host memory that is treated as GPU memory.
    StandIn,
    Cuda(Arc<CudaContext>, CudaFunction),
}

/// Maximum links of each process: so many streams get a GPU channel each. The software card also copies by a stream,
/// which must not queue behind one that waits for the card.
const LINKS: u32 = 16;

/// Checks that the GPU and the compiler of its kernels exist, and that the links are not too many for it.
///
/// # Errors
/// In words, with the remedy.
pub(super) fn check(ordinal: u32, links: u32, procs: u32) -> Result<(), Failure> {
    let most = LINKS * procs;
    if links > most {
        return Err(format!(
            "--links {links} is too much for {procs} processes on a GPU: take {most} at most"
        )
        .into());
    }
    let remedy = "leave --gpu out, or take --stand-in, for a soak without a GPU";
    match cuda::device_count() {
        // Checked once here, or each process would report it.
        Ok(count) if ordinal < count => Ok(nvrtc::version().map(|_| ())?),
        Ok(count) => Err(format!("there is no GPU {ordinal}: the driver has {count}; {remedy}").into()),
        Err(error) => Err(format!("GPU {ordinal} cannot be used: {error}; {remedy}").into()),
    }
}

impl Gpu {
    pub(super) fn open(ordinal: Option<u32>, stand_in: bool) -> Result<Self, Failure> {
        let Some(ordinal) = ordinal else { return Ok(if stand_in { Gpu::StandIn } else { Gpu::None }) };
        let context = cuda::context(ordinal)?;
        // SAFETY: kernels get raw addresses here, so cudarc has nothing to track.
        unsafe { context.disable_event_tracking() };
        let posts = nvrtc::load(&context, "soak.cu", SOURCE)?.load_function("post_requests")?;
        Ok(Gpu::Cuda(context, posts))
    }

    /// True if kernels, or their stand-ins, drive some of the links.
    pub(super) fn has_kernels(&self) -> bool {
        !matches!(self, Gpu::None)
    }

    /// Returns the location of the messages of such links.
    pub(super) fn location(&self) -> MemoryLocation {
        match self {
            Gpu::None => MemoryLocation::Host,
            Gpu::StandIn => MemoryLocation::StandIn,
            Gpu::Cuda(context, _) => MemoryLocation::Gpu(context.clone()),
        }
    }

    pub(super) fn stream(&self) -> Result<AnyStream, Failure> {
        Ok(Stream::new(self.backend()?)?)
    }

    /// Returns a stream whose waits for two or more queues the card collects.
    pub(super) fn collecting(&self, in_gpu_memory: bool) -> Result<AnyStream, Failure> {
        let word = match self {
            Gpu::Cuda(context, _) if in_gpu_memory => Placement::Gpu(u32::try_from(context.ordinal())?),
            _ => Placement::Host,
        };
        let options = StreamOptions::default().collect_from(Some(2)).collect_in(word);
        Ok(Stream::with_options(self.backend()?, options)?)
    }

    fn backend(&self) -> Result<Box<dyn MemOpStream>, Failure> {
        let backend: Box<dyn MemOpStream> = match self {
            Gpu::None | Gpu::StandIn => Box::new(SoftStream::new()?),
            Gpu::Cuda(context, _) => Box::new(CudaStream::new(context.new_stream()?)?),
        };
        Ok(backend)
    }
}
