//! Streams whose timeline word, of 32 bits, has wrapped around. The tests advance a stream as if it had passed that
//! many submissions.

use super::{SoftStream, Stream};
use crate::memory::TimelinePoint;
use crate::qp::testing::{LONG, poll};
use crate::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig,
    WorkRequest,
};

/// A quarter of the word's range: less than may be between two reads of the word.
const QUARTER: u32 = 1 << 30;

struct Rig {
    left: QueuePair,
    _right: QueuePair,
    target: MemoryRegion,
    stream: Stream<SoftStream>,
}

impl Rig {
    fn new() -> Self {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let config = QueuePairConfig::default().send_depth(4);
        let (left, right) = (QueuePair::new(&pd, config).unwrap(), QueuePair::new(&pd, config).unwrap());
        left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        let target = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
        Rig { left, _right: right, target, stream: Stream::new(SoftStream::new().unwrap()).unwrap() }
    }

    fn write(&self) -> WorkRequest<'static> {
        WorkRequest::write_inline(b"x", self.target.remote())
    }

    fn exchange(&self) -> Batch {
        let send = self.left.prepare(self.write()).unwrap();
        Batch::new().send(send).wait(self.left.send_cq().prepare_wait().unwrap())
    }

    fn synchronize(&self) {
        assert!(self.stream.synchronize_timeout(LONG).unwrap(), "the stream is stuck: {:?}", self.stream);
    }

    /// Advances the idle stream by that many submissions.
    fn advance(&self, points: u32) {
        let mut state = self.stream.lock();
        state.issued = TimelinePoint(state.issued.0.wrapping_add(points.into()));
        self.stream.engine.timeline.declare_passed(state.issued);
        self.stream.engine.timeline.progress();
    }
}

#[test]
fn a_completion_that_is_polled_after_half_a_lap_frees_its_place() {
    let rig = Rig::new();
    rig.stream.post(rig.exchange()).unwrap();
    rig.synchronize();
    (0..3).for_each(|_| rig.advance(QUARTER));
    let queue = rig.left.send_cq();
    assert!(queue.poll_unawaited().unwrap().is_some(), "the stream has no more to look at it");
    for _ in 0..4 * queue.entries() {
        rig.left.post_send(rig.write()).unwrap();
        assert_eq!(poll(&queue).status, Ok(()));
    }
}

#[test]
fn a_send_that_was_passed_half_a_lap_ago_keeps_nothing_out() {
    let rig = Rig::new();
    rig.stream.post_send(rig.left.prepare(rig.write().unsignaled()).unwrap()).unwrap();
    rig.synchronize();
    (0..3).for_each(|_| rig.advance(QUARTER));
    rig.left.post_send(rig.write()).unwrap();
    assert_eq!(poll(&rig.left.send_cq()).status, Ok(()));
}

#[test]
fn a_stream_goes_on_where_its_word_begins_again() {
    let rig = Rig::new();
    (0..3).for_each(|_| rig.advance(QUARTER));
    rig.advance(QUARTER - 150);
    for _ in 0..300 {
        rig.stream.post(rig.exchange()).unwrap();
        rig.stream.post_send(rig.left.prepare(rig.write()).unwrap()).unwrap();
        rig.synchronize();
        (0..2).for_each(|_| assert_eq!(poll(&rig.left.send_cq()).status, Ok(())));
        assert_eq!(rig.stream.outstanding(), 0);
    }
    assert!(rig.stream.lock().issued.get() < 1000, "the word has gone around");
}
