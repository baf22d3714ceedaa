//! Queues with other placements: here, in host memory that is treated as a GPU's. `gpu_placement.rs` has the GPU.

use gdsync::cuda::{Placement, PlacementError, QueuePlacement};
use gdsync::memop::MemOpStream;
use gdsync::{
    Batch, CompletionQueue, CompletionQueueConfig, ConnectOptions, Error, ProtectionDomain, QueuePairConfig,
    SoftStream, Stream, WorkRequest,
};
use gdsync_test_support::pair::{
    self, Pair, content, cpu, device, drop_the_second_of_three, fail_on, fill, layouts, poll, post_and_poll,
    queue_api, queue_pair, sharing, soft, synchronize,
};

fn pair(placement: QueuePlacement) -> Pair {
    Pair::with(
        QueuePairConfig::default().send_depth(16).recv_depth(16).placement(placement),
        ConnectOptions::default(),
    )
}

/// Sends over several laps of all rings, each of a different size.
fn laps<B: MemOpStream>(pair: &Pair, stream: &Stream<B>, wait: impl Fn()) {
    let (source, target) = (pair.region(200), pair.region(200));
    for i in 0..200usize {
        let sent = fill(&source, i);
        let len = 1 + i * 7 % 200;
        pair.right.post_recv(&[target.slice(..).unwrap()], i as u64).unwrap();
        let slices = [source.slice(..len / 2).unwrap(), source.slice(len / 2..len).unwrap()];
        let send = pair.left.prepare(WorkRequest::send(&slices).wr_id(i as u64)).unwrap();
        let (sent_wait, arrival) =
            (pair.left.send_cq().prepare_wait().unwrap(), pair.right.recv_cq().prepare_wait().unwrap());
        stream.post(Batch::new().send(send).wait(sent_wait).wait(arrival)).unwrap();
        wait();
        assert_eq!(content(&target)[..len], sent[..len]);
        let (done, received) = (poll(&pair.left.send_cq()), poll(&pair.right.recv_cq()));
        assert_eq!((done.wr_id, done.status), (i as u64, Ok(())));
        assert_eq!((received.wr_id, received.byte_len as usize), (i as u64, len));
    }
}

#[test]
fn every_layout_carries_messages_on_every_stream() {
    for placement in layouts(Placement::StandIn) {
        let pair = pair(placement);
        laps(&pair, &cpu(), || ());
        let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
        laps(&pair, &stream, || synchronize(&stream));
    }
}

#[test]
fn the_cpu_posts_and_polls_in_every_layout() {
    for placement in layouts(Placement::StandIn) {
        let pair = pair(placement);
        post_and_poll(&pair, 300);
    }
}

#[test]
fn a_send_that_was_dropped_becomes_a_nop_wherever_the_ring_is() {
    if crate::lacks_order("a_send_that_was_dropped_becomes_a_nop_wherever_the_ring_is") {
        return;
    }
    for placement in layouts(Placement::StandIn) {
        let pair = pair(placement);
        drop_the_second_of_three(&pair);
    }
}

#[test]
fn failures_are_told_and_queues_start_anew_in_every_layout() {
    for placement in layouts(Placement::StandIn) {
        let pair = pair(placement);
        let stream = soft();
        fail_on(&pair, &stream, || synchronize(&stream));
        pair::drain_and_reconnect(&pair);
        laps(&pair, &cpu(), || ());
    }
}

#[test]
fn a_shared_completion_queue_lies_where_it_was_asked_to() {
    let device = device();
    let pd = ProtectionDomain::new(&device).unwrap();
    for placement in layouts(Placement::StandIn) {
        let queue = CompletionQueue::new(
            &device,
            CompletionQueueConfig::from(64).queues(queue_api()).placement(placement),
        )
        .unwrap();
        let config = QueuePairConfig::default().placement(placement);
        let make = || sharing(&pd, config, &queue, &queue).unwrap();
        let (left, right) = (make(), make());
        left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        for i in 0..100 {
            right.post_recv(&[], i).unwrap();
            left.post_send(WorkRequest::send_inline(b"").wr_id(i)).unwrap();
            for completion in [poll(&queue), poll(&queue)] {
                assert_eq!((completion.wr_id, completion.status), (i, Ok(())));
            }
        }
    }
}

#[test]
fn memory_of_a_gpu_that_is_not_there_is_refused_with_the_reason() {
    let absent = Placement::Gpu(1 << 20);
    let device = device();
    let pd = ProtectionDomain::new(&device).unwrap();
    let config = QueuePairConfig::default();
    for placement in [
        QueuePlacement::HOST.work(absent),
        QueuePlacement::HOST.completions(absent),
        QueuePlacement::HOST.records(absent),
    ] {
        let errors = [
            queue_pair(&pd, config.placement(placement)).unwrap_err(),
            CompletionQueue::new(
                &device,
                CompletionQueueConfig::from(16).queues(queue_api()).placement(placement),
            )
            .unwrap_err(),
        ];
        for error in errors {
            assert!(
                matches!(&error, Error::Placement(PlacementError { placement, .. }) if *placement == absent),
                "{error}"
            );
            let text = error.to_string();
            assert!(text.contains("gpu 1048576"), "{text}");
            assert!(text.contains("GPU 1048576") || text.contains("CUDA"), "{text}");
        }
    }
}
