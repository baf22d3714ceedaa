//! Collectors whose own queue fails, that get no new one, and that wait for what a reset ends.

use super::*;
use crate::qp::testing::LONG;
use crate::qp::{ResetError, SharedReceiveQueue};
use crate::queue::ResetBlocker;
use crate::util::poller::Simulation;
use crate::{Batch, SoftStream, Stream};

#[test]
fn without_a_new_queue_the_cpu_counts() {
    let device = Device::software().unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let peer = queue_pair(&pd, DEFAULT_PORT).unwrap();
    let mut collector = Collector::new(&device).unwrap();
    // No queue can be made there.
    Arc::get_mut(&mut collector.inner).unwrap().port = 200;
    collector.inner.state.lock().queue_pair.abort().unwrap();
    for number in 1..=5 {
        peer.post_send(WorkRequest::nop()).unwrap();
        let wait = peer.send_cq().prepare_wait().unwrap();
        assert_eq!(collector.collect([wait]).unwrap(), number);
        reaches(&collector, number);
        assert_eq!(crate::qp::testing::poll(&peer.send_cq()).status, Ok(()));
        assert!(collector.inner.state.lock().writer != Writer::Card || number == 1);
    }
}

/// A collector that waits for a shared receive, which never comes, and the library's threads.
struct Waiting {
    simulation: Simulation,
    collector: Collector,
    queue_pair: QueuePair,
    _receives: SharedReceiveQueue,
}

impl Waiting {
    /// Makes one. The first receive has another wait.
    fn new(first: impl FnOnce(PreparedWait)) -> Self {
        let simulation = Simulation::new().unwrap();
        let device = Device::software().unwrap();
        let pd = ProtectionDomain::new(&device).unwrap();
        let receives = SharedReceiveQueue::new(&pd, 4).unwrap();
        (0..2).for_each(|wr_id| receives.post_recv(&[], wr_id).unwrap());
        let config = QueuePairConfig::default().shared_receive_queue(&receives);
        let queue_pair = QueuePair::new(&pd, config).unwrap();
        queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        let collector = Collector::new(&device).unwrap();
        first(queue_pair.recv_cq().prepare_wait().unwrap());
        assert_eq!(collector.collect([queue_pair.recv_cq().prepare_wait().unwrap()]).unwrap(), 1);
        queue_pair.abort().unwrap();
        Waiting { simulation, collector, queue_pair, _receives: receives }
    }

    fn is_released(&self) {
        let start = Instant::now();
        while self.collector.word().load().unwrap() < 1 {
            assert!(start.elapsed() < LONG, "the wait is never released");
            self.simulation.advance_to(start.elapsed());
            self.simulation.step();
        }
    }
}

#[test]
fn a_reset_releases_the_word_and_its_entry_can_be_waited_for_again() {
    let waiting = Waiting::new(drop);
    // Before the library's thread has seen the failure.
    waiting.queue_pair.reset().unwrap();
    assert_eq!(waiting.queue_pair.recv_cq().prepare_wait().unwrap().index(), 0);
    waiting.is_released();
}

#[test]
fn a_reset_that_a_stream_blocks_leaves_the_release_of_the_word() {
    let (stream, _steps) = SoftStream::stepped();
    let stream = Stream::new(stream).unwrap();
    let waiting = Waiting::new(|wait| assert!(stream.post(Batch::new().wait(wait)).is_ok()));
    let refused = waiting.queue_pair.reset().unwrap_err();
    assert!(matches!(refused, ResetError::Blocked { blocker: ResetBlocker::ReceiveWaits, .. }), "{refused}");
    waiting.is_released();
}

fn reaches(collector: &Collector, number: u64) {
    let start = Instant::now();
    while collector.word().load().unwrap() < number {
        assert!(start.elapsed() < LONG, "number {number} never comes");
        std::thread::yield_now();
    }
}

#[test]
fn a_collector_goes_on_though_its_own_queue_has_failed() {
    let device = Device::software().unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let peer = queue_pair(&pd, crate::verbs::DEFAULT_PORT).unwrap();
    let collector = Collector::new(&device).unwrap();
    for number in 1..=12 {
        if number % 3 == 1 {
            // As when the card reports an error of it.
            collector.inner.state.lock().queue_pair.abort().unwrap();
        }
        peer.post_send(WorkRequest::nop()).unwrap();
        let wait = peer.send_cq().prepare_wait().unwrap();
        assert_eq!(collector.collect([wait]).unwrap(), number);
        reaches(&collector, number);
        assert_eq!(crate::qp::testing::poll(&peer.send_cq()).status, Ok(()));
    }
}
