//! Operations in graphs: CUDA's, captured or built, and those of software streams.

use crate::error::{Class, Failure};
use crate::memory;
use crate::mpi_thread;
use crate::operation::Operation;
use crate::operation::{DONE, STARTED, TRIGGERED};
use crate::queue::Queue;
use gdsync::Batch;
use gdsync::cuda::{self, CudaError, DeferReleaseGuard, RelaxedCapture};
use gdsync::cudarc::driver::CudaContext;
use gdsync::cudarc::driver::sys::{self, CUgraph, CUresult, CUstream};
use gdsync::memop::{Condition, MemOp};
use gdsync::memory::StreamAddr;
use gdsync::stream::graph::with_params;
use gdsync_sys::contain::contain;
use libc::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The driver's limit of memory operations in a batch or node.
const MOST: usize = 256;

/// The graph that gets new nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Captured(CUstream),
    Cuda(NonNull<CUgraph>),
    Software(NonNull<*const SoftGraph>),
}

/// The action of a launch on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Trigger,
    Await,
}

/// A memory operation on an operation's launch word.
#[derive(Clone, Copy, Debug)]
enum WordOp {
    Write(u32),
    Wait(Condition, u32),
}

impl Action {
    fn operations(self) -> &'static [WordOp] {
        match self {
            Action::Trigger => &[WordOp::Write(TRIGGERED), WordOp::Wait(Condition::Geq, STARTED)],
            Action::Await => &[WordOp::Wait(Condition::Eq, DONE)],
        }
    }
}

type Step = (Arc<Operation>, Action);

/// Puts the trigger of an operation into a graph.
///
/// # Safety
/// A target's stream is alive and its context is current; a target's place is valid for a write.
pub(crate) unsafe fn start(target: Target, operation: &Arc<Operation>) -> Result<(), Failure> {
    operation.launch_word()?;
    // A launch may trigger the operation as soon as it is recorded.
    mpi_thread::register(operation, None)?;
    // SAFETY: the caller passes a live stream, or a place for a graph.
    unsafe { record(target, &[(operation.clone(), Action::Trigger)]) }
        .inspect_err(|_| mpi_thread::withdraw(operation))?;
    // This call's reference; the graph holds its own.
    mpi_thread::release(operation.clone());
    Ok(())
}

/// Puts a wait for operations into a graph.
///
/// # Safety
/// As [`start`].
pub(crate) unsafe fn wait(target: Target, operations: &[Arc<Operation>]) -> Result<(), Failure> {
    let steps: Vec<_> = operations.iter().map(|operation| (operation.clone(), Action::Await)).collect();
    // SAFETY: the caller passes a live stream, or a place for a graph.
    unsafe { record(target, &steps) }
}

/// # Safety
/// As [`start`].
unsafe fn record(target: Target, steps: &[Step]) -> Result<(), Failure> {
    let held = Held::new(steps)?;
    match target {
        // SAFETY: the caller passes a live stream, or a place for a graph.
        Target::Captured(stream) => unsafe { capture(stream, steps, held) },
        // SAFETY: the caller passes a live stream, or a place for a graph.
        Target::Cuda(place) => unsafe { build(place, steps, held) },
        Target::Software(place) => {
            let made = Arc::new(SoftGraph { steps: steps.to_vec(), _held: held });
            // SAFETY: the caller passes a place for the graph.
            unsafe { place.write(Arc::into_raw(made)) };
            Ok(())
        }
    }
}

/// A graph's references to the operations whose words it uses.
#[derive(Debug)]
struct Held {
    operations: Vec<Arc<Operation>>,
    /// Keeps gdsync from unmapping memory, which blocks on the GPU: the graph may wait on a stream unknown to gdsync.
    _waits: DeferReleaseGuard,
}

impl Held {
    fn new(steps: &[Step]) -> Result<Self, Failure> {
        let mut held = Held { operations: Vec::with_capacity(steps.len()), _waits: cuda::defer_release() };
        for (operation, _) in steps {
            operation.launch_word()?.hold();
            held.operations.push(operation.clone());
        }
        Ok(held)
    }
}

impl Drop for Held {
    /// Calls no function of CUDA and frees no memory that CUDA maps, as the driver may call it.
    fn drop(&mut self) {
        self.operations.drain(..).for_each(mpi_thread::release);
    }
}

/// A graph of software streams, whose nodes are performed in order.
#[derive(Debug)]
pub(crate) struct SoftGraph {
    steps: Vec<Step>,
    _held: Held,
}

impl SoftGraph {
    /// Launches the graph on a queue's software stream, and keeps it until the launch has ended.
    pub(crate) fn launch(self: &Arc<Self>, queue: &Queue) -> Result<(), Failure> {
        let stream = queue.stream.soft("a graph of software streams")?;
        let mut batch = Batch::new();
        for (operation, act) in &self.steps {
            let word = &operation.launch_word()?.word;
            batch = act.operations().iter().fold(batch, |batch, each| match *each {
                WordOp::Write(value) => batch.write_value32(word, value),
                WordOp::Wait(condition, value) => batch.wait_value32(word, condition, value),
            });
        }
        queue.stream.post(batch, || {})?;
        let graph = self.clone();
        // If the stream refuses the function, the graph leaks.
        stream
            .launch(move || drop(graph))
            .inspect_err(|_| std::mem::forget(self.clone()))
            .map_err(Failure::from)
    }
}

/// Returns whether a stream is being captured, without invalidating the capture.
///
/// # Safety
/// The stream is alive; the driver is initialised.
///
/// # Errors
/// [`Class::Unsupported`] for the null stream while a stream that is ordered with it is captured.
pub(crate) unsafe fn is_capturing(stream: CUstream) -> Result<bool, Failure> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller passes a live stream; `status` is valid for a write.
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
    // SAFETY: the caller passes a live stream; null places are not written.
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
    // SAFETY: a live stream's capture keeps its graph alive.
    unsafe { retain(graph, held) }?;
    operations.chunks(MOST).try_for_each(|batch| {
        let recorded = with_params(batch, |params| {
            let (count, params) = (params.len() as u32, params.as_mut_ptr());
            // SAFETY: the caller passes a live stream; the words are mapped for the context's GPU as long as the graph lives (`Held`).
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
    // SAFETY: the place is valid for a write.
    check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
    // SAFETY: made above.
    let filled = unsafe { retain(graph, held) }.and_then(|()| {
        let mut batches = operations.chunks(MOST);
        batches.try_for_each(|batch| {
            // SAFETY: made above; the words are mapped for the context's GPU as long as the graph lives (`Held`).
            let added = with_params(batch, |params| unsafe { add(graph, &context, params) });
            added.map_err(failed)
        })
    });
    if filled.is_err() {
        // SAFETY: made above; no other code has the pointer.
        unsafe { sys::cuGraphDestroy(graph) };
        return filled;
    }
    // SAFETY: the caller passes a place that is valid for a write.
    unsafe { place.write(graph) };
    Ok(())
}

/// Adds a node without dependencies, as operations are triggered and awaited independently.
///
/// # Safety
/// The graph is alive; the addresses are mapped for the context's GPU as long as the graph lives.
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
    // SAFETY: the caller passes a live graph; the driver copies the array.
    let result = unsafe { sys::cuGraphAddBatchMemOpNode(&mut node, graph, ptr::null(), 0, &params) };
    called("cuGraphAddBatchMemOpNode", result)
}

/// Moves the references to a graph and its instances and clones.
///
/// # Safety
/// The graph is alive.
unsafe fn retain(graph: CUgraph, held: Held) -> Result<(), Failure> {
    let payload = Box::into_raw(Box::new(held)).cast::<c_void>();
    let mut object = ptr::null_mut();
    let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
    // SAFETY: `drop_held` takes the payload once; `object` is valid for a write.
    let made = unsafe { sys::cuUserObjectCreate(&mut object, payload, Some(drop_held), 1, flags) };
    if let Err(error) = check("cuUserObjectCreate", made) {
        // SAFETY: made above, and the driver has not taken it.
        drop(unsafe { Box::from_raw(payload.cast::<Held>()) });
        return Err(error);
    }
    let moved = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the caller passes a live graph, which takes over the only reference.
    let retained =
        check("cuGraphRetainUserObject", unsafe { sys::cuGraphRetainUserObject(graph, object, 1, moved) });
    if retained.is_err() {
        // SAFETY: the first reference, which no graph has taken.
        unsafe { sys::cuUserObjectRelease(object, 1) };
    }
    retained
}

/// # Safety
/// The payload is [`retain`]'s, and the driver calls this once.
unsafe extern "C" fn drop_held(payload: *mut c_void) {
    // SAFETY: the driver passes `retain`'s payload, once.
    let held = unsafe { Box::from_raw(payload.cast::<Held>()) };
    if let Err(message) = contain(|| drop(held)) {
        tracing::error!(message, "the operations of a graph are not released, which is a defect");
    }
}

/// Returns the memory operations of a graph, for the GPU of a context.
fn operations(context: &Arc<CudaContext>, steps: &[Step]) -> Result<Vec<MemOp>, Failure> {
    let mut all = Vec::new();
    for (operation, act) in steps {
        let addr = StreamAddr::new(cuda::pin(context, &operation.launch_word()?.memory).map_err(failed)?);
        all.extend(act.operations().iter().map(|each| match *each {
            WordOp::Write(value) => MemOp::Write32 { addr, value },
            WordOp::Wait(condition, value) => MemOp::Wait32 { addr, condition, value },
        }));
    }
    Ok(all)
}

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
