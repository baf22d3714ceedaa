//! The members of multicast groups among a card's queue pairs.

use crate::fabric::Group;
use std::collections::{BTreeMap, BTreeSet};

/// Queue pairs by the group that they are attached to.
#[derive(Debug, Default)]
pub(crate) struct Members {
    by_group: BTreeMap<Group, BTreeSet<u32>>,
}

impl Members {
    /// How many groups have members.
    pub(crate) fn groups(&self) -> usize {
        self.by_group.len()
    }

    /// The queue pairs that are attached to a group.
    pub(crate) fn of(&self, group: &Group) -> impl ExactSizeIterator<Item = u32> {
        static NONE: BTreeSet<u32> = BTreeSet::new();
        self.by_group.get(group).unwrap_or(&NONE).iter().copied()
    }

    /// Whether a queue pair is attached to a group.
    pub(crate) fn has(&self, group: &Group, qpn: u32) -> bool {
        self.by_group.get(group).is_some_and(|members| members.contains(&qpn))
    }

    /// Attaches a queue pair.
    pub(crate) fn add(&mut self, group: &Group, qpn: u32) {
        self.by_group.entry(*group).or_default().insert(qpn);
    }

    /// Detaches a queue pair. True if the group has no member any more.
    pub(crate) fn remove(&mut self, group: &Group, qpn: u32) -> bool {
        let Some(members) = self.by_group.get_mut(group) else { return false };
        members.remove(&qpn);
        let is_empty = members.is_empty();
        if is_empty {
            self.by_group.remove(group);
        }
        is_empty
    }

    /// The groups that a queue pair is attached to.
    pub(crate) fn groups_of(&self, qpn: u32) -> Vec<Group> {
        let is_member = |members: &BTreeSet<u32>| members.contains(&qpn);
        self.by_group.iter().filter(|(_, members)| is_member(members)).map(|(group, _)| *group).collect()
    }
}
