//! Batches in CUDA graphs: built once, launched again and again, each time with fresh sends and waits.
//!
//! A graph freezes the parameters of its nodes. An old doorbell must never be replayed, so a batch node is recorded with
//! operations that do nothing, and the only way to launch the graph is [`Stream::launch`], which takes a fresh batch for each
//! of them and puts it in place.

use super::cuda::{CudaStream, with_params};
use super::flight::{self, Held, Past};
use super::post::{State, Tickets};
use super::post_error::{PostFailure, Posted};
use super::proxy::Ring;
use super::{Condition, MemOp, MemOpStream, Stream, StreamError};
use crate::batch::{Batch, BatchShape, Chunk, Cursor, Descriptor, Fate, Kind};
use crate::cuda::{CudaError, GpuContext, check};
use crate::memory::{HostAddr, PinnedMemory};
use cudarc::driver::sys;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// An executable graph with batch nodes.
///
/// Made by [`Stream::capture`] or [`GraphBuilder::instantiate`]. Drop it when it likes: what is in flight goes on.
pub struct CudaGraph {
    raw: RawGraph,
    nodes: Vec<BatchNode>,
    context: Arc<GpuContext>,
}

struct RawGraph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

// SAFETY: graphs may be used from any thread, by one at a time: launching takes the graph by `&mut`.
unsafe impl Send for RawGraph {}
// SAFETY: as above; nothing is done with a shared reference.
unsafe impl Sync for RawGraph {}

struct BatchNode {
    node: Node,
    shape: BatchShape,
    operations: usize,
}

/// A node's handle, which goes with its graph.
#[derive(Clone, Copy)]
struct Node(sys::CUgraphNode);

// SAFETY: a handle, used only with its graph.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

/// Errors of graphs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The CUDA driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A send or wait cannot be posted now.
    #[error(transparent)]
    Post(#[from] PostFailure),
    /// A batch node needs a batch of its own for each launch: with the old one, it would ring old doorbells.
    #[error(
        "the graph has {nodes} batch nodes and was given {given} batches: each launch needs a fresh batch for each"
    )]
    Stale {
        /// Batch nodes of the graph.
        nodes: usize,
        /// Batches given.
        given: usize,
    },
    /// A batch is not of the node's shape.
    #[error(
        "batch {node} is {found}, but its node was recorded as {expected}: a graph's operations keep their kinds"
    )]
    Shape {
        /// Which batch node.
        node: usize,
        /// Shape of the node.
        expected: BatchShape,
        /// Shape of the batch.
        found: BatchShape,
    },
    /// A shape that cannot be recorded.
    #[error("a batch node of {operations} operations cannot be recorded: it takes 1 to {limit}")]
    Size {
        /// Operations of the shape.
        operations: usize,
        /// Most that a node takes.
        limit: usize,
    },
    /// A write of bytes, which a batch node cannot hold.
    #[error("write_memory cannot be a part of a batch node: add a memory-copy node, or write words")]
    Copy,
    /// The graph belongs to another GPU context than the stream.
    #[error("the graph was recorded on GPU {graph}, in another context than the stream's")]
    OtherContext {
        /// The GPU of the graph.
        graph: i32,
    },
    /// The closure that records failed.
    #[error("recording failed: {0}")]
    Record(Box<dyn std::error::Error + Send + Sync>),
}

impl From<StreamError> for GraphError {
    fn from(error: StreamError) -> Self {
        GraphError::Post(error.into())
    }
}

/// A graph that was not launched, with its batches: nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("the graph was not launched: {source}")]
pub struct LaunchError {
    /// The batches, in order.
    pub batches: Vec<Batch>,
    /// Why not.
    pub source: GraphError,
}

/// A stream that is being captured. What the program enqueues on it becomes nodes of the graph, too.
pub struct Capture<'a> {
    stream: &'a Stream<CudaStream>,
    recorder: Recorder,
}

/// A graph that is built node by node.
pub struct GraphBuilder<'a> {
    graph: sys::CUgraph,
    recorder: Recorder,
    stream: &'a Stream<CudaStream>,
    /// Like the graph it makes, it may be used by one thread at a time.
    _not_sync: PhantomData<*mut ()>,
}

/// Batch nodes of a graph in the making.
#[derive(Default)]
struct Recorder {
    nodes: Vec<BatchNode>,
}

/// Where operations of nodes go that were never given a batch. Kept for ever: the program may keep a graph that it ended
/// itself.
static SINK: Mutex<Option<PinnedMemory>> = Mutex::new(None);

fn sink() -> Result<HostAddr, CudaError> {
    let mut sink = SINK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let memory = match sink.take() {
        Some(memory) => memory,
        None => PinnedMemory::allocate_whole(16)
            .map_err(|error| CudaError::NoHostMemory { len: 16, reason: error.to_string() })?,
    };
    Ok(sink.insert(memory).addr())
}

impl Recorder {
    /// Operations of the shape that do nothing: they write zeroes where zeroes are, and wait for nothing.
    fn idle_ops(stream: &Stream<CudaStream>, shape: &BatchShape) -> Result<Vec<MemOp>, GraphError> {
        let word = sink()?;
        let low = stream.translate(word, 4)?;
        let high = stream.translate(HostAddr(word.get() + 8), 8)?;
        let caps = stream.caps();
        let (write32, write64) =
            (MemOp::Write32 { addr: low, value: 0 }, MemOp::Write64 { addr: high, value: 0 });
        let wait32 = MemOp::Wait32 { addr: low, condition: Condition::Geq, value: 0 };
        let wait64 = MemOp::Wait64 { addr: high, condition: Condition::Geq, value: 0 };
        let mut ops = Vec::new();
        for descriptor in shape.descriptors() {
            let before = ops.len();
            match descriptor {
                Kind::Send => ops.extend([write32, write64]),
                Kind::WaitCq => ops.extend([wait32, write32]),
                Kind::Wait32 => ops.push(wait32),
                Kind::Wait64 => ops.push(wait64),
                Kind::Write32 => ops.push(write32),
                Kind::Write64 => ops.push(write64),
                Kind::Barrier => ops.push(MemOp::Barrier),
                Kind::Flush if caps.flush_remote => ops.push(MemOp::FlushRemote),
                Kind::Flush => {
                    return Err(StreamError::Unsupported { what: "flushing what cards wrote" }.into());
                }
                Kind::Bytes => return Err(GraphError::Copy),
            }
            if caps.flush_after_wait && ops[before].is_wait() {
                ops.insert(before + 1, MemOp::FlushRemote);
            }
        }
        if !shape.ends_with_wait() {
            ops.push(write32);
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

fn destroy(graph: sys::CUgraph) {
    // SAFETY: made by us, destroyed once; executable graphs do not need it.
    if let Err(error) = check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) }) {
        tracing::debug!(%error, "a graph was not destroyed");
    }
}

impl Stream<CudaStream> {
    /// Records what `record` enqueues on the stream, batches among it, as a graph. Nothing of it is performed.
    ///
    /// The stream must not be a legacy default stream. Kernels must be loaded (launched once) before.
    ///
    /// # Errors
    /// [`GraphError::Cuda`] where the driver refuses what was enqueued, [`GraphError::Record`] where `record` fails.
    pub fn capture(
        &self,
        record: impl FnOnce(&mut Capture<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<CudaGraph, GraphError> {
        let mut capture = Capture { stream: self, recorder: Recorder::default() };
        self.handle.check_thread()?;
        let _entered = self.context.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // Nobody posts on the stream meanwhile; from now on, posting finds that it is captured.
        let state = self.lock();
        // SAFETY: the stream is alive (`CudaStream`'s promise).
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw(), mode) })?;
        drop(state);
        let ending = EndCapture(self.raw());
        let recorded = record(&mut capture);
        let graph = ending.end()?;
        if let Err(error) = recorded {
            destroy(graph);
            return Err(match error.downcast::<GraphError>() {
                Ok(own) => *own,
                Err(other) => GraphError::Record(other),
            });
        }
        capture.recorder.instantiate(graph, self)
    }

    /// Starts a graph that is built node by node.
    ///
    /// # Errors
    /// [`GraphError::Cuda`].
    pub fn graph_builder(&self) -> Result<GraphBuilder<'_>, GraphError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: `graph` is a valid place.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
        Ok(GraphBuilder { graph, recorder: Recorder::default(), stream: self, _not_sync: PhantomData })
    }

    /// Launches a graph on this stream with a fresh batch for each of its batch nodes, in the order of their recording.
    ///
    /// # Errors
    /// [`LaunchError`], with the batches; nothing was launched. [`GraphError::Stale`] where a batch node would be left with what
    /// an earlier launch put there.
    pub fn launch(
        &self,
        graph: &mut CudaGraph,
        batches: impl IntoIterator<Item = Batch>,
    ) -> Result<Posted, LaunchError> {
        let batches: Vec<Batch> = batches.into_iter().collect();
        if let Err(source) = graph.check(&batches, &self.context) {
            return Err(LaunchError { batches, source });
        }
        let _span = tracing::trace_span!("launch", batches = batches.len()).entered();
        let counts: Vec<(usize, bool)> = batches.iter().map(|batch| (batch.len(), batch.plain)).collect();
        let mut descriptors: Vec<Descriptor> =
            batches.into_iter().flat_map(|batch| batch.descriptors).collect();
        match self.launch_all(graph, &mut descriptors, &counts) {
            Ok(posted) => Ok(posted),
            Err(source) => {
                let split =
                    |(count, plain)| Batch { descriptors: descriptors.drain(..count).collect(), plain };
                Err(LaunchError { batches: counts.into_iter().map(split).collect(), source })
            }
        }
    }

    fn launch_all(
        &self,
        graph: &CudaGraph,
        descriptors: &mut Vec<Descriptor>,
        counts: &[(usize, bool)],
    ) -> Result<Posted, GraphError> {
        // Dropped after the lock: anything may hang on it.
        let mut past = Past::default();
        let mut state = self.lock();
        past.extend(self.reap(&mut state));
        if graph.nodes.is_empty() {
            self.launch_exec(graph)?;
            return Ok(Posted { operations: 0, submissions: 1 });
        }
        self.check_room(&mut state, graph.nodes.len())?;
        // A node's operations keep their kinds, whichever queues they name: nothing is merged.
        let waits = descriptors.iter().filter(|descriptor| matches!(descriptor, Descriptor::WaitCq(_)));
        let closed = matches!(descriptors.last(), Some(Descriptor::WaitCq(_)));
        let plan = Chunk { count: descriptors.len(), tickets: waits.count() as u32, closed, operations: 0 };
        let mut tickets = state.planned(plan);
        let mut rings = Vec::new();
        let mut operations = 0;
        let result =
            self.fill_in(graph, &state, descriptors, counts, tickets, &mut rings).and_then(|count| {
                operations = count;
                Self::with_proxy(&state, std::mem::take(&mut rings), || self.launch_exec(graph))
            });
        // Every node that ends with no wait writes its ticket.
        tickets.open = false;
        match result {
            Ok(()) => {
                state.accept(tickets, Held::Many(std::mem::take(descriptors)), graph.nodes.len(), &self.caps);
                Ok(Posted { operations, submissions: 1 })
            }
            Err(error) => {
                descriptors.iter_mut().rev().for_each(Descriptor::undo);
                if fatal(&error) {
                    self.abandon(state);
                    flight::abort(descriptors.iter().flat_map(Descriptor::queue_pairs));
                }
                Err(error)
            }
        }
    }

    /// Puts fresh operations into every batch node. Returns how many.
    fn fill_in(
        &self,
        graph: &CudaGraph,
        state: &State,
        descriptors: &mut [Descriptor],
        counts: &[(usize, bool)],
        tickets: Tickets,
        rings: &mut Vec<Ring>,
    ) -> Result<usize, GraphError> {
        state.translations.refresh(&**self);
        let mut cursor = Cursor::new(false, tickets.before);
        let (mut first, mut ops, mut operations) = (0, Vec::new(), 0);
        for (i, (node, (count, _))) in graph.nodes.iter().zip(counts).enumerate() {
            ops.clear();
            let part =
                descriptors[first..first + count].iter_mut().map(|descriptor| (descriptor, Fate::Kept));
            self.lower(state, part, tickets.end, &mut cursor, &mut ops, rings)?;
            first += count;
            if !node.shape.ends_with_wait() {
                // In the last node, everything; in others, the stream says how far it has come.
                let end = if i + 1 == counts.len() { tickets.end } else { cursor.ticket() };
                self.write_ticket(state, end, &mut ops)?;
            }
            graph.set(node, &ops)?;
            operations += ops.len();
        }
        Ok(operations)
    }

    fn launch_exec(&self, graph: &CudaGraph) -> Result<(), GraphError> {
        self.handle.check_thread()?;
        let _entered = self.context.enter()?;
        self.handle.check_not_capturing()?;
        let _submitting = self.context.submitting(&self.handle.busy);
        // SAFETY: graph and stream are alive. Addresses in the nodes were translated by this backend, and what they name is kept
        // as for any submission.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.raw.exec, self.raw()) })
            .map_err(as_stream_error)
    }
}

/// An error of the driver in its role as a backend's: one that ends the context ends the stream.
fn as_stream_error(error: CudaError) -> GraphError {
    GraphError::from(StreamError::from(error))
}

/// True where the backend has failed for good.
fn fatal(error: &GraphError) -> bool {
    matches!(error, GraphError::Post(PostFailure::Stream(StreamError::Failed { .. })))
}

impl CudaGraph {
    /// Its batch nodes.
    pub fn batches(&self) -> usize {
        self.nodes.len()
    }

    fn check(&self, batches: &[Batch], context: &Arc<GpuContext>) -> Result<(), GraphError> {
        if !Arc::ptr_eq(context, &self.context) {
            return Err(GraphError::OtherContext { graph: self.context.ordinal() });
        }
        let (nodes, given) = (self.nodes.len(), batches.len());
        if nodes != given {
            return Err(GraphError::Stale { nodes, given });
        }
        for (i, (node, batch)) in self.nodes.iter().zip(batches).enumerate() {
            let found = BatchShape::of(batch);
            if node.shape != found {
                return Err(GraphError::Shape { node: i, expected: node.shape.clone(), found });
            }
        }
        Ok(())
    }

    /// Puts operations in a node's place, for the launches to come.
    fn set(&self, node: &BatchNode, ops: &[MemOp]) -> Result<(), GraphError> {
        if ops.len() != node.operations {
            // A queue pair failed meanwhile: its doorbells are not rung any more.
            let (operations, limit) = (ops.len(), node.operations);
            return Err(GraphError::Size { operations, limit });
        }
        let _entered = self.context.enter()?;
        with_params(ops, |params| {
            let params = node_params(&self.context, params);
            // SAFETY: graph and node are alive; the driver copies the array.
            check("cuGraphExecBatchMemOpNodeSetParams", unsafe {
                sys::cuGraphExecBatchMemOpNodeSetParams(self.raw.exec, node.node.0, &params)
            })
        })
        .map_err(as_stream_error)
    }
}

fn node_params(
    context: &GpuContext,
    params: &mut [sys::CUstreamBatchMemOpParams],
) -> sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
    sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: context.raw(),
        count: params.len() as u32,
        paramArray: params.as_mut_ptr(),
        flags: 0,
    }
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes: Vec<_> = self.nodes.iter().map(|node| node.shape.to_string()).collect();
        f.debug_struct("CudaGraph").field("batches", &shapes).finish()
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let raw = RawGraph { graph: self.raw.graph, exec: self.raw.exec };
        // Launches may be in flight.
        self.context.defer(move || {
            let raw = raw;
            // SAFETY: made by us, destroyed once, and idle.
            if let Err(error) = check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(raw.exec) }) {
                tracing::debug!(%error, "an executable graph was not destroyed");
            }
            destroy(raw.graph);
        });
        self.context.collect();
    }
}

impl Capture<'_> {
    /// The stream: kernels that are launched on it become nodes.
    pub fn stream(&self) -> &CudaStream {
        self.stream
    }

    /// Records a batch node. Each launch of the graph will need a batch of this shape.
    ///
    /// # Errors
    /// [`GraphError::Size`], [`GraphError::Cuda`].
    pub fn batch(&mut self, shape: &BatchShape) -> Result<(), GraphError> {
        let ops = Recorder::idle_ops(self.stream, shape)?;
        let raw = self.stream.raw();
        with_params(&ops, |params| {
            // SAFETY: the stream is alive; while it is captured, this only records. The sink lives as long as the graph.
            check("cuStreamBatchMemOp", unsafe {
                sys::cuStreamBatchMemOp_v2(raw, params.len() as u32, params.as_mut_ptr(), 0)
            })
        })?;
        let node = last_node(raw)?;
        self.recorder.add(node, shape, ops.len());
        Ok(())
    }
}

/// The node that was captured last.
fn last_node(stream: sys::CUstream) -> Result<sys::CUgraphNode, CudaError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph) = (0, std::ptr::null_mut());
    let (mut nodes, mut count) = (std::ptr::null(), 0usize);
    // SAFETY: all are valid places; the stream is alive.
    check("cuStreamGetCaptureInfo", unsafe {
        sys::cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count)
    })?;
    if count == 1 && !nodes.is_null() {
        // SAFETY: the driver says that there is one, valid until something else is captured.
        return Ok(unsafe { *nodes });
    }
    Err(CudaError::Capturing)
}

/// Ends a capture, whatever happens meanwhile.
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

impl GraphBuilder<'_> {
    /// The driver's handle, to add kernels and other nodes to, and dependencies.
    pub fn raw(&self) -> sys::CUgraph {
        self.graph
    }

    /// Adds a batch node, after the batch node added before. Each launch of the graph will need a batch of this shape.
    ///
    /// Returns the driver's handle, for dependencies.
    ///
    /// # Errors
    /// [`GraphError::Size`], [`GraphError::Cuda`].
    pub fn batch(&mut self, shape: &BatchShape) -> Result<sys::CUgraphNode, GraphError> {
        // SAFETY: no dependencies but ours.
        unsafe { self.batch_after(shape, &[]) }
    }

    /// As [`Self::batch`], after other nodes, too.
    ///
    /// # Errors
    /// As [`Self::batch`].
    ///
    /// # Safety
    /// `after` are nodes of this graph.
    pub unsafe fn batch_after(
        &mut self,
        shape: &BatchShape,
        after: &[sys::CUgraphNode],
    ) -> Result<sys::CUgraphNode, GraphError> {
        let ops = Recorder::idle_ops(self.stream, shape)?;
        // Progress is told in the order of batches, so that must be the graph's.
        let before = self.recorder.nodes.last().map(|batch| batch.node.0);
        let dependencies: Vec<_> = after.iter().copied().chain(before).collect();
        let _entered = self.stream.context.enter()?;
        let mut node = std::ptr::null_mut();
        with_params(&ops, |params| {
            let params = node_params(&self.stream.context, params);
            // SAFETY: the graph is ours; dependencies are its nodes (ours, and the caller's); the driver copies the array.
            check("cuGraphAddBatchMemOpNode", unsafe {
                let (list, count) = (dependencies.as_ptr(), dependencies.len());
                sys::cuGraphAddBatchMemOpNode(&mut node, self.graph, list, count, &params)
            })
        })?;
        self.recorder.add(node, shape, ops.len());
        Ok(node)
    }

    /// Makes it executable.
    ///
    /// # Errors
    /// [`GraphError::Cuda`].
    pub fn instantiate(mut self) -> Result<CudaGraph, GraphError> {
        let _entered = self.stream.context.enter()?;
        let graph = std::mem::replace(&mut self.graph, std::ptr::null_mut());
        std::mem::take(&mut self.recorder).instantiate(graph, self.stream)
    }
}

impl Drop for GraphBuilder<'_> {
    fn drop(&mut self) {
        if !self.graph.is_null() {
            destroy(self.graph);
        }
    }
}
