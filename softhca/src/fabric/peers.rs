//! Bookkeeping of links that both fabrics share, and the cards whose timers have another speed.
//!
//! A link says the speed of either card to the other one. Where they differ it is refused: one card would take the other
//! one for dead while that is still within its time-outs.

use super::packet::Node;
use crate::speed::{SPEED_VARIABLE, Speed};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

/// Time during which a destination that did not answer is not tried again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Most connections that a fabric accepts before it does other work.
pub(super) const ACCEPT_BUDGET: usize = 64;

/// Keys of epoll events. Incoming links have keys from 0 on, outgoing links have this bit set.
pub(super) const OUTGOING: u64 = 1 << 32;
/// Keys of connections that have not proven the key have this bit set.
pub(super) const UNPROVEN: u64 = 1 << 62;
/// Key of the listening socket.
pub(super) const LISTENER: u64 = u64::MAX;

/// Outgoing links by destination, and the destinations that recently did not answer.
pub(super) struct Peers<L> {
    pub(super) links: HashMap<Node, L>,
    dead: HashMap<Node, Instant>,
}

impl<L> Peers<L> {
    pub(super) fn new() -> Self {
        Peers { links: HashMap::new(), dead: HashMap::new() }
    }

    /// Drops the link to a destination, which is not tried again for a while.
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

    /// False if the process at a destination is known to have ended.
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

/// Index of an empty slot; adds one if all are taken.
pub(super) fn free_slot<L>(slots: &mut Vec<Option<L>>) -> usize {
    slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    })
}

/// Which link is served first. Each call begins with another one: where one call cannot serve all,
/// none is left out for ever.
#[derive(Default)]
pub(super) struct Turn(usize);

impl Turn {
    /// The indices of so many links, in the order of this call.
    pub(super) fn next(&mut self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.0.checked_rem(count).unwrap_or(0);
        self.0 = first + 1;
        (first..count).chain(0..first)
    }
}

/// A link was refused, as the card at its other end runs its timers at another speed.
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

/// What a card knows of speeds.
pub(super) struct Speeds {
    pub(super) own: Speed,
    refused: HashSet<OtherSpeed>,
    /// Those of `refused` that are not reported yet.
    news: Vec<OtherSpeed>,
}

impl Speeds {
    pub(super) fn new(own: Speed) -> Self {
        Speeds { own, refused: HashSet::new(), news: Vec::new() }
    }

    /// Whether the card at a node may have a link, which has said its speed. If not, that is news, once.
    pub(super) fn admits(&mut self, node: Node, other: Speed) -> bool {
        let refusal = OtherSpeed { node, own: self.own, other };
        if self.own != other && self.refused.insert(refusal) {
            self.news.push(refusal);
        }
        self.own == other
    }

    /// The cards that were refused since the last call.
    pub(super) fn take_refused(&mut self) -> Vec<OtherSpeed> {
        std::mem::take(&mut self.news)
    }
}
