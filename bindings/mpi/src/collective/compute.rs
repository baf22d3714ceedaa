//! Copies and reductions of a collective: by the CPU on a software stream, and by kernels on a CUDA stream.

use crate::error::{Class, Failure};
use crate::memory::{self, Buffer};
use crate::statistics;
use crate::stream::AnyStream;
use gdsync::cuda;
use gdsync::cudarc::driver::CudaContext;
use gdsync::{CudaStream, PinnedMemory, SoftStream, Stream};
use gdsync_notify::collective::{CollectiveError, Element, Operation, ReductionKernel, combine};
use std::ops::Range;
use std::sync::Arc;

/// A computation after the messages of a round.
#[derive(Clone, Debug)]
pub(crate) enum Computation {
    Copy,
    /// Reduces arrivals, from offset `from` on, into these bytes of the output.
    Reduce {
        bytes: Range<usize>,
        from: usize,
    },
}

/// Memory that computations use.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    /// None if it is a GPU's memory.
    host: Option<PinnedMemory>,
    /// The address for the collective's GPU, if that can reach it.
    gpu: Option<u64>,
    bytes: usize,
}

impl Operand {
    /// A buffer of the program.
    ///
    /// # Safety
    /// As [`memory::host`].
    pub(crate) unsafe fn of(buffer: Buffer, gpu: Option<&Arc<CudaContext>>) -> Result<Self, Failure> {
        if memory::gpu_of(buffer.address)?.is_some() {
            return Ok(Self::on_gpu(buffer.address as u64, buffer.bytes));
        }
        // SAFETY: the caller keeps the memory in place.
        Ok(Self::in_host(unsafe { memory::host(buffer) }?, gpu))
    }

    pub(crate) fn on_gpu(address: u64, bytes: usize) -> Self {
        Operand { host: None, gpu: Some(address), bytes }
    }

    /// Memory of the host, mapped for the GPU if possible; the driver refuses read-only pages.
    pub(crate) fn in_host(host: PinnedMemory, gpu: Option<&Arc<CudaContext>>) -> Self {
        let pin = |context| {
            let pinned = cuda::pin(context, &host);
            pinned.inspect_err(|error| tracing::debug!(%error, "a buffer is for software streams only")).ok()
        };
        let (gpu, bytes) = (gpu.and_then(pin), host.len());
        Operand { host: Some(host), gpu, bytes }
    }

    fn on_gpu_at(&self) -> Result<u64, Failure> {
        self.gpu.ok_or_else(|| unprepared("the GPU cannot reach a buffer that was in host memory"))
    }

    fn host(&self) -> Result<PinnedMemory, Failure> {
        let text = "a buffer of the collective is memory of a GPU, and the CPU reduces on THREAD queues: use a GPU_MEM_OPS queue";
        self.host.clone().ok_or_else(|| Failure::new(Class::Unsupported, text))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Operands {
    pub(crate) what: (Element, Operation),
    /// None if the input is in the output.
    pub(crate) source: Option<Operand>,
    pub(crate) target: Operand,
    pub(crate) arrivals: Operand,
}

impl Operands {
    fn all(&self) -> impl Iterator<Item = &Operand> {
        self.source.iter().chain([&self.target, &self.arrivals])
    }

    /// Refuses memory that the CPU cannot reach.
    fn check_host(&self) -> Result<(), Failure> {
        self.all().try_for_each(|place| place.host().map(drop))
    }

    /// Refuses memory that the GPU cannot reach.
    fn check_gpu(&self) -> Result<(), Failure> {
        self.all().try_for_each(|place| place.on_gpu_at().map(drop))
    }
}

/// The CUDA stream of a collective, with the kernel of its reduction.
#[derive(Debug)]
pub(crate) struct CudaComputer {
    pub(crate) stream: Stream<CudaStream>,
    kernel: Option<ReductionKernel>,
}

impl CudaComputer {
    /// Makes the stream and loads the kernel. Loading waits for blocked streams.
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        what: Option<(Element, Operation)>,
    ) -> Result<Self, Failure> {
        let failed = |error: cuda::CudaError| Failure::new(Class::Other, error);
        let raw = context.new_stream();
        let raw = raw.map_err(|error| failed(cuda::CudaError::call("cuStreamCreate", error.0)))?;
        // SAFETY: only this value has the stream, and this crate captures no streams.
        let backend = unsafe { CudaStream::new(raw).map_err(failed)?.never_captured() };
        let kernel = |(element, operation)| ReductionKernel::new(context, element, operation);
        Ok(CudaComputer { stream: Stream::new(backend)?, kernel: what.map(kernel).transpose()? })
    }

    /// Enqueues a computation.
    ///
    /// # Safety
    /// The operands' memory stays until the stream is idle.
    pub(crate) unsafe fn compute(
        &self,
        computation: &Computation,
        operands: &Operands,
    ) -> Result<(), Failure> {
        let Operands { source, target, arrivals, .. } = operands;
        let kernel = self.kernel.as_ref().ok_or_else(|| unprepared("no kernel was loaded"))?;
        let into = target.on_gpu_at()?;
        match computation {
            Computation::Copy => {
                let Some(source) = source else { return Ok(()) };
                // SAFETY: MPI's caller passes two buffers of this length, which do not overlap and are aligned to their numbers.
                unsafe { kernel.copy(&self.stream, into, source.on_gpu_at()?, target.bytes) }?;
            }
            Computation::Reduce { bytes, from } => {
                let (into, other) = (into + bytes.start as u64, arrivals.on_gpu_at()? + *from as u64);
                // SAFETY: as above; the schedule's ranges are whole numbers, within their memory.
                unsafe { kernel.reduce(&self.stream, into, other, bytes.len()) }?;
            }
        }
        Ok(())
    }
}

/// Enqueues a computation on a software stream.
pub(crate) fn compute_on_cpu(
    stream: &Stream<SoftStream>,
    computation: &Computation,
    operands: &Operands,
) -> Result<(), Failure> {
    let (into, what) = (operands.target.host()?, operands.what);
    statistics::used_cpu();
    match computation {
        Computation::Copy => {
            let Some(source) = &operands.source else { return Ok(()) };
            let from = source.host()?;
            stream.launch(move || copy(&into, &from))?;
        }
        Computation::Reduce { bytes, from } => {
            let (other, bytes, from) = (operands.arrivals.host()?, bytes.clone(), *from);
            stream.launch(move || reduce(what, (&into, bytes), (&other, from)))?;
        }
    }
    Ok(())
}

/// Returns the GPU on whose streams a collective can be started: the buffer's, or that of the current context.
pub(crate) fn gpu_for(buffer: Option<usize>) -> Result<Option<Arc<CudaContext>>, Failure> {
    let of_buffer = buffer.map(memory::gpu_of).transpose()?.flatten();
    let Some(ordinal) = of_buffer.or_else(memory::current_gpu) else { return Ok(None) };
    Ok(Some(memory::context(ordinal)?))
}

/// Returns what computes for a program's stream: none means the CPU, on a software stream. Refuses a stream for which the collective
/// was not made when it was matched.
pub(crate) fn select<'a>(
    cuda: Option<&'a CudaComputer>,
    program: &AnyStream,
    operands: Option<&Operands>,
) -> Result<Option<&'a CudaComputer>, Failure> {
    match (program, cuda) {
        (AnyStream::Soft(_), _) => operands.map_or(Ok(()), Operands::check_host).map(|()| None),
        (AnyStream::Cuda(_), Some(cuda)) => operands.map_or(Ok(()), Operands::check_gpu).map(|()| Some(cuda)),
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

/// Bytes reduced at a time: a multiple of every number's size.
const PIECE: usize = 16 * 1024;

/// Returns the kind of numbers that `enum gdsync_mpi_element` of `c/engine.h` names.
pub(crate) fn element(number: u32) -> Result<Element, Failure> {
    use Element::*;
    let all = [I8, U8, I16, U16, I32, U32, I64, U64, F32, F64];
    let known = all.get(number as usize).copied();
    known.ok_or_else(|| Failure::new(Class::Argument, format!("there is no kind of number {number}")))
}

/// Returns the reduction that `enum gdsync_mpi_operation` of `c/engine.h` names.
pub(crate) fn operation(number: u32) -> Result<Operation, Failure> {
    use Operation::*;
    let all = [Sum, Product, Min, Max, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor];
    let known = all.get(number as usize).copied();
    known.ok_or_else(|| Failure::new(Class::Argument, format!("there is no reduction {number}")))
}

/// Refuses reductions that MPI does not define.
pub(crate) fn check_defined(element: Element, operation: Operation) -> Result<(), Failure> {
    if operation.is_defined_for(element) {
        return Ok(());
    }
    let text = format!("{operation} of {element}: MPI defines it for integers only");
    Err(Failure::new(Class::Argument, text))
}

/// Reduces the bytes of one memory, from an offset on, into a range of another.
fn reduce(
    (element, operation): (Element, Operation),
    (into, range): (&PinnedMemory, Range<usize>),
    (other, from): (&PinnedMemory, usize),
) {
    let (mut sum, mut piece) = (vec![0; PIECE.min(range.len())], vec![0; PIECE.min(range.len())]);
    for done in (0..range.len()).step_by(PIECE) {
        let len = PIECE.min(range.len() - done);
        into.read(range.start + done, &mut sum[..len]);
        other.read(from + done, &mut piece[..len]);
        combine(element, operation, &mut sum[..len], &piece[..len]);
        into.write(range.start + done, &sum[..len]);
    }
}

fn copy(into: &PinnedMemory, from: &PinnedMemory) {
    let mut piece = vec![0; PIECE];
    for start in (0..into.len()).step_by(PIECE) {
        let len = from.read(start, &mut piece);
        into.write(start, &piece[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_floating_point_numbers_are_refused() {
        assert!(check_defined(Element::U16, Operation::BitXor).is_ok());
        let error = check_defined(Element::F32, Operation::BitXor).unwrap_err();
        assert!(error.text.contains("bit_xor of f32"), "{error}");
        assert!(element(10).is_err() && operation(10).is_err());
        assert!(matches!((element(9), operation(9)), (Ok(Element::F64), Ok(Operation::BitXor))));
    }

    #[test]
    fn long_ranges_are_reduced_piece_by_piece() {
        let (into, other) =
            (PinnedMemory::allocate(3 * PIECE).unwrap(), PinnedMemory::allocate(3 * PIECE).unwrap());
        other.write(9, &vec![1; 2 * PIECE + 2]);
        reduce((Element::U8, Operation::Sum), (&into, 5..2 * PIECE + 7), (&other, 9));
        let mut bytes = vec![0; 3 * PIECE];
        into.read(0, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, byte)| (*byte == 1) == (5..2 * PIECE + 7).contains(&at)));
    }
}
