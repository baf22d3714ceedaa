//! Reductions on a GPU.

use crate::collective::element::{Element, NAN_32, NAN_64, Operation};
use crate::collective::error::CollectiveError;
use crate::error::NotifyError;
use crate::memory::SegmentMemory;
use crate::segment::Segment;
use gdsync::cuda::{self, CudaError};
use gdsync::cudarc::driver::{self, CudaContext, CudaFunction, DriverError, LaunchConfig, PushKernelArg};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::stream::CudaStream;
use parking_lot::Mutex;
use std::sync::Arc;

/// `reduce(result, own, others, block, ranks, place, count)`: number `i` of `result` is reduced from number `i` of each
/// rank's block, in rank order. This rank's block is at `own`, the others are `block` bytes apart from `others` on.
/// Threads take numbers at a stride of the number of threads. `{type}` is a number's type in memory, `{register}` the
/// type of its register, `{bytes}` its size, and `{act}` computes `%v1` from `%v1` and `%v2`.
const PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry reduce(.param .u64 result, .param .u64 own, .param .u64 others, .param .u64 block, .param .u32 ranks, .param .u32 place, .param .u64 count) {
    .reg .pred %p<7>; .reg .b32 %r<8>; .reg .b64 %rd<13>; .reg .{register} %v<3>;
    ld.param.u64 %rd1, [result]; ld.param.u64 %rd2, [own]; ld.param.u64 %rd3, [others]; ld.param.u64 %rd4, [block];
    ld.param.u32 %r1, [ranks]; ld.param.u32 %r2, [place]; ld.param.u64 %rd5, [count];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mov.u32 %r6, %nctaid.x;
    cvt.u64.u32 %rd7, %r5;
    mad.wide.u32 %rd6, %r3, %r4, %rd7;
    mul.wide.u32 %rd8, %r6, %r4;
NUMBER:
    setp.ge.u64 %p1, %rd6, %rd5;
    @%p1 ret;
    mul.lo.u64 %rd9, %rd6, {bytes};
    mov.u32 %r7, 0;
    mov.u64 %rd10, %rd3;
RANK:
    setp.eq.u32 %p2, %r7, %r2;
    selp.b64 %rd11, %rd2, %rd10, %p2;
    add.u64 %rd11, %rd11, %rd9;
    ld.global.{type} %v2, [%rd11];
    setp.eq.u32 %p3, %r7, 0;
    @!%p3 bra ACT;
    mov.{register} %v1, %v2;
    bra NEXT;
ACT:
    {act}
NEXT:
    add.u64 %rd10, %rd10, %rd4;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p4, %r7, %r1;
    @%p4 bra RANK;
    add.u64 %rd12, %rd1, %rd9;
    st.global.{type} [%rd12], %v1;
    add.u64 %rd6, %rd6, %rd8;
    bra NUMBER;
}
";

const THREADS: u32 = 256;
/// More thread blocks than any GPU runs at a time.
const MOST_BLOCKS: u32 = 1024;

/// Returns the kernel's PTX for a type and an operation that is defined for it.
fn text(element: Element, operation: Operation) -> String {
    // PTX has no 8-bit arithmetic: short integers are computed in 32 bits and stored by their low bits.
    let (kind, register) = match element {
        Element::F32 => ("f32", "f32"),
        Element::F64 => ("f64", "f64"),
        Element::I8 => ("s8", "s32"),
        Element::U8 => ("u8", "u32"),
        Element::I16 => ("s16", "s32"),
        Element::U16 => ("u16", "u32"),
        Element::I32 => ("s32", "s32"),
        Element::U32 => ("u32", "u32"),
        Element::I64 => ("s64", "s64"),
        Element::U64 => ("u64", "u64"),
    };
    let bits = if element.bytes() == 8 { "b64" } else { "b32" };
    let (round, low) = if element.is_float() { (".rn", ".rn") } else { ("", ".lo") };
    let both = |instruction: &str| format!("{instruction} %v1, %v1, %v2;");
    let logical = |of: &str| {
        format!(
            "setp.ne.{register} %p5, %v1, 0; setp.ne.{register} %p6, %v2, 0; {of}.pred %p5, %p5, %p6; selp.{bits} %v1, 1, 0, %p5;"
        )
    };
    let act = match operation {
        Operation::Sum => both(&format!("add{round}.{register}")),
        Operation::Product => both(&format!("mul{low}.{register}")),
        Operation::Min => both(&format!("min.{register}")),
        Operation::Max => both(&format!("max.{register}")),
        Operation::BitAnd => both(&format!("and.{bits}")),
        Operation::BitOr => both(&format!("or.{bits}")),
        Operation::BitXor => both(&format!("xor.{bits}")),
        Operation::LogicalAnd => logical("and"),
        Operation::LogicalOr => logical("or"),
        Operation::LogicalXor => logical("xor"),
    };
    // One NaN, as on the CPU. PTX's `min` and `max` order -0 before +0.
    let act = match element {
        Element::F32 => format!("{act} setp.nan.f32 %p5, %v1, %v1; @%p5 mov.f32 %v1, 0f{NAN_32:08X};"),
        Element::F64 => format!("{act} setp.nan.f64 %p5, %v1, %v1; @%p5 mov.f64 %v1, 0d{NAN_64:016X};"),
        _ => act,
    };
    let text = PTX.replace("{type}", kind).replace("{register}", register);
    text.replace("{bytes}", &element.bytes().to_string()).replace("{act}", &act)
}

/// The blocks of a reduction, by their offsets in the segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) own: usize,
    /// The other ranks' blocks, by rank. Arithmetic wraps: the first may be absent, and its place not in the segment.
    pub(crate) others: usize,
    pub(crate) result: usize,
    /// Bytes of a block.
    pub(crate) len: usize,
    pub(crate) ranks: u32,
    /// This rank's place in the order of operands.
    pub(crate) place: u32,
}

/// A kernel that reduces blocks of numbers, for the streams of one GPU.
///
/// ```no_run
/// use gdsync::cuda::{self, GpuMemory};
/// use gdsync::{CudaStream, Stream};
/// use gdsync_notify::collective::{Element, Operation, ReductionKernel};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = cuda::context(0)?;
/// let (sums, more) = (GpuMemory::allocate(&context, 4096)?, GpuMemory::allocate(&context, 4096)?);
/// let kernel = ReductionKernel::new(&context, Element::F32, Operation::Sum)?;
/// let stream = Stream::new(CudaStream::new(context.new_stream()?)?)?;
/// // SAFETY: both are 4096 bytes of the GPU's memory, which stay until the stream is idle.
/// unsafe { kernel.reduce(&stream, sums.address(), more.address(), 4096) }?;
/// stream.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReductionKernel {
    function: CudaFunction,
    context: Arc<CudaContext>,
    element: Element,
}

impl ReductionKernel {
    /// Returns the kernel for a type and an operation. If the context has not loaded it yet, the driver loads it now
    /// and waits for blocked streams of the context.
    ///
    /// # Errors
    /// [`CollectiveError::Undefined`]; [`CollectiveError::Notify`] with an error of the driver.
    pub fn new(
        context: &Arc<CudaContext>,
        element: Element,
        operation: Operation,
    ) -> Result<Self, CollectiveError> {
        if !operation.is_defined_for(element) {
            return Err(CollectiveError::Undefined { operation, element });
        }
        Ok(ReductionKernel {
            function: load(context, element, operation)?,
            context: context.clone(),
            element,
        })
    }

    /// Refuses a stream on which it cannot be launched.
    fn check<'a>(&self, stream: &'a CudaStream) -> Result<&'a Arc<driver::CudaStream>, CollectiveError> {
        match stream.cudarc() {
            None => Err(CollectiveError::RawStream),
            Some(stream) if stream.context().cu_ctx() != self.context.cu_ctx() => {
                Err(CollectiveError::OtherGpu {
                    stream: stream.context().cu_device(),
                    kernel: self.context.cu_device(),
                })
            }
            Some(stream) => Ok(stream),
        }
    }

    /// Enqueues the reduction of `bytes` bytes at the GPU address `other` into those at `into`. Bytes behind the last
    /// whole number stay.
    ///
    /// # Errors
    /// [`CollectiveError::RawStream`], [`CollectiveError::OtherGpu`], [`CollectiveError::Notify`] with an error of the
    /// driver. Nothing is enqueued then.
    ///
    /// # Safety
    /// Both addresses point to that many bytes that the GPU reaches, aligned to the numbers; they do not overlap, and
    /// the memory stays until the stream has passed.
    pub unsafe fn reduce(
        &self,
        stream: &CudaStream,
        into: u64,
        other: u64,
        bytes: usize,
    ) -> Result<(), CollectiveError> {
        let count = (bytes / self.element.bytes()) as u64;
        let block = bytes as u64;
        // With two ranks, this one first: the kernel skips one block at `others`.
        let at = [into, into, other.wrapping_sub(block)];
        Ok(launch_on(&self.function, self.check(stream)?, at, (block, 2, 0), count)?)
    }

    /// Enqueues a copy of `bytes` bytes, as [`Self::reduce`]; also from host memory to host memory, which the driver's
    /// own copies do on the calling thread.
    ///
    /// # Errors
    /// As [`Self::reduce`].
    ///
    /// # Safety
    /// As [`Self::reduce`].
    pub unsafe fn copy(
        &self,
        stream: &CudaStream,
        into: u64,
        from: u64,
        bytes: usize,
    ) -> Result<(), CollectiveError> {
        let count = (bytes / self.element.bytes()) as u64;
        // The reduction of one rank's block is the block.
        Ok(launch_on(&self.function, self.check(stream)?, [into, from, from], (bytes as u64, 1, 0), count)?)
    }
}

/// The kernel of a plan, and its segment's address.
#[derive(Debug)]
pub(crate) struct Kernel {
    kernel: ReductionKernel,
    base: u64,
}

impl Kernel {
    /// Loads the kernel if no plan has yet ([`load`]).
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        segment: &Segment,
        element: Element,
        operation: Operation,
    ) -> Result<Self, CollectiveError> {
        let base = match segment.memory() {
            SegmentMemory::Host(region) => cuda::pin(context, region.memory()).map_err(NotifyError::from)?,
            SegmentMemory::Gpu(region) => region.memory().address(),
        };
        Ok(Kernel { kernel: ReductionKernel::new(context, element, operation)?, base })
    }

    pub(crate) fn check(&self, stream: &CudaStream) -> Result<(), CollectiveError> {
        self.kernel.check(stream).map(drop)
    }

    /// Enqueues the reduction of a round. The caller then posts a batch that keeps the segment.
    pub(crate) fn launch(
        &self,
        stream: &CudaStream,
        Blocks { own, others, result, len, ranks, place }: Blocks,
    ) -> Result<(), CollectiveError> {
        let ReductionKernel { function, element, .. } = &self.kernel;
        let at = [result, own, others].map(|at| self.base.wrapping_add(at as u64));
        let count = (len / element.bytes()) as u64;
        Ok(launch_on(function, self.kernel.check(stream)?, at, (len as u64, ranks, place), count)?)
    }
}

struct Loaded {
    of: (usize, Element, Operation),
    function: CudaFunction,
}

/// All loaded kernels. They stay, and keep their contexts.
static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// Returns the kernel for a type and an operation, which a context's first plan loads. The driver waits for blocked
/// streams then and at the first launch, which is done here. Only one stream is created for that launch: streams share
/// the GPU's channels in the order of their creation, and streams that wait for each other must not share one.
fn load(
    context: &Arc<CudaContext>,
    element: Element,
    operation: Operation,
) -> Result<CudaFunction, NotifyError> {
    let failed = |call| move |error: DriverError| CudaError::call(call, error.0);
    let of = (context.cu_ctx() as usize, element, operation);
    let mut loaded = LOADED.lock();
    if let Some(known) = loaded.iter().find(|known| known.of == of) {
        return Ok(known.function.clone());
    }
    let module = context.load_module(Ptx::from_src(text(element, operation)));
    let module = module.map_err(failed("cuModuleLoadData"))?;
    let function = module.load_function("reduce").map_err(failed("cuModuleGetFunction"))?;
    let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
    cuda::claim_channel(&stream)?;
    launch_on(&function, &stream, [0; 3], (0, 0, 0), 0)?;
    stream.synchronize().map_err(failed("cuStreamSynchronize"))?;
    loaded.push(Loaded { of, function: function.clone() });
    Ok(function)
}

fn launch_on(
    function: &CudaFunction,
    stream: &Arc<driver::CudaStream>,
    [result, own, others]: [u64; 3],
    (block, ranks, place): (u64, u32, u32),
    count: u64,
) -> Result<(), NotifyError> {
    let grid = count.div_ceil(u64::from(THREADS)).clamp(1, u64::from(MOST_BLOCKS)) as u32;
    let config = LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
    let mut launch = stream.launch_builder(function);
    launch.arg(&result).arg(&own).arg(&others).arg(&block).arg(&ranks).arg(&place).arg(&count);
    // SAFETY: the arguments match the kernel, which touches `count` numbers of the blocks. Those of a plan are inside
    // the segment, aligned to their size, and the batch behind keeps the segment until the stream has passed. For
    // others, the caller of `ReductionKernel::reduce` promises as much.
    let launched = unsafe { launch.launch(config) };
    launched.map(drop).map_err(|error| CudaError::call("cuLaunchKernel", error.0).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_complete_for_each_type_and_operation() {
        let all =
            Element::ALL.into_iter().flat_map(|element| Operation::ALL.map(|operation| (element, operation)));
        for (element, operation) in all.filter(|(element, operation)| operation.is_defined_for(*element)) {
            let text = text(element, operation);
            let body = text.replace("%p<", "").replace("{\n", "\n");
            assert!(!body.contains('{'), "{element} {operation}: {text}");
        }
        assert!(text(Element::F32, Operation::Sum).contains("add.rn.f32 %v1"));
        assert!(text(Element::F64, Operation::Min).contains("mov.f64 %v1, 0d7FF8000000000000;"));
        assert!(text(Element::U64, Operation::Max).contains("max.u64 %v1"));
        assert!(text(Element::I8, Operation::Product).contains("mul.lo.s32 %v1"));
    }
}
