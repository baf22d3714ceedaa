//! Reductions on a GPU.

use crate::collective::element::{Element, Operation};
use crate::collective::error::CollectiveError;
use crate::error::NotifyError;
use crate::part::SegmentMemory;
use crate::segment::Segment;
use gdsync::cuda::{self, CudaError};
use gdsync::cudarc::driver::{self, CudaContext, CudaFunction, DriverError, LaunchConfig, PushKernelArg};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::stream::CudaStream;
use parking_lot::Mutex;
use std::sync::Arc;

/// `reduce(result, own, others, block, ranks, place, count)`: number `i` of `result` is made of number `i` of a block of each
/// rank, in their order. That of this rank lies at `own`, the others `block` bytes apart from `others` on. Threads take numbers
/// as far apart as there are threads. `{type}`, `{bytes}` and `{act}` are the number's type, its length and the instruction.
const PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry reduce(.param .u64 result, .param .u64 own, .param .u64 others, .param .u64 block, .param .u32 ranks, .param .u32 place, .param .u64 count) {
    .reg .pred %p<5>; .reg .b32 %r<8>; .reg .b64 %rd<13>; .reg .{type} %v<3>;
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
    @%p3 mov.{type} %v1, %v2;
    @!%p3 {act} %v1, %v1, %v2;
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
/// More blocks of threads than any GPU runs at a time.
const MOST_BLOCKS: u32 = 1024;

/// The text of the kernel for a type and an operation.
fn text(element: Element, operation: Operation) -> String {
    let (kind, act) = match element {
        Element::F32 => ("f32", "add.rn"),
        Element::F64 => ("f64", "add.rn"),
        Element::I32 => ("s32", "add"),
        Element::I64 => ("s64", "add"),
        Element::U64 => ("u64", "add"),
    };
    let act = match operation {
        Operation::Sum => act,
        Operation::Min => "min",
        Operation::Max => "max",
    };
    let (act, bytes) = (format!("{act}.{kind}"), element.bytes().to_string());
    PTX.replace("{type}", kind).replace("{bytes}", &bytes).replace("{act}", &act)
}

/// Where the blocks of a round are: offsets in the segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Of this rank.
    pub(crate) own: usize,
    /// Of the others, each at its place.
    pub(crate) others: usize,
    pub(crate) result: usize,
}

/// The kernel of a plan, and where a GPU has its segment.
#[derive(Debug)]
pub(crate) struct Kernel {
    function: CudaFunction,
    context: Arc<CudaContext>,
    /// The GPU's address of the segment.
    base: u64,
}

impl Kernel {
    /// Loads it, where no plan has yet ([`load`]).
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        segment: &Segment,
        element: Element,
        operation: Operation,
    ) -> Result<Self, NotifyError> {
        let base = match segment.memory() {
            SegmentMemory::Host(region) => cuda::pin(context, region.memory())?,
            SegmentMemory::Gpu(region) => region.memory().address(),
        };
        Ok(Kernel { function: load(context, element, operation)?, context: context.clone(), base })
    }

    /// Refuses a stream on which it cannot be launched.
    pub(crate) fn check(&self, stream: &CudaStream) -> Result<(), CollectiveError> {
        match stream.cudarc() {
            None => Err(CollectiveError::RawStream),
            Some(stream) if stream.context().cu_ctx() != self.context.cu_ctx() => {
                Err(CollectiveError::OtherGpu {
                    stream: stream.context().cu_device(),
                    kernel: self.context.cu_device(),
                })
            }
            Some(_) => Ok(()),
        }
    }

    /// Enqueues the reduction of a round. What the caller posts behind it names the segment.
    pub(crate) fn launch(
        &self,
        stream: &CudaStream,
        blocks: Blocks,
        (block, element): (usize, Element),
        (ranks, own): (u32, u32),
    ) -> Result<(), CollectiveError> {
        let stream = stream.cudarc().ok_or(CollectiveError::RawStream)?;
        let at = [blocks.result, blocks.own, blocks.others].map(|at| self.base + at as u64);
        let count = (block / element.bytes()) as u64;
        Ok(launch_on(&self.function, stream, at, (block as u64, ranks, own), count)?)
    }
}

/// A kernel that a context has loaded.
struct Loaded {
    of: (usize, Element, Operation),
    function: CudaFunction,
}

/// All kernels that are loaded. They stay, and their contexts with them.
static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// The kernel for a type and an operation, which the first plan of a context loads. The driver waits for blocked
/// streams then, and at the first launch, which is here, too. The stream of that launch is the only one that is made:
/// streams share the GPU's channels in the order in which they are made, and those that wait for each other may not.
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
    // SAFETY: the arguments are those of the kernel. It touches `count` numbers of blocks of the plan, which lie inside of
    // the segment, aligned to their length. The segment is kept until the stream has passed: the batch behind this names it.
    let launched = unsafe { launch.launch(config) };
    launched.map(drop).map_err(|error| CudaError::call("cuLaunchKernel", error.0).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_complete_for_each_type_and_operation() {
        for (element, operation) in
            Element::ALL.into_iter().flat_map(|element| Operation::ALL.map(|operation| (element, operation)))
        {
            let text = text(element, operation);
            let body = text.replace("%p<", "").replace("{\n", "\n");
            assert!(!body.contains('{'), "{element} {operation}: {text}");
        }
        assert!(text(Element::F32, Operation::Sum).contains("add.rn.f32 %v1"));
        assert!(text(Element::U64, Operation::Max).contains("max.u64 %v1"));
    }
}
