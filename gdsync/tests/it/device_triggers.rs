//! Triggers and collectors through the device header, by threads of the CPU.

use crate::device_calls::calls;
use gdsync::advanced::Collector;
use gdsync::device::{CollectorData, TriggerData};
use gdsync::stream::Cpu;
use gdsync::verbs::Provider;
use gdsync::{
    Access, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, Trigger,
    WorkRequest,
};
use gdsync_test_support::device::{Ended, run_sanitized};
use gdsync_test_support::pair::{self, LONG, poll};
use std::time::Duration;

/// Peers of a step, each with a queue pair.
const PEERS: usize = 4;

/// Queue pairs that one trigger releases, and a collector of their completions.
struct Steps {
    device: Device,
    trigger: Trigger,
    collector: Collector,
    pairs: Vec<(QueuePair, QueuePair)>,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Steps {
    fn new() -> Self {
        let device = pair::device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let (trigger, collector) = (Trigger::new(&pd).unwrap(), Collector::new(&device).unwrap());
        let region = || MemoryRegion::allocate(&pd, 8 * PEERS, Access::all()).unwrap();
        let (source, target) = (region(), region());
        let connected = |_| {
            let config = QueuePairConfig::default().send_depth(64);
            let left = pair::queue_pair(&pd, config.trigger(&trigger)).unwrap();
            let right = pair::queue_pair(&pd, config).unwrap();
            left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            (left, right)
        };
        let pairs = (0..PEERS).map(connected).collect();
        Steps { device, trigger, collector, pairs, source, target }
    }

    /// Prepares a write to each peer, and makes the card wait for all. Returns the ticket that releases them, and the
    /// number of their arrival.
    fn prepare(&self) -> (u64, u64) {
        let write = |(peer, (left, _)): (usize, &(QueuePair, QueuePair))| {
            let range = 8 * peer..8 * peer + 8;
            let slices = [self.source.slice(range.clone()).unwrap()];
            let to = self.target.remote().slice(range).unwrap();
            left.prepare(WorkRequest::write(&slices, to)).unwrap().into_ticket().unwrap()
        };
        let ticket = self.pairs.iter().enumerate().map(write).max().unwrap();
        let waits: Vec<_> =
            self.pairs.iter().map(|(left, _)| left.send_cq().prepare_wait().unwrap()).collect();
        (ticket, self.collector.collect(waits).unwrap())
    }

    fn polls(&self) {
        self.pairs.iter().for_each(|(left, _)| assert_eq!(poll(&left.send_cq()).status, Ok(())));
    }
}

#[test]
fn threads_release_steps_and_wait_for_their_arrival() {
    let Some(calls) = calls("threads_release_steps_and_wait_for_their_arrival") else { return };
    let steps = Steps::new();
    let trigger = steps.trigger.for_kernels(&Cpu::new()).unwrap();
    let collector = steps.collector.for_kernels(&Cpu::new()).unwrap();
    assert_eq!(trigger, TriggerData { word: steps.trigger.address() });
    assert_eq!(collector, CollectorData { word: steps.collector.word().address() });
    assert_eq!((size_of_val(&trigger), size_of_val(&collector)), (8, 8));
    for step in 1..=200u64 {
        let (ticket, number) = steps.prepare();
        for peer in 0..PEERS {
            steps.source.word64(8 * peer).unwrap().store(step << 8 | peer as u64);
        }
        assert_eq!(calls.wait_arrivals(&collector, number, Duration::from_micros(10)), Ended::TimedOut);
        calls.release(&trigger, ticket);
        assert_eq!(calls.wait_arrivals(&collector, number, LONG), Ended::Ok);
        for peer in 0..PEERS {
            assert_eq!(steps.target.word64(8 * peer).unwrap().load(), step << 8 | peer as u64);
        }
        steps.polls();
    }
    if steps.device.provider() == Provider::Software {
        let own = |qpn| steps.pairs.iter().any(|(left, _)| Some(left.number()) == qpn);
        let mut complaints = softhca::verbs::diagnostics();
        complaints.retain(|one| one.qpn.is_some_and(|qpn| own(Some(qpn))));
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

#[test]
fn steps_are_prepared_ahead_and_released_one_after_the_other() {
    let Some(calls) = calls("steps_are_prepared_ahead_and_released_one_after_the_other") else { return };
    let steps = Steps::new();
    let trigger = steps.trigger.for_kernels(&Cpu::new()).unwrap();
    let collector = steps.collector.for_kernels(&Cpu::new()).unwrap();
    for turn in 0..10u64 {
        let prepared: Vec<(u64, u64)> = (0..20).map(|_| steps.prepare()).collect();
        for (at, (ticket, number)) in (1..).zip(prepared) {
            let step = turn * 20 + at;
            assert_eq!((ticket, number), (step * PEERS as u64, step));
            for peer in 0..PEERS {
                steps.source.word64(8 * peer).unwrap().store(step << 8 | peer as u64);
            }
            assert_eq!(steps.collector.word().load().unwrap(), step - 1);
            calls.release(&trigger, ticket);
            assert_eq!(calls.wait_arrivals(&collector, number, LONG), Ended::Ok);
            for peer in 0..PEERS {
                assert_eq!(steps.target.word64(8 * peer).unwrap().load(), step << 8 | peer as u64);
            }
        }
        (0..20).for_each(|_| steps.polls());
    }
}

#[test]
fn a_step_of_which_a_peer_fails_arrives_too() {
    let Some(calls) = calls("a_step_of_which_a_peer_fails_arrives_too") else { return };
    let steps = Steps::new();
    let trigger = steps.trigger.for_kernels(&Cpu::new()).unwrap();
    let collector = steps.collector.for_kernels(&Cpu::new()).unwrap();
    let (ticket, number) = steps.prepare();
    steps.pairs[1].0.abort().unwrap();
    calls.release(&trigger, ticket);
    assert_eq!(calls.wait_arrivals(&collector, number, LONG), Ended::Ok);
    let failed: Vec<bool> =
        steps.pairs.iter().map(|(left, _)| poll(&left.send_cq()).status.is_err()).collect();
    assert_eq!(failed, [false, true, false, false]);
}

#[test]
fn triggers_and_arrivals_have_no_races() {
    run_sanitized("triggers_and_arrivals_have_no_races", "gdsync/tests/device/triggers.cpp", &["2000"]);
}
