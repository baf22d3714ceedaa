//! Batches in CUDA graphs: built once and launched many times, each time with fresh sends and waits.
//!
//! A graph freezes the parameters of its nodes. An old doorbell must never be replayed, so a batch node is recorded
//! with operations that do nothing. The only way to launch the graph is [`Stream::launch`], which takes a fresh
//! batch for each node and sets its parameters.
//!
//! Sends that a [`Trigger`](crate::Trigger) releases need no batch node, and a graph without batch nodes needs no
//! update: a kernel, memory-copy or memset node writes the ticket, which a kernel of the graph may count itself.
//! The program prepares the sends ([`PreparedSend::into_ticket`](crate::PreparedSend::into_ticket)) and launches
//! the graph without batches. Such nodes may be in the body of a conditional node, where the driver refuses batch
//! nodes when the graph is instantiated (INVALID_VALUE; driver 580, CUDA 13.0). See `docs/kernels.md`.

use crate::batch::{Batch, BatchShape, Chunk, Descriptor, Fate, LastPoint, Points};
use crate::cuda::{CudaError, Gpu, GpuContext, check};
use crate::memop::{MemOp, StreamError};
use crate::stream::cuda::params::with_params;
use crate::stream::in_flight::{KeptAlive, Past};
use crate::stream::lower::{lower, lowering};
use crate::stream::proxy::{self, ProxiedDoorbell};
use crate::stream::state::StreamState;
use crate::stream::{CudaStream, PostFailure, Posted, Stream, in_flight};
use cudarc::driver::sys;
use std::fmt;
use std::sync::Arc;

/// An executable graph with batch nodes, made by [`Stream::capture`]. It may be dropped at any time: launches in
/// flight continue.
pub struct CudaGraph {
    pub(super) raw: RawGraph,
    pub(super) nodes: Vec<BatchNode>,
    pub(super) context: Arc<GpuContext>,
}

pub(super) struct RawGraph {
    pub(super) graph: sys::CUgraph,
    pub(super) exec: sys::CUgraphExec,
}

// SAFETY: graphs may be used from any thread, by one at a time: launching takes the graph by `&mut`.
unsafe impl Send for RawGraph {}
// SAFETY: as above; nothing is done with a shared reference.
unsafe impl Sync for RawGraph {}

pub(super) struct BatchNode {
    pub(super) node: Node,
    pub(super) shape: BatchShape,
    pub(super) operations: usize,
}

/// A node's handle, valid as long as its graph.
#[derive(Clone, Copy)]
pub(super) struct Node(pub(super) sys::CUgraphNode);

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
    /// Each launch needs a fresh batch for each batch node: with the old one, a node would ring old doorbells.
    #[error(
        "the graph has {nodes} batch nodes and was given {given} batches: each launch needs a fresh batch for each"
    )]
    Stale {
        /// Batch nodes of the graph.
        nodes: usize,
        /// Batches given.
        given: usize,
    },
    /// A batch does not have the node's shape.
    #[error(
        "batch {node} is {found}, but its node was recorded as {expected}: a graph's operations keep their kinds"
    )]
    Shape {
        /// The batch node's index.
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
    #[error(
        "the graph was recorded on {}, in another context than the stream's: launch it on a stream of that one",
        Gpu::from_device(*.graph)
    )]
    OtherContext {
        /// The GPU of the graph.
        graph: i32,
    },
    /// The closure that records has ended the stream's capture, which takes what was recorded with it.
    #[error(
        "the closure has ended the capture of the stream: `capture` does that itself when the closure returns"
    )]
    Ended,
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
    /// The reason.
    pub source: GraphError,
}

pub(super) fn destroy(graph: sys::CUgraph) {
    // SAFETY: made by us, destroyed once; executable graphs do not need it.
    if let Err(error) = check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) }) {
        tracing::debug!(%error, "a graph was not destroyed");
    }
}

impl Stream<CudaStream> {
    /// Launches a graph on this stream, with a fresh batch for each of its batch nodes in the order of their recording.
    ///
    /// # Errors
    /// [`LaunchError`], with the batches; nothing was launched. [`GraphError::Stale`] if a batch node would keep
    /// the batch of an earlier launch.
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
        let counts: Vec<(usize, bool)> = batches.iter().map(|batch| (batch.len(), batch.unmerged)).collect();
        let mut descriptors: Vec<Descriptor> =
            batches.into_iter().flat_map(|batch| batch.descriptors).collect();
        match self.launch_all(graph, &mut descriptors, &counts) {
            Ok(posted) => Ok(posted),
            Err(source) => {
                let split =
                    |(count, unmerged)| Batch { descriptors: descriptors.drain(..count).collect(), unmerged };
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
        self.engine.hold_waits(descriptors);
        // Dropped after the lock is released: the drops may take other locks.
        let mut past = Past::default();
        let mut state = self.lock();
        past.extend(self.engine.reap(&mut state));
        if graph.nodes.is_empty() {
            self.launch_exec(graph)?;
            return Ok(Posted { operations: 0, submissions: 1 });
        }
        self.engine.check_room(&mut state, graph.nodes.len())?;
        // A node's operations keep their kinds, whatever queues they name: nothing is merged.
        let waits = descriptors.iter().filter(|descriptor| matches!(descriptor, Descriptor::WaitCq(_)));
        let waits = waits.count() as u32;
        let last_point = match descriptors.last() {
            Some(Descriptor::WaitCq(_)) => LastPoint::AtEnd,
            Some(last) if last.is_write() && waits > 0 => LastPoint::BeforeWrite,
            _ => LastPoint::Earlier,
        };
        let plan = Chunk { count: descriptors.len(), points: waits, last_point, operations: 0 };
        let mut points = Points::planned(state.issued, &plan);
        let result =
            self.fill_in(graph, &state, descriptors, counts, points).and_then(|(operations, rings)| {
                proxy::ringing(&state.proxied, rings, || self.launch_exec(graph)).map(|()| operations)
            });
        // The last node writes the last point, unless it ends with a write of the program.
        points.open = descriptors.last().is_some_and(Descriptor::is_write);
        points.has_own = true;
        match result {
            Ok(operations) => {
                let kept = KeptAlive::Graph(Box::new((std::mem::take(descriptors), graph.nodes.len())));
                state.accept(points, kept, &self.engine.caps);
                Ok(Posted { operations, submissions: 1 })
            }
            Err(error) => {
                descriptors.iter_mut().rev().for_each(Descriptor::undo);
                if fatal(&error) {
                    self.engine.abandon(state);
                    in_flight::abort(descriptors.iter().flat_map(Descriptor::queue_pairs));
                }
                Err(error)
            }
        }
    }

    /// Puts fresh operations into every batch node. Returns their number, and the doorbells that the proxy will ring.
    fn fill_in(
        &self,
        graph: &CudaGraph,
        state: &StreamState,
        mut rest: &mut [Descriptor],
        counts: &[(usize, bool)],
        points: Points,
    ) -> Result<(usize, Vec<ProxiedDoorbell>), GraphError> {
        state.translations.refresh(&**self);
        let (mut ops, mut operations) = (Vec::new(), 0);
        let mut lowering = lowering(&self.engine, state, points, false, &mut ops);
        for (i, (node, (count, _))) in graph.nodes.iter().zip(counts).enumerate() {
            let (part, others) = rest.split_at_mut(*count);
            rest = others;
            lowering.ops.clear();
            let kept = |descriptor| (descriptor, Fate::Kept);
            // Nothing follows a last write of the program, as in other submissions.
            let ends_with_write = part.last().is_some_and(Descriptor::is_write);
            let (before, last) = part.split_at_mut(count - usize::from(ends_with_write));
            lower(&mut lowering, before.iter_mut().map(kept))?;
            if !node.shape.ends_with_wait() {
                // The last node writes the last point, others the last one taken.
                let is_last = i + 1 == counts.len() && !ends_with_write;
                lowering.progress(if is_last { points.end } else { lowering.point })?;
            }
            lower(&mut lowering, last.iter_mut().map(kept))?;
            graph.set(node, lowering.ops)?;
            operations += lowering.ops.len();
        }
        Ok((operations, lowering.driver.rings))
    }

    fn launch_exec(&self, graph: &CudaGraph) -> Result<(), GraphError> {
        self.handle.check_thread()?;
        let _entered = self.context.enter()?;
        self.handle.check_not_capturing()?;
        let _submitting = self.context.submitting(&self.handle.busy);
        // SAFETY: graph and stream are alive. Addresses in the nodes were translated by this backend, and the
        // submission in flight holds their memory, as for any submission.
        let launched = check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.raw.exec, self.raw()) });
        self.context.named(launched).map_err(as_stream_error)?;
        // SAFETY: as above; the stream is not being captured, and its context is current.
        unsafe { self.handle.mark_submission() };
        Ok(())
    }
}

/// Converts a driver error: one that ends the context fails the stream.
fn as_stream_error(error: CudaError) -> GraphError {
    GraphError::from(StreamError::from(error))
}

/// Returns true if the backend has failed for good.
fn fatal(error: &GraphError) -> bool {
    matches!(error, GraphError::Post(PostFailure::Stream(StreamError::Failed { .. })))
}

impl CudaGraph {
    /// Returns the number of its batch nodes.
    pub fn batches(&self) -> usize {
        self.nodes.len()
    }

    fn check(&self, batches: &[Batch], context: &Arc<GpuContext>) -> Result<(), GraphError> {
        if !Arc::ptr_eq(context, &self.context) {
            return Err(GraphError::OtherContext { graph: self.context.ordinal });
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

    /// Sets a node's operations for the next launches.
    fn set(&self, node: &BatchNode, ops: &[MemOp]) -> Result<(), GraphError> {
        if ops.len() != node.operations {
            // A queue pair has failed since then: its doorbells are not rung any more.
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
        ctx: context.raw.as_raw(),
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
