//! The strict checker: programs that work by luck only, and programs that wait forever.

use super::*;

/// Returns whether a diagnostic of a field is an accepted one.
fn advised(pair: &Pair, field: &str) -> bool {
    let accepted = |found: &Diagnostic| found.field == field && found.verdict == Verdict::Accepted;
    pair.card.diagnostics().iter().any(accepted)
}

#[test]
fn a_word_that_goes_backwards_is_reported() {
    let mut pair = pair();
    let word = word_region(&pair);
    set(&word, 5);
    push_data(&mut pair.left, &reached(&word, 9));
    ring(&pair.left);
    pair.run();
    assert!(pair.card.diagnostics().is_empty());
    set(&word, 4);
    pair.run();
    assert!(advised(&pair, "trigger word"), "{:?}", pair.card.diagnostics());
}

#[test]
fn a_word_may_go_anywhere_where_no_order_is_asked_for() {
    let mut pair = pair();
    let word = word_region(&pair);
    let condition = (WaitOperation::Equal, false);
    push_data(
        &mut pair.left,
        &WaitDataSeg::new(condition, word.key, word.at as u64, WaitAction::Retry, 9, u64::MAX),
    );
    ring(&pair.left);
    for value in [5, 4] {
        set(&word, value);
        pair.run();
    }
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn a_condition_that_no_word_meets_is_reported_once() {
    let mut pair = pair();
    let word = word_region(&pair);
    let condition = (WaitOperation::Always, true);
    push_data(
        &mut pair.left,
        &WaitDataSeg::new(condition, word.key, word.at as u64, WaitAction::Retry, 9, u64::MAX),
    );
    ring(&pair.left);
    (0..3).for_each(|_| pair.run());
    let found = pair.card.diagnostics();
    assert!(found.len() == 1 && found[0].to_string().ends_with("never met"), "{found:?}");
    assert_eq!(found[0].verdict, Verdict::Refused);
}

#[test]
fn a_wait_for_a_queue_that_has_overrun_is_reported_once() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let small = Sizes { cqes: 2, ..SIZES };
    let (mut sender, mut waiter) = (TestQp::new(&card, pdn, &small), TestQp::new(&card, pdn, &SIZES));
    sender.connect(&card, waiter.qpn, card.lid(), QpChange::default());
    waiter.connect(&card, sender.qpn, card.lid(), QpChange::default());
    push_completions(&mut waiter, sender.cq.cqn, 5);
    ring(&waiter);
    for _ in 0..3 {
        sender.post(Opcode::Nop, &[]);
        run(&card);
    }
    run(&card);
    let hopeless = |found: &Diagnostic| found.field == "WAIT" && found.qpn == Some(waiter.qpn);
    assert_eq!(card.diagnostics().iter().filter(|found| hopeless(found)).count(), 1);
    // Entries written before the overrun count.
    let mut late = TestQp::new(&card, pdn, &SIZES);
    late.connect(&card, waiter.qpn, card.lid(), QpChange::default());
    push_completions(&mut late, sender.cq.cqn, 1);
    push(&mut late, Opcode::Nop, &[]);
    ring(&late);
    run(&card);
    success(late.cq.poll());
}

#[test]
fn an_index_that_was_awaited_before_is_reported() {
    let mut pair = pair();
    for _ in 0..2 {
        pair.right.post(Opcode::Nop, &[]);
    }
    pair.run();
    let cqn = pair.right.cq.cqn;
    push_completions(&mut pair.left, cqn, 0);
    push_completions(&mut pair.left, cqn, 1);
    ring(&pair.left);
    pair.run();
    assert!(pair.card.diagnostics().is_empty());
    push_completions(&mut pair.left, cqn, 1);
    ring(&pair.left);
    pair.run();
    assert!(advised(&pair, "WAIT index"), "a ring that is replayed without new indices");
}
