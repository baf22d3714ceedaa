//! What overlaps: copies of one message, and of messages that follow each other.

use super::async_copies::{CARDS, LONG, Setting};
use super::*;
use crate::card::engine::{FIRST_SECTION, OWN_PACKETS, SECTION};
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
fn where_copies_keep_no_order_the_end_of_a_message_follows_them() {
    let lengths = [17_000, 60_000, 104_000, SHORT];
    for (cards, len) in CARDS.into_iter().flat_map(|cards| lengths.map(|len| (cards, len))) {
        let mut setting = Setting::of(cards);
        setting.target.gpu().unordered.store(true, SeqCst);
        setting.source.set(&pattern(LONG, cards));
        setting.post(Opcode::RdmaWrite, len);
        setting.run();
        success(setting.left.cq.poll());
        assert!(setting.target.get()[..len] == pattern(LONG, cards)[..len]);
        let calls: Vec<Call> = setting.target.gpu().take_calls().iter().map(|(_, call)| *call).collect();
        match len {
            17_000 => assert_eq!(calls, [Call::Write]),
            _ => {
                assert!(
                    calls.ends_with(&[Call::BeginWrite, Call::Wait, Call::Write]),
                    "{len} bytes: {calls:?}"
                );
                // All but the end was copied meanwhile.
                assert_eq!(calls.iter().filter(|call| **call == Call::Wait).count(), 1, "{calls:?}");
            }
        }
    }
}

#[test]
fn the_end_of_a_list_follows_copies_to_other_memory() {
    const LEN: usize = 60_000;
    for (unordered, flag) in
        [false, true].into_iter().flat_map(|one| [8, 3000, 20_000].map(|flag| (one, flag)))
    {
        let mut setting = Setting::of(1);
        setting.target.gpu().unordered.store(unordered, SeqCst);
        let end = Memory::new(&setting.near, setting.domains[1], flag, true);
        end.gpu().begins.store(true, SeqCst);
        setting.source.set(&pattern(LONG, flag));
        setting.right.post_recv(&[setting.target.data(0..LEN), end.data(0..flag)]);
        post(&mut setting.left, Opcode::Send, None, &setting.source.all(LEN + flag));
        setting.run();
        success(setting.left.cq.poll());
        assert!(setting.target.get()[..LEN] == pattern(LONG, flag)[..LEN]);
        assert!(end.get() == pattern(LONG, flag)[LEN..LEN + flag]);
        let waited = places(&setting.target.gpu().take_calls(), Call::Wait)[0];
        let written = places(&end.gpu().take_calls(), Call::Write);
        assert!(written.last().is_some_and(|last| waited < *last), "{flag} bytes");
    }
}

#[test]
fn bytes_of_the_host_are_written_after_those_of_the_gpu_before_them() {
    const LEN: usize = 60_000;
    for fails in [false, true] {
        let mut setting = Setting::of(1);
        let flag = Memory::new(&setting.near, setting.domains[1], 8, false);
        setting.source.set(&pattern(LONG, 7));
        setting.target.gpu().finishes_left.store(i64::from(!fails), SeqCst);
        setting.right.post_recv(&[setting.target.data(0..LEN), flag.data(0..8)]);
        post(&mut setting.left, Opcode::Send, None, &setting.source.all(LEN + 8));
        setting.run();
        // What cannot be written before the flag leaves the flag as it was.
        let seen = if fails { vec![0; 8] } else { pattern(LONG, 7)[LEN..LEN + 8].to_vec() };
        assert_eq!(flag.get(), seen);
        assert_eq!(
            setting.target.gpu().take_calls().iter().filter(|(_, call)| *call == Call::Wait).count(),
            1
        );
    }
}

/// Returns the places of calls of a kind in the order of all calls.
fn places(calls: &[(usize, Call)], kind: Call) -> Vec<usize> {
    calls.iter().filter(|(_, call)| *call == kind).map(|(place, _)| *place).collect()
}

#[test]
fn a_section_is_read_while_the_one_before_is_written() {
    for begins in [true, false] {
        let mut setting = Setting::of(1);
        setting.target.gpu().begins.store(begins, SeqCst);
        setting.source.set(&pattern(LONG, 3));
        setting.post(Opcode::RdmaWrite, LONG);
        setting.run();
        success(setting.left.cq.poll());
        assert!(setting.target.get() == pattern(LONG, 3));
        let [source, target] = [&setting.source, &setting.target].map(|memory| memory.gpu().take_calls());
        let [started, read] = [Call::Start, Call::Wait].map(|kind| places(&source, kind));
        let written = places(&target, if begins { Call::BeginWrite } else { Call::Write });
        let (first, rest) = written.split_at(FIRST_SECTION / MTU as usize);
        let sections: Vec<&[usize]> =
            std::iter::once(first).chain(rest.chunks(SECTION / MTU as usize)).collect();
        assert_eq!((started.len(), read.len()), (sections.len(), sections.len()));
        for (i, packets) in sections.into_iter().enumerate() {
            let (first, last) = (packets[0], packets[packets.len() - 1]);
            assert!(read[i] < first, "section {i} is delivered before it was read");
            assert!(started.get(i + 1).is_none_or(|next| *next < first), "reads wait for the writes of {i}");
            assert!(read.get(i + 1).is_none_or(|next| last < *next));
        }
        // Writes go on, and are waited for once.
        let [started, waited] = [Call::Start, Call::Wait].map(|kind| places(&target, kind));
        assert_eq!((started.len(), waited.len()), if begins { (read.len() - 1, 1) } else { (0, 0) });
    }
}

#[test]
fn a_step_sends_a_long_message_up_to_a_limit() {
    const LEN: usize = (OWN_PACKETS + 6) * MTU as usize;
    let mut setting = Setting::of(1);
    let [source, target] = setting.domains.map(|pdn| Memory::new(&setting.near, pdn, LEN, true));
    (setting.source, setting.target) = (source, target);
    for memory in [&setting.source, &setting.target] {
        memory.gpu().begins.store(true, SeqCst);
    }
    setting.source.set(&pattern(LEN, 4));
    setting.post(Opcode::RdmaWrite, LEN);
    setting.near.shared.engine.lock().step(Instant::now());
    assert_eq!(setting.source.gpu().reads.load(SeqCst), OWN_PACKETS);
    setting.run();
    success(setting.left.cq.poll());
    assert!(setting.target.get() == pattern(LEN, 4));
}

#[test]
fn one_region_on_both_sides_hides_no_failure() {
    const COUNT: usize = 3;
    let len = SECTION + MTU as usize;
    let all = COUNT * len;
    // Returns whether a wait has failed.
    let run = |good: i64| {
        let mut pair = Pair::new(1);
        let memory = Memory::new(&pair.card, pair.pdn, 2 * all, true);
        memory.gpu().begins.store(true, SeqCst);
        for (round, good) in [(0, i64::MAX), (1, good)] {
            // What the first round leaves in the card's memory arrives nowhere in the second.
            let untouched = vec![0xff; all];
            memory.set(&[pattern(all, round), untouched.clone()].concat());
            memory.gpu().finishes_left.store(good, SeqCst);
            let first = pair.left.head;
            for i in 0..COUNT {
                let (remote, list) =
                    (memory.region.remote(all + i * len), [memory.data(i * len..(i + 1) * len)]);
                let (body, signals) = ([remote.as_bytes(), list.as_bytes()], CtrlFlags::CQ_UPDATE);
                let wqe = pair.left.wqe(Opcode::RdmaWrite, &body, signals, [0; 4]);
                pair.left.head += pair.left.write(&wqe);
            }
            pair.left.ring(first + COUNT as u32 - 1);
            pair.run();
            assert_eq!(memory.gpu().under_way(), 0);
            let got = memory.get();
            for (i, message) in got[all..].chunks(len).enumerate() {
                let sent = &got[i * len..(i + 1) * len];
                let cqe = pair.left.cq.poll();
                if good == i64::MAX || !cqe.unwrap().is_error() {
                    success(cqe);
                    assert!(message == sent, "message {i} after {good}");
                }
                for (packet, sent) in message.chunks(MTU as usize).zip(sent.chunks(MTU as usize)) {
                    assert!(packet == sent || *packet == untouched[..packet.len()], "{i} after {good}");
                }
            }
        }
        [&pair.left, &pair.right].map(|qp| pair.state(qp)) != [QpState::Rts; 2]
    };
    let failures = (0..50).take_while(|good| run(*good)).count();
    assert!((2 * COUNT..50).contains(&failures), "{failures} waits");
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
