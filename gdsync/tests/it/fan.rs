//! Queue pairs that one trigger releases, shared by the tests of triggers and of their masters.

use gdsync::advanced::MasterConfig;
use gdsync::memop::{Condition, Word32};
use gdsync::queue::QueueFull;
use gdsync::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, PinnedMemory, PreparedSend, ProtectionDomain,
    QueueError, QueuePair, QueuePairConfig, Trigger, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, poll, soft};
use std::time::Instant;

/// Queue pairs that one trigger releases, each with a remote side, and memory of 8 bytes for each.
pub(crate) struct Fan {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) trigger: Trigger,
    pub(crate) pairs: Vec<(QueuePair, QueuePair)>,
    pub(crate) target: MemoryRegion,
}

impl Fan {
    /// Without a master, and with one.
    pub(crate) fn both(peers: usize) -> [Fan; 2] {
        [Fan::new(peers, None), Fan::new(peers, Some(MasterConfig::default()))]
    }

    pub(crate) fn new(peers: usize, master: Option<MasterConfig>) -> Self {
        let device = pair::device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let trigger = Trigger::new(&pd).unwrap();
        let trigger = match master {
            Some(master) => trigger.with_master(master).unwrap(),
            None => trigger,
        };
        let target = MemoryRegion::allocate(&pd, peers * 8, Access::all()).unwrap();
        let mut fan = Fan { device, pd, trigger, pairs: Vec::new(), target };
        for _ in 0..peers {
            let pair = fan.pair();
            fan.pairs.push(pair);
        }
        fan
    }

    pub(crate) fn pair(&self) -> (QueuePair, QueuePair) {
        let config = QueuePairConfig::default().send_depth(16).recv_depth(16);
        let left = pair::queue_pair(&self.pd, config.trigger(&self.trigger)).unwrap();
        let right = pair::queue_pair(&self.pd, config).unwrap();
        connect(&left, &right);
        (left, right)
    }

    pub(crate) fn left(&self, peer: usize) -> &QueuePair {
        &self.pairs[peer].0
    }

    /// A write of a number to a peer's place. A master has room again when its card has reported enough releases,
    /// which may be after the sends have completed.
    pub(crate) fn send(&self, peer: usize, number: u64) -> PreparedSend {
        let deadline = Instant::now() + LONG;
        loop {
            match self.try_send(peer, number) {
                Err(QueueError::Full(QueueFull::Master { .. })) if Instant::now() < deadline => {
                    std::thread::yield_now();
                }
                send => return send.unwrap(),
            }
        }
    }

    pub(crate) fn try_send(&self, peer: usize, number: u64) -> Result<PreparedSend, QueueError> {
        let place = self.target.remote().slice(peer * 8..peer * 8 + 8).unwrap();
        let bytes = number.to_le_bytes();
        self.left(peer).prepare(WorkRequest::write_inline(&bytes, place).wr_id(number))
    }

    /// A write of a number to each peer, and a wait for each.
    pub(crate) fn step(&self, number: u64) -> Batch {
        let peers = 0..self.pairs.len();
        let sends = peers.fold(Batch::new(), |batch, peer| batch.send(self.send(peer, number)));
        let waits = self.pairs.iter().map(|(left, _)| left.send_cq().prepare_wait().unwrap());
        waits.fold(sends, Batch::wait)
    }

    pub(crate) fn value(&self, peer: usize) -> u64 {
        self.target.word64(peer * 8).unwrap().load()
    }

    pub(crate) fn completes(&self, peer: usize, number: u64) {
        let completion = poll(&self.left(peer).send_cq());
        assert_eq!((completion.wr_id, completion.status), (number, Ok(())));
    }
}

pub(crate) fn connect(left: &QueuePair, right: &QueuePair) {
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
}

/// A stream that waits for a word, and the word.
pub(crate) fn gated() -> (gdsync::Stream<gdsync::SoftStream>, Word32) {
    let stream = soft();
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    (stream, gate)
}
