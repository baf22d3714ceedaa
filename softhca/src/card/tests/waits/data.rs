//! WAIT for a word of memory, and for a time.

use super::super::peer::fake_gpu;
use super::*;

#[test]
fn nothing_goes_before_the_word_and_all_goes_after_it() {
    let mut pair = pair();
    let word = word_region(&pair);
    push_write(&mut pair, 0);
    push_data(&mut pair.left, &reached(&word, 2));
    push_write(&mut pair, 1);
    push_write(&mut pair, 2);
    ring(&pair.left);
    for value in [0, 1] {
        set(&word, value);
        pair.run();
        assert_eq!(written(&pair), [0], "word {value}");
    }
    set(&word, 2);
    pair.run();
    assert_eq!(written(&pair), [0, 1, 2]);
    let counters: Vec<u16> =
        std::iter::from_fn(|| pair.left.cq.poll()).map(|cqe| cqe.wqe_counter()).collect();
    assert_eq!(counters, [0, 2, 3], "an unsignaled WAIT has no entry");
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn a_signaled_wait_has_an_entry_with_its_opcode() {
    let mut pair = pair();
    let word = word_region(&pair);
    push_wait(&mut pair.left, WaitKind::Data, reached(&word, 1).as_bytes(), CtrlFlags::CQ_UPDATE);
    ring(&pair.left);
    pair.run();
    assert!(pair.left.cq.poll().is_none());
    set(&word, 1);
    pair.run();
    assert_eq!(success(pair.left.cq.poll()), (Opcode::Wait as u8, 0));
}

#[test]
fn one_word_releases_many_queues() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let word = Region::new(&card, pdn, 8, Access::empty());
    let mut links: Vec<(TestQp, TestQp)> =
        (0..40).map(|_| (TestQp::new(&card, pdn, &SIZES), TestQp::new(&card, pdn, &SIZES))).collect();
    for (left, right) in &mut links {
        left.connect(&card, right.qpn, card.lid(), QpChange::default());
        right.connect(&card, left.qpn, card.lid(), QpChange::default());
        push_data(left, &reached(&word, 1));
        push(left, Opcode::Nop, &[]);
        ring(left);
    }
    run(&card);
    assert!(links.iter().all(|(left, _)| left.cq.peek().is_none()));
    set(&word, 1);
    run(&card);
    assert!(links.iter().all(|(left, _)| left.cq.peek().is_some()));
}

#[test]
fn tickets_wrap() {
    let mut pair = pair();
    let word = word_region(&pair);
    set(&word, u64::MAX - 1);
    for ticket in [u64::MAX, 0, 1] {
        push_data(&mut pair.left, &reached(&word, ticket));
        push(&mut pair.left, Opcode::Nop, &[]);
    }
    ring(&pair.left);
    for value in [u64::MAX, 0, 1] {
        pair.run();
        assert!(pair.left.cq.poll().is_none(), "before {value}");
        set(&word, value);
        pair.run();
        success(pair.left.cq.poll());
    }
    assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
}

#[test]
fn every_operation_and_its_inverse_is_performed() {
    use WaitOperation::{Always, Bigger, CyclicBigger, CyclicSmaller, Equal, Smaller};
    // Value 10, under a mask of 8 bits; a word that does not meet the condition, and one that does.
    for (operation, inverted, not_met, met) in [
        (Always, false, None, 0x1ff),
        (Equal, false, Some(11), 0x10a),
        (Equal, true, Some(0x30a), 11),
        (Bigger, false, Some(10), 9),
        (Bigger, true, Some(0x109), 10),
        (Smaller, false, Some(0x10a), 11),
        (Smaller, true, Some(11), 0x10a),
        (CyclicBigger, false, Some(10), 0xf0),
        (CyclicBigger, true, Some(0xf0), 10),
        (CyclicSmaller, false, Some(10), 0x20b),
        (CyclicSmaller, true, Some(0x20b), 10),
    ] {
        let mut pair = pair();
        let word = word_region(&pair);
        let condition = (operation, inverted);
        let addr = word.at as u64;
        let segment = WaitDataSeg::new(condition, word.key, addr, WaitAction::Retry, 0xf10a, 0xff);
        push_wait(&mut pair.left, WaitKind::Data, segment.as_bytes(), CtrlFlags::CQ_UPDATE);
        if let Some(not_met) = not_met {
            set(&word, not_met);
            ring(&pair.left);
            pair.run();
            assert!(pair.left.cq.poll().is_none(), "{segment}");
        }
        set(&word, met);
        ring(&pair.left);
        pair.run();
        success(pair.left.cq.poll());
    }
}

#[test]
fn a_card_that_runs_sees_a_store_that_raises_no_event() {
    let card = Card::start(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let mut pair = Pair::on(card, &SIZES, 64, QpChange::default());
    let word = word_region(&pair);
    for round in 1..=20 {
        push_data(&mut pair.left, &reached(&word, round));
        push(&mut pair.left, Opcode::Nop, &[]);
        ring(&pair.left);
        // Sometimes the card's thread is asleep.
        if round % 5 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(pair.left.cq.poll().is_none());
        set(&word, round);
        success(Some(pair.left.cq.wait()));
    }
    push_data(&mut pair.left, &reached(&word, 1000));
    ring(&pair.left);
    // The card ends although a queue pair waits.
    drop(pair);
}

#[test]
fn other_queues_go_on_while_one_waits() {
    let mut pair = pair();
    let word = word_region(&pair);
    push_data(&mut pair.left, &reached(&word, 1));
    ring(&pair.left);
    for n in 0..100 {
        pair.right.post(Opcode::Nop, &[]);
        pair.run();
        assert_eq!(success(pair.right.cq.poll()).1, n);
    }
}

#[test]
fn a_word_in_peer_memory_is_looked_at_through_its_client() {
    let mut pair = pair();
    let gpu = fake_gpu::allocate(16);
    let config = RegionConfig::new(pair.pdn, gpu.addr, 16, Access::empty());
    // SAFETY: the memory is never freed.
    let key = unsafe { pair.card.register_memory(&config) }.unwrap();
    push_data(&mut pair.left, &WaitDataSeg::reached(key, gpu.addr + 8, 3));
    push(&mut pair.left, Opcode::Nop, &[]);
    ring(&pair.left);
    pair.run();
    assert!(pair.left.cq.poll().is_none() && gpu.reads.load(Ordering::SeqCst) > 0);
    gpu.set(&[[0; 8], number(3).to_ne_bytes()].concat());
    let card = &pair.card;
    let cq = &mut pair.left.cq;
    success(Some(until("a completion", || {
        run(card);
        cq.poll()
    })));
}

#[test]
fn a_word_in_peer_memory_that_cannot_be_read_fails_the_wait() {
    let mut pair = pair();
    let gpu = fake_gpu::allocate(8);
    let config = RegionConfig::new(pair.pdn, gpu.addr, 8, Access::empty());
    // SAFETY: the memory is never freed.
    let key = unsafe { pair.card.register_memory(&config) }.unwrap();
    gpu.reads_left.store(0, Ordering::SeqCst);
    push_data(&mut pair.left, &WaitDataSeg::reached(key, gpu.addr, 3));
    ring(&pair.left);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalProtection);
    assert!(pair.diagnosed("peer memory"));
}

#[test]
fn a_wait_for_a_time_ends_when_the_clock_is_past_it() {
    let mut pair = pair();
    let past = |pair: &mut Pair, ticks| {
        let segment = WaitDataSeg::past(ticks);
        push_wait(&mut pair.left, WaitKind::Time, segment.as_bytes(), CtrlFlags::CQ_UPDATE);
        ring(&pair.left);
    };
    let now = pair.card.clock_nanoseconds();
    past(&mut pair, now - 1);
    pair.run();
    success(pair.left.cq.poll());
    // Shortly afterwards, the WAIT ends whether the card polls before it or after it.
    past(&mut pair, now + 1_000_000);
    let card = &pair.card;
    let cq = &mut pair.left.cq;
    until("a completion", || {
        run(card);
        cq.poll()
    });
    assert!(card.clock_nanoseconds() > now + 1_000_000);
    past(&mut pair, now + (1 << 62));
    pair.run();
    assert!(pair.left.cq.poll().is_none());
}

#[test]
fn unreliable_transports_wait_too() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let word = Region::new(&card, pdn, 8, Access::empty());
    let mut qp = super::super::datagrams::datagram_qp(&card, pdn);
    push_data(&mut qp, &reached(&word, 1));
    push(&mut qp, Opcode::Nop, &[]);
    ring(&qp);
    run(&card);
    assert!(qp.cq.poll().is_none());
    set(&word, 1);
    run(&card);
    success(qp.cq.poll());
}
