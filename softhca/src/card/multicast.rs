//! Commands of multicast groups.

use super::config::{LIMITS, Transport};
use super::device::Card;
use super::engine::Engine;
use super::error::CardError;
use super::port::is_multicast;
use super::relations::{QP, invalid, missing, within};

impl Card {
    /// Whether queue pairs can be attached to multicast groups: on the fabric of one host.
    pub fn has_multicast(&self) -> bool {
        self.command(|engine| engine.fabric.is_of_one_host())
    }

    /// Attaches a queue pair of datagrams to a multicast group: it gets what is sent to the group from now on, by this
    /// card, too. A queue pair that is attached stays so.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Invalid`] for another transport, or a GID that is none of a
    /// group; [`CardError::TooMany`]; [`CardError::NoMulticast`]; [`CardError::System`].
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

/// Detaches a queue pair that is gone from all groups.
pub(super) fn leave_all(engine: &mut Engine, qpn: u32) {
    for gid in engine.resources.groups.groups_of(qpn) {
        detach(engine, qpn, &gid);
    }
}
