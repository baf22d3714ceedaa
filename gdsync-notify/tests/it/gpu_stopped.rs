//! CUDA streams that stop at waits that a death would end. Skipped, with a message, where there is no GPU.

use crate::gpu_notify::{Rank, ranks};
use gdsync::memop::{StreamError, Word32};
use gdsync::stream::StreamOptions;
use gdsync::{Batch, CudaStream, PinnedMemory, Stream};
use gdsync_notify::{Operation, WaitNotification};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair::LONG;
use std::time::{Duration, Instant};

/// Two ranks with segments in GPU memory, a third one that is to die, and a stream that stops at its death.
fn stopping(rig: &Rig) -> ([Rank; 3], Stream<CudaStream>) {
    // The segment of the one that dies is in host memory: CUDA frees GPU memory only when the context's streams have passed.
    let ranks = ranks(rig, [true, true, false], 16);
    ranks[0].segment.expect_from(5..8, 2).unwrap();
    let options = StreamOptions::default().stop_at_death(true);
    (ranks, Stream::with_options(CudaStream::new(rig.raw_stream()).unwrap(), options).unwrap())
}

fn stops(stream: &Stream<CudaStream>) {
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, StreamError::Stopped { rank: Some(2), .. }), "{error}");
}

#[test]
fn a_gpu_stops_at_the_wait_for_a_dead_rank_until_it_is_told_to_go_on() {
    let Some(rig) = Rig::new("a_gpu_stops_at_the_wait_for_a_dead_rank_until_it_is_told_to_go_on") else {
        return;
    };
    let ([one, _other, third], stream) = stopping(&rig);
    let behind = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    // What came before the death counts.
    third.queue.notify(0, &one.segment, 6, 7).unwrap();
    third.queue.flush(LONG).unwrap();
    stream.post(Batch::new().wait_notification(&one.segment.notification(6).unwrap())).unwrap();
    synchronize(&stream);
    for (id, value) in [(5, 1), (7, 2)] {
        let batch = Batch::new().wait_notification(&one.segment.notification(id).unwrap());
        stream.post(batch.write_value32(&behind, value)).unwrap();
    }
    assert!(!stream.synchronize_timeout(Duration::from_millis(5)).unwrap());
    drop(third);
    stops(&stream);
    std::thread::sleep(Duration::from_millis(20));
    stops(&stream);
    assert_eq!(behind.load(), 0, "what follows the wait is not performed");
    stream.go_on();
    synchronize(&stream);
    assert_eq!(behind.load(), 2);
}

#[test]
fn a_stopped_stream_of_a_gpu_that_is_dropped_sends_nothing() {
    let Some(rig) = Rig::new("a_stopped_stream_of_a_gpu_that_is_dropped_sends_nothing") else { return };
    let ([one, _other, third], stream) = stopping(&rig);
    let behind = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let notify = Operation::Notify { rank: 0, to: &one.segment, id: 2, value: 1 };
    let sends = one.queue.prepare(notify).unwrap();
    let wait = Batch::new().wait_notification(&one.segment.notification(5).unwrap());
    stream.post(sends.fold(wait, Batch::send).write_value32(&behind, 1)).unwrap();
    drop(third);
    stops(&stream);
    assert_eq!(behind.load(), 0);
    drop(stream);
    // CUDA has no operation that takes work back: the GPU performs the rest, and its doorbell finds a failed queue pair.
    let deadline = Instant::now() + LONG;
    while behind.load() == 0 {
        assert!(Instant::now() < deadline, "the GPU waits for a dead rank after its stream was dropped");
    }
    assert!(one.queue.queue_pair(0).unwrap().failure().is_some(), "nothing may ring for the send");
    assert_eq!(one.segment.notify_reset(2).unwrap(), 0, "the send has left");
}
