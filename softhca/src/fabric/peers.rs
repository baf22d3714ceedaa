//! Bookkeeping of links for both fabrics, and refusals of cards with another timer speed.
//!
//! The two cards of a link exchange their speeds. A link between different speeds is refused: one card would
//! declare its peer dead while the peer is still within its time-outs.

use super::packet::Node;
use crate::speed::{SPEED_VARIABLE, Speed};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

/// Time for which an unresponsive destination is not tried again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Maximum number of connections that a fabric accepts before it does other work.
pub(super) const ACCEPT_BUDGET: usize = 64;

/// Keys of epoll events: those of incoming links count from 0, those of outgoing links are their nodes with this bit.
pub(super) const OUTGOING: u64 = 1 << 61;
/// Bit of the keys of connections that have not proven the key.
pub(super) const UNPROVEN: u64 = 1 << 62;
pub(super) const LISTENER: u64 = u64::MAX;
/// The event by which threads of the process wake the sleeper.
pub(super) const WAKE: u64 = LISTENER - 1;

/// Outgoing links by destination, and the destinations that recently did not answer.
pub(super) struct Peers<L> {
    pub(super) links: HashMap<Node, L>,
    dead: HashMap<Node, Instant>,
}

impl<L> Peers<L> {
    pub(super) fn new() -> Self {
        Peers { links: HashMap::new(), dead: HashMap::new() }
    }

    /// Drops the link to a destination, and does not retry it for a while.
    pub(super) fn mark_dead(&mut self, to: Node) {
        self.links.remove(&to);
        self.dead.insert(to, Instant::now());
    }

    pub(super) fn is_dead(&mut self, to: Node) -> bool {
        if self.dead.get(&to).is_some_and(|since| since.elapsed() > RETRY_AFTER) {
            self.dead.remove(&to);
        }
        self.dead.contains_key(&to)
    }

    /// Returns false if the process at a destination is known to have ended.
    pub(super) fn is_alive(&mut self, to: Node, is_closed: impl FnOnce(&L) -> bool) -> bool {
        match self.links.get(&to) {
            Some(link) if is_closed(link) => {
                self.mark_dead(to);
                false
            }
            Some(_) => true,
            None => !self.is_dead(to),
        }
    }
}

/// Returns the index of an empty slot, and adds one if all are taken.
pub(super) fn free_slot<L>(slots: &mut Vec<Option<L>>) -> usize {
    slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    })
}

/// Maximum number of packets that a link delivers in one poll, so that others have their turn.
pub(super) const SHARE: usize = 16;

/// A rotating start index: if one call cannot serve all links, none starves.
#[derive(Default)]
pub(super) struct RoundRobin(usize);

impl RoundRobin {
    /// Polls links until they have delivered as many packets as asked for. `poll` gets the most that its link may deliver,
    /// and returns how many it has, and whether the link stays.
    pub(super) fn poll<L>(
        &mut self,
        links: &mut [Option<L>],
        budget: usize,
        mut poll: impl FnMut(&mut L, usize) -> (usize, bool),
    ) -> usize {
        let first = self.0.checked_rem(links.len()).unwrap_or(0);
        self.0 = first + 1;
        let mut taken = 0;
        for index in (first..links.len()).chain(0..first) {
            if let Some(link) = &mut links[index] {
                let (count, stays) = poll(link, (budget - taken).min(SHARE));
                taken += count;
                links[index].take_if(|_| !stays);
            }
            if taken == budget {
                break;
            }
        }
        taken
    }
}

/// A link refused because the card at its other end has another timer speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OtherSpeed {
    node: Node,
    own: Speed,
    other: Speed,
}

impl fmt::Display for OtherSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OtherSpeed { node, own, other } = self;
        write!(
            f,
            "the card at node {node:#x} runs its timers {other} times as fast as hardware's and this card {own} times, so \
             there is no link between them: give all processes of the job the same {SPEED_VARIABLE}"
        )
    }
}

pub(super) struct Speeds {
    pub(super) own: Speed,
    refused: HashSet<OtherSpeed>,
    /// The entries of `refused` that are not reported yet.
    unreported: Vec<OtherSpeed>,
}

impl Speeds {
    pub(super) fn new(own: Speed) -> Self {
        Speeds { own, refused: HashSet::new(), unreported: Vec::new() }
    }

    /// Returns whether the card at a node may have a link. A refusal is recorded once.
    pub(super) fn admits(&mut self, node: Node, other: Speed) -> bool {
        let refusal = OtherSpeed { node, own: self.own, other };
        if self.own != other && self.refused.insert(refusal) {
            self.unreported.push(refusal);
        }
        self.own == other
    }

    pub(super) fn take_refused(&mut self) -> Vec<OtherSpeed> {
        std::mem::take(&mut self.unreported)
    }
}
