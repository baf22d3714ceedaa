//! Multicast groups of queue pairs.

use super::qp::Qp;
use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;
use crate::uapi::queues::AttachMcast;
use softhca::card::{LinkLayer, MULTICAST_LIDS, Transport, is_multicast};

/// Returns the program's request for a queue pair that may be a member.
///
/// # Errors
/// EOPNOTSUPP on a fabric without groups; EINVAL as in the kernel (`ib_attach_mcast`).
fn asked(context: &Context, request: &Request) -> Result<AttachMcast> {
    let asked: AttachMcast = request.structure(attr::CORE_IN)?;
    let transport = context.objects.lock().state::<Qp>(asked.qp_handle)?.config.transport;
    if !context.card().has_multicast() {
        tracing::warn!("cards of several hosts (SOFTHCA_LISTEN) have no multicast groups");
        return Err(Errno::NOT_SUPPORTED);
    }
    // On Ethernet the LID is ignored (RoCE annex of the specification).
    let has_lid = context.card().link_layer() == LinkLayer::Ethernet || MULTICAST_LIDS.contains(&asked.mlid);
    if is_multicast(&asked.gid) && has_lid && transport == Transport::Ud {
        return Ok(asked);
    }
    let gid = std::net::Ipv6Addr::from(asked.gid);
    tracing::warn!(%gid, asked.mlid, %transport, "a group has a multicast GID and LID, and members of UD");
    Err(Errno::INVALID)
}

/// `ATTACH_MCAST`. A queue pair may be attached again.
pub(crate) fn attach(context: &Context, request: &Request) -> Result<()> {
    let asked = asked(context, request)?;
    let mut objects = context.objects.lock();
    let qp = objects.state_mut::<Qp>(asked.qp_handle)?;
    let group = (asked.gid, asked.mlid);
    if !qp.groups.contains(&group) {
        context.card().attach_multicast(qp.number, &asked.gid)?;
        qp.groups.push(group);
    }
    Ok(())
}

pub(crate) fn detach(context: &Context, request: &Request) -> Result<()> {
    let asked = asked(context, request)?;
    let mut objects = context.objects.lock();
    let qp = objects.state_mut::<Qp>(asked.qp_handle)?;
    let place = qp.groups.iter().position(|group| *group == (asked.gid, asked.mlid)).ok_or(Errno::INVALID)?;
    qp.groups.swap_remove(place);
    // Another LID may stand for the same group.
    if qp.groups.iter().all(|(gid, _)| *gid != asked.gid) {
        context.card().detach_multicast(qp.number, &asked.gid)?;
    }
    Ok(())
}
