//! Simulated cards: time passes only when it is moved, and a run repeats to the bit.

use super::*;
use crate::card::simulation::{SimulatedCard, World};
use crate::faults::FaultPlan;
use crate::liberties::{Liberties, LibertyKinds};

fn card(world: &mut World, liberties: Option<u64>) -> SimulatedCard {
    let schedule = liberties.map(|seed| Liberties { seed, kinds: LibertyKinds::USUAL }.into());
    world.start_card(LinkLayer::InfiniBand, schedule.as_ref(), Box::new(drop)).unwrap()
}

/// A connection between two cards of a world.
struct Bed {
    cards: [SimulatedCard; 2],
    qps: [TestQp; 2],
    regions: [Region; 2],
}

fn bed(world: &mut World, liberties: Option<u64>) -> Bed {
    let cards = [(); 2].map(|()| card(world, liberties));
    let pds = [0, 1].map(|side| cards[side].alloc_pd().unwrap());
    let qps = [0, 1].map(|side| TestQp::new(&cards[side], pds[side], &SIZES));
    for side in 0..2 {
        let (own, peer) = (&cards[side], &cards[1 - side]);
        qps[side].connect(own, qps[1 - side].qpn, peer.lid(), QpChange::default());
    }
    let regions = [0, 1].map(|side| Region::new(&cards[side], pds[side], 8192, everything()));
    Bed { cards, qps, regions }
}

fn rest(cards: &[SimulatedCard; 2]) {
    while cards.iter().map(|card| card.step()).fold(false, |any, worked| any | worked) {}
}

#[test]
fn a_lost_packet_is_sent_again_at_its_time_and_nobody_waits() {
    let mut world = World::new();
    let Bed { cards, mut qps, regions } = bed(&mut world, None);
    cards[0].set_faults(Some(&"drop nth=1".parse().unwrap()));
    regions[0].fill(3);
    let (remote, data) = (regions[1].remote(0), regions[0].data(0..5000));
    qps[0].post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    rest(&cards);
    // Five packets of 1024 bytes at most have come, but the first: the rest was refused at once, and sent again.
    assert!(qps[0].cq.poll().is_some_and(|cqe| !cqe.is_error()), "a NAK asks for the first packet");
    assert_eq!(regions[1].bytes()[..5000], regions[0].bytes()[..5000]);
    cards[0].set_faults(Some(&"drop nth=1".parse().unwrap()));
    qps[0].post(Opcode::RdmaWrite, &[remote.as_bytes(), regions[0].data(0..8).as_bytes()]);
    rest(&cards);
    assert!(qps[0].cq.poll().is_none());
    // The timer of code 14.
    let due = cards[0].next_timer().unwrap();
    assert!(due >= Duration::from_millis(67), "{due:?}");
    while qps[0].cq.peek().is_none() {
        world.advance_to(cards[0].next_timer().unwrap());
        rest(&cards);
    }
    success(qps[0].cq.poll());
    assert!(world.packets() > 5 && world.in_flight() == 0);
}

#[test]
fn the_end_of_a_card_fails_its_peer_at_its_time() {
    let mut world = World::new();
    let Bed { cards: [one, other], mut qps, regions } = bed(&mut world, None);
    drop(other);
    let (remote, data) = (regions[1].remote(0), regions[0].data(0..8));
    qps[0].post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    while qps[0].cq.peek().is_none() {
        while one.step() {}
        if let Some(next) = one.next_timer() {
            world.advance_to(next);
        }
    }
    assert_eq!(error(qps[0].cq.poll()).1, Syndrome::RetryExceeded);
    assert!(world.elapsed() > Duration::from_millis(67), "as if it had retried");
}

#[test]
fn a_seed_repeats_to_the_bit() {
    let run = |seed: u64| {
        let mut world = World::new();
        let Bed { cards, mut qps, regions } = bed(&mut world, Some(seed));
        let plan: FaultPlan = "seed=5; drop p=0.2; duplicate p=0.2 dir=in; hold=3 p=0.2".parse().unwrap();
        cards.iter().for_each(|card| card.set_faults(Some(&plan)));
        let mut seen = Vec::new();
        for number in 0..40usize {
            let (remote, data) = (regions[1].remote(number), regions[0].data(0..100 * number + 1));
            qps[0].post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
            let cqe = loop {
                rest(&cards);
                match qps[0].cq.poll() {
                    Some(cqe) => break cqe,
                    None => {
                        world.advance_to(cards.iter().filter_map(|card| card.next_timer()).min().unwrap())
                    }
                }
            };
            seen.push((world.elapsed(), cqe.as_bytes().to_vec()));
        }
        seen
    };
    let first = run(7);
    assert_eq!(run(7), first);
    assert_ne!(run(8), first);
}

#[test]
fn a_request_that_fails_as_it_is_sent_again_completes_though_the_first_time_is_acknowledged() {
    let mut world = World::new();
    let Bed { cards, mut qps, regions } = bed(&mut world, None);
    cards[0].set_faults(Some(&"fail=local-protection kind=write nth=2".parse().unwrap()));
    let late = "drop times=2 kind=read-response; delay=200ms kind=ack nth=1";
    cards[1].set_faults(Some(&late.parse().unwrap()));
    let (remote, data) = (regions[1].remote(0), regions[0].data(0..8));
    qps[0].post(Opcode::RdmaRead, &[remote.as_bytes(), data.as_bytes()]);
    qps[0].post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    loop {
        rest(&cards);
        let Some(next) = cards.iter().filter_map(|card| card.next_timer()).min() else { break };
        world.advance_to(next);
    }
    assert_eq!(success(qps[0].cq.poll()), (Opcode::RdmaRead as u8, 0));
    assert_eq!(error(qps[0].cq.poll()), (CqeOpcode::RequesterError, Syndrome::LocalProtection, 1));
}
