//! Sends that a trigger releases: one word for any number of queue pairs, its order, and sends that are dropped,
//! refused, aborted or given to the program.

use crate::fan::{Fan, connect, gated};
use gdsync::batch::BatchShape;
use gdsync::queue::{FailureCause, OrderError, StateError};
use gdsync::stream::PostFailure;
use gdsync::verbs::QueuePairError;
use gdsync::{
    Access, Batch, Error, MemoryRegion, PreparedSend, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, Trigger, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, content, cpu, drain, poll, soft, synchronize};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(20);

#[test]
fn one_word_releases_the_sends_of_many_queue_pairs_and_not_before() {
    for fan in Fan::both(16) {
        let (stream, gate) = gated();
        let sends: Vec<_> = (0..16).map(|peer| fan.send(peer, 100 + peer as u64)).collect();
        assert_eq!(
            sends.iter().map(PreparedSend::ticket).collect::<Vec<_>>(),
            (1..=16).map(Some).collect::<Vec<_>>()
        );
        // The word, and nothing else.
        let posted = stream.post(sends.into_iter().fold(Batch::new(), Batch::send)).unwrap();
        assert_eq!((posted.operations, posted.submissions), (1, 1));
        std::thread::sleep(SHORT);
        assert_eq!(content(&fan.target), [0; 128]);
        gate.store(1);
        for peer in 0..16 {
            fan.completes(peer, 100 + peer as u64);
            assert_eq!(fan.value(peer), 100 + peer as u64);
        }
    }
}

#[test]
fn rounds_of_batches_go_on_though_rings_wrap() {
    if crate::lacks_order("rounds_of_batches_go_on_though_rings_wrap") {
        return;
    }
    for fan in Fan::both(3) {
        let stream = soft();
        for round in 1..=200u64 {
            let mut batch = Batch::new();
            for peer in 0..3 {
                batch = batch.send(fan.send(peer, round)).send(fan.send(peer, round + 1000));
            }
            for peer in 0..3 {
                batch = batch.wait(fan.left(peer).send_cq().prepare_wait().unwrap());
                batch = batch.wait(fan.left(peer).send_cq().prepare_wait().unwrap());
            }
            stream.post(batch).unwrap();
            synchronize(&stream);
            for peer in 0..3 {
                fan.completes(peer, round);
                fan.completes(peer, round + 1000);
                assert_eq!(fan.value(peer), round + 1000);
            }
        }
    }
}

#[test]
fn unmerged_batches_and_lone_posts_write_each_ticket() {
    if crate::lacks_order("unmerged_batches_and_lone_posts_write_each_ticket") {
        return;
    }
    for fan in Fan::both(2) {
        let stream = soft();
        let batch = Batch::new().merged(false).send(fan.send(0, 1)).send(fan.send(1, 2));
        assert_eq!(stream.post(batch).unwrap().operations, 2);
        assert_eq!(stream.post_send(fan.send(0, 3)).unwrap().operations, 1);
        let place = fan.target.remote().slice(8..16).unwrap();
        stream
            .queue_send(fan.left(1), WorkRequest::write_inline(&4u64.to_le_bytes(), place).wr_id(4))
            .unwrap();
        synchronize(&stream);
        for (peer, number) in [(0, 1), (1, 2), (0, 3), (1, 4)] {
            fan.completes(peer, number);
        }
        assert_eq!((fan.value(0), fan.value(1)), (3, 4));
    }
}

#[test]
fn tickets_are_released_in_their_order() {
    for fan in Fan::both(2) {
        let stream = soft();
        let (first, second) = (fan.send(0, 1), fan.send(1, 2));
        let error = stream.post(Batch::new().send(second)).unwrap_err();
        let PostFailure::Queue(QueueError::Order(OrderError::TicketOutOfOrder { ticket: 2, expected: 1 })) =
            error.source
        else {
            panic!("{error}")
        };
        // Nothing is lost: it goes after the first.
        let batch = error.batch;
        stream.post_send(first).unwrap();
        stream.post(batch).unwrap();
        fan.completes(0, 1);
        fan.completes(1, 2);
    }
}

#[test]
fn a_trigger_is_one_streams_at_a_time() {
    for fan in Fan::both(2) {
        let (stream, gate) = gated();
        let other = soft();
        stream.post_send(fan.send(0, 1)).unwrap();
        let error = other.post_send(fan.send(1, 2)).unwrap_err();
        assert!(
            matches!(
                error.source,
                PostFailure::Queue(QueueError::Order(OrderError::TriggerOnOtherStream { .. }))
            ),
            "{error}"
        );
        gate.store(1);
        synchronize(&stream);
        other.post(error.batch).unwrap();
        fan.completes(0, 1);
        fan.completes(1, 2);
    }
}

#[test]
fn another_stream_may_follow_once_the_word_is_written() {
    for fan in Fan::both(2) {
        let (stream, other) = (soft(), soft());
        // Neither reports that it has passed its write.
        for number in 1..100 {
            for (peer, stream) in [(0, &stream), (1, &other)] {
                stream.post_send(fan.send(peer, number)).unwrap();
                fan.completes(peer, number);
            }
        }
    }
}

#[test]
fn a_dropped_send_does_nothing_and_the_others_go() {
    if crate::lacks_order("a_dropped_send_does_nothing_and_the_others_go") {
        return;
    }
    for dropped in 0..3 {
        for fan in Fan::both(1) {
            let mut sends: Vec<_> = (0..3).map(|i| Some(fan.send(0, 10 + i))).collect();
            let wait = fan.left(0).send_cq().prepare_wait().unwrap();
            sends[dropped] = None;
            let stream = soft();
            stream.post(sends.into_iter().flatten().fold(Batch::new(), Batch::send).wait(wait)).unwrap();
            synchronize(&stream);
            let kept: Vec<u64> = (0..3).filter(|i| *i != dropped as u64).map(|i| 10 + i).collect();
            kept.iter().for_each(|number| fan.completes(0, *number));
            assert_eq!(fan.value(0), kept[1]);
        }
    }
}

#[test]
fn dropped_sends_leave_their_queue_though_nothing_is_posted_after_them() {
    for fan in Fan::both(2) {
        // Once the card has executed the NOPs before it, there is room.
        let prepare = |peer: usize, number: u64| {
            let deadline = std::time::Instant::now() + LONG;
            loop {
                match fan.try_send(peer, number) {
                    Ok(send) => break send,
                    Err(QueueError::Full(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                assert!(fan.left(peer).send_cq().poll().unwrap().is_none());
                assert!(std::time::Instant::now() < deadline, "the queue stays full");
            }
        };
        // More than the queues hold.
        for number in 1..=100 {
            drop(prepare(number as usize % 2, number));
        }
        // A card that fetches ahead of a WAIT has performed some of them (docs/card-trigger.md): the last send
        // follows all.
        soft().post_send(prepare(1, 7)).unwrap();
        fan.completes(1, 7);
    }
}

#[test]
fn a_wait_for_a_dropped_send_ends_in_front_of_the_next_ticket() {
    let fans = || Fan::both(2).into_iter();
    for (fan, has_next) in fans().map(|fan| (fan, false)).chain(fans().map(|fan| (fan, true))) {
        let (stream, gate) = gated();
        let (posted, dropped, next) = (fan.send(0, 1), fan.send(0, 2), fan.send(1, 3));
        let waits = [(); 2].map(|()| fan.left(0).send_cq().prepare_wait().unwrap());
        stream.post(waits.into_iter().fold(Batch::new().send(posted), Batch::wait)).unwrap();
        // Its ticket must not be written before that of the first.
        drop(dropped);
        let mut next = Some(next);
        if has_next {
            stream.post_send(next.take().unwrap()).unwrap();
        }
        assert!(!stream.synchronize_timeout(SHORT).unwrap());
        assert_eq!(fan.value(0), 0);
        gate.store(1);
        synchronize(&stream);
        if let Some(next) = next {
            stream.post_send(next).unwrap();
        }
        fan.completes(0, 1);
        fan.completes(1, 3);
        assert_eq!((fan.value(0), fan.value(1)), (1, 3));
    }
}

#[test]
fn a_batch_that_is_refused_can_be_dropped() {
    for fan in Fan::both(2) {
        let stream = soft();
        let (first, second, third) = (fan.send(0, 1), fan.send(0, 2), fan.send(1, 3));
        // The third, directly after the first, is out of order.
        let error = stream.post(Batch::new().send(first).send(third)).unwrap_err();
        assert_eq!(error.posted, 0);
        std::thread::sleep(SHORT);
        assert_eq!(content(&fan.target), [0; 16]);
        // Dropped, both are NOPs, and their tickets block no other queue pair.
        drop(error);
        stream.post_send(second).unwrap();
        fan.completes(0, 2);
        stream.post_send(fan.send(1, 4)).unwrap();
        fan.completes(1, 4);
        assert_eq!((fan.value(0), fan.value(1)), (2, 4));
    }
}

#[test]
fn an_abort_ends_waits_for_sends_that_nothing_releases() {
    for fan in Fan::both(2) {
        let stream = soft();
        let (kept, other) = (fan.send(0, 1), fan.send(1, 2));
        let waiting = soft();
        waiting.post(Batch::new().wait(fan.left(0).send_cq().prepare_wait().unwrap())).unwrap();
        assert!(!waiting.synchronize_timeout(SHORT).unwrap());
        fan.left(0).abort().unwrap();
        synchronize(&waiting);
        let error = stream.post_send(kept).unwrap_err();
        assert!(matches!(
            error.source,
            PostFailure::Queue(QueueError::State(StateError::Failed { cause: FailureCause::Aborted, .. }))
        ));
        drop(error);
        // Its ticket blocks no other queue pair.
        stream.post_send(other).unwrap();
        fan.completes(1, 2);
        let flushed = poll(&fan.left(0).send_cq());
        assert!(flushed.wr_id == 1 && flushed.status.unwrap_err().is_flush());
        assert_eq!(fan.value(0), 0);
        fan.pairs[0].1.abort().unwrap();
        drain(fan.left(0));
        drain(&fan.pairs[0].1);
        connect(fan.left(0), &fan.pairs[0].1);
        stream.post_send(fan.send(0, 3)).unwrap();
        fan.completes(0, 3);
        assert_eq!(fan.value(0), 3);
    }
}

#[test]
fn dropped_sends_are_in_the_way_of_no_reset() {
    for fan in (0..20).flat_map(|_| Fan::both(2)) {
        // Its ticket keeps the others from being released.
        let kept = fan.send(1, 1);
        (0..3).for_each(|number| drop(fan.send(0, number)));
        let (left, right) = &fan.pairs[0];
        left.abort().unwrap();
        right.abort().unwrap();
        // The program has nothing outstanding: it has no completion to poll first.
        left.reset().unwrap();
        right.reset().unwrap();
        connect(left, right);
        let stream = soft();
        stream.post_send(kept).unwrap();
        stream.post_send(fan.send(0, 7)).unwrap();
        fan.completes(1, 1);
        fan.completes(0, 7);
        assert_eq!(fan.value(0), 7);
    }
}

#[test]
fn a_queue_pair_may_be_dropped_while_the_card_waits() {
    for fan in Fan::both(1) {
        let stream = soft();
        let config = QueuePairConfig::default().trigger(&fan.trigger);
        for posted in [true, false] {
            let (left, right) = (
                pair::queue_pair(&fan.pd, config).unwrap(),
                pair::queue_pair(&fan.pd, QueuePairConfig::default()).unwrap(),
            );
            connect(&left, &right);
            let request = WorkRequest::write_inline(b"kept", fan.target.remote().slice(..4).unwrap());
            let send = left.prepare(request).unwrap();
            let kept = fan.send(0, 9);
            // A prepared send keeps its queue pair, which has failed; without it, the card's WAIT ends with the queue pair.
            drop(left);
            if posted {
                let error = stream.post_send(send).unwrap_err();
                assert!(error.to_string().contains("is in the error state (aborted)"), "{error}");
            } else {
                drop(send);
            }
            stream.post_send(kept).unwrap();
            fan.completes(0, 9);
        }
    }
}

#[test]
fn the_program_releases_what_it_took_the_ticket_of() {
    for fan in Fan::both(3) {
        let tickets: Vec<u64> = (0..3).map(|peer| fan.send(peer, 5).into_ticket().unwrap()).collect();
        std::thread::sleep(SHORT);
        assert_eq!(content(&fan.target), [0; 24]);
        fan.trigger.release(tickets[1]).unwrap();
        fan.trigger.release(tickets[0]).unwrap();
        fan.completes(0, 5);
        fan.completes(1, 5);
        std::thread::sleep(SHORT);
        assert_eq!(fan.value(2), 0);
        fan.trigger.release(tickets[2]).unwrap();
        fan.completes(2, 5);
    }
}

#[test]
fn a_remote_card_pulls_the_trigger() {
    for fan in Fan::both(1) {
        let words = MemoryRegion::allocate(&fan.pd, 24, Access::all()).unwrap();
        let trigger = Trigger::in_region(&words, 8).unwrap();
        let (left, right) = (
            pair::queue_pair(&fan.pd, QueuePairConfig::default().trigger(&trigger)).unwrap(),
            pair::queue_pair(&fan.pd, QueuePairConfig::default()).unwrap(),
        );
        connect(&left, &right);
        let send = left.prepare(WorkRequest::write_inline(b"chained!", fan.target.remote())).unwrap();
        let ticket = send.into_ticket().unwrap();
        assert_eq!(trigger.address(), words.memory().addr().get() + 8);
        let bytes = Trigger::word_of(ticket).to_ne_bytes();
        right.post_send(WorkRequest::write_inline(&bytes, words.remote().slice(8..16).unwrap())).unwrap();
        assert_eq!(poll(&left.send_cq()).status, Ok(()));
        assert_eq!(content(&fan.target), *b"chained!");
    }
}

#[test]
fn an_error_behind_a_trigger_is_the_completions() {
    for fan in Fan::both(2) {
        let stream = soft();
        let mut wrong = fan.target.remote().slice(..8).unwrap();
        wrong.rkey ^= 0x55;
        let bad = fan.left(0).prepare(WorkRequest::write_inline(b"nowhere!", wrong).wr_id(1)).unwrap();
        let behind = fan.send(0, 2);
        let good = fan.send(1, 3);
        let waits = [0, 0, 1].map(|peer| fan.left(peer).send_cq().prepare_wait().unwrap());
        let batch = Batch::new().send(bad).send(behind).send(good);
        stream.post(waits.into_iter().fold(batch, Batch::wait)).unwrap();
        synchronize(&stream);
        fan.completes(1, 3);
        let failed = poll(&fan.left(0).send_cq());
        assert!(failed.wr_id == 1 && !failed.status.unwrap_err().is_flush());
        // The WAIT before it is flushed, too, and is not a completion of the program.
        let flushed = poll(&fan.left(0).send_cq());
        assert!(flushed.wr_id == 2 && flushed.status.unwrap_err().is_flush());
        assert!(fan.left(0).send_cq().poll().unwrap().is_none());
    }
}

#[test]
fn the_cpu_posts_beside_a_trigger_what_needs_none() {
    for fan in Fan::both(1) {
        let place = fan.target.remote();
        fan.left(0).post_send(WorkRequest::write_inline(&1u64.to_le_bytes(), place).wr_id(1)).unwrap();
        fan.completes(0, 1);
        let send = fan.send(0, 2);
        let error = fan.left(0).post_send(WorkRequest::write_inline(b"in front", place)).unwrap_err();
        assert!(matches!(error, QueueError::Order(OrderError::OutOfOrder { .. })), "{error}");
        cpu().post_send(send).unwrap();
        fan.completes(0, 2);
        fan.left(0).post_send(WorkRequest::write_inline(&3u64.to_le_bytes(), place).wr_id(3)).unwrap();
        fan.completes(0, 3);
    }
}

#[test]
fn a_send_from_before_a_reset_has_no_ticket_to_take() {
    for fan in Fan::both(1) {
        let (left, right) = &fan.pairs[0];
        let stale = fan.send(0, 1);
        left.abort().unwrap();
        right.abort().unwrap();
        drain(left);
        drain(right);
        connect(left, right);
        let error = stale.into_ticket().unwrap_err();
        assert!(matches!(error, QueueError::Order(OrderError::Stale { .. })), "{error}");
        let ticket = fan.send(0, 2).into_ticket().unwrap();
        fan.trigger.release(ticket).unwrap();
        fan.completes(0, 2);
        assert_eq!(fan.value(0), 2);
    }
}

#[test]
fn a_trigger_and_a_ticket_that_cannot_be_are_refused() {
    for fan in Fan::both(1) {
        let elsewhere = ProtectionDomain::new(&fan.device).unwrap();
        let refused =
            QueuePair::new(&elsewhere, QueuePairConfig::default().trigger(&fan.trigger)).unwrap_err();
        assert!(matches!(refused, Error::QueuePair(QueuePairError::OtherDomain)), "{refused}");
        for offset in [4, 8, usize::MAX - 7] {
            assert!(Trigger::in_region(&fan.target, offset).is_err(), "{offset}");
        }
        let (left, right) = (
            pair::queue_pair(&fan.pd, QueuePairConfig::default()).unwrap(),
            pair::queue_pair(&fan.pd, QueuePairConfig::default()).unwrap(),
        );
        connect(&left, &right);
        let plain = left.prepare(WorkRequest::nop()).unwrap();
        assert_eq!(plain.ticket(), None);
        let error = plain.into_ticket().unwrap_err();
        assert!(matches!(error, QueueError::State(StateError::NoTrigger { .. })), "{error}");
        let error = fan.send(0, 1).give_to_kernel().unwrap_err();
        assert!(matches!(error, QueueError::State(StateError::Triggered { .. })), "{error}");
        let (first, second) = (fan.send(0, 2), fan.send(0, 3));
        assert!(matches!(
            second.into_ticket().unwrap_err(),
            QueueError::Order(OrderError::TicketOutOfOrder { .. })
        ));
        first.into_ticket().unwrap();
    }
}

#[test]
fn in_a_shape_a_triggered_send_is_a_write_of_a_word() {
    for fan in Fan::both(2) {
        let batch = Batch::new().send(fan.send(0, 1)).send(fan.send(1, 2));
        let batch = batch.wait(fan.left(1).send_cq().prepare_wait().unwrap());
        assert_eq!(BatchShape::of(&batch), BatchShape::new().write_value64().write_value64().wait());
    }
}
