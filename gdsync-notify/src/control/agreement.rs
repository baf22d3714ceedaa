//! The survivors' agreement on the ranks that the team drops: a pure state machine without I/O.
//!
//! Every survivor sends the set of ranks that it has found dead to all ranks outside the set, and again when the set grows.
//! Once every rank outside its set has proposed the same set, it decides and announces that. A receiver adopts the
//! decision.
//!
//! # Why all survivors decide the same, whichever ranks die meanwhile
//! A rank proposes a set only after it has cut its connections to the ranks of that set and has read all that they had
//! sent. So it either has adopted a decision of theirs, and proposes nothing more, or never will. Let a survivor decide a
//! set `T`: then every rank outside `T` has proposed `T`, undecided at that time, and adopts no decision of a rank inside
//! `T` any more. Proposals only grow and end with a decision, so any decision that a rank outside `T` makes alone is a
//! superset of `T`. A larger set contains no survivor that has decided `T`, because such a rank never proposed it. The
//! argument needs no bound on message delays. It needs that a rank found dead is cut off, which the connections do.

use crate::liveness::RankSet;

/// A rank's message to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    /// The number of earlier agreements.
    pub(crate) epoch: u32,
    pub(crate) is_decided: bool,
    /// The ranks to drop, and those that were dropped before.
    pub(crate) dead: RankSet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All survivors drop these ranks.
    Drop(RankSet),
    /// Rank `by` has found this one dead.
    Expelled { by: u32 },
}

#[derive(Debug)]
pub(crate) struct Agreement {
    own: u32,
    epoch: u32,
    /// Each rank's newest proposal of this epoch.
    heard: Vec<Option<Proposal>>,
    /// Proposals of later epochs in the order of their arrival.
    later: Vec<(u32, Proposal)>,
    proposed: Option<RankSet>,
}

impl Agreement {
    pub(crate) fn new(own: u32, size: u32, epoch: u32) -> Self {
        Agreement { own, epoch, heard: vec![None; size as usize], later: Vec::new(), proposed: None }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Takes a proposal. Those of ranks that are cut off are ignored.
    pub(crate) fn hear(&mut self, from: u32, proposal: Proposal) {
        if self.proposed.as_ref().is_some_and(|dead| dead.contains(&from)) {
            return;
        }
        if proposal.epoch == self.epoch {
            let known = &mut self.heard[from as usize];
            // A decision is final.
            if !known.as_ref().is_some_and(|known| known.is_decided) {
                *known = Some(proposal);
            }
        } else if proposal.epoch > self.epoch {
            self.later.push((from, proposal));
        }
    }

    /// Returns the first rank with `is_news` that others have found dead, and one rank that reports it.
    pub(crate) fn reported(&self, is_news: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
        let said = (0..).zip(&self.heard).filter_map(|(by, said)| Some((by, said.as_ref()?)));
        said.flat_map(|(by, said)| said.dead.iter().map(move |rank| (*rank, by)))
            .find(|(rank, _)| *rank != self.own && is_news(*rank))
    }

    /// Returns the ranks outside `dead` that have proposed nothing in this epoch.
    pub(crate) fn silent(&self, dead: &RankSet) -> Vec<u32> {
        let silent = (0..).zip(&self.heard).filter(|(rank, said)| said.is_none() && *rank != self.own);
        silent.map(|(rank, _)| rank).filter(|rank| !dead.contains(rank)).collect()
    }

    /// Takes a step. `dead` are the ranks that this one has found dead, all of them cut off and read to the end.
    /// Returns the message to all ranks outside that set, and the result once it is known; then the next epoch begins.
    pub(crate) fn step(&mut self, dead: &RankSet) -> (Option<Proposal>, Option<Outcome>) {
        let epoch = self.epoch;
        let decided = self.heard.iter().flatten().find(|said| said.is_decided).map(|said| said.dead.clone());
        if let Some(dead) = decided {
            return match (0..).zip(&self.heard).find(|(_, said)| {
                said.as_ref().is_some_and(|said| said.is_decided && said.dead.contains(&self.own))
            }) {
                Some((by, _)) => (None, Some(Outcome::Expelled { by })),
                None => {
                    self.begin_next();
                    let said = Proposal { epoch, is_decided: true, dead: dead.clone() };
                    (Some(said), Some(Outcome::Drop(dead)))
                }
            };
        }
        let expels =
            |said: &Option<Proposal>| said.as_ref().is_some_and(|said| said.dead.contains(&self.own));
        if let Some((by, _)) = (0..).zip(&self.heard).find(|(_, said)| expels(said)) {
            return (None, Some(Outcome::Expelled { by }));
        }
        let agrees = |(rank, said): (u32, &Option<Proposal>)| {
            rank == self.own || dead.contains(&rank) || said.as_ref().is_some_and(|said| said.dead == *dead)
        };
        if (0..).zip(&self.heard).all(agrees) {
            self.begin_next();
            let said = Proposal { epoch, is_decided: true, dead: dead.clone() };
            return (Some(said), Some(Outcome::Drop(dead.clone())));
        }
        if self.proposed.as_ref() == Some(dead) {
            return (None, None);
        }
        self.proposed = Some(dead.clone());
        (Some(Proposal { epoch, is_decided: false, dead: dead.clone() }), None)
    }

    fn begin_next(&mut self) {
        self.begin(self.epoch + 1);
    }

    pub(crate) fn begin(&mut self, epoch: u32) {
        let later = std::mem::take(&mut self.later);
        *self = Agreement::new(self.own, self.heard.len() as u32, epoch);
        later.into_iter().for_each(|(from, proposal)| self.hear(from, proposal));
    }
}

#[cfg(test)]
mod tests;
