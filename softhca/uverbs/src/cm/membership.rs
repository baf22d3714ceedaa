//! Identifiers as members of multicast groups. The program learns the address of the group here, and attaches
//! its queue pair by verbs.

use super::address::Address;
use super::event::Event;
use super::group;
use super::id::State;
use super::manager::{Inner, Membership};
use crate::errno::{Errno, Result};

impl Inner {
    /// `JOIN_MCAST`, `JOIN_IP_MCAST`. `answer` gives the program the number of the membership. An event has
    /// the address.
    ///
    /// # Errors
    /// EINVAL if the identifier is bound to no card or is not for datagrams, or for the address that names no
    /// group; ENOSYS on a fabric without groups; and those of [`Inner::id`] and `answer`.
    pub(crate) fn join(
        &mut self,
        file: u32,
        number: u32,
        uid: u64,
        address: &Address,
        answer: impl FnOnce(u32) -> Result<()>,
    ) -> Result<()> {
        let id = self.id(file, number)?;
        let open = id.card.clone().ok_or(Errno::INVALID)?;
        let is_ready = matches!(id.state, State::AddrBound | State::AddrResolved);
        if !is_ready || !id.qp_type.is_datagram() || address.is_any() {
            return Err(Errno::INVALID);
        }
        if !open.card.has_multicast() {
            tracing::warn!("cards of several hosts (SOFTHCA_LISTEN) have no multicast groups");
            return Err(Errno(libc::ENOSYS));
        }
        let gid = group::gid(open.card.link_layer(), id.space, address);
        let (handle, qkey) = (group::handle(&open, gid).ok_or(Errno::NO_DEVICE)?, id.qkey);
        let member = self.add_membership(Membership { id: number, events_reported: 0 });
        answer(member).inspect_err(|_| _ = self.memberships.remove(&member))?;
        self.push(Event::joined(number, member, uid, qkey, handle));
        Ok(())
    }

    /// `LEAVE_MCAST`. Returns how many events of the membership the program has received.
    ///
    /// # Errors
    /// ENOENT if there is no such membership, EINVAL if it belongs to another file.
    pub(crate) fn leave(&mut self, file: u32, member: u32) -> Result<u32> {
        let number = self.memberships.get(&member).ok_or(Errno::NO_ENTRY)?.id;
        self.id(file, number)?;
        self.take_events(file, |event| event.membership() == Some(member));
        let left = self.memberships.remove(&member);
        Ok(left.map_or(0, |membership| membership.events_reported))
    }
}
