//! Packets and completion entries that faults delay. Packets keep their order between a queue pair and another card,
//! in each direction; completion entries keep it within a queue.

use crate::card::memory::ring::Entry;
use crate::fabric::Node;
use crate::faults::Direction;
use crate::packet::Header;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Maximum number of delayed packets of a flow (4 MiB); a queue pair with more waits as for a full fabric.
const FULL: usize = 64;
/// Maximum number of delayed incoming packets; beyond it the card takes no packets from the fabric.
const CONGESTED: usize = 1024;

/// The packets between a queue pair and another card, in one direction. They keep their order. Packets to one card do
/// not wait for those to another: a DC target answers its other initiators while one takes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) direction: Direction,
    pub(crate) qpn: u32,
    /// Destination of outgoing, source of incoming packets.
    pub(crate) node: Node,
}

impl Flow {
    pub(crate) fn outgoing(qpn: u32, node: Node) -> Self {
        Flow { direction: Direction::Out, qpn, node }
    }

    pub(crate) fn incoming(qpn: u32, node: Node) -> Self {
        Flow { direction: Direction::In, qpn, node }
    }
}

#[derive(Clone)]
pub(crate) struct DelayedPacket {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    /// When it is released.
    pub(crate) due: Instant,
    /// Release it earlier when this many packets of other queue pairs have passed.
    pub(crate) others: Option<u32>,
    /// True if it was due and the fabric had no room for it.
    pub(crate) had_no_room: bool,
}

impl DelayedPacket {
    fn is_ready(&self, now: Instant) -> bool {
        self.due <= now || self.others == Some(0)
    }
}

#[derive(Default)]
pub(crate) struct DelayedPackets {
    /// Queues by flow; none is empty.
    flows: BTreeMap<Flow, VecDeque<DelayedPacket>>,
}

impl DelayedPackets {
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub(crate) fn holds(&self, flow: Flow) -> bool {
        self.flows.contains_key(&flow)
    }

    /// Returns whether the packets of a flow wait for room in the fabric.
    pub(crate) fn has_no_room(&self, flow: Flow) -> bool {
        self.flows.get(&flow).and_then(VecDeque::front).is_some_and(|packet| packet.had_no_room)
    }

    pub(crate) fn is_full(&self, flow: Flow) -> bool {
        self.flows.get(&flow).is_some_and(|packets| packets.len() >= FULL)
    }

    pub(crate) fn is_congested(&self) -> bool {
        let incoming = self.flows.iter().filter(|(flow, _)| flow.direction == Direction::In);
        incoming.map(|(_, packets)| packets.len()).sum::<usize>() >= CONGESTED
    }

    pub(crate) fn push(&mut self, flow: Flow, packet: DelayedPacket) {
        self.flows.entry(flow).or_default().push_back(packet);
    }

    pub(crate) fn push_front(&mut self, flow: Flow, packet: DelayedPacket) {
        self.flows.entry(flow).or_default().push_front(packet);
    }

    /// Counts a packet of `flow`, for the packets of other queue pairs that wait for it.
    pub(crate) fn count_passed(&mut self, flow: Flow) {
        for (other, packets) in &mut self.flows {
            if other.direction == flow.direction
                && other.qpn != flow.qpn
                && let Some(DelayedPacket { others: Some(others), .. }) = packets.front_mut()
            {
                *others = others.saturating_sub(1);
            }
        }
    }

    /// Returns flows whose first packet is ready.
    pub(crate) fn ready(&self, now: Instant) -> Vec<Flow> {
        let is_ready = |packets: &VecDeque<DelayedPacket>| packets.front().is_some_and(|p| p.is_ready(now));
        self.flows.iter().filter(|(_, packets)| is_ready(packets)).map(|(flow, _)| *flow).collect()
    }

    /// Takes the first packet of a flow, if it is ready.
    pub(crate) fn pop(&mut self, flow: Flow, now: Instant) -> Option<DelayedPacket> {
        let packets = self.flows.get_mut(&flow)?;
        let is_ready = packets.front().is_some_and(|packet| packet.is_ready(now));
        let packet = if is_ready { packets.pop_front() } else { None };
        if packets.is_empty() {
            self.flows.remove(&flow);
        }
        packet
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.flows.values().filter_map(|packets| packets.front()).map(|packet| packet.due).min()
    }

    /// Makes all packets due, as faults have ended.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.flows.values_mut().flatten().for_each(|packet| packet.due = packet.due.min(now));
    }

    /// Makes the outgoing packets of a queue pair due, as it is about to be destroyed. Returns their flows.
    pub(crate) fn expire_outgoing(&mut self, qpn: u32, now: Instant) -> Vec<Flow> {
        let is_of = |flow: &Flow| flow.direction == Direction::Out && flow.qpn == qpn;
        let flows = self.flows.iter_mut().filter(|(flow, _)| is_of(flow));
        let expired = flows.map(|(flow, packets)| {
            packets.iter_mut().for_each(|packet| packet.due = packet.due.min(now));
            *flow
        });
        expired.collect()
    }

    /// Drops the packets of a queue pair that is reset: they must not reach its new connection.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.flows.retain(|flow, _| flow.qpn != qpn);
    }
}

#[derive(Default)]
pub(crate) struct DelayedCompletions {
    /// Entries by completion queue; no list is empty.
    queues: BTreeMap<u32, VecDeque<(Instant, Entry)>>,
    /// Queue pairs whose last-receive event is raised once none of their entries waits.
    last_receives: Vec<u32>,
}

impl DelayedCompletions {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns whether an entry of this queue waits. Then all later ones wait, too.
    pub(crate) fn holds(&self, cqn: u32) -> bool {
        self.queues.contains_key(&cqn)
    }

    pub(crate) fn push(&mut self, cqn: u32, due: Instant, entry: Entry) {
        self.queues.entry(cqn).or_default().push_back((due, entry));
    }

    /// Takes an entry that is due or, without a time, any entry.
    pub(crate) fn pop(&mut self, now: Option<Instant>) -> Option<(u32, Entry)> {
        let is_due = |due: Instant| now.is_none_or(|now| due <= now);
        let mut queues = self.queues.iter();
        let cqn = *queues.find(|(_, queue)| queue.front().is_some_and(|(due, _)| is_due(*due)))?.0;
        let queue = self.queues.get_mut(&cqn)?;
        let (_, entry) = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&cqn);
        }
        Some((cqn, entry))
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.queues.values().filter_map(|queue| queue.front()).map(|(due, _)| *due).min()
    }

    pub(crate) fn forget_queue(&mut self, cqn: u32) {
        self.queues.remove(&cqn);
    }

    /// Returns completion queues in which entries of this queue pair wait.
    fn queues_of(&self, qpn: u32) -> impl Iterator<Item = u32> {
        let waits =
            move |queue: &VecDeque<(Instant, Entry)>| queue.iter().any(|(_, entry)| entry.cqe.qpn() == qpn);
        self.queues.iter().filter(move |(_, queue)| waits(queue)).map(|(cqn, _)| *cqn)
    }

    /// Returns whether the last-receive event of this queue pair can be raised now, as none of its entries waits;
    /// otherwise [`Self::take_last_receives`] returns it later.
    pub(crate) fn last_receive(&mut self, qpn: u32) -> bool {
        let waits = self.queues_of(qpn).next().is_some();
        if waits {
            self.last_receives.push(qpn);
        }
        !waits
    }

    /// Takes the queue pairs whose last-receive event can be raised now.
    pub(crate) fn take_last_receives(&mut self) -> Vec<u32> {
        if self.last_receives.is_empty() {
            return Vec::new();
        }
        let (wait, ready) = std::mem::take(&mut self.last_receives)
            .into_iter()
            .partition(|qpn| self.queues_of(*qpn).next().is_some());
        self.last_receives = wait;
        ready
    }

    /// Takes all entries of the queues in which entries of this queue pair wait.
    pub(crate) fn take_of(&mut self, qpn: u32) -> Vec<(u32, Entry)> {
        let of: Vec<u32> = self.queues_of(qpn).collect();
        let taken = of.into_iter().filter_map(|cqn| self.queues.remove(&cqn).map(|queue| (cqn, queue)));
        taken.flat_map(|(cqn, queue)| queue.into_iter().map(move |(_, entry)| (cqn, entry))).collect()
    }
}
