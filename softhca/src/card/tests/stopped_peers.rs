//! Peers that stop at the worst moments: after they took a request and before they answered it, or between two packets
//! of an answer. In all tests the first time-out that counts fails the sender.

use super::super::config::StoppedPeers;
use super::super::port::MTU;
use super::dead_peers::{card, first_counts, impatient, run_both, run_for_a_while, write};
use super::*;
use crate::liberties::{Liberties, LibertyKinds};
use crate::testing::{again, role};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

/// Writes once, so that the cards have a link in each direction.
fn greet(sender: &mut TestQp, target: &Region, alive: &Card, other: &Card) {
    let [remote, data] = write(target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run_both(alive, Some(other), || sender.cq.peek().is_some());
    success(sender.cq.poll());
}

/// Performs the first half of a step: the card takes doorbells and packets, and answers nothing.
fn take(card: &Card) {
    let mut engine = card.shared.engine.lock();
    engine.take_doorbells(Instant::now());
    assert!(engine.take_packets(Instant::now()));
}

#[test]
fn a_peer_that_stops_before_it_answers_is_waited_for() {
    let (alive, stopped) = (card(), card());
    let (mut sender, target) = impatient(&alive, &stopped);
    greet(&mut sender, &target, &alive, &stopped);
    for _ in 0..3 {
        let [remote, data] = write(&target);
        sender.post(Opcode::RdmaWrite, &[&remote, &data]);
        run(&alive);
        take(&stopped);
        run_for_a_while(&alive);
        assert!(sender.cq.peek().is_none(), "it may still answer");
        run_both(&alive, Some(&stopped), || sender.cq.peek().is_some());
        success(sender.cq.poll());
    }
}

#[test]
fn a_peer_that_stops_before_it_answers_and_dies_is_given_up() {
    let (alive, stopped) = (card(), card());
    let (mut sender, target) = impatient(&alive, &stopped);
    greet(&mut sender, &target, &alive, &stopped);
    let [remote, data] = write(&target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run(&alive);
    take(&stopped);
    run_for_a_while(&alive);
    assert!(sender.cq.peek().is_none());
    drop(stopped);
    run_both(&alive, None, || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn a_peer_that_stops_in_the_middle_of_an_answer_is_waited_for() {
    // More than a link holds, so one step sends less.
    const LEN: usize = 20 * MTU as usize;
    let (alive, stopped) = (card(), card());
    let (mut sender, target) = impatient(&alive, &stopped);
    greet(&mut sender, &target, &alive, &stopped);
    let pdn = alive.alloc_pd().unwrap();
    let local = Region::new(&alive, pdn, LEN, everything());
    let (mut reader, remote) = impatient_reader(&alive, pdn, &stopped, LEN);
    remote.fill(3);
    reader.post(Opcode::RdmaRead, &[remote.remote(0).as_bytes(), local.data(0..LEN).as_bytes()]);
    run(&alive);
    assert!(stopped.shared.engine.lock().step(Instant::now()));
    run_for_a_while(&alive);
    assert_ne!(local.bytes()[0], local.bytes()[1], "a part has arrived");
    assert!(reader.cq.peek().is_none(), "it may still answer");
    run_both(&alive, Some(&stopped), || reader.cq.peek().is_some());
    success(reader.cq.poll());
    assert_eq!(local.bytes(), remote.bytes());
}

/// Like [`impatient`], in a given protection domain of the sender, and with a region of `len` bytes.
fn impatient_reader(reads: &Card, pdn: u32, answers: &Card, len: usize) -> (TestQp, Region) {
    let reader = TestQp::new(reads, pdn, &SIZES);
    let other = answers.alloc_pd().unwrap();
    let to = TestQp::new(answers, other, &SIZES);
    reader.connect(reads, to.qpn, answers.lid(), first_counts());
    to.connect(answers, reader.qpn, reads.lid(), first_counts());
    (reader, Region::new(answers, other, len, everything()))
}

#[test]
fn a_peer_that_stops_while_it_serves_others_is_waited_for() {
    let (alive, stopped) = (card(), card());
    let (mut sender, target) = impatient(&alive, &stopped);
    greet(&mut sender, &target, &alive, &stopped);
    let mut others: Vec<_> = (0..40).map(|_| impatient(&stopped, &alive)).collect();
    let [remote, data] = write(&target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run(&alive);
    for (other, target) in &mut others {
        let [remote, data] = write(target);
        other.post(Opcode::RdmaWrite, &[&remote, &data]);
    }
    take(&stopped);
    run_for_a_while(&alive);
    // One step serves 16 queue pairs. Those whose doorbells it took are served before the one whose packet it took.
    for _ in 0..2 {
        assert!(stopped.shared.engine.lock().step(Instant::now()));
    }
    run_for_a_while(&alive);
    assert!(sender.cq.peek().is_none(), "it may still answer");
    run_both(&alive, Some(&stopped), || sender.cq.peek().is_some());
    success(sender.cq.poll());
}

/// Hundreds of time-outs that expire again and again, as on a far too slow machine: waiting queue pairs take no turn of
/// sending ones, and one step handles some of the time-outs.
#[test]
fn time_outs_of_a_stopped_peer_do_not_hold_up_others() {
    const COUNT: usize = 200;
    let (alive, stopped) = (card(), card());
    let mut waiting: Vec<_> = (0..COUNT).map(|_| impatient(&alive, &stopped)).collect();
    for (sender, target) in &mut waiting {
        let [remote, data] = write(target);
        sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    }
    run(&alive);
    let (mut other, target) = impatient(&alive, &alive);
    let mut engine = alive.shared.engine.lock();
    let is_expired = |engine: &Engine, now| {
        waiting.iter().filter(|(sender, _)| engine.qps[&sender.qpn].timer.is_some_and(|at| at <= now)).count()
    };
    let mut now = Instant::now();
    let mut step = || {
        // More than the time-out: all of them expire before every step.
        now += Duration::from_secs(1);
        assert_eq!(is_expired(&engine, now), COUNT);
        assert!(engine.step(now));
        let handled = COUNT - is_expired(&engine, now);
        assert!((1..COUNT / 4).contains(&handled), "{handled} time-outs in one step");
    };
    (0..COUNT).for_each(|_| step());
    let [remote, data] = write(&target);
    other.post(Opcode::RdmaWrite, &[&remote, &data]);
    let steps = (1..COUNT).find(|_| {
        step();
        other.cq.peek().is_some()
    });
    assert!(steps.is_some_and(|steps| steps <= 3), "{steps:?} steps for a write");
    drop(engine);
    success(other.cq.poll());
    assert!(waiting.iter().all(|(sender, _)| sender.cq.peek().is_none()), "the peer may still answer");
}

#[test]
fn a_card_that_is_stopped_answers_itself_before_it_gives_up() {
    let card = card();
    card.set_liberties(Some(Liberties { seed: 1, kinds: LibertyKinds::USUAL }));
    let mut all: Vec<_> = (0..40).map(|_| impatient(&card, &card)).collect();
    for (sender, target) in &mut all {
        let [remote, data] = write(target);
        sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    }
    // One step serves 16 queue pairs: senders first, then those that answer.
    for _ in 0..8 {
        card.shared.engine.lock().step(Instant::now());
        std::thread::sleep(Duration::from_millis(20));
    }
    for (sender, _) in &mut all {
        run_both(&card, None, || sender.cq.peek().is_some());
        success(sender.cq.poll());
    }
}

#[test]
fn a_card_that_was_stopped_takes_the_answers_that_wait_before_it_retries() {
    let (stopped, peer) = (card(), card());
    let (mut sender, target) = impatient(&stopped, &peer);
    greet(&mut sender, &target, &stopped, &peer);
    let (mut writer, into) = impatient(&peer, &stopped);
    for stops_twice in [false, true] {
        let [remote, text] = write(&target);
        sender.post(Opcode::RdmaWrite, &[&remote, &text]);
        run(&stopped);
        // The acknowledgement comes after 16 packets of the other queue pair, and one step takes 16 packets of a link.
        for _ in 0..16 {
            let [remote, text] = write(&into);
            writer.post(Opcode::RdmaWrite, &[&remote, &text]);
        }
        if stops_twice {
            take(&peer);
            run_for_a_while(&stopped);
        }
        run(&peer);
        std::thread::sleep(Duration::from_millis(50));
        run_both(&stopped, Some(&peer), || sender.cq.peek().is_some());
        success(sender.cq.poll());
        for _ in 0..16 {
            run_both(&stopped, Some(&peer), || writer.cq.peek().is_some());
            success(writer.cq.poll());
        }
    }
}

#[test]
fn what_faults_drop_counts_although_the_peer_has_answered_before_it_stopped() {
    let (alive, stopped) = (card(), card());
    let (mut sender, target) = impatient(&alive, &stopped);
    greet(&mut sender, &target, &alive, &stopped);
    alive.set_faults(Some(&"drop".parse().unwrap()));
    let [remote, data] = write(&target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run_both(&alive, None, || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
}

/// Two cards, the second of which is not stepped, and two queue pairs between them: one fills the link with a write
/// larger than the link, the other fails at the second time-out that counts.
struct Full {
    cards: [Card; 2],
    filler: TestQp,
    memory: [Region; 2],
    sender: TestQp,
}

impl Full {
    const BYTES: usize = 3 << 20;

    fn new() -> Self {
        let cards = [card(), card()];
        let pdns = [&cards[0], &cards[1]].map(|card| card.alloc_pd().unwrap());
        let connected = |with: QpChange| {
            let [sender, to] = [0, 1].map(|at| TestQp::new(&cards[at], pdns[at], &SIZES));
            sender.connect(&cards[0], to.qpn, cards[1].lid(), with);
            to.connect(&cards[1], sender.qpn, cards[0].lid(), with);
            sender
        };
        let filler = connected(QpChange { timeout: Some(0), ..QpChange::default() });
        let mut sender = connected(QpChange { retry_cnt: Some(1), ..first_counts() });
        let memory = [0, 1].map(|at| Region::new(&cards[at], pdns[at], Self::BYTES, everything()));
        greet(&mut sender, &memory[1], &cards[0], &cards[1]);
        Full { cards, filler, memory, sender }
    }

    fn fill(&mut self) {
        let [from, to] = &self.memory;
        let data = from.data(0..Self::BYTES);
        self.filler.post(Opcode::RdmaWrite, &[to.remote(0).as_bytes(), data.as_bytes()]);
        run(&self.cards[0]);
    }

    /// Sends a packet as large as those that fill the link, so it has no room if they have none.
    fn send(&mut self) {
        let [from, to] = &self.memory;
        let data = from.data(0..MTU as usize);
        self.sender.post(Opcode::RdmaWrite, &[to.remote(0).as_bytes(), data.as_bytes()]);
        run(&self.cards[0]);
    }

    /// Checks that the sender waits for the peer, which does not run, and succeeds once it does.
    fn waits(mut self) {
        let [alive, stopped] = &self.cards;
        run_for_a_while(alive);
        assert!(self.sender.cq.peek().is_none(), "the peer has taken nothing");
        for qp in [&mut self.sender, &mut self.filler] {
            run_both(alive, Some(stopped), || qp.cq.peek().is_some());
            success(qp.cq.poll());
        }
    }
}

#[test]
fn what_is_sent_again_and_finds_no_room_costs_no_retry() {
    let mut full = Full::new();
    full.cards[0].set_faults(Some(&"drop".parse().unwrap()));
    full.send();
    full.cards[0].set_faults(None);
    full.fill();
    full.waits();
}

#[test]
fn what_finds_no_room_behind_the_faults_costs_no_retry() {
    let mut full = Full::new();
    full.cards[0].set_faults(Some(&"delay=1ms every=1000000".parse().unwrap()));
    full.fill();
    full.send();
    full.waits();
}

#[test]
fn the_time_before_a_packet_finds_room_does_not_count() {
    let mut full = Full::new();
    full.fill();
    full.send();
    let [mut sends, mut takes] = [0, 1].map(|at| full.cards[at].shared.engine.lock());
    let timer = |engine: &Engine| engine.qps[&full.sender.qpn].requester.next_wake();
    let has_left = |engine: &Engine| engine.qps[&full.sender.qpn].requester.reached_at().is_some();
    // The peer may be the stopped one that makes no room.
    let first = timer(&sends).unwrap();
    assert!(!has_left(&sends));
    let now = first - Duration::from_millis(1);
    let steps = (0..1000).find(|_| {
        takes.step(now);
        sends.step(now);
        has_left(&sends)
    });
    assert!(steps.is_some(), "the packet leaves");
    assert!(timer(&sends).unwrap() > first + Duration::from_millis(10), "all of the 17 ms are left");
}

/// The bytes that the peer's process offers to reads.
const OFFERED: usize = 40 * MTU as usize;
const PEER: &str = "the peer is ";

/// The peer's process, which serves until its parent ends it.
fn serve(parent: &str) {
    let [qpn, lid] = numbers(parent);
    let card = Card::start(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let qp = TestQp::new(&card, pdn, &SIZES);
    let memory = Region::new(&card, pdn, OFFERED, everything());
    qp.connect(&card, qpn as u32, lid as u16, first_counts());
    println!("\n{PEER}{} {} {} {}", qp.qpn, card.lid(), memory.at as u64, memory.key);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn numbers<const COUNT: usize>(text: &str) -> [u64; COUNT] {
    let all: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    all.try_into().unwrap()
}

/// A process that is killed at the end of the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Ended {
    /// Returns when all its threads are stopped.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        let pid = self.0.id() as libc::pid_t;
        // SAFETY: a child that was not waited for; the status is writable. A stop is told, and the child stays.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: only a signal is sent, to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as libc::pid_t, signal) }, 0);
    }
}

/// A card, and a queue pair that is connected to one of a process of its own, which offers memory.
struct ToProcess {
    qp: TestQp,
    local: Region,
    remote: RemoteAddrSeg,
    pdn: u32,
    lid: u16,
    /// A number that no queue pair of the process has.
    deaf: u32,
    peer: Ended,
    card: Card,
}

impl ToProcess {
    /// Starts the process, which runs that test again. `None` in the process itself, when it has served.
    fn start(test: &str, attributes: QpChange) -> Option<Self> {
        if let Some(parent) = role() {
            serve(&parent);
            return None;
        }
        let card = Card::start(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
        let pdn = card.alloc_pd().unwrap();
        let qp = TestQp::new(&card, pdn, &SIZES);
        let local = Region::new(&card, pdn, OFFERED, everything());
        let test = format!("card::tests::stopped_peers::{test}");
        let mut command = again(&test, &format!("{} {}", qp.qpn, card.lid()));
        let mut peer = Ended(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let said = BufReader::new(peer.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = said.filter_map(|line| Some(line.strip_prefix(PEER)?.to_owned())).next().unwrap();
        let [qpn, lid, addr, key] = numbers(&said);
        qp.connect(&card, qpn as u32, lid as u16, attributes);
        let remote = RemoteAddrSeg::new(addr, key as u32);
        Some(ToProcess { qp, local, remote, pdn, lid: lid as u16, deaf: qpn as u32 + 1, peer, card })
    }

    fn post_write(&mut self) {
        self.qp.post(Opcode::RdmaWrite, &[self.remote.as_bytes(), &inline(b"hello")]);
    }

    fn post_read(&mut self) {
        let into = self.local.data(0..OFFERED);
        self.qp.post(Opcode::RdmaRead, &[self.remote.as_bytes(), into.as_bytes()]);
    }

    /// Returns whether the link has no room for a packet of a large message.
    fn is_full(&self) -> bool {
        let engine = self.card.shared.engine.lock();
        let node = engine.qps[&self.qp.qpn].endpoint.node(self.card.port);
        engine.fabric.is_full(node, size_of::<Header>(), MTU as usize)
    }

    /// Returns how many time-outs have counted.
    fn resends(&self) -> u64 {
        self.card.shared.engine.lock().qps[&self.qp.qpn].requester.resends
    }
}

#[test]
fn a_process_that_is_stopped_is_given_up_when_its_peers_retries_are_exhausted() {
    let test = "a_process_that_is_stopped_is_given_up_when_its_peers_retries_are_exhausted";
    // Each transmission has 8 ms.
    let quick = QpChange { timeout: Some(11), retry_cnt: Some(2), ..QpChange::default() };
    let Some(mut pair) = ToProcess::start(test, quick) else { return };
    // One fills the link, and the other finds no room then.
    let mut others = [(); 2].map(|()| TestQp::new(&pair.card, pair.pdn, &SIZES));
    let slow = QpChange { timeout: Some(17), ..quick };
    others.iter().for_each(|qp| qp.connect(&pair.card, pair.deaf, pair.lid, slow));
    pair.post_write();
    success(Some(pair.qp.cq.wait()));
    let resends = pair.resends();
    pair.peer.stop();
    pair.post_write();
    assert_eq!(error(Some(pair.qp.cq.wait())).1, Syndrome::RetryExceeded);
    assert_eq!(pair.resends() - resends, 2, "the retries of its attributes");
    let large = Region::new(&pair.card, pair.pdn, Full::BYTES, everything());
    for qp in &mut others {
        let data = large.data(0..Full::BYTES);
        qp.post(Opcode::RdmaWrite, &[pair.remote.as_bytes(), data.as_bytes()]);
        until("a full link", || pair.is_full().then_some(()));
    }
    for qp in &mut others {
        assert_eq!(error(Some(qp.cq.wait())).1, Syndrome::RetryExceeded);
    }
}

#[test]
fn a_process_that_goes_on_before_the_last_time_out_is_served() {
    let test = "a_process_that_goes_on_before_the_last_time_out_is_served";
    // Each transmission has a second.
    let patient = QpChange { timeout: Some(18), retry_cnt: Some(7), ..QpChange::default() };
    let Some(mut pair) = ToProcess::start(test, patient) else { return };
    pair.peer.stop();
    pair.post_write();
    pair.post_read();
    let before = pair.resends();
    until("a time-out that counts", || (pair.resends() > before).then_some(()));
    pair.peer.signal(libc::SIGCONT);
    for _ in 0..2 {
        success(Some(pair.qp.cq.wait()));
    }
    assert_eq!(&pair.local.bytes()[..5], b"hello");
}

#[test]
fn a_process_that_is_stopped_at_any_moment_is_waited_for_until_it_is_killed_where_that_is_asked_for() {
    let test =
        "a_process_that_is_stopped_at_any_moment_is_waited_for_until_it_is_killed_where_that_is_asked_for";
    let Some(ToProcess { mut qp, local, remote, peer, card, .. }) = ToProcess::start(test, first_counts())
    else {
        return;
    };
    card.set_stopped_peers(StoppedPeers::Wait);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1u64;
            for _ in 0..40 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                std::thread::sleep(Duration::from_micros((random >> 33) % 3000));
                peer.signal(libc::SIGSTOP);
                // Longer than two time-outs.
                std::thread::sleep(Duration::from_millis(40));
                peer.signal(libc::SIGCONT);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            qp.post(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(b"hello")]);
            success(Some(qp.cq.wait()));
            qp.post(Opcode::RdmaRead, &[remote.as_bytes(), local.data(0..OFFERED).as_bytes()]);
            success(Some(qp.cq.wait()));
        }
    });
    peer.signal(libc::SIGSTOP);
    qp.post(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(b"hello")]);
    peer.signal(libc::SIGKILL);
    let syndromes = std::iter::from_fn(|| {
        let cqe = qp.cq.wait();
        if !cqe.is_error() {
            // The peer had answered before it stopped.
            qp.post(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(b"hello")]);
        }
        Some(cqe)
    });
    let failed = syndromes.into_iter().find(Cqe64::is_error);
    assert_eq!(error(failed).1, Syndrome::RetryExceeded);
}
