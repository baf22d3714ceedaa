//! The stream of a collective's own, of either kind, and what it does besides messages: copies and reductions, by the
//! CPU on a software stream, and by kernels on a CUDA stream.

use crate::error::{Class, Failure};
use crate::memory::{self, Buffer};
use crate::reduce;
use crate::statistics;
use crate::stream::AnyStream;
use gdsync::cuda;
use gdsync::cudarc::driver::CudaContext;
use gdsync::{CudaStream, PinnedMemory, SoftStream, Stream};
use gdsync_notify::collective::{CollectiveError, Element, Operation, ReductionKernel};
use std::ops::Range;
use std::sync::Arc;

/// What is done behind the messages of a round.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The input becomes the first value of the output.
    Copy,
    /// What has arrived at `from`, and behind it, is reduced into these bytes of the output.
    Reduce { bytes: Range<usize>, from: usize },
}

/// Memory that acts work on.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Where the CPU reaches it. None of a GPU's memory.
    host: Option<PinnedMemory>,
    /// Where the collective's GPU has it, if there is one.
    gpu: Option<u64>,
    bytes: usize,
}

impl Place {
    /// A buffer of the program.
    ///
    /// # Safety
    /// As [`memory::host`].
    pub(crate) unsafe fn of(buffer: Buffer, gpu: Option<&Arc<CudaContext>>) -> Result<Self, Failure> {
        if memory::gpu_of(buffer.address)?.is_some() {
            return Ok(Self::on_gpu(buffer.address as u64, buffer.bytes));
        }
        // SAFETY: the caller's.
        Ok(Self::in_host(unsafe { memory::host(buffer) }?, gpu))
    }

    /// Memory of a GPU.
    pub(crate) fn on_gpu(address: u64, bytes: usize) -> Self {
        Place { host: None, gpu: Some(address), bytes }
    }

    /// Memory of the host, which the GPU gets to know, if it can: the driver takes no read-only pages.
    pub(crate) fn in_host(host: PinnedMemory, gpu: Option<&Arc<CudaContext>>) -> Self {
        let pin = |context| {
            let pinned = cuda::pin(context, &host);
            pinned.inspect_err(|error| tracing::debug!(%error, "a buffer is for software streams only")).ok()
        };
        let (gpu, bytes) = (gpu.and_then(pin), host.len());
        Place { host: Some(host), gpu, bytes }
    }

    fn on_gpu_at(&self) -> Result<u64, Failure> {
        self.gpu.ok_or_else(|| unprepared("the GPU cannot reach a buffer that was in host memory"))
    }

    fn host(&self) -> Result<PinnedMemory, Failure> {
        let text = "a buffer of the collective is memory of a GPU, and the CPU reduces on THREAD queues: use a GPU_MEM_OPS queue";
        self.host.clone().ok_or_else(|| Failure::new(Class::Unsupported, text))
    }
}

/// What a reduction works on.
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    pub(crate) what: (Element, Operation),
    /// None where the output has the input.
    pub(crate) source: Option<Place>,
    pub(crate) target: Place,
    /// What has arrived.
    pub(crate) arrivals: Place,
}

impl Operands {
    fn all(&self) -> impl Iterator<Item = &Place> {
        self.source.iter().chain([&self.target, &self.arrivals])
    }

    /// Refuses memory that the CPU does not reach.
    fn check_host(&self) -> Result<(), Failure> {
        self.all().try_for_each(|place| place.host().map(drop))
    }

    /// Refuses memory that the GPU does not reach.
    fn check_gpu(&self) -> Result<(), Failure> {
        self.all().try_for_each(|place| place.on_gpu_at().map(drop))
    }
}

/// A CUDA stream of a collective, with the kernel of its reduction.
#[derive(Debug)]
pub(crate) struct CudaLane {
    pub(crate) stream: Stream<CudaStream>,
    kernel: Option<ReductionKernel>,
}

impl CudaLane {
    /// Makes the stream, and has the GPU load the kernel: the driver waits for blocked streams then.
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        what: Option<(Element, Operation)>,
    ) -> Result<Self, Failure> {
        let failed = |error: cuda::CudaError| Failure::new(Class::Other, error);
        let raw = context.new_stream();
        let raw = raw.map_err(|error| failed(cuda::CudaError::call("cuStreamCreate", error.0)))?;
        // SAFETY: no other part of the process has the stream, and this crate captures none.
        let backend = unsafe { CudaStream::new(raw).map_err(failed)?.never_captured() };
        let kernel = |(element, operation)| ReductionKernel::new(context, element, operation);
        Ok(CudaLane { stream: Stream::new(backend)?, kernel: what.map(kernel).transpose()? })
    }

    /// Does it behind what the stream has.
    ///
    /// # Safety
    /// The operands' memory stays until the stream is idle.
    pub(crate) unsafe fn act(&self, act: &Act, operands: &Operands) -> Result<(), Failure> {
        let Operands { source, target, arrivals, .. } = operands;
        let kernel = self.kernel.as_ref().ok_or_else(|| unprepared("no kernel was loaded"))?;
        let into = target.on_gpu_at()?;
        match act {
            Act::Copy => {
                let Some(source) = source else { return Ok(()) };
                // SAFETY: both are buffers of so many bytes, which do not overlap, of numbers as MPI aligns them.
                unsafe { kernel.copy(&self.stream, into, source.on_gpu_at()?, target.bytes) }?;
            }
            Act::Reduce { bytes, from } => {
                let (into, other) = (into + bytes.start as u64, arrivals.on_gpu_at()? + *from as u64);
                // SAFETY: as above; both ranges are of whole numbers, and lie within their memory.
                unsafe { kernel.reduce(&self.stream, into, other, bytes.len()) }?;
            }
        }
        Ok(())
    }
}

/// Does it behind what a software stream has, by the CPU.
pub(crate) fn act_on_cpu(stream: &Stream<SoftStream>, act: &Act, operands: &Operands) -> Result<(), Failure> {
    let (into, what) = (operands.target.host()?, operands.what);
    statistics::used_cpu();
    match act {
        Act::Copy => {
            let Some(source) = &operands.source else { return Ok(()) };
            let from = source.host()?;
            stream.launch(move || reduce::copy(&into, &from))?;
        }
        Act::Reduce { bytes, from } => {
            let (other, bytes, from) = (operands.arrivals.host()?, bytes.clone(), *from);
            stream.launch(move || reduce::reduce(what, (&into, bytes), (&other, from)))?;
        }
    }
    Ok(())
}

/// The GPU on which a collective can be started, beside software streams: that of the buffer, or of the context that is
/// current.
pub(crate) fn gpu_for(buffer: Option<usize>) -> Result<Option<Arc<CudaContext>>, Failure> {
    let of_buffer = buffer.map(memory::gpu_of).transpose()?.flatten();
    let Some(ordinal) = of_buffer.or_else(memory::current_gpu) else { return Ok(None) };
    Ok(Some(memory::context(ordinal)?))
}

/// Refuses a queue for which the collective was not made when it was matched. None means a software stream.
pub(crate) fn check<'a>(
    lane: Option<&'a CudaLane>,
    program: &AnyStream,
    operands: Option<&Operands>,
) -> Result<Option<&'a CudaLane>, Failure> {
    match (program, lane) {
        (AnyStream::Soft(_), _) => operands.map_or(Ok(()), Operands::check_host).map(|()| None),
        (AnyStream::Cuda(_), Some(lane)) => operands.map_or(Ok(()), Operands::check_gpu).map(|()| Some(lane)),
        (AnyStream::Cuda(_), None) => Err(unprepared("no context of a GPU was current")),
    }
}

fn unprepared(why: &str) -> Failure {
    let text = format!(
        "the collective cannot be started on a CUDA stream, as {why} when it was matched: make the GPU's context current (cudaSetDevice), and match it"
    );
    Failure::new(Class::Unsupported, text)
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Self {
        match error {
            CollectiveError::Undefined { .. } => Failure::new(Class::Argument, error),
            _ => Failure::new(Class::Other, error),
        }
    }
}
