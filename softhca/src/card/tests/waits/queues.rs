//! WAIT for a completion queue.

use super::*;

#[test]
fn entries_are_counted_from_the_queues_beginning() {
    let mut pair = pair();
    let cqn = pair.right.cq.cqn;
    push_completions(&mut pair.left, cqn, 1);
    push_write(&mut pair, 0);
    ring(&pair.left);
    for before in [0, 1] {
        pair.run();
        assert_eq!(written(&pair), [], "with {before} entries");
        pair.right.post(Opcode::Nop, &[]);
        // It counts whether the program has consumed the entry or not.
        pair.run();
        success(pair.right.cq.poll());
    }
    pair.run();
    assert_eq!(written(&pair), [0]);
    assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
}

#[test]
fn a_collector_gathers_the_completions_of_many_queues_into_one_word() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let (trigger, arrival) =
        (Region::new(&card, pdn, 8, Access::empty()), Region::new(&card, pdn, 8, everything()));
    let target = Region::new(&card, pdn, 64 * 8, everything());
    let mut links: Vec<(TestQp, TestQp)> =
        (0..8).map(|_| (TestQp::new(&card, pdn, &SIZES), TestQp::new(&card, pdn, &SIZES))).collect();
    let connect = |one: &TestQp, other: &TestQp| {
        one.connect(&card, other.qpn, card.lid(), QpChange::default());
        other.connect(&card, one.qpn, card.lid(), QpChange::default());
    };
    links.iter().for_each(|(left, right)| connect(left, right));
    let big = Sizes { blocks: 256, ..SIZES };
    let (mut collector, mirror) = (TestQp::new(&card, pdn, &big), TestQp::new(&card, pdn, &SIZES));
    connect(&collector, &mirror);
    for round in 0..20u64 {
        for (n, (left, _)) in links.iter_mut().enumerate() {
            push_data(left, &reached(&trigger, round + 1));
            push(left, Opcode::RdmaWrite, &[target.remote(n * 8).as_bytes(), &inline(&round.to_ne_bytes())]);
            ring(left);
            push_completions(&mut collector, left.cq.cqn, round as u32);
        }
        push(
            &mut collector,
            Opcode::RdmaWrite,
            &[arrival.remote(0).as_bytes(), &inline(&(round + 1).to_ne_bytes())],
        );
        ring(&collector);
        run(&card);
        assert_eq!(arrival.bytes(), round.to_ne_bytes(), "round {round} has not been released");
        set(&trigger, round + 1);
        run(&card);
        assert_eq!(arrival.bytes(), (round + 1).to_ne_bytes());
        assert!(target.bytes()[..64].chunks(8).all(|place| place == round.to_ne_bytes()));
        links.iter_mut().for_each(|(left, _)| _ = success(left.cq.poll()));
        success(collector.cq.poll());
    }
    assert!(card.diagnostics().is_empty(), "{:?}", card.diagnostics());
}

#[test]
fn a_queue_waits_for_its_own_entries() {
    let mut pair = pair();
    let cqn = pair.left.cq.cqn;
    push_write(&mut pair, 0);
    push_completions(&mut pair.left, cqn, 0);
    push_write(&mut pair, 1);
    ring(&pair.left);
    pair.run();
    assert_eq!(written(&pair), [0, 1]);
}

#[test]
fn an_error_entry_counts_unless_the_rules_say_otherwise() {
    for errors_count in [true, false] {
        let mut pair = pair();
        pair.card.set_wait_rules(WaitRules { errors_count, ..WaitRules::default() });
        let cqn = pair.right.cq.cqn;
        push_completions(&mut pair.left, cqn, 1);
        push(&mut pair.left, Opcode::Nop, &[]);
        ring(&pair.left);
        pair.right.post(Opcode::Nop, &[]);
        pair.run();
        let bad = pair.right.wqe(Opcode::Umr, &[], CtrlFlags::empty(), [0; 4]);
        pair.right.post_wqe(&bad);
        pair.run();
        assert_eq!(pair.left.cq.poll().is_some(), errors_count);
        assert_eq!(pair.diagnosed("WAIT"), !errors_count, "it is never met then");
        pair.card.set_wait_rules(WaitRules::default());
        pair.run();
        assert_eq!(pair.left.cq.poll().is_some(), !errors_count);
    }
}

#[test]
fn an_entry_before_the_first_error_is_not_spoilt_by_it() {
    let mut pair = pair();
    pair.card.set_wait_rules(WaitRules { errors_count: false, ..WaitRules::default() });
    pair.right.post(Opcode::Nop, &[]);
    let bad = pair.right.wqe(Opcode::Umr, &[], CtrlFlags::empty(), [0; 4]);
    pair.right.post_wqe(&bad);
    pair.run();
    let cqn = pair.right.cq.cqn;
    push_completions(&mut pair.left, cqn, 0);
    push(&mut pair.left, Opcode::Nop, &[]);
    ring(&pair.left);
    pair.run();
    success(pair.left.cq.poll());
}

#[test]
fn a_queue_that_ignores_overruns_goes_on_counting() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let shared = TestCq::with(&card, 4, true);
    let sender = TestQp::with(&card, pdn, &SIZES, |config| config.send_cq = Some(shared.cqn));
    let (mut sender, mut waiter) = (sender, TestQp::new(&card, pdn, &SIZES));
    sender.connect(&card, waiter.qpn, card.lid(), QpChange::default());
    waiter.connect(&card, sender.qpn, card.lid(), QpChange::default());
    push_completions(&mut waiter, shared.cqn, 19);
    push(&mut waiter, Opcode::Nop, &[]);
    ring(&waiter);
    for _ in 0..19 {
        sender.post(Opcode::Nop, &[]);
        run(&card);
    }
    assert!(waiter.cq.poll().is_none());
    sender.post(Opcode::Nop, &[]);
    run(&card);
    success(waiter.cq.poll());
    let now = card.query_cq(shared.cqn).unwrap();
    assert_eq!((now.produced, now.overrun), (20, false));
    assert!(card.diagnostics().is_empty(), "{:?}", card.diagnostics());
}
