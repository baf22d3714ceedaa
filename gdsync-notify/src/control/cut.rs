//! Connections between living ranks that have all failed, and the ranks' messages about them.

use super::Control;
use super::message::Message;
use crate::liveness::{Liveness, RankSet};
use std::collections::BTreeSet;
use std::time::Instant;

/// The messages of other ranks, by whom they concern.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// Ranks whose connections with this one have failed on their side.
    here: RankSet,
    /// Pairs of other ranks whose connections with each other have all failed.
    elsewhere: BTreeSet<(u32, u32)>,
}

impl Cuts {
    /// Notes that a rank has lost its connections with these `ranks`, of which the rank `own` may be one.
    pub(super) fn hear(&mut self, rank: u32, ranks: RankSet, own: u32) {
        for other in ranks {
            if other == own {
                self.here.insert(rank);
            } else {
                self.elsewhere.insert((rank.min(other), rank.max(other)));
            }
        }
    }

    /// Forgets a rank whose place another process takes.
    pub(super) fn forget(&mut self, rank: u32) {
        self.elsewhere.retain(|(one, other)| ![*one, *other].contains(&rank));
    }
}

impl Control {
    /// Tells the living ranks that all of this rank's connections with these `ranks` have failed: those, which have to end
    /// theirs, and the others, for [`Self::release`]. Returns and forgets the ranks that have said so of this one.
    pub(crate) fn exchange_cut(&mut self, ranks: RankSet, liveness: &Liveness) -> RankSet {
        if !ranks.is_empty() {
            let epoch = self.agreement.epoch();
            self.send_to_all(&Message::Cut { epoch, ranks }, &liveness.not_alive());
            self.told_at = Instant::now() + self.options.patience();
            self.poll(liveness);
        }
        std::mem::take(&mut self.cuts.here)
    }

    /// Returns two of these ranks, other than this one, whose connections with each other have all failed.
    pub(crate) fn cut_among(&self, ranks: &[u32]) -> Option<(u32, u32)> {
        let is_among = |(one, other): &&(u32, u32)| ranks.contains(one) && ranks.contains(other);
        self.cuts.elsewhere.iter().find(is_among).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_say_is_of_this_one_or_of_two_others_until_one_is_replaced() {
        let mut cuts = Cuts::default();
        cuts.hear(2, [0, 1].into(), 1);
        cuts.hear(0, [2].into(), 1);
        assert_eq!((&cuts.here, &cuts.elsewhere), (&[2].into(), &[(0, 2)].into()));
        cuts.hear(3, [2].into(), 1);
        cuts.forget(0);
        assert_eq!((&cuts.here, &cuts.elsewhere), (&[2].into(), &[(2, 3)].into()));
    }
}
