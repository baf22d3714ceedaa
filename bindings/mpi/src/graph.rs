//! Operations in graphs: CUDA's, captured or built, and those of software streams.

use crate::error::{Class, Failure};
use crate::launches::{DONE, STARTED, TRIGGERED};
use crate::memory;
use crate::mpi_thread;
use crate::operation::Operation;
use crate::queue::Queue;
use gdsync::Batch;
use gdsync::cuda::{self, CudaError, HeldBack, RelaxedCapture};
use gdsync::cudarc::driver::CudaContext;
use gdsync::cudarc::driver::sys::{self, CUgraph, CUresult, CUstream};
use gdsync::memop::Condition;
use gdsync_sys::contain::contain;
use libc::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Memory operations of a node, at most: what the driver takes in a batch.
const MOST: usize = 256;

/// Where a graph gets its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// A stream that is being captured.
    Captured(CUstream),
    /// A CUDA graph that is made for these nodes.
    Cuda(NonNull<CUgraph>),
    /// A graph of software streams that is made for these nodes.
    Software(NonNull<*const SoftGraph>),
}

/// What a launch does about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Trigger,
    Await,
}

type Step = (Arc<Operation>, Act);

/// Puts the trigger of an operation into a graph.
///
/// # Safety
/// A stream is alive and its context is current; the place of a graph is valid for a write.
pub(crate) unsafe fn start(target: Target, operation: &Arc<Operation>) -> Result<(), Failure> {
    operation.launches()?;
    // Before a launch may trigger it.
    mpi_thread::enter(operation, None)?;
    // SAFETY: the caller's.
    unsafe { record(target, &[(operation.clone(), Act::Trigger)]) }
        .inspect_err(|_| mpi_thread::take_back(operation))?;
    // The share of this call: the graph has one of its own.
    mpi_thread::release(operation.clone());
    Ok(())
}

/// Puts a wait for operations into a graph.
///
/// # Safety
/// As [`start`].
pub(crate) unsafe fn wait(target: Target, operations: &[Arc<Operation>]) -> Result<(), Failure> {
    let steps: Vec<_> = operations.iter().map(|operation| (operation.clone(), Act::Await)).collect();
    // SAFETY: the caller's.
    unsafe { record(target, &steps) }
}

/// # Safety
/// As [`start`].
unsafe fn record(target: Target, steps: &[Step]) -> Result<(), Failure> {
    let held = Held::new(steps)?;
    match target {
        // SAFETY: the caller's.
        Target::Captured(stream) => unsafe { capture(stream, steps, held) },
        // SAFETY: the caller's.
        Target::Cuda(place) => unsafe { build(place, steps, held) },
        Target::Software(place) => {
            let made = Arc::new(SoftGraph { steps: steps.to_vec(), _held: held });
            // SAFETY: the caller's.
            unsafe { place.write(Arc::into_raw(made)) };
            Ok(())
        }
    }
}

/// A graph's shares of the operations whose words it names.
#[derive(Debug)]
struct Held {
    operations: Vec<Arc<Operation>>,
    /// The graph may wait on a stream that gdsync does not know.
    _waits: HeldBack,
}

impl Held {
    fn new(steps: &[Step]) -> Result<Self, Failure> {
        let mut held = Held { operations: Vec::with_capacity(steps.len()), _waits: cuda::hold_back() };
        for (operation, _) in steps {
            operation.launches()?.hold();
            held.operations.push(operation.clone());
        }
        Ok(held)
    }
}

impl Drop for Held {
    /// The driver may call it: no function of CUDA is called, and no memory is freed that CUDA knows.
    fn drop(&mut self) {
        self.operations.drain(..).for_each(mpi_thread::release);
    }
}

/// A graph of software streams: its nodes are performed one after the other.
#[derive(Debug)]
pub(crate) struct SoftGraph {
    steps: Vec<Step>,
    _held: Held,
}

impl SoftGraph {
    /// Has a queue's software stream perform it. It lives until then.
    pub(crate) fn launch(self: &Arc<Self>, queue: &Queue) -> Result<(), Failure> {
        let stream = queue.stream.soft("a graph of software streams")?;
        let batch = self.steps.iter().try_fold(Batch::new(), |batch, (operation, act)| {
            let word = &operation.launches()?.word;
            Ok::<_, Failure>(match act {
                Act::Trigger => {
                    batch.write_value32(word, TRIGGERED).wait_value32(word, Condition::Geq, STARTED)
                }
                Act::Await => batch.wait_value32(word, Condition::Eq, DONE),
            })
        });
        let batch = batch?;
        queue.stream.post(batch, || {})?;
        let graph = self.clone();
        // Where the stream does not take that, the graph stays.
        stream
            .launch(move || drop(graph))
            .inspect_err(|_| std::mem::forget(self.clone()))
            .map_err(Failure::from)
    }
}

/// Whether a stream is being captured. Asks before any call that would end the capture.
///
/// # Safety
/// The stream is alive; the driver is initialised.
///
/// # Errors
/// [`Class::Unsupported`] for the null stream while a stream is captured that is ordered with it.
pub(crate) unsafe fn is_capturing(stream: CUstream) -> Result<bool, Failure> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller's; `status` is a valid place.
    let result = unsafe { sys::cuStreamIsCapturing(stream, &mut status) };
    if result == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
        let text = "the null stream waits for a stream that is being captured: enqueue on that one, or end its capture first";
        return Err(Failure::new(Class::Unsupported, text));
    }
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// # Safety
/// The stream is alive, is being captured, and its context is current.
unsafe fn capture(stream: CUstream, steps: &[Step], held: Held) -> Result<(), Failure> {
    let _relaxed = RelaxedCapture::new();
    let context = context()?;
    let mut params = params(&context, steps)?;
    let (mut status, mut graph) =
        (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, ptr::null_mut());
    // SAFETY: the caller's; places that are null are not written.
    let info = unsafe {
        let (id, dependencies, number) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        sys::cuStreamGetCaptureInfo_v2(stream, &mut status, id, &mut graph, dependencies, number)
    };
    check("cuStreamGetCaptureInfo", info)?;
    if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        let text =
            "the capture of the stream is no longer valid: end it, and look which call has invalidated it";
        return Err(Failure::new(Class::Other, text));
    }
    // SAFETY: the graph of the capture is alive.
    unsafe { retain(graph, held) }?;
    for batch in params.chunks_mut(MOST) {
        // SAFETY: the caller's; the words are mapped for the context's GPU, and stay as long as the graph (`Held`).
        let result = unsafe { sys::cuStreamBatchMemOp_v2(stream, batch.len() as u32, batch.as_mut_ptr(), 0) };
        check("cuStreamBatchMemOp", result)?;
    }
    Ok(())
}

/// # Safety
/// The place is valid for a write.
unsafe fn build(place: NonNull<CUgraph>, steps: &[Step], held: Held) -> Result<(), Failure> {
    let context = context()?;
    let mut params = params(&context, steps)?;
    let mut graph = ptr::null_mut();
    // SAFETY: a valid place.
    check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
    // SAFETY: made above.
    let filled = unsafe { retain(graph, held) }.and_then(|()| {
        let mut batches = params.chunks_mut(MOST);
        // SAFETY: as above; the words are mapped for the context's GPU, and stay as long as the graph (`Held`).
        batches.try_for_each(|batch| unsafe { add(graph, &context, batch) })
    });
    if filled.is_err() {
        // SAFETY: made above, and nothing else has it.
        unsafe { sys::cuGraphDestroy(graph) };
        return filled;
    }
    // SAFETY: the caller's.
    unsafe { place.write(graph) };
    Ok(())
}

/// Adds a node. It depends on no other one: a wait for one operation is no other's.
///
/// # Safety
/// The graph is alive; addresses are the context's GPU's, as long as the graph.
unsafe fn add(
    graph: CUgraph,
    context: &CudaContext,
    batch: &mut [sys::CUstreamBatchMemOpParams],
) -> Result<(), Failure> {
    let params = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: context.cu_ctx(),
        count: batch.len() as u32,
        paramArray: batch.as_mut_ptr(),
        flags: 0,
    };
    let mut node = ptr::null_mut();
    // SAFETY: the caller's; the driver copies the array.
    let result = unsafe { sys::cuGraphAddBatchMemOpNode(&mut node, graph, ptr::null(), 0, &params) };
    check("cuGraphAddBatchMemOpNode", result)
}

/// Gives the shares to a graph, and to what is made of it.
///
/// # Safety
/// The graph is alive.
unsafe fn retain(graph: CUgraph, held: Held) -> Result<(), Failure> {
    let payload = Box::into_raw(Box::new(held)).cast::<c_void>();
    let mut object = ptr::null_mut();
    let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
    // SAFETY: `drop_held` takes the payload, once; `object` is a valid place.
    let made = unsafe { sys::cuUserObjectCreate(&mut object, payload, Some(drop_held), 1, flags) };
    if let Err(error) = check("cuUserObjectCreate", made) {
        // SAFETY: made above, and the driver has not taken it.
        drop(unsafe { Box::from_raw(payload.cast::<Held>()) });
        return Err(error);
    }
    let moved = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the caller's; the graph takes over the only reference.
    let retained =
        check("cuGraphRetainUserObject", unsafe { sys::cuGraphRetainUserObject(graph, object, 1, moved) });
    if retained.is_err() {
        // SAFETY: the reference of its making, which no graph has.
        unsafe { sys::cuUserObjectRelease(object, 1) };
    }
    retained
}

/// # Safety
/// The payload is [`retain`]'s, and the driver calls this once.
unsafe extern "C" fn drop_held(payload: *mut c_void) {
    // SAFETY: the caller's.
    let held = unsafe { Box::from_raw(payload.cast::<Held>()) };
    if let Err(message) = contain(|| drop(held)) {
        tracing::error!(message, "the operations of a graph are not released, which is a defect");
    }
}

/// The memory operations of a graph, for the GPU of a context.
fn params(context: &Arc<CudaContext>, steps: &[Step]) -> Result<Vec<sys::CUstreamBatchMemOpParams>, Failure> {
    use sys::CUstreamWaitValue_flags::{CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_GEQ};
    let mut params = Vec::with_capacity(2 * steps.len());
    for (operation, act) in steps {
        let failed = |error: CudaError| Failure::new(Class::Other, error);
        let address = cuda::pin(context, &operation.launches()?.memory).map_err(failed)?;
        match act {
            Act::Trigger => {
                params.extend([
                    write_param(address, TRIGGERED),
                    wait_param(address, STARTED, CU_STREAM_WAIT_VALUE_GEQ),
                ]);
            }
            Act::Await => params.push(wait_param(address, DONE, CU_STREAM_WAIT_VALUE_EQ)),
        }
    }
    Ok(params)
}

// Every bit of a parameter is defined, also of the longer members of the union. The driver reads the low half of a value.

fn write_param(address: u64, value: u32) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as Value;
    let mut param = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
    param.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
        address,
        __bindgen_anon_1: Value { value64: value.into() },
        flags: 0,
        alias: 0,
    };
    param
}

fn wait_param(
    address: u64,
    value: u32,
    condition: sys::CUstreamWaitValue_flags,
) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as Value;
    let mut param = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
    param.waitValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
        operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
        address,
        __bindgen_anon_1: Value { value64: value.into() },
        flags: condition as u32,
        alias: 0,
    };
    param
}

/// The context that is current.
fn context() -> Result<Arc<CudaContext>, Failure> {
    let none = || {
        let text = "no context of a GPU is current: call cudaSetDevice before you build a graph";
        Failure::new(Class::Unsupported, text)
    };
    memory::context(memory::current_gpu().ok_or_else(none)?)
}

fn check(call: &'static str, result: CUresult) -> Result<(), Failure> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(Failure::new(Class::Other, CudaError::call(call, error))),
    }
}
