//! A card's status for [`gdsync_status`].

use super::config::{QpState, Transport};
use super::engine::Engine;
use super::port::{LinkLayer, Port};
use super::transport::qp::Qp;
use super::worker::Shared;
use gdsync_status::{Card, Kept, MOST_NAMED, MOST_QUEUE_PAIRS, Peer, QueuePair, Source, Status, Wait};
use std::time::Duration;

/// Limit on waiting for the engine's lock: longer than a step of a card, and short for a status query.
const PATIENCE: Duration = Duration::from_millis(50);

impl Source for Shared {
    fn add_to(&self, status: &mut Status, kept: &mut Kept) {
        let mut card = identity(self.port);
        match self.engine.try_lock_for(kept.patience(PATIENCE)) {
            Some(engine) => describe(&engine, &mut card),
            None => card.is_busy = true,
        }
        status.cards.push(card);
    }
}

fn identity(port: Port) -> Card {
    Card {
        lid: port.lid,
        node: port.node(),
        is_ethernet: port.link == LinkLayer::Ethernet,
        gid: port.gids().first().map_or([0; 16], |entry| entry.gid),
        ..Card::default()
    }
}

fn describe(engine: &Engine, card: &mut Card) {
    let own = engine.resources.counters.own;
    (card.sent, card.received) = (own.sent, own.received);
    (card.not_ready, card.out_of_sequence) = (own.not_ready, own.out_of_sequence);
    card.faults = engine.resources.faults.counts().iter().map(|rule| rule.injected).sum();
    card.findings = engine.resources.diagnostics.count() as u32;
    card.queue_pair_count = engine.qps.len() as u32;
    let clock = &engine.resources.clock;
    let mut order: Vec<(bool, u32, &Qp)> =
        engine.qps.iter().map(|(qpn, qp)| (qp.requester.pending(clock).is_none(), *qpn, qp)).collect();
    order.sort_unstable_by_key(|(idle, qpn, _)| (*idle, *qpn));
    order.truncate(MOST_QUEUE_PAIRS);
    order.sort_unstable_by_key(|(_, qpn, _)| *qpn);
    card.queue_pairs = order.iter().map(|(_, _, qp)| queue_pair(engine, qp)).collect();
}

fn queue_pair(engine: &Engine, qp: &Qp) -> QueuePair {
    let config = &qp.endpoint.config;
    QueuePair {
        number: qp.endpoint.qpn,
        transport: format!("{:?}", config.transport),
        state: format!("{:?}", qp.endpoint.state()),
        peer: peer(engine, qp),
        outstanding: qp.requester.outstanding() as u32,
        blocks: qp.requester.queue.backlog(),
        resends: qp.requester.resends,
        wait: qp.requester.pending(&engine.resources.clock).map(|pending| Wait {
            queue_pairs: pending.cqn.map(|cqn| completing_in(engine, cqn)).unwrap_or_default(),
            what: pending.what,
            mark: pending.mark,
            time: pending.time,
        }),
    }
}

/// Returns the other side of an established connection.
fn peer(engine: &Engine, qp: &Qp) -> Option<Peer> {
    let is_connected = match qp.endpoint.config.transport {
        Transport::Ud => false,
        Transport::DcInitiator | Transport::DcTarget => qp.endpoint.peer.is_some(),
        _ => !matches!(qp.endpoint.state(), QpState::Reset | QpState::Init),
    };
    let (node, queue_pair) = (qp.endpoint.node(engine.resources.port), qp.endpoint.attributes.dest_qpn);
    (is_connected && queue_pair != 0).then(|| Peer { node, queue_pair, pid: engine.fabric.process(node) })
}

/// Returns queue pairs that complete to a completion queue, lowest numbers first.
fn completing_in(engine: &Engine, cqn: u32) -> Vec<u32> {
    let config = |qp: &Qp| [qp.endpoint.config.send_cq, qp.endpoint.config.recv_cq];
    let mut found: Vec<u32> =
        engine.qps.iter().filter(|(_, qp)| config(qp).contains(&Some(cqn))).map(|(qpn, _)| *qpn).collect();
    found.sort_unstable();
    found.truncate(MOST_NAMED);
    found
}
