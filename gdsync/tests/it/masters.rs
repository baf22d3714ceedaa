//! Sends that a trigger's master releases. `triggers` tests the common behaviour of triggers with and without a master.

use crate::fan::{Fan, connect, gated};
use gdsync::advanced::MasterConfig;
use gdsync::memop::Condition;
use gdsync::queue::{FailureCause, OrderError, QueueFull, StateError};
use gdsync::verbs::{OutOfRange, QueuePairError};
use gdsync::{
    Access, Batch, Device, Error, MemoryRegion, PreparedSend, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, Trigger, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, content, poll, soft, synchronize};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, skipped};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(20);

fn fan(peers: usize) -> Fan {
    Fan::new(peers, Some(MasterConfig::default()))
}

/// A batch of sends.
fn batch(sends: impl IntoIterator<Item = PreparedSend>) -> Batch {
    sends.into_iter().fold(Batch::new(), Batch::send)
}

/// The strict card has found no release that is late, or by two masters.
fn no_release_was_wrong() {
    if !on_system() {
        let found = softhca::verbs::diagnostics();
        let wrong: Vec<_> = found.iter().filter(|found| found.field.starts_with("SEND_EN")).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// Brings both sides of a pair back to work, whatever their streams have outstanding.
fn reuse((left, right): &(QueuePair, QueuePair)) {
    let deadline = Instant::now() + LONG;
    [left, right].iter().for_each(|side| side.abort().unwrap());
    for side in [left, right] {
        while let Err(error) = side.reset() {
            assert!(Instant::now() < deadline, "{error}");
            while side.send_cq().poll().unwrap().is_some() {}
            while side.recv_cq().poll().unwrap().is_some() {}
        }
    }
    connect(left, right);
}

#[test]
fn a_masters_queue_pairs_are_as_deep_as_asked_for() {
    let fan = fan(1);
    let sends: Vec<_> = (0..16).map(|number| fan.send(0, number)).collect();
    soft().post(batch(sends)).unwrap();
    (0..16).for_each(|number| fan.completes(0, number));
}

#[test]
fn many_peers_go_by_one_word_for_many_laps_of_the_masters_ring() {
    let fan = Fan::new(12, Some(MasterConfig::default().sends(20)));
    let stream = soft();
    for round in 1..=400u64 {
        let sends: Vec<_> = (0..12).map(|peer| fan.send(peer, round)).collect();
        let mut batch = batch(sends);
        for peer in 0..12 {
            batch = batch.wait(fan.left(peer).send_cq().prepare_wait().unwrap());
        }
        stream.post(batch).unwrap();
        synchronize(&stream);
        (0..12).for_each(|peer| fan.completes(peer, round));
        assert!((0..12).all(|peer| fan.value(peer) == round));
    }
}

#[test]
fn a_master_that_is_full_says_so_and_loses_nothing() {
    for sends in [1, 2, 3, 7, 16, 17, 40] {
        let fan = Fan::new(3, Some(MasterConfig::default().sends(sends)));
        let stream = soft();
        let mut number = 0;
        for _ in 0..6 {
            let mut prepared = Vec::new();
            let first = number;
            let deadline = Instant::now() + LONG;
            // Released sends free their places when the card has reported them.
            while prepared.len() < sends as usize {
                match fan.try_send(number as usize % 3, number) {
                    Ok(send) => {
                        prepared.push(send);
                        number += 1;
                    }
                    Err(QueueError::Full(QueueFull::Master { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
                assert!(Instant::now() < deadline, "{} of {sends}", prepared.len());
            }
            let error = loop {
                match fan.try_send(number as usize % 3, number) {
                    Ok(send) => {
                        prepared.push(send);
                        number += 1;
                    }
                    Err(error) => break error,
                }
            };
            let most = sends + (sends / 16).max(1) - 1;
            assert_eq!(error, QueueError::Full(QueueFull::Master { sends: most }));
            assert!(prepared.len() <= most as usize, "{error}");
            stream.post(batch(prepared)).unwrap();
            (first..number).for_each(|number| fan.completes(number as usize % 3, number));
        }
        // The refused work left no place occupied.
        assert!((0..3).all(|peer| fan.left(peer).send_cq().poll().unwrap().is_none()));
    }
}

#[test]
fn a_slave_starts_anew_while_others_have_tickets_outstanding() {
    let fan = fan(3);
    let before_them = soft();
    for round in 0..20u64 {
        let (stream, gate) = gated();
        let number = 100 * round;
        // From another position of the rings each time, and with more blocks than the new life has.
        for ahead in 0..round % 4 {
            before_them.post_send(fan.send(0, number + ahead)).unwrap();
            fan.completes(0, number + ahead);
        }
        synchronize(&before_them);
        let before = fan.value(0);
        let sends: Vec<_> = (0..9).map(|i| fan.send(i % 3, number + 10 + i as u64)).collect();
        stream.post(batch(sends)).unwrap();
        reuse(&fan.pairs[0]);
        // Its new blocks have the old ones' indices.
        let new = fan.send(0, number + 50);
        let newer = fan.send(0, number + 51);
        assert!(!stream.synchronize_timeout(Duration::from_millis(2)).unwrap());
        gate.store(1);
        for i in [1, 2, 4, 5, 7, 8] {
            fan.completes(i % 3, number + 10 + i as u64);
        }
        synchronize(&stream);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(fan.value(0), before, "neither the old ones nor the new ones went");
        assert!(fan.left(0).send_cq().poll().unwrap().is_none());
        stream.post_send(new).unwrap();
        fan.completes(0, number + 50);
        assert_eq!(fan.value(0), number + 50);
        stream.post_send(newer).unwrap();
        fan.completes(0, number + 51);
        synchronize(&stream);
    }
    no_release_was_wrong();
}

#[test]
fn a_slave_is_destroyed_while_it_and_others_have_tickets_outstanding() {
    let mut fan = fan(3);
    for round in 0..20u64 {
        let (stream, gate) = gated();
        let sends: Vec<_> = (0..6).map(|i| fan.send(i % 3, round * 10 + i as u64)).collect();
        let kept = fan.send(1, round * 10 + 6);
        let gone = fan.send(round as usize % 3, 9999);
        stream.post(batch(sends)).unwrap();
        drop(gone);
        // Once the batch has passed, its queue pair is dropped, together with its blocks in the master's queue.
        let victim = round as usize % 3;
        let pair = fan.pair();
        drop(std::mem::replace(&mut fan.pairs[victim], pair));
        gate.store(1);
        synchronize(&stream);
        for i in (0..6).filter(|i| i % 3 != victim) {
            fan.completes(i % 3, round * 10 + i as u64);
        }
        let new = fan.send(victim, round * 10 + 7);
        if victim == 1 {
            assert!(stream.post_send(kept).is_err(), "its queue pair was dropped");
        } else {
            stream.post_send(kept).unwrap();
            fan.completes(1, round * 10 + 6);
        }
        stream.post_send(new).unwrap();
        fan.completes(victim, round * 10 + 7);
        assert_eq!(fan.value(victim), round * 10 + 7);
        synchronize(&stream);
    }
}

#[test]
fn tickets_that_nothing_releases_end_with_their_queue_pairs() {
    for _ in 0..10 {
        let fan = fan(4);
        for peer in 0..4 {
            fan.send(peer, 1).into_ticket().unwrap();
        }
        let Fan { trigger, pairs, target, .. } = fan;
        drop(trigger);
        drop(pairs);
        assert_eq!(content(&target), [0; 32]);
    }
}

#[test]
fn an_abort_flushes_what_the_master_has_not_released() {
    let fan = fan(2);
    let waiting = soft();
    let (kept, other) = (fan.send(0, 1), fan.send(1, 2));
    let behind = fan.send(0, 3);
    let waits = [0, 1].map(|_| fan.left(0).send_cq().prepare_wait().unwrap());
    waiting.post(waits.into_iter().fold(Batch::new(), Batch::wait)).unwrap();
    assert!(!waiting.synchronize_timeout(SHORT).unwrap());
    fan.left(0).abort().unwrap();
    synchronize(&waiting);
    for wr_id in [1, 3] {
        let flushed = poll(&fan.left(0).send_cq());
        assert!(flushed.wr_id == wr_id && flushed.status.unwrap_err().is_flush());
    }
    drop((kept, behind));
    soft().post_send(other).unwrap();
    fan.completes(1, 2);
    assert_eq!((fan.value(0), fan.value(1)), (0, 2));
}

#[test]
fn the_cpu_posts_on_a_slave_while_nothing_of_the_masters_is_outstanding() {
    let fan = fan(2);
    let place = fan.target.remote().slice(..8).unwrap();
    let post = |number: u64| {
        let bytes = number.to_le_bytes();
        fan.left(0).post_send(WorkRequest::write_inline(&bytes, place).wr_id(number))
    };
    let other = |error| {
        assert!(matches!(error, QueueError::Order(OrderError::MixedCpuAndMasterSends { .. })), "{error}")
    };
    for round in 0..50u64 {
        let number = round * 10;
        post(number + 1).unwrap();
        other(fan.try_send(0, number + 2).unwrap_err());
        fan.completes(0, number + 1);
        let ticket = fan.send(0, number + 2).into_ticket().unwrap();
        other(post(number + 3).unwrap_err());
        // Other queue pairs are unaffected.
        let next = fan.send(1, number).into_ticket().unwrap();
        assert_eq!(fan.value(0), number + 1, "neither has released the send");
        fan.trigger.release(ticket).unwrap();
        fan.completes(0, number + 2);
        post(number + 3).unwrap();
        fan.completes(0, number + 3);
        fan.trigger.release(next).unwrap();
        fan.completes(1, number);
    }
}

#[test]
fn a_kernel_would_release_what_it_has_the_ticket_of() {
    let fan = fan(8);
    for round in 1..=30u64 {
        let tickets: Vec<u64> = (0..8).map(|peer| fan.send(peer, round).into_ticket().unwrap()).collect();
        // All of the first half by one store.
        for (half, peers) in [(3, 0..4), (7, 4..8)] {
            fan.trigger.release(tickets[half]).unwrap();
            peers.for_each(|peer| fan.completes(peer, round));
        }
    }
}

/// Random work, in which every send that is released arrives, in order, and no other send does.
#[test]
fn random_steps_of_many_slaves_release_what_is_posted_and_nothing_else() {
    if crate::lacks_order("random_steps_of_many_slaves_release_what_is_posted_and_nothing_else") {
        return;
    }
    let mut fan = Fan::new(5, Some(MasterConfig::default().sends(24)));
    let stream = soft();
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut prepared: Vec<(usize, u64, PreparedSend)> = Vec::new();
    // The expected content of each place.
    let mut values = [0; 5];
    let mut number = 0;
    for _ in 0..1500 {
        let peer = random(5) as usize;
        match random(20) {
            0..=9 => {
                number += 1;
                match fan.try_send(peer, number) {
                    Ok(send) => prepared.push((peer, number, send)),
                    Err(QueueError::Full(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            10..=12 if !prepared.is_empty() => {
                drop(prepared.remove(random(prepared.len() as u64) as usize));
            }
            13..=17 => {
                let count = random(prepared.len() as u64 + 1) as usize;
                let posted: Vec<_> = prepared.drain(..count).collect();
                let numbers: Vec<_> = posted.iter().map(|(peer, number, _)| (*peer, *number)).collect();
                stream.post(batch(posted.into_iter().map(|(.., send)| send))).unwrap();
                for (peer, number) in numbers {
                    fan.completes(peer, number);
                    values[peer] = number;
                }
            }
            18 => {
                prepared.retain(|(of, ..)| *of != peer);
                reuse(&fan.pairs[peer]);
            }
            19 => {
                prepared.retain(|(of, ..)| *of != peer);
                fan.pairs[peer] = fan.pair();
            }
            _ => {}
        }
        for (peer, value) in values.iter().enumerate() {
            assert_eq!(fan.value(peer), *value, "{peer}");
        }
    }
    no_release_was_wrong();
}

#[test]
fn masters_that_cannot_be_are_refused() {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    for sends in [0, 3073, u32::MAX] {
        let error = Trigger::new(&pd).unwrap().with_master(MasterConfig::default().sends(sends)).unwrap_err();
        assert!(matches!(error, Error::OutOfRange(OutOfRange { .. })), "{error}");
        assert!(error.to_string().contains(&format!("is {sends}, but a master holds from 1 to 3072")));
    }
    let trigger = Trigger::new(&pd).unwrap();
    let queue_pair = pair::queue_pair(&pd, QueuePairConfig::default().trigger(&trigger)).unwrap();
    let error = trigger.with_master(MasterConfig::default()).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::TriggerInUse)), "{error}");
    drop(queue_pair);
    // The largest and the smallest possible.
    for sends in [1, 3072] {
        let fan = Fan::new(1, Some(MasterConfig::default().sends(sends)));
        soft().post_send(fan.send(0, 5)).unwrap();
        fan.completes(0, 5);
    }
}

#[test]
fn a_card_that_does_not_wait_has_no_masters() {
    let test = "a_card_that_does_not_wait_has_no_masters";
    if on_system() {
        return skipped(test, "settings of the software provider");
    }
    if !alone(module_path!(), test, &[("SOFTHCA_WAITS", "off")]) {
        return;
    }
    let device = Device::software().unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let error = Trigger::new(&pd).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::NoCardWaits { .. })), "{error}");
}

#[test]
fn a_failed_slave_is_no_ones_but_its_own() {
    let fan = fan(3);
    let (stream, gate) = gated();
    let mut wrong = fan.target.remote().slice(..8).unwrap();
    wrong.rkey ^= 0x55;
    let bad = fan.left(0).prepare(WorkRequest::write_inline(b"nowhere!", wrong).wr_id(1)).unwrap();
    let sends = [bad, fan.send(1, 2), fan.send(0, 3), fan.send(2, 4), fan.send(0, 5)];
    let waits = [0, 0, 0, 1, 2].map(|peer| fan.left(peer).send_cq().prepare_wait().unwrap());
    stream.post(waits.into_iter().fold(batch(sends), Batch::wait)).unwrap();
    gate.store(1);
    synchronize(&stream);
    fan.completes(1, 2);
    fan.completes(2, 4);
    assert!(!poll(&fan.left(0).send_cq()).status.unwrap_err().is_flush());
    for _ in 0..2 {
        assert!(poll(&fan.left(0).send_cq()).status.unwrap_err().is_flush());
    }
    assert!(matches!(fan.left(0).failure(), Some(FailureCause::Work(_))));
    let error = fan.try_send(0, 6).unwrap_err();
    assert!(matches!(error, QueueError::State(StateError::Failed { .. })), "{error}");
    reuse(&fan.pairs[0]);
    stream.post(batch([fan.send(0, 7), fan.send(1, 8)])).unwrap();
    fan.completes(0, 7);
    fan.completes(1, 8);
}

#[test]
fn queue_pairs_of_one_trigger_share_a_completion_queue() {
    let device = pair::device();
    let pd = ProtectionDomain::new(&device).unwrap();
    let trigger = Trigger::new(&pd).unwrap().with_master(MasterConfig::default()).unwrap();
    let shared = pair::completion_queue(&device, 256).unwrap();
    let target = MemoryRegion::allocate(&pd, 64, Access::all()).unwrap();
    let config = QueuePairConfig::default().send_depth(8).trigger(&trigger);
    let pairs: Vec<_> = (0..8)
        .map(|_| {
            let left = pair::sharing(&pd, config, &shared, &shared).unwrap();
            let right = pair::queue_pair(&pd, QueuePairConfig::default()).unwrap();
            connect(&left, &right);
            (left, right)
        })
        .collect();
    let stream = soft();
    for round in 1..=50u64 {
        let bytes = round.to_le_bytes();
        let sends = pairs.iter().enumerate().map(|(peer, (left, _))| {
            let place = target.remote().slice(peer * 8..peer * 8 + 8).unwrap();
            left.prepare(WorkRequest::write_inline(&bytes, place)).unwrap()
        });
        let sends: Vec<_> = sends.collect();
        let waits: Vec<_> = pairs.iter().map(|_| shared.prepare_wait().unwrap()).collect();
        let word = target.word64(56).unwrap();
        let batch = waits.into_iter().fold(batch(sends), Batch::wait);
        stream.post(batch.wait_value64(&word, Condition::Eq, round)).unwrap();
        synchronize(&stream);
        for _ in &pairs {
            assert_eq!(poll(&shared).status, Ok(()));
        }
        assert!((0..8).all(|peer| target.word64(peer * 8).unwrap().load() == round));
    }
}
