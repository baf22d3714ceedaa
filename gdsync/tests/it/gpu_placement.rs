//! Queues in the memory of a real GPU. Reported as skipped without one.

use gdsync::cuda::{Placement, QueuePlacement};
use gdsync::stream::Posted;
use gdsync::{Batch, ConnectOptions, QueuePairConfig, WorkRequest};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair::{
    self, Pair, content, cpu, drop_the_second_of_three, fail_on, fill, layouts, poll, post_and_poll, soft,
    synchronize as synchronize_soft,
};

fn pair(placement: QueuePlacement) -> Pair {
    let config = QueuePairConfig::default().send_depth(16).recv_depth(16);
    Pair::with(config.placement(placement), ConnectOptions::default())
}

/// Sends over several laps of all rings, several enqueued at a time.
fn laps(pair: &Pair, post: impl Fn(Batch) -> Posted, wait: impl Fn()) {
    let (source, target) = (pair.region(800), pair.region(800));
    for round in 0..60usize {
        let sent = fill(&source, round);
        for i in 0..8 {
            let part = i * 100..i * 100 + 1 + (round * 8 + i) % 100;
            pair.right.post_recv(&[target.slice(part.clone()).unwrap()], i as u64).unwrap();
            let slices = [source.slice(part).unwrap()];
            let send = pair.left.prepare(WorkRequest::send(&slices).wr_id(i as u64)).unwrap();
            let waits =
                [pair.left.send_cq().prepare_wait().unwrap(), pair.right.recv_cq().prepare_wait().unwrap()];
            post(waits.into_iter().fold(Batch::new().send(send), Batch::wait));
        }
        wait();
        for i in 0..8 {
            let part = i * 100..i * 100 + 1 + (round * 8 + i) % 100;
            assert_eq!(content(&target)[part.clone()], sent[part.clone()]);
            let (done, received) = (poll(&pair.left.send_cq()), poll(&pair.right.recv_cq()));
            assert_eq!((done.wr_id, done.status), (i as u64, Ok(())));
            assert_eq!((received.wr_id, received.byte_len as usize), (i as u64, part.len()));
        }
    }
}

#[test]
fn every_layout_carries_messages_of_a_gpus_stream() {
    let Some(rig) = Rig::new("every_layout_carries_messages_of_a_gpus_stream") else { return };
    for placement in layouts(Placement::Gpu(0)) {
        let pair = pair(placement);
        let (stream, proxied) = (rig.stream(), rig.proxied());
        laps(&pair, |batch| stream.post(batch).unwrap(), || synchronize(&stream));
        laps(&pair, |batch| proxied.post(batch).unwrap(), || synchronize(&proxied));
    }
}

#[test]
fn the_cpu_and_software_streams_use_queues_in_a_gpus_memory() {
    let Some(_rig) = Rig::new("the_cpu_and_software_streams_use_queues_in_a_gpus_memory") else { return };
    for placement in layouts(Placement::Gpu(0)) {
        let pair = pair(placement);
        let (stream, own) = (soft(), cpu());
        laps(&pair, |batch| stream.post(batch).unwrap(), || synchronize_soft(&stream));
        laps(&pair, |batch| own.post(batch).unwrap(), || ());
        post_and_poll(&pair, 100);
        drop_the_second_of_three(&pair);
    }
}

#[test]
fn failures_wake_streams_that_wait_in_a_gpus_memory() {
    let Some(rig) = Rig::new("failures_wake_streams_that_wait_in_a_gpus_memory") else { return };
    for placement in layouts(Placement::Gpu(0)) {
        let pair = pair(placement);
        let stream = rig.stream();
        fail_on(&pair, &stream, || synchronize(&stream));
        // A wait that is never satisfied, until the queue pair is aborted.
        pair::drain_and_reconnect(&pair);
        pair.right.post_recv(&[], 0).unwrap();
        stream.post(Batch::new().wait(pair.right.recv_cq().prepare_wait().unwrap())).unwrap();
        pair.right.abort().unwrap();
        synchronize(&stream);
        pair::drain_and_reconnect(&pair);
        laps(&pair, |batch| stream.post(batch).unwrap(), || synchronize(&stream));
    }
}

#[test]
fn queues_that_go_while_a_stream_waits_in_them_leave_it_whole() {
    let Some(rig) = Rig::new("queues_that_go_while_a_stream_waits_in_them_leave_it_whole") else { return };
    let everywhere = QueuePlacement {
        work: Placement::Gpu(0),
        completions: Placement::Gpu(0),
        records: Placement::Gpu(0),
    };
    for _ in 0..20 {
        let pair = pair(everywhere);
        let stream = rig.stream();
        pair.right.post_recv(&[], 0).unwrap();
        stream.post(Batch::new().wait(pair.right.recv_cq().prepare_wait().unwrap())).unwrap();
        // The batch holds the queue, and the drop of everything else fails the queue pair: the wait ends.
        drop(pair);
        synchronize(&stream);
    }
}

#[test]
fn another_gpus_stream_is_refused_with_the_reason() {
    let test = "another_gpus_stream_is_refused_with_the_reason";
    let Some([_first, other]) = Rig::two_gpus(test) else { return };
    let stream = other.stream();
    let pair = pair(QueuePlacement::HOST.completions(Placement::Gpu(0)));
    pair.right.post_recv(&[], 0).unwrap();
    let error = stream.post(Batch::new().wait(pair.right.recv_cq().prepare_wait().unwrap())).unwrap_err();
    let text = error.to_string();
    for part in ["GPU 1 (", "has no access to the memory of GPU 0 (", "enable_peer_access"] {
        assert!(text.contains(part), "{text}");
    }
}
