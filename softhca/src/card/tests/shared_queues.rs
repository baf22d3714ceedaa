//! Shared receive queues.

use super::datagrams::datagram_pair;
use super::*;
use crate::card::config::{LIMITS, SrqConfig};
use std::sync::mpsc;

const ENTRIES: u32 = 8;
const STRIDE: u32 = 64;

/// A shared queue's memory, used as libmlx5 uses it: entries return to the end of the list in the order in which they
/// complete.
pub(super) struct TestSrq {
    pub(super) srqn: u32,
    pub(super) config: SrqConfig,
    free: Vec<u16>,
    /// The entry that the next receive takes.
    head: u16,
    posted: u32,
}

impl TestSrq {
    pub(super) fn new(card: &Card, pdn: u32) -> Self {
        TestSrq::with(card, pdn, |_| {})
    }

    pub(super) fn with(card: &Card, pdn: u32, change: impl FnOnce(&mut SrqConfig)) -> Self {
        let (ring, dbrec) = (memory((ENTRIES * STRIDE) as usize), memory(4).cast());
        let mut config =
            SrqConfig { pdn, ring, entries: ENTRIES, stride: STRIDE, dbrec, cyclic: false, xrc: None };
        change(&mut config);
        // SAFETY: the memory is never freed.
        let srqn = unsafe { card.create_srq(&config) }.unwrap();
        TestSrq { srqn, config, free: (1..ENTRIES as u16).collect(), head: 0, posted: 0 }
    }

    fn entry<'a>(&self, index: u16) -> &'a mut [u8] {
        let offset = usize::from(index) * STRIDE as usize;
        &mut bytes(self.config.ring, (ENTRIES * STRIDE) as usize)[offset..][..STRIDE as usize]
    }

    pub(super) fn post(&mut self, segments: &[DataSeg]) -> u16 {
        let (index, next) = (self.head, self.free.remove(0));
        let entry = self.entry(index);
        entry[2..4].copy_from_slice(&next.to_be_bytes());
        let list = [segments, &[DataSeg::terminator()]].concat();
        entry[SEGMENT..][..list.as_bytes().len()].copy_from_slice(list.as_bytes());
        self.head = next;
        self.announce(self.posted + 1);
        index
    }

    fn announce(&mut self, posted: u32) {
        self.posted = posted;
        word(self.config.dbrec, 0).store(doorbell::record(posted), Ordering::Release);
    }

    /// Returns a completed entry to the list.
    pub(super) fn release(&mut self, index: u16) {
        self.free.push(index);
    }
}

pub(super) fn card_with_events() -> (Card, mpsc::Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    let sink = move |event| _ = sender.send(event);
    (Card::stopped(LinkLayer::InfiniBand, Box::new(sink)).unwrap(), events)
}

fn shared(config: &mut QpConfig, srqn: u32) {
    (config.srq, config.rq_entries, config.user_index) = (Some(srqn), 0, Some(0x77));
}

/// Two sending queue pairs, each connected to one of two that share a queue.
struct Bed {
    card: Card,
    events: mpsc::Receiver<Event>,
    pdn: u32,
    senders: [TestQp; 2],
    receivers: [TestQp; 2],
    srq: TestSrq,
    source: Region,
    target: Region,
}

impl Bed {
    fn new() -> Self {
        Bed::with(7)
    }

    fn with(rnr_retry: u8) -> Self {
        let (card, events) = card_with_events();
        let pdn = card.alloc_pd().unwrap();
        let srq = TestSrq::new(&card, pdn);
        let senders = [(); 2].map(|()| TestQp::new(&card, pdn, &SIZES));
        let receivers = [(); 2].map(|()| TestQp::with(&card, pdn, &SIZES, |config| shared(config, srq.srqn)));
        for (sender, receiver) in senders.iter().zip(&receivers) {
            // A pause of 8 ms.
            let change =
                QpChange { rnr_retry: Some(rnr_retry), min_rnr_timer: Some(20), ..QpChange::default() };
            sender.connect(&card, receiver.qpn, card.lid(), change);
            receiver.connect(&card, sender.qpn, card.lid(), change);
        }
        let region = || Region::new(&card, pdn, 1 << 16, everything());
        let (source, target) = (region(), region());
        source.fill(3);
        Bed { card, events, pdn, senders, receivers, srq, source, target }
    }

    fn send(&mut self, from: usize, range: std::ops::Range<usize>) {
        let data = self.source.data(range);
        self.senders[from].post(Opcode::Send, &[data.as_bytes()]);
        run(&self.card);
    }

    fn events(&self) -> Vec<Event> {
        self.events
            .try_iter()
            .filter(|event| !matches!(event, Event::CommunicationEstablished { .. }))
            .collect()
    }
}

#[test]
fn queue_pairs_take_receives_in_the_order_of_their_messages() {
    let mut bed = Bed::new();
    // Several laps, in which entries return in another order.
    for round in 0..10usize {
        let places = [0usize, 20_000].map(|at| bed.target.data(at..at + 20_000));
        let entries = places.map(|place| bed.srq.post(&[place]));
        for (turn, from) in [round % 2, (round + 1) % 2].into_iter().enumerate() {
            bed.send(from, round..round + 9_000);
            assert_eq!(success(bed.senders[from].cq.poll()).0, Opcode::Send as u8);
            let cqe = bed.receivers[from].cq.poll().unwrap();
            assert_eq!((cqe.opcode(), cqe.byte_count()), (Ok(CqeOpcode::RespSend), 9_000));
            assert_eq!((cqe.wqe_counter(), cqe.user_index()), (entries[turn], 0x77), "of the queue pair");
            let at = turn * 20_000;
            assert_eq!(bed.target.bytes()[at..at + 9_000], bed.source.bytes()[round..round + 9_000]);
        }
        entries.into_iter().rev().for_each(|entry| bed.srq.release(entry));
    }
    let now = bed.card.query_srq(bed.srq.srqn).unwrap();
    assert_eq!((now.entries, now.stride, now.posted, now.limit), (ENTRIES, STRIDE, 0, 0));
}

#[test]
fn a_limit_raises_one_event() {
    let mut bed = Bed::new();
    let srqn = bed.srq.srqn;
    for _ in 0..3 {
        bed.srq.post(&[bed.target.data(0..64)]);
    }
    bed.card.set_srq_limit(srqn, 2).unwrap();
    bed.send(0, 0..8);
    assert_eq!((bed.events(), bed.card.query_srq(srqn).unwrap().limit), (vec![], 2), "two are left");
    bed.send(1, 0..8);
    assert_eq!(bed.events(), [Event::SrqLimit { srqn }]);
    bed.send(0, 0..8);
    assert_eq!(
        (bed.events(), bed.card.query_srq(srqn).unwrap().limit),
        (vec![], 0),
        "it must be armed again"
    );
    bed.card.set_srq_limit(srqn, 1).unwrap();
    assert_eq!(bed.events(), [Event::SrqLimit { srqn }], "it is below already");
    let refused = bed.card.set_srq_limit(srqn, ENTRIES).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
}

#[test]
fn an_empty_queue_refuses_messages_and_immediates_until_one_is_posted() {
    let mut bed = Bed::new();
    let (remote, data) = (bed.target.remote(0), bed.source.data(0..8));
    let wqe = bed.senders[0].wqe(
        Opcode::RdmaWriteImm,
        &[remote.as_bytes(), data.as_bytes()],
        CtrlFlags::CQ_UPDATE,
        [1, 2, 3, 4],
    );
    bed.senders[0].post_wqe(&wqe);
    run(&bed.card);
    assert_eq!(bed.senders[0].cq.poll(), None, "its retry waits");
    let entry = bed.srq.post(&[]);
    let cqe = until("the write", || {
        run(&bed.card);
        bed.receivers[0].cq.poll()
    });
    assert_eq!(
        (cqe.opcode(), cqe.imm(), cqe.wqe_counter()),
        (Ok(CqeOpcode::RespWriteImm), [1, 2, 3, 4], entry)
    );
}

#[test]
fn retries_at_an_empty_queue_end() {
    let mut bed = Bed::with(1);
    bed.send(1, 0..8);
    let (kind, syndrome, _) = until("the retries' end", || {
        run(&bed.card);
        bed.senders[1].cq.poll().map(|cqe| error(Some(cqe)))
    });
    assert_eq!((kind, syndrome), (CqeOpcode::RequesterError, Syndrome::RnrRetryExceeded));
}

#[test]
fn a_queue_pair_that_fails_leaves_the_others_their_receives() {
    let mut bed = Bed::new();
    let [first, second] = [(); 2].map(|()| bed.srq.post(&[bed.target.data(0..16)]));
    bed.send(0, 0..17);
    assert_eq!(
        error(bed.receivers[0].cq.poll()),
        (CqeOpcode::ResponderError, Syndrome::LocalLength, first),
        "only the receive that was too short"
    );
    assert_eq!(bed.receivers[0].cq.poll(), None);
    let qpn = bed.receivers[0].qpn;
    assert_eq!(bed.events(), [Event::LastReceive { qpn }]);
    let to = |state| QpChange { state: Some(state), ..QpChange::default() };
    bed.card.modify_qp(qpn, &to(QpState::Err)).unwrap();
    assert_eq!(bed.events(), [], "once");
    bed.send(1, 0..16);
    assert_eq!(bed.receivers[1].cq.poll().unwrap().wqe_counter(), second);
    // A program that closes a queue pair waits for the event, whatever ended it.
    bed.card.modify_qp(bed.receivers[1].qpn, &to(QpState::Err)).unwrap();
    assert_eq!(bed.events(), [Event::LastReceive { qpn: bed.receivers[1].qpn }]);
    bed.card.modify_qp(qpn, &to(QpState::Reset)).unwrap();
    bed.card.modify_qp(qpn, &to(QpState::Err)).unwrap();
    assert_eq!(bed.events(), [Event::LastReceive { qpn }], "again after a reset");
}

#[test]
fn the_last_receive_is_reported_behind_its_completion() {
    use crate::liberties::{Liberties, LibertyKinds};

    let mut delayed = 0;
    for seed in 0..32 {
        let mut bed = Bed::new();
        bed.card.set_liberties(Some(Liberties { seed, kinds: LibertyKinds::COMPLETIONS }));
        let index = bed.srq.post(&[bed.target.data(0..16)]);
        let (mut now, receiver) = (Instant::now(), bed.receivers[0].qpn);
        bed.senders[0].post(Opcode::Send, &[bed.source.data(0..16).as_bytes()]);
        let mut step = || {
            now += Duration::from_micros(5);
            let mut engine = bed.card.shared.engine.lock();
            engine.step(now);
            bed.card.shared.deliver_events(engine);
        };
        // The message is taken by then.
        (0..4).for_each(|_| step());
        let change = QpChange { state: Some(QpState::Err), ..QpChange::default() };
        bed.card.modify_qp(receiver, &change).unwrap();
        let mut said = bed.events();
        for _ in 0..100 {
            if !said.is_empty() {
                break;
            }
            delayed += 1;
            step();
            said = bed.events();
        }
        assert_eq!(said, [Event::LastReceive { qpn: receiver }], "seed {seed}");
        assert_eq!(bed.receivers[0].cq.poll().map(|cqe| cqe.wqe_counter()), Some(index), "seed {seed}");
    }
    assert!(delayed > 0, "no completion was delayed");
}

#[test]
fn datagrams_take_shared_receives_too() {
    let (card, _events) = card_with_events();
    let pdn = card.alloc_pd().unwrap();
    let mut srq = TestSrq::new(&card, pdn);
    let mut pair = datagram_pair(card, pdn, |config| shared(config, srq.srqn));
    pair.source.fill(5);
    let entry = srq.post(&[pair.target.data(0..140)]);
    pair.send_datagram(0..100);
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!((cqe.byte_count(), cqe.wqe_counter(), cqe.user_index()), (140, entry, 0x77));
    assert_eq!(pair.target.bytes()[40..140], pair.source.bytes()[..100]);
    pair.send_datagram(0..100);
    assert_eq!(pair.right.cq.poll(), None, "no receive: it is dropped");
    srq.announce(1000);
    pair.send_datagram(0..100);
    assert_eq!(pair.state(&pair.right), QpState::Err);
}

#[test]
fn a_ring_that_makes_no_sense_fails_its_users() {
    let broken = |breaks: fn(&mut Bed), words: &str| {
        let mut bed = Bed::new();
        breaks(&mut bed);
        let srqn = bed.srq.srqn;
        for from in 0..2 {
            bed.send(from, 0..8);
            assert_eq!(error(bed.senders[from].cq.poll()).1, Syndrome::RemoteOperation);
        }
        let [left, right] = [0, 1].map(|i| bed.receivers[i].qpn);
        let expected = [
            Event::SrqError { srqn },
            Event::QpFatal { qpn: left },
            Event::LastReceive { qpn: left },
            Event::QpFatal { qpn: right },
            Event::LastReceive { qpn: right },
        ];
        assert_eq!(bed.events(), expected);
        let said = bed.card.diagnostics();
        assert!(
            said.iter().any(|d| d.field == "shared receive queue" && d.message.contains(words)),
            "{said:?}"
        );
    };
    broken(|bed| bed.srq.announce(ENTRIES + 1), "9 receives are posted in a ring of 8");
    let astray = |bed: &mut Bed| {
        bed.srq.post(&[bed.target.data(0..64)]);
        bed.srq.entry(0)[2..4].copy_from_slice(&[0, 8]);
        bed.srq.announce(2);
        bed.send(0, 0..8);
        success(bed.senders[0].cq.poll());
    };
    broken(astray, "entry 8 of 8");
}

#[test]
fn a_receive_names_memory_of_the_shared_queues_domain() {
    let (card, _events) = card_with_events();
    let [own, other] = [(); 2].map(|()| card.alloc_pd().unwrap());
    let mut srq = TestSrq::new(&card, other);
    let mut sender = TestQp::new(&card, own, &SIZES);
    let mut receiver = TestQp::with(&card, own, &SIZES, |config| shared(config, srq.srqn));
    sender.connect(&card, receiver.qpn, card.lid(), QpChange::default());
    receiver.connect(&card, sender.qpn, card.lid(), QpChange::default());
    let region = |pdn| Region::new(&card, pdn, 64, everything());
    let (source, right, wrong) = (region(own), region(other), region(own));
    for (place, fits) in [(right, true), (wrong, false)] {
        srq.post(&[place.data(0..8)]);
        sender.post(Opcode::Send, &[source.data(0..8).as_bytes()]);
        run(&card);
        let cqe = receiver.cq.poll().unwrap();
        assert_eq!(cqe.is_error(), !fits, "{cqe}");
    }
}

#[test]
fn creation_and_destruction_are_checked() {
    let mut bed = Bed::new();
    let (card, srqn) = (&bed.card, bed.srq.srqn);
    let create = |change: fn(&mut SrqConfig)| {
        let mut config = bed.srq.config;
        change(&mut config);
        // SAFETY: the memory is never freed, and a queue that is created is not used.
        unsafe { card.create_srq(&config) }.map_err(|error| error.errno())
    };
    for change in [
        (|config| config.entries = 0) as fn(&mut SrqConfig),
        |config| config.entries = 7,
        |config| config.entries = LIMITS.max_srq_entries * 2,
        |config| config.stride = 16,
        |config| config.stride = 48,
        |config| config.stride = 2048,
        |config| config.pdn = 1,
    ] {
        assert_eq!(create(change), Err(libc::EINVAL));
    }
    let errno = |result: Result<(), CardError>| result.map_err(|error| error.errno());
    assert_eq!(errno(card.destroy_srq(srqn)), Err(libc::EBUSY));
    assert_eq!(errno(card.destroy_srq(1)), Err(libc::EINVAL));
    assert_eq!(errno(card.set_srq_limit(1, 1)), Err(libc::EINVAL));
    assert_eq!(errno(card.query_srq(1).map(drop)), Err(libc::EINVAL));
    let uar = card.alloc_uar(&[0x800]).unwrap().id;
    let cqn = bed.receivers[0].cq.cqn;
    let with_own_queue = QpConfig {
        pdn: Some(bed.pdn),
        send_cq: Some(cqn),
        recv_cq: Some(cqn),
        srq: Some(srqn),
        uar: Some(uar),
        rq_entries: 16,
        rq_stride: 64,
        ..QpConfig::new(Transport::Rc)
    };
    for config in [with_own_queue, QpConfig { rq_entries: 0, srq: Some(1), ..with_own_queue }] {
        // SAFETY: it is refused.
        let refused = unsafe { card.create_qp(&config) }.unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
    }
    bed.receivers.iter().for_each(|qp| card.destroy_qp(qp.qpn).unwrap());
    card.destroy_srq(srqn).unwrap();
    bed.srq.post(&[]);
    let Err(CardError::Busy { users, .. }) = bed.card.dealloc_pd(bed.pdn) else { panic!() };
    assert_eq!(users, 4, "senders and regions; not the shared queue");
}
