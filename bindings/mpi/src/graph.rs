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
use gdsync::memop::{Condition, MemOp};
use gdsync::memory::StreamAddr;
use gdsync::stream::graph::with_params;
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

/// A memory operation on the word of an operation.
#[derive(Clone, Copy, Debug)]
enum OnWord {
    Write(u32),
    Wait(Condition, u32),
}

impl Act {
    fn operations(self) -> &'static [OnWord] {
        match self {
            Act::Trigger => &[OnWord::Write(TRIGGERED), OnWord::Wait(Condition::Geq, STARTED)],
            Act::Await => &[OnWord::Wait(Condition::Eq, DONE)],
        }
    }
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
        let mut batch = Batch::new();
        for (operation, act) in &self.steps {
            let word = &operation.launches()?.word;
            batch = act.operations().iter().fold(batch, |batch, each| match *each {
                OnWord::Write(value) => batch.write_value32(word, value),
                OnWord::Wait(condition, value) => batch.wait_value32(word, condition, value),
            });
        }
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
    let operations = operations(&context, steps)?;
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
    operations.chunks(MOST).try_for_each(|batch| {
        let recorded = with_params(batch, |params| {
            let (count, params) = (params.len() as u32, params.as_mut_ptr());
            // SAFETY: the caller's; the words are mapped for the context's GPU, and stay as long as the graph (`Held`).
            called("cuStreamBatchMemOp", unsafe { sys::cuStreamBatchMemOp_v2(stream, count, params, 0) })
        });
        recorded.map_err(failed)
    })
}

/// # Safety
/// The place is valid for a write.
unsafe fn build(place: NonNull<CUgraph>, steps: &[Step], held: Held) -> Result<(), Failure> {
    let context = context()?;
    let operations = operations(&context, steps)?;
    let mut graph = ptr::null_mut();
    // SAFETY: a valid place.
    check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
    // SAFETY: made above.
    let filled = unsafe { retain(graph, held) }.and_then(|()| {
        let mut batches = operations.chunks(MOST);
        batches.try_for_each(|batch| {
            // SAFETY: as above; the words are mapped for the context's GPU, and stay as long as the graph (`Held`).
            let added = with_params(batch, |params| unsafe { add(graph, &context, params) });
            added.map_err(failed)
        })
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
) -> Result<(), CudaError> {
    let params = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: context.cu_ctx(),
        count: batch.len() as u32,
        paramArray: batch.as_mut_ptr(),
        flags: 0,
    };
    let mut node = ptr::null_mut();
    // SAFETY: the caller's; the driver copies the array.
    let result = unsafe { sys::cuGraphAddBatchMemOpNode(&mut node, graph, ptr::null(), 0, &params) };
    called("cuGraphAddBatchMemOpNode", result)
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
fn operations(context: &Arc<CudaContext>, steps: &[Step]) -> Result<Vec<MemOp>, Failure> {
    let mut all = Vec::new();
    for (operation, act) in steps {
        let addr = StreamAddr::new(cuda::pin(context, &operation.launches()?.memory).map_err(failed)?);
        all.extend(act.operations().iter().map(|each| match *each {
            OnWord::Write(value) => MemOp::Write32 { addr, value },
            OnWord::Wait(condition, value) => MemOp::Wait32 { addr, condition, value },
        }));
    }
    Ok(all)
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
    called(call, result).map_err(failed)
}

fn called(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(CudaError::call(call, error)),
    }
}

fn failed(error: CudaError) -> Failure {
    Failure::new(Class::Other, error)
}
