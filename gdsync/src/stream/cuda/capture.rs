//! Recording graphs from a stream.

use crate::batch::{BatchShape, Driver, Fate, Lowering, Words};
use crate::cuda::{CudaError, check};
use crate::memop::{MemOp, MemOpStream, StreamError, Word32};
use crate::memory::{HostAddr, PinnedMemory, StreamAddr, TimelinePoint};
use crate::queue::{Doorbell, PeerOp, Release};
use crate::stream::cuda::graph::{BatchNode, CudaGraph, GraphError, Node, RawGraph, destroy};
use crate::stream::cuda::params::with_params;
use crate::stream::{CudaStream, Stream};
use cudarc::driver::sys;
use parking_lot::Mutex;
use std::convert::Infallible;

/// A stream that is being captured. The program's other work on it also becomes nodes of the graph.
pub struct Capture<'a> {
    stream: &'a Stream<CudaStream>,
    /// The driver's number of the capture.
    number: u64,
    recorder: Recorder,
}

/// Batch nodes of a graph that is being built.
#[derive(Default)]
struct Recorder {
    nodes: Vec<BatchNode>,
}

/// Memory that batch nodes name until their first launch, one word to a field. Never freed: the program may itself
/// launch a graph that was never given a batch.
static SINK: Mutex<Option<PinnedMemory>> = Mutex::new(None);

/// Offsets in the sink: a 32-bit word and a 64-bit word that stay 0, a word that stays 1, and a word for points.
const ZERO32: u64 = 0;
const ZERO64: u64 = 8;
const ONE: u64 = 16;
const POINT: u64 = 24;
const SINK_LEN: usize = 32;

fn sink() -> Result<HostAddr, CudaError> {
    let mut sink = SINK.lock();
    if let Some(memory) = &*sink {
        return Ok(memory.addr());
    }
    let no_memory = |reason| CudaError::NoHostMemory { len: SINK_LEN, reason };
    let memory = PinnedMemory::allocate_whole(SINK_LEN).map_err(|error| no_memory(error.to_string()))?;
    Word32::new(&memory, ONE as usize).map_err(|error| no_memory(error.to_string()))?.store(1);
    Ok(sink.insert(memory).addr())
}

/// The driver of a lowering whose operations do nothing: they write zeroes over zeroes, and every wait is satisfied.
struct Idle<'a> {
    stream: &'a CudaStream,
    sink: HostAddr,
}

impl Idle<'_> {
    fn at(&self, offset: u64) -> HostAddr {
        HostAddr(self.sink.get() + offset)
    }
}

impl Driver for Idle<'_> {
    type Send = ();
    type Wait = ();
    type ProgramWord = ();
    type Bytes = ();
    type Receives = Infallible;
    type Ticket = Infallible;
    type Error = GraphError;

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.stream.translate(addr, len)
    }

    fn address(&self, _place: &(), len: usize) -> Result<StreamAddr, StreamError> {
        self.translate(self.at(if len == 8 { ZERO64 } else { ZERO32 }), len)
    }

    fn words<'b>(&self, _bytes: &'b ()) -> Result<(StreamAddr, Words<'b>), GraphError> {
        Err(GraphError::Copy)
    }

    fn commit_send(&self, _send: &mut ()) -> Result<Option<Release>, GraphError> {
        let (record_at, register) = (self.at(ZERO32), self.at(ZERO64));
        Ok(Some(Release::Ring(Doorbell { record_at, record: 0, register, value: 0 })))
    }

    fn commit_wait(&self, _wait: &mut (), _fate: Fate, _point: TimelinePoint) -> Option<PeerOp> {
        Some(PeerOp::PollAnd { addr: self.at(ONE), value: 1 })
    }
}

impl Recorder {
    fn idle_ops(stream: &Stream<CudaStream>, shape: &BatchShape) -> Result<Vec<MemOp>, GraphError> {
        let caps = stream.caps();
        let mut ops = Vec::new();
        let driver = Idle { stream, sink: sink()? };
        let (timeline, before) = (driver.at(POINT), TimelinePoint::default());
        let mut lowering = Lowering::new(driver, &caps, timeline, false, before, &mut ops);
        for mut kind in shape.descriptors() {
            lowering.lower(&mut kind, Fate::Kept)?;
        }
        if !shape.ends_with_wait() {
            lowering.progress(lowering.point)?;
        }
        if shape.is_empty() || ops.len() > caps.max_ops {
            return Err(GraphError::Size { operations: ops.len(), limit: caps.max_ops });
        }
        Ok(ops)
    }

    fn add(&mut self, node: sys::CUgraphNode, shape: &BatchShape, operations: usize) {
        self.nodes.push(BatchNode { node: Node(node), shape: shape.clone(), operations });
    }

    fn instantiate(self, graph: sys::CUgraph, stream: &Stream<CudaStream>) -> Result<CudaGraph, GraphError> {
        let mut exec = std::ptr::null_mut();
        // SAFETY: `exec` is a valid place, the graph is alive.
        let result =
            check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
        if let Err(error) = result {
            destroy(graph);
            return Err(error.into());
        }
        let raw = RawGraph { graph, exec };
        Ok(CudaGraph { raw, nodes: self.nodes, context: stream.context.clone() })
    }
}

impl Stream<CudaStream> {
    /// Records everything that `record` enqueues on the stream, including batches, as a graph. The stream performs
    /// none of it.
    ///
    /// The stream must not be a legacy default stream. Kernels must be loaded (launched once) before.
    ///
    /// # Errors
    /// [`GraphError::Cuda`] if the driver refuses the work, and for a stream that is [never
    /// captured](CudaStream::never_captured); [`GraphError::Record`] if `record` fails; [`GraphError::Ended`] if it ends
    /// the capture.
    pub fn capture(
        &self,
        record: impl FnOnce(&mut Capture<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<CudaGraph, GraphError> {
        self.handle.check_thread()?;
        self.handle.check_may_be_captured()?;
        let _entered = self.context.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // The lock keeps others from posting until the capture has begun; from then on, posts find the stream captured.
        let state = self.lock();
        // SAFETY: the stream is alive (`CudaStream`'s promise).
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw(), mode) })?;
        drop(state);
        let ending = EndCapture(self.raw());
        let number = present(self.raw())?.map_or(0, |(number, _)| number);
        let mut capture = Capture { stream: self, number, recorder: Recorder::default() };
        let recorded = record(&mut capture).map_err(|error| match error.downcast::<GraphError>() {
            Ok(own) => *own,
            Err(other) => GraphError::Record(other),
        });
        if let Err(ended @ GraphError::Ended) = capture.last_node() {
            // What is being recorded now, if anything, is the closure's.
            std::mem::forget(ending);
            return recorded.and(Err(ended));
        }
        let graph = ending.end()?;
        recorded.inspect_err(|_| destroy(graph))?;
        capture.recorder.instantiate(graph, self)
    }
}

impl Capture<'_> {
    /// Returns the stream: kernels launched on it become nodes.
    pub fn stream(&self) -> &CudaStream {
        self.stream
    }

    /// Records a batch node. Each launch of the graph needs a batch of this shape.
    ///
    /// # Errors
    /// [`GraphError::Size`], [`GraphError::Cuda`]; [`GraphError::Ended`] if the program has ended the capture.
    pub fn batch(&mut self, shape: &BatchShape) -> Result<(), GraphError> {
        let ops = Recorder::idle_ops(self.stream, shape)?;
        let raw = self.stream.raw();
        self.last_node()?;
        with_params(&ops, |params| {
            // SAFETY: the stream is alive; while it is captured, this only records. The sink lives
            // as long as the graph.
            check("cuStreamBatchMemOp", unsafe {
                sys::cuStreamBatchMemOp_v2(raw, params.len() as u32, params.as_mut_ptr(), 0)
            })
        })?;
        let node = self.last_node()?.ok_or(CudaError::Capturing)?;
        self.recorder.add(node, shape, ops.len());
        Ok(())
    }

    /// Returns the node that was recorded last, if there is one such.
    fn last_node(&self) -> Result<Option<sys::CUgraphNode>, GraphError> {
        match present(self.stream.raw())? {
            Some((number, node)) if number == self.number => Ok(node),
            _ => Err(GraphError::Ended),
        }
    }
}

/// Returns the number of a stream's capture, which no other capture has, and the node that was recorded last, if there is
/// one such; `None` for a stream that is not being captured.
///
/// # Errors
/// [`CudaError::Call`] also for a capture that the driver has invalidated.
fn present(stream: sys::CUstream) -> Result<Option<(u64, Option<sys::CUgraphNode>)>, CudaError> {
    use sys::CUstreamCaptureStatus::{CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_NONE};
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph) = (0, std::ptr::null_mut());
    let (mut nodes, mut count) = (std::ptr::null(), 0usize);
    // SAFETY: all are valid places; the stream is alive.
    check("cuStreamGetCaptureInfo", unsafe {
        sys::cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count)
    })?;
    match status {
        CU_STREAM_CAPTURE_STATUS_NONE => Ok(None),
        CU_STREAM_CAPTURE_STATUS_ACTIVE => {
            let is_one = count == 1 && !nodes.is_null();
            // SAFETY: the driver says that there is one, valid until something else is captured.
            Ok(Some((id, is_one.then(|| unsafe { *nodes }))))
        }
        // The other answers are not written then.
        _ => check("cuStreamGetCaptureInfo", sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            .map(|()| None),
    }
}

struct EndCapture(sys::CUstream);

impl EndCapture {
    fn end(self) -> Result<sys::CUgraph, CudaError> {
        let stream = self.0;
        std::mem::forget(self);
        let mut graph = std::ptr::null_mut();
        // SAFETY: `graph` is a valid place; the stream is alive.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream, &mut graph) })?;
        Ok(graph)
    }
}

impl Drop for EndCapture {
    fn drop(&mut self) {
        let mut graph = std::ptr::null_mut();
        // SAFETY: as above.
        let result = unsafe { sys::cuStreamEndCapture(self.0, &mut graph) };
        if result == sys::CUresult::CUDA_SUCCESS && !graph.is_null() {
            destroy(graph);
        }
    }
}
