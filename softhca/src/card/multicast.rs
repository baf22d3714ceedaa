//! Multicast groups: their members among a card's queue pairs, and the commands that change them.

use super::config::{LIMITS, Transport};
use super::device::Card;
use super::engine::Engine;
use super::error::CardError;
use super::port::is_multicast;
use super::relations::{QP, invalid, missing, within};
use crate::fabric::Group;
use std::collections::{BTreeMap, BTreeSet};

/// Queue pairs by the group that they are attached to.
#[derive(Debug, Default)]
pub(crate) struct Members {
    by_group: BTreeMap<Group, BTreeSet<u32>>,
}

impl Members {
    /// Returns the number of groups with members.
    pub(crate) fn groups(&self) -> usize {
        self.by_group.len()
    }

    /// Returns the queue pairs attached to a group.
    pub(crate) fn of(&self, group: &Group) -> impl ExactSizeIterator<Item = u32> {
        static NONE: BTreeSet<u32> = BTreeSet::new();
        self.by_group.get(group).unwrap_or(&NONE).iter().copied()
    }

    /// Returns whether a queue pair is attached to a group.
    pub(crate) fn has(&self, group: &Group, qpn: u32) -> bool {
        self.by_group.get(group).is_some_and(|members| members.contains(&qpn))
    }

    /// Attaches a queue pair.
    pub(crate) fn add(&mut self, group: &Group, qpn: u32) {
        self.by_group.entry(*group).or_default().insert(qpn);
    }

    /// Detaches a queue pair. True if the group has no member left.
    pub(crate) fn remove(&mut self, group: &Group, qpn: u32) -> bool {
        let Some(members) = self.by_group.get_mut(group) else { return false };
        members.remove(&qpn);
        let is_empty = members.is_empty();
        if is_empty {
            self.by_group.remove(group);
        }
        is_empty
    }

    /// Returns the groups that a queue pair is attached to.
    pub(crate) fn groups_of(&self, qpn: u32) -> Vec<Group> {
        let is_member = |members: &BTreeSet<u32>| members.contains(&qpn);
        self.by_group.iter().filter(|(_, members)| is_member(members)).map(|(group, _)| *group).collect()
    }
}

impl Card {
    /// Returns whether queue pairs can be attached to multicast groups: only on the fabric of one host.
    pub fn has_multicast(&self) -> bool {
        self.command(|engine| engine.fabric.is_of_one_host())
    }

    /// Attaches a UD queue pair to a multicast group: it receives what any card, including this one, sends to the group
    /// from now on. No effect if it is attached already.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Invalid`] for another transport, or a GID that is no multicast GID;
    /// [`CardError::TooMany`]; [`CardError::NoMulticast`]; [`CardError::System`].
    pub fn attach_multicast(&self, qpn: u32, gid: &[u8; 16]) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.qps.get(&qpn).ok_or(missing(QP, qpn))?;
            if qp.endpoint.config.transport != Transport::Ud {
                let transport = qp.endpoint.config.transport as u32;
                return Err(invalid("transport of a group's member", transport, "UD (2)"));
            }
            if !is_multicast(gid) {
                let limit = "0xff, or that of an IPv4-mapped address of 224.0.0.0/4";
                return Err(invalid("first byte of a multicast GID", gid[0].into(), limit));
            }
            if !engine.fabric.is_of_one_host() {
                return Err(CardError::NoMulticast);
            }
            let groups = &engine.resources.groups;
            let members = groups.of(gid).len();
            if groups.has(gid, qpn) {
                return Ok(());
            }
            within("queue pairs of a multicast group", members, LIMITS.max_group_members)?;
            if members == 0 {
                within("multicast groups", groups.groups(), LIMITS.max_groups)?;
                engine.fabric.join(gid)?;
            }
            engine.resources.groups.add(gid, qpn);
            Ok(())
        })
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if it is not attached.
    pub fn detach_multicast(&self, qpn: u32, gid: &[u8; 16]) -> Result<(), CardError> {
        self.command(|engine| {
            if !engine.resources.groups.has(gid, qpn) {
                return Err(missing("queue pair in that multicast group", qpn));
            }
            detach(engine, qpn, gid);
            Ok(())
        })
    }
}

fn detach(engine: &mut Engine, qpn: u32, gid: &[u8; 16]) {
    if engine.resources.groups.remove(gid, qpn) {
        engine.fabric.leave(gid);
    }
}

/// Detaches a destroyed queue pair from all groups.
pub(super) fn leave_all(engine: &mut Engine, qpn: u32) {
    for gid in engine.resources.groups.groups_of(qpn) {
        detach(engine, qpn, &gid);
    }
}
