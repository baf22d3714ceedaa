//! What faults hold back: packets, in order within a queue pair and a direction; completion entries, in order within a queue.

use super::packet::Header;
use crate::fabric::Node;
use crate::faults::Direction;
use gdsync_sys::prm::cqe::Cqe64;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Packets of one queue pair that are held back before it has to wait, as it does for a full fabric: 4 MiB at most.
const FULL: usize = 64;
/// Packets that are held back on their way in before no more are taken from the fabric.
const CONGESTED: usize = 1024;

/// The packets of a queue pair that go one way: they keep their order.
pub(super) type Lane = (Direction, u32);

/// A packet that waits.
#[derive(Clone)]
pub(super) struct HeldPacket {
    pub(super) header: Header,
    /// Where it goes, or came from.
    pub(super) node: Node,
    pub(super) payload: Vec<u8>,
    /// When it goes on.
    pub(super) due: Instant,
    /// Sooner, when so many packets of others have gone by.
    pub(super) others: Option<u32>,
}

impl HeldPacket {
    fn is_ready(&self, now: Instant) -> bool {
        self.due <= now || self.others == Some(0)
    }
}

/// All packets that wait.
#[derive(Default)]
pub(super) struct Held {
    /// None of them is empty.
    lanes: BTreeMap<Lane, VecDeque<HeldPacket>>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn holds(&self, lane: Lane) -> bool {
        self.lanes.contains_key(&lane)
    }

    pub(super) fn is_full(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).is_some_and(|packets| packets.len() >= FULL)
    }

    /// Too many wait on their way in.
    pub(super) fn is_congested(&self) -> bool {
        let coming = self.lanes.iter().filter(|((direction, _), _)| *direction == Direction::In);
        coming.map(|(_, packets)| packets.len()).sum::<usize>() >= CONGESTED
    }

    pub(super) fn push(&mut self, lane: Lane, packet: HeldPacket) {
        self.lanes.entry(lane).or_default().push_back(packet);
    }

    pub(super) fn push_front(&mut self, lane: Lane, packet: HeldPacket) {
        self.lanes.entry(lane).or_default().push_front(packet);
    }

    /// A packet of that lane went by: those of other queue pairs may have waited for it.
    pub(super) fn passed(&mut self, lane: Lane) {
        for ((direction, qpn), packets) in &mut self.lanes {
            if *direction == lane.0
                && *qpn != lane.1
                && let Some(HeldPacket { others: Some(others), .. }) = packets.front_mut()
            {
                *others = others.saturating_sub(1);
            }
        }
    }

    /// Lanes whose first packet may go on.
    pub(super) fn ready(&self, now: Instant) -> Vec<Lane> {
        let is_ready = |packets: &VecDeque<HeldPacket>| packets.front().is_some_and(|p| p.is_ready(now));
        self.lanes.iter().filter(|(_, packets)| is_ready(packets)).map(|(lane, _)| *lane).collect()
    }

    /// The first packet of a lane, if it may go on.
    pub(super) fn pop(&mut self, lane: Lane, now: Instant) -> Option<HeldPacket> {
        let packets = self.lanes.get_mut(&lane)?;
        let is_ready = packets.front().is_some_and(|packet| packet.is_ready(now));
        let packet = if is_ready { packets.pop_front() } else { None };
        if packets.is_empty() {
            self.lanes.remove(&lane);
        }
        packet
    }

    /// When the next packet goes on.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.lanes.values().filter_map(|packets| packets.front()).map(|packet| packet.due).min()
    }

    /// Faults have ended: nothing has to wait any longer.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.lanes.values_mut().flatten().for_each(|packet| packet.due = packet.due.min(now));
    }

    /// A queue pair begins anew: packets of its former life must not disturb it or its peer.
    pub(super) fn forget(&mut self, qpn: u32) {
        self.lanes.retain(|(_, of), _| *of != qpn);
    }
}

/// Completion entries that become visible late.
#[derive(Default)]
pub(super) struct Late {
    /// By completion queue; none of them is empty.
    queues: BTreeMap<u32, VecDeque<(Instant, Cqe64)>>,
}

impl Late {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether an entry of that queue waits: then all behind it do.
    pub(super) fn holds(&self, cqn: u32) -> bool {
        self.queues.contains_key(&cqn)
    }

    pub(super) fn push(&mut self, cqn: u32, due: Instant, cqe: Cqe64) {
        self.queues.entry(cqn).or_default().push_back((due, cqe));
    }

    /// The next entry that is due, or, without a time, any.
    pub(super) fn pop(&mut self, now: Option<Instant>) -> Option<(u32, Cqe64)> {
        let is_due = |due: Instant| now.is_none_or(|now| due <= now);
        let mut queues = self.queues.iter();
        let cqn = *queues.find(|(_, queue)| queue.front().is_some_and(|(due, _)| is_due(*due)))?.0;
        let queue = self.queues.get_mut(&cqn)?;
        let (_, cqe) = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&cqn);
        }
        Some((cqn, cqe))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queues.values().filter_map(|queue| queue.front()).map(|(due, _)| *due).min()
    }

    pub(super) fn forget_queue(&mut self, cqn: u32) {
        self.queues.remove(&cqn);
    }

    /// All entries of the queues where some of this queue pair wait.
    pub(super) fn take_of(&mut self, qpn: u32) -> Vec<(u32, Cqe64)> {
        let waits = |queue: &VecDeque<(Instant, Cqe64)>| queue.iter().any(|(_, cqe)| cqe.qpn() == qpn);
        let of: Vec<u32> =
            self.queues.iter().filter(|(_, queue)| waits(queue)).map(|(cqn, _)| *cqn).collect();
        let taken = of.into_iter().filter_map(|cqn| self.queues.remove(&cqn).map(|queue| (cqn, queue)));
        taken.flat_map(|(cqn, queue)| queue.into_iter().map(move |(_, cqe)| (cqn, cqe))).collect()
    }
}
