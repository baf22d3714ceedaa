//! What overlaps: copies of one message, and of messages that follow each other.

use super::async_copies::{CARDS, LONG, Setting};
use super::*;
use crate::card::port::MTU;
use crate::card::tests::dead_peers::run_both;
use fake_gpu::Call;
use std::sync::atomic::Ordering::SeqCst;

/// A message of a few packets, all of them long.
const SHORT: usize = 4 * MTU as usize;

const OPCODES: [Opcode; 3] = [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaWriteImm];

#[test]
fn the_copies_of_a_message_are_waited_for_once() {
    for (cards, opcode) in CARDS.into_iter().flat_map(|cards| OPCODES.map(|opcode| (cards, opcode))) {
        let mut setting = Setting::of(cards);
        setting.source.set(&pattern(LONG, cards));
        setting.right.post_recv(&setting.target.all(SHORT));
        setting.post(opcode, SHORT);
        setting.run();
        success(setting.left.cq.poll());
        assert!(setting.target.get()[..SHORT] == pattern(LONG, cards)[..SHORT]);
        assert_eq!(setting.target.gpu().waits(), 1, "{opcode:?}");
    }
}

#[test]
fn copies_start_while_the_card_delivers_later_packets() {
    let mut setting = Setting::of(1);
    setting.post(Opcode::RdmaWrite, 16 * MTU as usize);
    setting.run();
    success(setting.left.cq.poll());
    let calls: Vec<Call> = setting.target.gpu().take_calls().into_iter().map(|(_, call)| call).collect();
    let eight = [Call::BeginWrite; 8];
    assert_eq!(calls, [&eight[..], &[Call::Start], &eight, &[Call::Wait]].concat());
}

#[test]
fn a_last_packet_whose_message_was_not_copied_has_no_effect() {
    for (cards, opcode) in CARDS.into_iter().flat_map(|cards| OPCODES.map(|opcode| (cards, opcode))) {
        let mut setting = Setting::of(cards);
        setting.target.gpu().finishes_left.store(0, SeqCst);
        setting.right.post_recv(&setting.target.all(SHORT));
        setting.post(opcode, SHORT);
        setting.run();
        let (near, far) = match opcode {
            Opcode::Send => (Syndrome::RemoteOperation, Syndrome::LocalProtection),
            _ => (Syndrome::RemoteAccess, Syndrome::WrFlush),
        };
        assert_eq!(error(setting.left.cq.poll()).1, near);
        assert_eq!(error(setting.right.cq.poll()).1, far, "{opcode:?}");
        assert_eq!(setting.states(), (QpState::Err, QpState::Err));
        let all = setting.far().diagnostics();
        assert!(all.len() == 1 && all[0].message.contains("a copy has failed"), "{all:?}");
    }
}

#[test]
fn a_last_packet_that_finds_no_receive_hides_no_failure() {
    for cards in CARDS {
        let mut setting = Setting::of(cards);
        setting.target.gpu().finishes_left.store(0, SeqCst);
        setting.post(Opcode::RdmaWriteImm, SHORT);
        setting.run();
        assert_eq!(error(setting.left.cq.poll()).1, Syndrome::RemoteAccess);
        // The last packet was not sent again.
        assert_eq!(setting.target.gpu().writes.load(SeqCst), 3);
    }
}

#[test]
fn a_message_that_fails_at_once_and_late_fails_once() {
    for cards in CARDS {
        let mut setting = Setting::of(cards);
        setting.target.gpu().writes_left.store(2, SeqCst);
        setting.target.gpu().finishes_left.store(0, SeqCst);
        setting.post(Opcode::RdmaWrite, SHORT);
        setting.run();
        assert_eq!(error(setting.left.cq.poll()).1, Syndrome::RemoteAccess);
        let all = setting.far().diagnostics();
        assert!(all.len() == 1 && all[0].message.contains("the copy has not begun"), "{all:?}");
    }
}

#[test]
fn a_last_packet_fails_for_copies_of_its_own_queue_pair_only() {
    let mut setting = Setting::of(2);
    let [pdn, far_pdn] = setting.domains;
    let (near, far) = (&setting.near, setting.far());
    let pair = || {
        let (left, right) = (TestQp::new(near, pdn, &SIZES), TestQp::new(far, far_pdn, &SIZES));
        left.connect(near, right.qpn, far.lid(), QpChange::default());
        right.connect(far, left.qpn, near.lid(), QpChange::default());
        left
    };
    let (mut long, mut short) = (pair(), pair());
    let target = Memory::new(far, far_pdn, MTU as usize, true);
    target.gpu().begins.store(true, SeqCst);
    // A card takes 16 packets of another at once. After these ones and seven of the long message, there are nine of it,
    // and the short message.
    let (first, remote) = (Memory::new(near, pdn, 64, false), setting.target.region.remote(0));
    (0..9).for_each(|_| post(&mut setting.left, Opcode::RdmaWrite, Some(remote), &first.all(64)));
    post(&mut long, Opcode::RdmaWrite, Some(remote), &setting.source.all(LONG));
    post(&mut short, Opcode::RdmaWrite, Some(target.region.remote(0)), &setting.source.all(MTU as usize));
    // Seven are waited for together, then eight; the wait for the last one fails.
    setting.target.gpu().finishes_left.store(2, SeqCst);
    run_both(&setting.near, setting.far.as_ref(), || long.cq.peek().is_some());
    assert_eq!(error(long.cq.poll()).1, Syndrome::RemoteAccess);
    success(short.cq.poll());
}
