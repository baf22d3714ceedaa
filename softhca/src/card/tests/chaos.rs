//! Random network faults, on cards with and without liberties: no message is lost, duplicated or reordered, and every
//! request completes.

use super::faults::{plan, run_until};
use super::hosts::{address_of, card_at};
use super::*;
use crate::faults::{Action, Direction, FaultPlan, Rule, Which};
use crate::liberties::{Liberties, LibertyKinds};
use gdsync_sys::prm::wqe::AtomicSeg;
use proptest::prelude::*;

/// Bytes of a message: one packet or several.
const SIZES_OF_MESSAGES: [usize; 3] = [8, 1000, crate::fabric::MAX_PAYLOAD + 9];
const SLOT: usize = crate::fabric::MAX_PAYLOAD + 64;
const MESSAGES: usize = 12;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Send(usize),
    Add,
    Read,
    Nop,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let one = prop_oneof![
        4 => (0usize..3).prop_map(|size| Operation::Send(SIZES_OF_MESSAGES[size])),
        3 => Just(Operation::Add),
        2 => Just(Operation::Read),
        1 => Just(Operation::Nop),
    ];
    prop::collection::vec(one, 1..MESSAGES)
}

fn rules() -> impl Strategy<Value = FaultPlan> {
    let time = (0u64..900).prop_map(Duration::from_micros);
    let action = prop_oneof![
        3 => Just(Action::Drop),
        1 => Just(Action::Duplicate),
        1 => time.clone().prop_map(Action::Delay),
        1 => (1u32..8).prop_map(Action::Hold),
        1 => Just(Action::Rnr),
        1 => time.prop_map(Action::Late),
    ];
    let rule = (action, 0.01..0.3f64, any::<bool>()).prop_map(|(action, p, is_incoming)| {
        let mut rule = Rule::new(action);
        rule.which = Which::Chance(p);
        if is_incoming {
            rule.direction = Some(Direction::In);
        }
        rule
    });
    (any::<u64>(), prop::collection::vec(rule, 1..4)).prop_map(|(seed, rules)| FaultPlan::new(seed, rules))
}

fn is_quiet(card: &Card) -> bool {
    let engine = card.shared.engine.lock();
    engine.delayed.is_empty() && engine.resources.delayed.is_empty()
}

/// One direction of traffic, and its expected result.
struct Flow {
    from: TestQp,
    to: TestQp,
    source: Region,
    target: Region,
    posted: usize,
    completed: usize,
    failed: bool,
}

impl Flow {
    fn new(card: &Card, pdn: u32, peer: &Card, peer_pdn: u32) -> Self {
        let access = everything() | Access::REMOTE_ATOMIC;
        let change = QpChange { timeout: Some(8), access: Some(access), ..QpChange::default() };
        let sizes = Sizes { blocks: 32, ..SIZES };
        let (from, to) = (TestQp::new(card, pdn, &sizes), TestQp::new(peer, peer_pdn, &sizes));
        let towards = |card: &Card| {
            let between_hosts = card.lid() == 0;
            QpChange { address: between_hosts.then(|| address_of(card)), ..change }
        };
        from.connect(card, to.qpn, peer.lid(), towards(peer));
        to.connect(peer, from.qpn, card.lid(), towards(card));
        let region = |card, pdn| Region::new(card, pdn, (MESSAGES + 1) * SLOT, access);
        let (source, target) = (region(card, pdn), region(peer, peer_pdn));
        Flow { from, to, source, target, posted: 0, completed: 0, failed: false }
    }

    fn post(&mut self, operations: &[Operation]) {
        for (n, operation) in operations.iter().enumerate() {
            let slot = (n + 1) * SLOT;
            let word = self.source.data(slot..slot + 8);
            match operation {
                Operation::Send(length) => {
                    self.source.bytes()[slot..slot + length].fill(n as u8 + 1);
                    self.to.post_recv(&[self.target.data(slot..slot + SLOT)]);
                    self.from.post(Opcode::Send, &[self.source.data(slot..slot + length).as_bytes()]);
                }
                Operation::Add => {
                    let (remote, one) = (self.target.remote(0), AtomicSeg::new(1, 0));
                    self.from.post(Opcode::AtomicFa, &[remote.as_bytes(), one.as_bytes(), word.as_bytes()]);
                }
                Operation::Read => {
                    let remote = self.target.remote(64);
                    self.from.post(Opcode::RdmaRead, &[remote.as_bytes(), word.as_bytes()]);
                }
                Operation::Nop => self.from.post(Opcode::Nop, &[]),
            }
        }
        self.posted = operations.len();
    }

    /// Polls completions. Returns whether all have arrived.
    fn ended(&mut self) -> bool {
        while let Some(cqe) = self.from.cq.poll() {
            self.failed |= cqe.is_error();
            if !self.failed {
                self.completed += 1;
                assert_eq!(cqe.opcode(), Ok(CqeOpcode::Requester), "{cqe}");
            }
            self.posted -= 1;
        }
        self.posted == 0
    }

    fn check(&mut self, operations: &[Operation]) {
        let mut additions = 0u64;
        let mut received: Vec<Cqe64> = std::iter::from_fn(|| self.to.cq.poll()).collect();
        received.retain(|cqe| !cqe.is_error());
        let mut received = received.into_iter();
        for (n, operation) in operations.iter().enumerate() {
            let slot = (n + 1) * SLOT;
            let is_complete = n < self.completed;
            match operation {
                Operation::Send(length) => match received.next() {
                    Some(cqe) => {
                        assert_eq!(cqe.byte_count() as usize, *length, "message {n}");
                        assert!(
                            self.target.bytes()[slot..slot + length].iter().all(|byte| *byte == n as u8 + 1)
                        );
                    }
                    None => assert!(!is_complete, "message {n} is lost"),
                },
                Operation::Add if is_complete => {
                    let original = self.source.bytes()[slot..slot + 8].try_into().unwrap();
                    assert_eq!(u64::from_ne_bytes(original), additions, "addition {n}");
                    additions += 1;
                }
                Operation::Add | Operation::Read | Operation::Nop => {}
            }
        }
        assert!(received.next().is_none(), "a message is doubled");
        let sum = u64::from_ne_bytes(self.target.bytes()[..8].try_into().unwrap());
        assert!(if self.failed { sum >= additions } else { sum == additions }, "{sum} of {additions}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_reordered(
        faults in rules(),
        operations in operations(),
        place in 0..3,
        seed in prop::option::of(any::<u64>()),
    ) {
        // One card, two cards of a host, two cards of different hosts.
        let card = || Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
        let (near, far) = if place == 2 { (card_at(20), card_at(21)) } else { (card(), card()) };
        let far = if place == 0 { &near } else { &far };
        let (pdn, far_pdn) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
        let mut flows = [Flow::new(&near, pdn, far, far_pdn), Flow::new(far, far_pdn, &near, pdn)];
        let liberties = seed.map(|seed| Liberties { seed, kinds: LibertyKinds::USUAL });
        near.set_liberties(liberties);
        far.set_liberties(liberties);
        near.set_faults(Some(&faults));
        far.set_faults(Some(&faults));
        flows.iter_mut().for_each(|flow| flow.post(&operations));
        run_until(&near, &faults.to_string(), || {
            run(far);
            flows.iter_mut().all(Flow::ended)
        });
        // The last completion of a receive may be delayed.
        near.set_faults(None);
        far.set_faults(None);
        run_until(&near, "the last completions", || {
            run(far);
            is_quiet(&near) && is_quiet(far)
        });
        flows.iter_mut().for_each(|flow| flow.check(&operations));
        let reported = near.diagnostics().into_iter().chain(far.diagnostics()).collect::<Vec<_>>();
        prop_assert!(reported.is_empty(), "{:?}", reported);
    }
}

#[test]
fn a_read_answered_late_and_a_write_behind_it_that_was_not_missed() {
    // The read's answer is lost, and the following write is acknowledged: only the read is sent again.
    let mut pair = super::faults::quick(64);
    pair.target.bytes()[0] = 42;
    pair.card.set_faults(Some(&plan("drop nth=1 kind=read-response")));
    pair.left.post(Opcode::RdmaRead, &[pair.target.remote(0).as_bytes(), pair.source.data(0..1).as_bytes()]);
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(8).as_bytes(), &inline(&[1])]);
    run(&pair.card);
    assert_eq!(pair.target.bytes()[8], 1);
    pair.target.bytes()[8] = 7;
    let mut completed = 0;
    run_until(&pair.card, "both completions", || {
        completed += usize::from(pair.left.cq.poll().is_some());
        completed == 2
    });
    assert_eq!((pair.source.bytes()[0], pair.target.bytes()[8]), (42, 7), "the write was not done again");
}
