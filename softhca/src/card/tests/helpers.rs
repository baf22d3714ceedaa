//! Tests of threads that do the card's work for its own thread.

use super::*;
use crate::card::pollers::{NAP, Recent};
use gdsync_sys::prm::wait::{WaitDataSeg, WaitKind, word as number};
use gdsync_sys::wake::{self, Helper};

/// Returns the doorbell register that [`TestQp`] rings on a page.
fn register(qp: &TestQp) -> usize {
    qp.page as usize + 0x800
}

/// Posts a send and its receive, which are not completed yet.
fn post(pair: &mut Pair) {
    let to = pair.target.data(0..64);
    pair.right.post_recv(&[to]);
    pair.source.fill(7);
    let from = pair.source.data(0..64);
    pair.left.post(Opcode::Send, &[from.as_bytes()]);
    assert!(pair.left.cq.poll().is_none() && pair.right.cq.poll().is_none());
}

fn check(pair: &mut Pair) {
    assert!(pair.right.cq.poll().is_some_and(|cqe| !cqe.is_error()));
    success(pair.left.cq.poll());
    assert_eq!(pair.target.bytes()[..64], pair.source.bytes()[..64]);
}

#[test]
fn a_thread_that_lends_itself_does_the_work_that_it_has_rung_for() {
    let mut pair = Pair::new(64);
    for _ in 0..10 {
        post(&mut pair);
        wake::report_doorbell(register(&pair.left), true);
        // Everything beyond a bounded amount of work is left to the helper.
        let mut helper = Helper::default();
        while pair.left.cq.peek().is_none() {
            assert!(helper.serve());
        }
        assert!(helper.serve());
        assert_eq!(pair.card.shared.engine.lock().workers.helpers, 1);
        drop(helper);
        assert_eq!(pair.card.shared.engine.lock().workers.helpers, 0);
        check(&mut pair);
    }
}

#[test]
fn a_thread_that_polls_does_the_work() {
    let mut pair = Pair::new(64);
    post(&mut pair);
    let mut steps = 0;
    while pair.left.cq.peek().is_none() {
        assert!(pair.card.assist());
        steps += 1;
    }
    while pair.card.assist() {
        steps += 1;
    }
    assert_eq!(
        pair.card.shared.pollers.steps.load(Ordering::Relaxed),
        steps + 1,
        "the card's own thread sees them"
    );
    check(&mut pair);
}

/// Returns the longest time of the sleep that the card announces.
fn announced(pair: &Pair) -> Option<Duration> {
    pair.card.shared.engine.lock().workers.announced
}

#[test]
fn a_poller_that_leaves_announces_the_cards_sleep_and_one_that_returns_takes_that_back() {
    let mut pair = Pair::new(64);
    post(&mut pair);
    assert!(!pair.card.shared.pollers.card_falls_asleep(), "no thread polls");
    while pair.card.assist() {}
    assert!(pair.card.shared.pollers.card_falls_asleep(), "a thread polls");
    assert_eq!(announced(&pair), None);
    pair.card.end_assist();
    assert_eq!(announced(&pair), Some(NAP));
    assert!(!pair.card.shared.pollers.card_falls_asleep(), "it has left");
    check(&mut pair);
    assert!(!pair.card.assist());
    assert_eq!(announced(&pair), None);
    // A long sleep stays announced: the poller might not return before its end.
    let long = 2 * NAP;
    pair.card.shared.engine.lock().workers.announced = Some(long);
    assert!(!pair.card.assist());
    pair.card.end_assist();
    assert_eq!(announced(&pair), Some(long));
}

#[test]
fn a_poller_that_leaves_does_the_work_that_is_left() {
    let mut pair = Pair::new(64);
    while pair.card.assist() {}
    assert!(pair.card.shared.pollers.card_falls_asleep());
    post(&mut pair);
    pair.card.end_assist();
    assert_eq!(announced(&pair), Some(NAP));
    check(&mut pair);
}

#[test]
fn a_poller_that_leaves_touches_no_card_that_other_threads_must_not_serve() {
    let mut pair = Pair::new(64);
    while pair.card.assist() {}
    assert!(pair.card.shared.pollers.card_falls_asleep());
    post(&mut pair);
    pair.card.shared.engine.lock().workers.own_thread_only = true;
    pair.card.end_assist();
    assert!(announced(&pair).is_none() && pair.left.cq.poll().is_none());
    pair.run();
    check(&mut pair);
}

#[test]
fn the_cards_thread_leaves_much_polling_to_the_pollers() {
    let pair = Pair::new(64);
    let shared = &pair.card.shared;
    while pair.card.assist() {}
    let leaves = |polls: u32| {
        (0..polls).for_each(|_| assert!(!pair.card.assist()));
        shared.pollers.work_much(&mut Recent::new(), Instant::now()) && shared.pollers.card_falls_asleep()
    };
    leaves(0);
    assert!(!leaves(0) && !leaves(1) && leaves(1000));
    (0..1000).for_each(|_| assert!(!pair.card.assist()));
    pair.card.end_assist();
    assert!(!leaves(0), "the poller has left");
}

#[test]
fn a_thread_that_polls_does_not_wait_for_one_that_works() {
    let mut pair = Pair::new(64);
    post(&mut pair);
    let works = pair.card.shared.engine.lock();
    assert!(!pair.card.assist());
    drop(works);
    pair.card.shared.engine.lock().workers.own_thread_only = true;
    assert!(!pair.card.assist());
    assert!(pair.left.cq.poll().is_none());
    pair.run();
    check(&mut pair);
}

#[test]
fn a_thread_that_does_not_lend_itself_leaves_the_work() {
    let mut pair = Pair::new(64);
    post(&mut pair);
    wake::report_doorbell(register(&pair.left), false);
    assert!(pair.left.cq.poll().is_none());
    assert!(!Helper::default().serve(), "it has rung no card, as a helper");
    pair.run();
    check(&mut pair);
}

#[test]
fn a_card_with_memory_of_clients_works_on_its_own_thread_only() {
    let mut pair = Pair::new(64);
    post(&mut pair);
    pair.card.shared.engine.lock().workers.own_thread_only = true;
    wake::report_doorbell(register(&pair.left), true);
    assert!(pair.left.cq.poll().is_none() && !Helper::default().serve());
    pair.run();
    check(&mut pair);
}

#[test]
fn a_helper_that_may_no_longer_work_wakes_the_cards_thread() {
    let mut pair = Pair::new(64);
    post(&mut pair);
    wake::report_doorbell(register(&pair.left), true);
    let mut helper = Helper::default();
    pair.card.shared.engine.lock().workers.asleep = true;
    assert!(helper.serve() && !pair.card.shared.sleeper.is_raised());
    pair.card.shared.engine.lock().workers.own_thread_only = true;
    assert!(!helper.serve() && pair.card.shared.sleeper.is_raised());
    assert_eq!(pair.card.shared.engine.lock().workers.helpers, 0);
}

#[test]
fn a_wake_up_does_not_keep_the_cards_thread_awake_while_a_helper_works() {
    let pair = Pair::new(64);
    let shared = &pair.card.shared;
    shared.engine.lock().workers.helpers = 1;
    shared.sleeper.raise();
    let part = shared.clone();
    let thread = std::thread::spawn(move || part.run());
    until("the end of the wake-up", || (!shared.sleeper.is_raised()).then_some(()));
    shared.stop.store(true, Ordering::Release);
    thread.join().unwrap();
}

#[test]
fn a_word_that_a_request_waits_for_rings_as_a_register_does() {
    let mut pair = Pair::new(64);
    let region = Region::new(&pair.card, pair.pdn, 8, Access::empty());
    let segment = WaitDataSeg::reached(region.key, region.at as u64, 5);
    let mut wqe = WaitKind::Data.control(0, pair.left.qpn, CtrlFlags::CQ_UPDATE).as_bytes().to_vec();
    wqe.extend_from_slice(segment.as_bytes());
    pair.left.post_wqe(&wqe);
    pair.run();
    // SAFETY: aligned, of 8 bytes, and never freed; the card looks at it as a shared word.
    unsafe { AtomicU64::from_ptr(region.at.cast()) }.store(number(5), Ordering::Release);
    wake::report_doorbell(region.at as usize, true);
    assert!(pair.left.cq.poll().is_none(), "the card's thread has not said which words there are");
    pair.card.shared.register_awaited_words(&mut pair.card.shared.engine.lock());
    wake::report_doorbell(region.at as usize, true);
    success(pair.left.cq.poll());
}

#[test]
fn a_card_that_is_gone_is_served_no_more() {
    let mut pair = Pair::new(64);
    post(&mut pair);
    wake::report_doorbell(register(&pair.left), true);
    let mut helper = Helper::default();
    assert!(helper.serve());
    check(&mut pair);
    post(&mut pair);
    let Pair { card, mut left, .. } = pair;
    let part = card.shared.clone();
    drop(card);
    // The queue pair exists, but its memory might be gone.
    wake::report_doorbell(register(&left), true);
    assert!(!helper.serve() && left.cq.poll().is_none());
    assert_eq!(part.engine.lock().workers.helpers, 0);
}

#[test]
fn a_panic_on_a_lent_thread_ends_the_card_and_not_the_thread() {
    let mut pair = Pair::new(64);
    let shared = &pair.card.shared;
    assert!(!shared.contain(&mut shared.engine.lock(), |_| panic!("out of cheese")));
    assert!(shared.stop.load(Ordering::Acquire), "its own thread ends, too");
    post(&mut pair);
    wake::report_doorbell(register(&pair.left), true);
    assert!(pair.left.cq.poll().is_none());
}
