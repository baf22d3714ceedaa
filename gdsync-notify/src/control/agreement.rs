//! How the survivors agree on the ranks that the team drops: pure, without I/O.
//!
//! Every survivor proposes the set of ranks that it has found dead, to all that are not in it, and
//! proposes anew when the set grows. A survivor decides once every rank that is not in its set has
//! proposed the same set. It announces the decision, and a rank that hears of one takes it over.
//!
//! # Why all survivors decide the same, whichever ranks die meanwhile
//! A rank proposes a set only after it has cut its connections with the ranks of that set and has read all that they
//! had sent. So it has either taken over a decision of theirs, and proposes nothing more, or it never will. Let a
//! survivor decide a set `T`: then every rank outside `T` has proposed `T`, undecided at that time, and takes over no
//! decision of a rank inside `T` any more. Proposals only grow and end with a decision, so any decision that a rank
//! outside `T` makes by itself is a set that contains `T`. If it is larger, it contains no survivor that has decided
//! `T`, as such a rank never proposed it. The argument needs no bound on the time of messages. It needs that a rank
//! that is found dead is cut off, which the connections do.

use crate::liveness::RankSet;

/// What a rank says to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    /// Agreements before this one.
    pub(crate) epoch: u32,
    /// The set is decided.
    pub(crate) is_decided: bool,
    /// The ranks to be dropped, with those that were dropped before.
    pub(crate) dead: RankSet,
}

/// The end of an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All survivors drop these ranks.
    Drop(RankSet),
    /// That rank has found this one dead.
    Expelled { by: u32 },
}

#[derive(Debug)]
pub(crate) struct Agreement {
    own: u32,
    epoch: u32,
    /// The newest of each rank in this epoch.
    heard: Vec<Option<Proposal>>,
    /// Those of later epochs, in the order in which they came.
    later: Vec<(u32, Proposal)>,
    /// What this rank has proposed last in this epoch.
    proposed: Option<RankSet>,
}

impl Agreement {
    pub(crate) fn new(own: u32, size: u32, epoch: u32) -> Self {
        Agreement { own, epoch, heard: vec![None; size as usize], later: Vec::new(), proposed: None }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A rank has said that. Ranks that are cut off say nothing.
    pub(crate) fn hear(&mut self, from: u32, proposal: Proposal) {
        if self.proposed.as_ref().is_some_and(|dead| dead.contains(&from)) {
            return;
        }
        if proposal.epoch == self.epoch {
            let known = &mut self.heard[from as usize];
            // A decision is the last word of a rank.
            if !known.as_ref().is_some_and(|known| known.is_decided) {
                *known = Some(proposal);
            }
        } else if proposal.epoch > self.epoch {
            self.later.push((from, proposal));
        }
    }

    /// The first rank that others have found dead, with one that says so, among those for which `is_news`.
    pub(crate) fn reported(&self, is_news: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
        let said = (0..).zip(&self.heard).filter_map(|(by, said)| Some((by, said.as_ref()?)));
        said.flat_map(|(by, said)| said.dead.iter().map(move |rank| (*rank, by)))
            .find(|(rank, _)| *rank != self.own && is_news(*rank))
    }

    /// Ranks outside `dead` that have said nothing yet in this epoch.
    pub(crate) fn silent(&self, dead: &RankSet) -> Vec<u32> {
        let silent = (0..).zip(&self.heard).filter(|(rank, said)| said.is_none() && *rank != self.own);
        silent.map(|(rank, _)| rank).filter(|rank| !dead.contains(rank)).collect()
    }

    /// One step of a rank that takes contribution. `dead` are the ranks that it has found dead, all of them
    /// cut off and heard to the end. Returns what it says now to all ranks outside that set, and
    /// the end, once it is reached; the next epoch begins then.
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

    /// Begins a later epoch.
    pub(crate) fn begin(&mut self, epoch: u32) {
        let later = std::mem::take(&mut self.later);
        *self = Agreement::new(self.own, self.heard.len() as u32, epoch);
        later.into_iter().for_each(|(from, proposal)| self.hear(from, proposal));
    }
}

#[cfg(test)]
mod tests;
