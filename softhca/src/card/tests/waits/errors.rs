//! Malformed WAITs, and queue pairs that fail or are reset while they wait.

use super::*;

/// Posts one entry and expects it to fail.
fn fails(pair: &mut Pair, wqe: &[u8], syndrome: Syndrome, field: &str) {
    pair.left.post_wqe(wqe);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, syndrome, "{:?}", pair.card.diagnostics());
    assert!(pair.diagnosed(field), "{field}: {:?}", pair.card.diagnostics());
    assert_eq!(pair.state(&pair.left), QpState::Err);
}

fn entry(pair: &Pair, kind: WaitKind, segment: &[u8]) -> Vec<u8> {
    let mut wqe = kind.control(0, pair.left.qpn, CtrlFlags::empty()).as_bytes().to_vec();
    wqe.extend_from_slice(segment);
    wqe
}

#[test]
fn malformed_entries_fail_with_the_field_named() {
    let broken = |at: usize, value: u8, field: &str| {
        let mut pair = pair();
        let word = word_region(&pair);
        let mut wqe = entry(&pair, WaitKind::Data, reached(&word, 0).as_bytes());
        wqe[at] = value;
        fails(&mut pair, &wqe, Syndrome::LocalQpOperation, field);
    };
    broken(0, 3, "opmod");
    broken(0, 0, "ds");
    broken(7, 2, "ds");
    broken(7, 4, "ds");
    broken(19, 6, "operation");
    broken(18, 1, "operation");
    broken(31, 4, "address");
    let mut pair = pair();
    let wqe = entry(&pair, WaitKind::Completions, IndexSeg::new(0, 0x77_7777).as_bytes());
    fails(&mut pair, &wqe, Syndrome::LocalQpOperation, "cqn");
}

#[test]
fn a_key_a_bound_and_an_alignment_that_do_not_hold_are_protection_errors() {
    let (good, key_off, beyond) = (0, 0x100, 8);
    for (key, offset) in [(good, beyond), (key_off, 0)] {
        let mut pair = pair();
        let word = word_region(&pair);
        let segment = WaitDataSeg::reached(word.key ^ key, word.at as u64 + offset, 0);
        let wqe = entry(&pair, WaitKind::Data, segment.as_bytes());
        fails(&mut pair, &wqe, Syndrome::LocalProtection, "lkey");
    }
    let mut pair = pair();
    let other = pair.card.alloc_pd().unwrap();
    let foreign = Region::new(&pair.card, other, 8, Access::empty());
    let wqe = entry(&pair, WaitKind::Data, reached(&foreign, 0).as_bytes());
    fails(&mut pair, &wqe, Syndrome::LocalProtection, "lkey");
    // A region whose addresses hide its alignment.
    let mut pair = super::pair();
    let at = memory(64);
    let config =
        RegionConfig { iova: 0x1000, ..RegionConfig::new(pair.pdn, at as u64 + 4, 32, Access::empty()) };
    // SAFETY: the memory is never freed.
    let key = unsafe { pair.card.register_memory(&config) }.unwrap();
    let wqe = entry(&pair, WaitKind::Data, WaitDataSeg::reached(key, 0x1000, 0).as_bytes());
    fails(&mut pair, &wqe, Syndrome::LocalProtection, "address");
}

#[test]
fn action_1_is_an_error_entry_if_the_condition_is_false() {
    for value in [4, 5] {
        let mut pair = pair();
        let word = word_region(&pair);
        set(&word, value);
        let condition = (WaitOperation::Equal, false);
        let segment = WaitDataSeg::new(condition, word.key, word.at as u64, WaitAction::Fail, 5, u64::MAX);
        if value == 4 {
            let wqe = entry(&pair, WaitKind::Data, segment.as_bytes());
            fails(&mut pair, &wqe, Syndrome::LocalQpOperation, "action");
        } else {
            push_wait(&mut pair.left, WaitKind::Data, segment.as_bytes(), CtrlFlags::CQ_UPDATE);
            ring(&pair.left);
            pair.run();
            success(pair.left.cq.poll());
        }
    }
}

#[test]
fn an_error_ends_a_wait_by_flushing_and_a_reset_silently() {
    for state in [QpState::Err, QpState::Reset] {
        let mut pair = pair();
        let word = word_region(&pair);
        push_data(&mut pair.left, &reached(&word, 1));
        push_write(&mut pair, 0);
        ring(&pair.left);
        pair.run();
        move_to(&pair.card, &pair.left, state);
        let flushed: Vec<_> = std::iter::from_fn(|| pair.left.cq.poll()).collect();
        let expected = if state == QpState::Err { 2 } else { 0 };
        assert_eq!(flushed.len(), expected);
        assert!(flushed.iter().all(|cqe| cqe.syndrome() == Ok(Syndrome::WrFlush)));
        set(&word, 1);
        pair.run();
        assert_eq!(written(&pair), [], "{state:?}");
        assert!(pair.left.cq.poll().is_none());
        if state == QpState::Reset {
            // The queue pair restarts.
            pair.left.head = 0;
            bytes(pair.left.dbrec.cast(), 8).fill(0);
            pair.left.connect(&pair.card, pair.right.qpn, pair.card.lid(), QpChange::default());
            pair.left.post(Opcode::Nop, &[]);
            pair.run();
            success(pair.left.cq.poll());
        }
    }
}

#[test]
fn what_is_destroyed_while_a_queue_waits_is_not_touched() {
    let mut pair = pair();
    let word = word_region(&pair);
    let cq = TestCq::new(&pair.card, 8);
    push_data(&mut pair.left, &reached(&word, 1));
    ring(&pair.left);
    pair.right.post(Opcode::Nop, &[]);
    push_completions(&mut pair.right, cq.cqn, 0);
    ring(&pair.right);
    pair.run();
    success(pair.right.cq.poll());
    pair.card.deregister_memory(word.key).unwrap();
    pair.card.destroy_cq(cq.cqn).unwrap();
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalProtection);
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::LocalQpOperation);
    // One that is itself destroyed.
    let mut waiter = TestQp::new(&pair.card, pair.pdn, &SIZES);
    waiter.connect(&pair.card, pair.right.qpn, pair.card.lid(), QpChange::default());
    push_completions(&mut waiter, pair.left.cq.cqn, 100);
    ring(&waiter);
    pair.run();
    pair.card.destroy_qp(waiter.qpn).unwrap();
    pair.run();
}

#[test]
fn a_failure_of_an_earlier_request_flushes_a_wait() {
    let mut pair = pair();
    let word = word_region(&pair);
    let bad = RemoteAddrSeg::new(pair.target.at as u64, pair.target.key ^ 0x100);
    push(&mut pair.left, Opcode::RdmaWrite, &[bad.as_bytes(), &inline(&[1; 8])]);
    push_data(&mut pair.left, &reached(&word, 1));
    ring(&pair.left);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::WrFlush);
}

#[test]
fn a_wait_that_fails_waits_for_earlier_requests_to_complete() {
    let mut pair = pair();
    push_write(&mut pair, 0);
    push_completions(&mut pair.left, 0x77_7777, 0);
    ring(&pair.left);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(error(pair.left.cq.poll()).2, 1);
    assert_eq!(written(&pair), [0]);
}

#[test]
fn a_card_without_waits_refuses_them() {
    let mut pair = pair();
    pair.card.set_wait_rules(WaitRules { supported: false, ..WaitRules::default() });
    let word = word_region(&pair);
    let wqe = entry(&pair, WaitKind::Data, reached(&word, 0).as_bytes());
    fails(&mut pair, &wqe, Syndrome::LocalQpOperation, "opcode");
}

#[test]
fn a_card_without_cross_channel_waits_for_words_alone() {
    for kind in [WaitKind::Completions, WaitKind::SendEnable] {
        let mut pair = pair();
        pair.card.set_wait_rules(WaitRules { cross_channel: false, ..WaitRules::default() });
        let wqe = entry(&pair, kind, IndexSeg::new(0, pair.left.cq.cqn).as_bytes());
        fails(&mut pair, &wqe, Syndrome::LocalQpOperation, "opcode");
    }
    let mut pair = pair();
    pair.card.set_wait_rules(WaitRules { cross_channel: false, ..WaitRules::default() });
    let word = word_region(&pair);
    push_wait(&mut pair.left, WaitKind::Data, reached(&word, 0).as_bytes(), CtrlFlags::CQ_UPDATE);
    ring(&pair.left);
    pair.run();
    success(pair.left.cq.poll());
}
