//! The speed of this card's timers, and the cards that have another one.
//!
//! A link says the speed of either card to the other one. Where they differ it is refused: one card would take the other
//! one for dead while that is still within its time-outs.

use super::node::Node;
use crate::speed::{SPEED_VARIABLE, Speed};
use std::collections::HashSet;
use std::fmt;

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
    own: Speed,
    refused: HashSet<OtherSpeed>,
    /// Those of `refused` that are not reported yet.
    news: Vec<OtherSpeed>,
}

impl Speeds {
    pub(super) fn new(own: Speed) -> Self {
        Speeds { own, refused: HashSet::new(), news: Vec::new() }
    }

    pub(super) fn own(&self) -> Speed {
        self.own
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
