//! Failures of masters, and their internal state. On the provider that GDSYNC_TEST_PROVIDER names, as the
//! integration tests are.

use super::*;
use crate::qp::testing::{LONG, poll};
use crate::queue::FailureCause;
use crate::verbs::provider;
use crate::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, PreparedSend, QueuePairConfig, SoftStream, Stream,
    Trigger,
};
use std::time::Instant;

/// Slaves, each connected to itself.
struct Rig {
    trigger: Trigger,
    slaves: Vec<QueuePair>,
    region: MemoryRegion,
    stream: Stream<SoftStream>,
}

fn rig(slaves: usize) -> Rig {
    let system = std::env::var_os("GDSYNC_TEST_PROVIDER").is_some_and(|name| name == "system");
    let api = if system { provider::system().unwrap() } else { provider::software() };
    let pd = ProtectionDomain::new(&Device::open(api, None).unwrap()).unwrap();
    let trigger = Trigger::new(&pd).unwrap().with_master(MasterConfig::default().sends(16)).unwrap();
    let config = QueuePairConfig::default().send_depth(16).trigger(&trigger);
    let slaves: Vec<QueuePair> = (0..slaves).map(|_| QueuePair::new(&pd, config).unwrap()).collect();
    slaves.iter().for_each(connect);
    let region = MemoryRegion::allocate(&pd, 8 * slaves.len(), Access::all()).unwrap();
    Rig { trigger, slaves, region, stream: Stream::new(SoftStream::new().unwrap()).unwrap() }
}

fn connect(slave: &QueuePair) {
    slave.connect(&slave.endpoint().unwrap(), ConnectOptions::default()).unwrap();
}

impl Rig {
    fn master(&self) -> &Master {
        self.trigger.inner.master.as_ref().unwrap()
    }

    fn send(&self, slave: usize, number: u64) -> Result<PreparedSend, QueueError> {
        let place = self.region.remote().slice(8 * slave..8 * slave + 8).unwrap();
        self.slaves[slave].prepare(WorkRequest::write_inline(&number.to_le_bytes(), place).wr_id(number))
    }

    fn goes(&self, slave: usize, number: u64) {
        self.stream.post_send(self.send(slave, number).unwrap()).unwrap();
        let completion = poll(&self.slaves[slave].send_cq());
        assert_eq!((completion.wr_id, completion.status), (number, Ok(())));
        assert_eq!(self.region.word64(8 * slave).unwrap().load(), number);
    }

    /// Waits until the slaves have failed because of their master, and until it has restarted.
    fn fails(&self, slaves: &[usize], starts: u64) {
        let deadline = Instant::now() + LONG;
        let failed = |slave: &usize| self.slaves[*slave].failure() == Some(FailureCause::Master);
        while !slaves.iter().all(failed) || self.master().state.lock().starts < starts {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    fn reuse(&self, slave: usize) {
        let slave = &self.slaves[slave];
        let deadline = Instant::now() + LONG;
        while let Err(error) = slave.reset() {
            assert!(Instant::now() < deadline, "{error}");
            while slave.send_cq().poll().unwrap().is_some() {}
        }
        connect(slave);
    }
}

#[test]
fn a_masters_room_has_blocks_for_whatever_it_holds() {
    for sends in 1..=MOST_SENDS {
        let capacity = Capacity::new(sends);
        assert!(capacity.pending >= sends && capacity.blocks <= 8192, "{capacity:?}");
        // Pending sends that were released are between the last completed marker and the next.
        assert!(capacity.pending - sends < capacity.interval);
        assert!(2 * capacity.pending + capacity.pending / capacity.interval + 2 <= capacity.blocks);
    }
}

#[test]
fn a_master_that_fails_fails_the_queue_pairs_whose_sends_it_holds() {
    let rig = rig(3);
    for round in 1..=10u64 {
        rig.goes(1, 10 * round);
        let sends = [rig.send(0, 1), rig.send(2, 2), rig.send(0, 3)].map(Result::unwrap);
        let waits = [0, 2, 0].map(|slave| rig.slaves[slave].send_cq().prepare_wait().unwrap());
        let waiting = Stream::new(SoftStream::new().unwrap()).unwrap();
        waiting.post(waits.into_iter().fold(Batch::new(), Batch::wait)).unwrap();
        let before = [0, 2].map(|slave| rig.region.word64(8 * slave).unwrap().load());
        // As after an event of the card, or a request that the card refuses.
        if round % 2 == 0 {
            let state = rig.master().state.lock();
            state.queue_pair.as_ref().unwrap().abort().unwrap();
        } else {
            let mut state = rig.master().state.lock();
            // In front, so that the card executes it: its ticket has been written.
            let pending = PendingSend { ticket: 0, slave: 0xff_fff0, until: 1, block: 0 };
            state.stop();
            let left = state.pending.take();
            state.pending.push(pending);
            left.into_iter().for_each(|pending| state.pending.push(pending));
            rig.master().start(&mut state, &rig.trigger.inner).unwrap();
        }
        rig.fails(&[0, 2], 1);
        assert!(waiting.synchronize_timeout(LONG).unwrap(), "{waiting:?}");
        for (slave, wr_id) in [(0, 1), (2, 2), (0, 3)] {
            let flushed = poll(&rig.slaves[slave].send_cq());
            assert!(flushed.wr_id == wr_id && flushed.status.unwrap_err().is_flush());
        }
        let error = rig.stream.post(sends.into_iter().fold(Batch::new(), Batch::send)).unwrap_err();
        assert!(error.to_string().contains("master of its trigger failed"), "{error}");
        drop(error);
        assert_eq!(rig.slaves[1].failure(), None);
        // The polling thread may not be finished.
        let deadline = Instant::now() + LONG;
        while rig.master().state.lock().is_broken {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        rig.goes(1, 10 * round + 1);
        assert_eq!([0, 2].map(|slave| rig.region.word64(8 * slave).unwrap().load()), before);
        [0, 2].iter().for_each(|slave| rig.reuse(*slave));
        rig.goes(0, 10 * round + 2);
        rig.goes(2, 10 * round + 3);
    }
}

#[test]
fn a_master_that_fails_and_holds_nothing_starts_again_unnoticed() {
    let rig = rig(2);
    for round in 1..=10 {
        rig.goes(0, round);
        let deadline = Instant::now() + LONG;
        while !rig.master().state.lock().pending.is_empty() {
            assert!(Instant::now() < deadline, "the thread that looks learns of every release");
            std::thread::yield_now();
        }
        let state = rig.master().state.lock();
        state.queue_pair.as_ref().unwrap().abort().unwrap();
        drop(state);
        rig.goes(1, 100 + round);
    }
    assert!(rig.slaves.iter().all(|slave| slave.failure().is_none()));
}

#[test]
fn a_send_that_cannot_be_prepared_leaves_nothing_in_either_queue() {
    let rig = rig(2);
    let heads = || {
        let state = rig.master().state.lock();
        let own = state.queue_pair.as_ref().unwrap();
        let slave = rig.slaves[0].inner.send().outstanding();
        (own.inner.send().outstanding().entries - state.markers, state.pending.len(), slave)
    };
    let kept = [rig.send(0, 1).unwrap(), rig.send(0, 2).unwrap()];
    let before = heads();
    let long = [0; 4096];
    let error = rig.slaves[0].prepare(WorkRequest::send_inline(&long)).unwrap_err();
    assert!(matches!(error, QueueError::Request(_)), "{error}");
    assert_eq!(heads(), before);
    // The failure has not been noticed, as the lock is held meanwhile.
    let state = rig.master().state.lock();
    let life = &state.queue_pair.as_ref().unwrap().inner.life;
    life.fail(&mut life.lock(), FailureCause::Aborted);
    drop(state);
    let error = rig.send(0, 3).unwrap_err();
    assert!(matches!(error, QueueError::State(StateError::MasterFailed { .. } | StateError::Failed { .. })));
    assert_eq!(rig.slaves[0].inner.send().outstanding(), before.2);
    rig.fails(&[0], 1);
    drop(kept);
    rig.reuse(0);
    rig.goes(0, 4);
    rig.goes(1, 5);
}

#[test]
fn a_reset_stops_the_master_only_for_what_it_holds_of_that_queue_pair() {
    let rig = rig(3);
    let starts = || rig.master().state.lock().starts;
    let number = rig.master().state.lock().queue_pair.as_ref().unwrap().number();
    let kept: Vec<u64> = (1..=3).map(|n| rig.send(1, n).unwrap().into_ticket().unwrap()).collect();
    rig.slaves[0].abort().unwrap();
    rig.reuse(0);
    assert_eq!(starts(), 0);
    let _ = rig.send(0, 9).unwrap().into_ticket().unwrap();
    rig.slaves[0].abort().unwrap();
    rig.reuse(0);
    let state = rig.master().state.lock();
    assert_eq!((state.starts, state.pending.len()), (1, 3));
    assert_eq!(state.queue_pair.as_ref().unwrap().number(), number);
    drop(state);
    rig.trigger.release(kept[2]).unwrap();
    for n in 1..=3 {
        let completion = poll(&rig.slaves[1].send_cq());
        assert_eq!((completion.wr_id, completion.status), (n, Ok(())));
    }
}

#[test]
fn the_thread_that_looks_ends_with_the_last_release() {
    let rig = rig(2);
    for round in 0..20 {
        rig.goes(0, round);
        let deadline = Instant::now() + LONG;
        while rig.master().state.lock().is_watched {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let state = rig.master().state.lock();
        assert!(state.pending.is_empty() && state.markers == 0);
        assert_eq!(state.queue_pair.as_ref().unwrap().inner.send().outstanding().entries, 0);
    }
}
