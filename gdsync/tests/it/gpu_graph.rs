//! Batches in CUDA graphs.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use gdsync::batch::BatchShape;
use gdsync::cuda::CudaError;
use gdsync::graph::{CudaGraph, GraphError};
use gdsync::memop::{Condition, Word32};
use gdsync::queue::OrderError;
use gdsync::stream::PostFailure;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Batch, CudaStream, PinnedMemory, QueueError, Stream, WorkRequest};
use gdsync_test_support::gpu::{Rig, synchronize, words};
use gdsync_test_support::pair::poll;

struct Exchange {
    rig: Rig,
    stream: Stream<CudaStream>,
    source: GpuMemoryRegion,
    target: GpuMemoryRegion,
}

impl Exchange {
    fn new(test: &str, proxied: bool) -> Option<Self> {
        let rig = Rig::new(test)?;
        let stream = if proxied { rig.proxied() } else { rig.stream() };
        let (source, target) = (rig.region(64), rig.region(64));
        rig.launch(&stream, &rig.fill, source.memory(), 0);
        synchronize(&stream);
        Some(Exchange { rig, stream, source, target })
    }

    fn shape() -> BatchShape {
        BatchShape::new().send().wait()
    }

    /// Kernel, exchange, kernel: `target = source + 10`, and `source` grows by 1 at each launch.
    fn capture(&self) -> CudaGraph {
        self.stream
            .capture(|capture| {
                self.rig.launch(capture.stream(), &self.rig.add, self.source.memory(), 1);
                capture.batch(&Self::shape())?;
                self.rig.launch(capture.stream(), &self.rig.add, self.target.memory(), 10);
                Ok(())
            })
            .unwrap()
    }

    fn batch(&self) -> Batch {
        let pair = &self.rig.pair;
        pair.right.post_recv(&[self.target.slice(..).unwrap()], 0).unwrap();
        let slices = [self.source.slice(..).unwrap()];
        let send = pair.left.prepare(WorkRequest::send(&slices)).unwrap();
        Batch::new().send(send).wait(pair.right.recv_cq().prepare_wait().unwrap())
    }

    fn collect(&self) {
        assert_eq!(poll(&self.rig.pair.left.send_cq()).status, Ok(()));
        assert_eq!(poll(&self.rig.pair.right.recv_cq()).status, Ok(()));
    }
}

#[test]
fn a_captured_exchange_is_launched_again_and_again() {
    for proxied in [false, true] {
        let Some(exchange) = Exchange::new("a_captured_exchange_is_launched_again_and_again", proxied) else {
            return;
        };
        let mut graph = exchange.capture();
        assert_eq!(graph.batches(), 1);
        assert_eq!(words(exchange.target.memory())[0], 0, "recording performs nothing");
        for launch in 1..=600u32 {
            let posted = exchange.stream.launch(&mut graph, [exchange.batch()]).unwrap();
            assert_eq!((posted.operations, posted.submissions), (4, 1));
            if launch % 8 == 0 {
                synchronize(&exchange.stream);
                (0..8).for_each(|_| exchange.collect());
                let expected: Vec<u32> = (0..16).map(|i| launch + i + 10).collect();
                assert_eq!(words(exchange.target.memory()), expected, "launch {launch}");
            }
        }
        exchange.stream.post(exchange.batch()).unwrap();
        synchronize(&exchange.stream);
        exchange.collect();
    }
}

#[test]
fn a_stale_launch_is_refused_and_nothing_is_rung() {
    let Some(exchange) = Exchange::new("a_stale_launch_is_refused_and_nothing_is_rung", false) else {
        return;
    };
    let mut graph = exchange.capture();
    exchange.stream.launch(&mut graph, [exchange.batch()]).unwrap();
    synchronize(&exchange.stream);
    exchange.collect();
    let error = exchange.stream.launch(&mut graph, []).unwrap_err();
    assert!(matches!(error.source, GraphError::Stale { nodes: 1, given: 0 }), "{error}");
    let error = exchange.stream.launch(&mut graph, [exchange.batch(), Batch::new()]).unwrap_err();
    assert_eq!(error.batches.len(), 2);
    let batch = error.batches.into_iter().next().unwrap();
    // A graph can still be launched after a refusal.
    exchange.stream.launch(&mut graph, [batch]).unwrap();
    synchronize(&exchange.stream);
    exchange.collect();
    assert!(exchange.rig.pair.left.send_cq().poll().unwrap().is_none());
}

#[test]
fn batches_of_another_shape_or_out_of_order_are_given_back() {
    let Some(exchange) = Exchange::new("batches_of_another_shape_or_out_of_order_are_given_back", false)
    else {
        return;
    };
    let mut graph = exchange.capture();
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let error = exchange.stream.launch(&mut graph, [Batch::new().write_value32(&word, 1)]).unwrap_err();
    assert!(
        error.to_string().contains("[write_value32]") && error.to_string().contains("[send, wait]"),
        "{error}"
    );
    let (first, second) = (exchange.batch(), exchange.batch());
    let error = exchange.stream.launch(&mut graph, [second]).unwrap_err();
    let out_of_order = matches!(
        error.source,
        GraphError::Post(PostFailure::Queue(QueueError::Order(OrderError::OutOfOrder { .. })))
    );
    assert!(out_of_order, "{error}");
    exchange.stream.launch(&mut graph, [first]).unwrap();
    exchange.stream.launch(&mut graph, error.batches).unwrap();
    synchronize(&exchange.stream);
    (0..2).for_each(|_| exchange.collect());
    let empty = exchange.stream.capture(|capture| Ok(capture.batch(&BatchShape::new())?));
    assert!(matches!(empty, Err(GraphError::Size { .. })));
    let long = (0..200).fold(BatchShape::new(), |shape, _| shape.wait());
    assert!(exchange.stream.capture(|capture| Ok(capture.batch(&long)?)).is_err());
    // A failed recording leaves the stream as it was.
    assert!(exchange.stream.capture(|_| Err("no".into())).unwrap_err().to_string().contains("no"));
    exchange.stream.post(exchange.batch()).unwrap();
    synchronize(&exchange.stream);
}

#[test]
fn a_capture_that_the_closure_ends_is_no_graph() {
    let Some(exchange) = Exchange::new("a_capture_that_the_closure_ends_is_no_graph", false) else { return };
    let flags = || CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    for (records_before, begins_another) in [(true, true), (true, false), (false, true)] {
        let ended = exchange.stream.capture(|capture| {
            if records_before {
                capture.batch(&BatchShape::new().send())?;
            }
            let stream = capture.stream().cudarc().unwrap().clone();
            drop(stream.end_capture(flags())?);
            if begins_another {
                stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
                // The graph of this capture is not the one that is to be made.
                assert!(matches!(capture.batch(&BatchShape::new().send()), Err(GraphError::Ended)));
            }
            Ok(())
        });
        assert!(matches!(ended, Err(GraphError::Ended)), "{ended:?}");
        if begins_another {
            // That one is the closure's to end.
            drop(exchange.stream.cudarc().unwrap().end_capture(flags()).unwrap());
        }
    }
    // A call that a captured stream forbids, which invalidates the capture.
    let invalid = exchange.stream.capture(|capture| {
        assert!(capture.stream().cudarc().unwrap().synchronize().is_err());
        Ok(())
    });
    assert!(matches!(invalid, Err(GraphError::Cuda(_))), "{invalid:?}");
    exchange.stream.post(exchange.batch()).unwrap();
    synchronize(&exchange.stream);
    exchange.collect();
}

#[test]
fn a_launch_is_not_captured() {
    let Some(exchange) = Exchange::new("a_launch_is_not_captured", false) else { return };
    let mut graph = exchange.capture();
    let mut kept = Vec::new();
    let outer = exchange.stream.capture(|_| {
        let error = exchange.stream.launch(&mut graph, [exchange.batch()]).unwrap_err();
        assert!(matches!(error.source, GraphError::Cuda(CudaError::Capturing)), "{error}");
        kept = error.batches;
        Ok(())
    });
    assert_eq!(outer.unwrap().batches(), 0);
    exchange.stream.launch(&mut graph, kept).unwrap();
    synchronize(&exchange.stream);
    exchange.collect();
}

#[test]
fn a_graph_without_batches_is_launched_as_often_as_one_likes() {
    let Some(exchange) = Exchange::new("a_graph_without_batches_is_launched_as_often_as_one_likes", false)
    else {
        return;
    };
    let add =
        |stream: &CudaStream| exchange.rig.launch(stream, &exchange.rig.add, exchange.source.memory(), 1);
    let mut graph = exchange
        .stream
        .capture(|capture| {
            add(capture.stream());
            Ok(())
        })
        .unwrap();
    for _ in 0..1500 {
        exchange.stream.launch(&mut graph, []).unwrap();
    }
    synchronize(&exchange.stream);
    assert_eq!(words(exchange.source.memory())[0], 1500);
}

#[test]
fn a_graph_may_be_dropped_in_flight() {
    let Some(exchange) = Exchange::new("a_graph_may_be_dropped_in_flight", false) else { return };
    let word = Word32::new(&PinnedMemory::allocate(8).unwrap(), 0).unwrap();
    let done = Word32::new(&PinnedMemory::allocate(8).unwrap(), 4).unwrap();
    let shape = BatchShape::new().wait_value32().write_value32();
    let mut graph = exchange.stream.capture(|capture| Ok(capture.batch(&shape)?)).unwrap();
    let batch = Batch::new().wait_value32(&word, Condition::Eq, 1).write_value32(&done, 9);
    exchange.stream.launch(&mut graph, [batch]).unwrap();
    drop(graph);
    word.store(1);
    synchronize(&exchange.stream);
    assert_eq!(done.load(), 9);
}
