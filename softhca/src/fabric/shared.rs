//! The fabric of one host: shared memory between processes.
//!
//! Every card has a LID, claimed as an abstract Unix socket name (`names.rs`). The kernel keeps the
//! name unique on the host (in one network namespace) and frees it when the process ends. A link
//! carries packets one way. The sending card makes it: shared memory with a ring, whose descriptor
//! it sends to the receiving card over a socket. After that the socket only wakes sleepers, and its
//! end shows that the other process has ended.
//!
//! Both sides of a link ask the kernel for the other side's user, and give up a link to another
//! user before any memory is sent or mapped.
//!
//! A forked child shares the descriptors until it calls exec, which closes them. It must not use
//! the fabric.

use super::error::FabricError;
use super::names::{self, Claim};
use super::node::LIDS;
use super::packet::{Hole, Part, SendOutcome, Sink};
use super::peers::{ACCEPT_BUDGET, LISTENER, OUTGOING, Peers, Turn, free_slot};
use super::ring;
use super::shared_link::{Incoming, Outgoing};
use super::sleeper::Sleeper;
use super::speeds::{OtherSpeed, Speeds};
use crate::os::{socket, wait};
use crate::speed::Speed;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two polls of the sockets while the engine is busy.
const POLL_SOCKETS: Duration = Duration::from_millis(1);
/// How long a card may be too busy to accept a link. Another user that holds the name of a card
/// that has ended could keep it busy for ever.
const BUSY_TIME: Duration = Duration::from_secs(10);

/// A card's access to the fabric. Used by one thread at a time.
pub(super) struct Shared {
    lid: u16,
    listener: UnixListener,
    outgoing: Peers<u16, Outgoing>,
    /// Cards that have not accepted a link yet, and since when.
    busy: HashMap<u16, Instant>,
    incoming: Vec<Option<Incoming>>,
    turn: Turn,
    speeds: Speeds,
    sleeper: Arc<Sleeper>,
    polled: Instant,
    /// Where the last packet ends on its link.
    position: u64,
    /// Closed to have a descriptor for refusing a link when there is no other.
    spare: Option<OwnedFd>,
}

/// Whether the process, or the system, has no file descriptor left.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl Shared {
    /// Claims a LID that is free.
    ///
    /// # Errors
    /// [`FabricError`].
    pub(super) fn bind(speed: Speed) -> Result<Shared, FabricError> {
        // The search starts at a random LID: if a LID were reused soon, the new card would receive
        // packets meant for its former owner.
        Self::on(names::claim(RandomState::new().hash_one(()) as u32)?, speed)
    }

    fn on(Claim { lid, listener }: Claim, speed: Speed) -> Result<Shared, FabricError> {
        let sleeper = Arc::new(Sleeper::new()?);
        sleeper.epoll.watch(listener.as_fd(), LISTENER)?;
        Ok(Shared {
            lid,
            listener,
            outgoing: Peers::new(),
            busy: HashMap::new(),
            incoming: Vec::new(),
            turn: Turn::default(),
            speeds: Speeds::new(speed),
            sleeper,
            polled: Instant::now(),
            position: 0,
            spare: Some(wait::event(0)?),
        })
    }

    pub(super) fn lid(&self) -> u16 {
        self.lid
    }

    pub(super) fn speed(&self) -> Speed {
        self.speeds.own()
    }

    /// As [`super::Fabric::take_refused`].
    pub(super) fn take_refused(&mut self) -> Vec<OtherSpeed> {
        self.speeds.take_refused()
    }

    pub(super) fn sleeper(&self) -> Arc<Sleeper> {
        self.sleeper.clone()
    }

    /// # Safety
    /// As [`super::Fabric::try_send`].
    pub(super) unsafe fn try_send(&mut self, lid: u16, header: &[u8], payload: &[Part]) -> SendOutcome {
        let link = match self.link_to(lid) {
            Ok(link) => link,
            Err(outcome) => return outcome,
        };
        // SAFETY: the caller's.
        match unsafe { link.push(header, payload) } {
            Ok(()) => {
                self.position = link.position();
                SendOutcome::Sent
            }
            Err(ring::PushError::Full) if link.is_closed() => {
                self.outgoing.mark_dead(lid);
                SendOutcome::Unreachable
            }
            Err(ring::PushError::Full) => SendOutcome::Full,
            Err(ring::PushError::Corrupt) => {
                tracing::warn!(lid, "a peer broke the ring that leads to it: the link is closed");
                self.outgoing.mark_dead(lid);
                SendOutcome::Unreachable
            }
        }
    }

    /// Never drops the link, as packets that were placed before may still be filled: a packet that a broken link
    /// does not take is to be sent by [`Self::try_send`], which drops it.
    ///
    /// # Safety
    /// As [`super::Fabric::place`].
    pub(super) unsafe fn place(
        &mut self,
        lid: u16,
        header: &[u8],
        payload: &[Part],
        holes: &mut Vec<Hole>,
    ) -> SendOutcome {
        let link = match self.link_to(lid) {
            Ok(link) => link,
            Err(outcome) => return outcome,
        };
        // SAFETY: the caller's.
        match unsafe { link.place(header, payload, holes) } {
            Ok(()) => {
                self.position = link.position();
                SendOutcome::Sent
            }
            Err(ring::PushError::Full) if !link.is_closed() => SendOutcome::Full,
            Err(ring::PushError::Full | ring::PushError::Corrupt) => SendOutcome::Unreachable,
        }
    }

    /// Publishes the packets that were placed on the way to a card.
    pub(super) fn publish(&mut self, lid: u16) {
        if let Some(link) = self.outgoing.links.get_mut(&lid) {
            link.publish();
        }
    }

    /// Takes back the packet that was placed last on the way to a card.
    pub(super) fn take_back(&mut self, lid: u16) {
        if let Some(link) = self.outgoing.links.get_mut(&lid) {
            link.take_back();
        }
    }

    /// Takes back the packets that were placed on the way to a card.
    pub(super) fn withdraw(&mut self, lid: u16) {
        if let Some(link) = self.outgoing.links.get_mut(&lid) {
            link.withdraw();
        }
    }

    /// The link to a card, which is made if there is none; or why there is none.
    fn link_to(&mut self, lid: u16) -> Result<&mut Outgoing, SendOutcome> {
        if !self.outgoing.links.contains_key(&lid) {
            match self.connect(lid) {
                SendOutcome::Sent => {}
                other => return Err(other),
            }
        }
        self.outgoing.links.get_mut(&lid).ok_or(SendOutcome::Unreachable)
    }

    pub(super) fn is_full(&self, lid: u16, header: usize, payload: usize) -> bool {
        self.outgoing.links.get(&lid).is_some_and(|link| link.is_full(header, payload))
    }

    pub(super) fn is_alive(&mut self, lid: u16) -> bool {
        self.outgoing.is_alive(lid, Outgoing::has_ended)
    }

    pub(super) fn is_linked(&mut self, lid: u16) -> bool {
        self.is_alive(lid) && self.outgoing.links.contains_key(&lid)
    }

    /// As [`super::Fabric::position`].
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// As [`super::Fabric::has_taken`].
    pub(super) fn has_taken(&self, lid: u16, position: u64) -> bool {
        self.outgoing.links.get(&lid).is_none_or(|link| link.has_taken(position))
    }

    /// As [`super::Fabric::rounds`].
    pub(super) fn rounds(&self, lid: u16) -> Option<u64> {
        self.outgoing.links.get(&lid).map(Outgoing::rounds)
    }

    /// As [`super::Fabric::end_round`].
    pub(super) fn end_round(&mut self) {
        self.incoming.iter_mut().flatten().for_each(Incoming::end_round);
    }

    fn incoming_of(&self, lid: u16) -> impl Iterator<Item = &Incoming> {
        self.incoming.iter().flatten().filter(move |link| link.source() == lid)
    }

    /// As [`super::Fabric::arrived`].
    pub(super) fn arrived(&mut self, lid: u16) -> u64 {
        // The link itself may have arrived just now.
        self.poll_sockets();
        self.incoming_of(lid).last().map_or(0, Incoming::arrived)
    }

    /// As [`super::Fabric::has_received`].
    pub(super) fn has_received(&self, lid: u16, position: u64) -> bool {
        self.incoming_of(lid).all(|link| link.has_taken(position))
    }

    fn connect(&mut self, lid: u16) -> SendOutcome {
        if lid == self.lid || !LIDS.contains(&lid) || self.outgoing.is_dead(lid) {
            return SendOutcome::Unreachable;
        }
        let made = names::connect(lid).and_then(|socket| Outgoing::over(socket, self.lid, self.speeds.own()));
        let since = self.busy.remove(&lid).unwrap_or_else(Instant::now);
        match made {
            Ok(link) => {
                if let Err(error) = self.sleeper.epoll.watch(link.as_fd(), OUTGOING | u64::from(lid)) {
                    tracing::warn!(lid, %error, "a link cannot be watched");
                    return SendOutcome::Full;
                }
                self.outgoing.links.insert(lid, link);
                SendOutcome::Sent
            }
            // The peer's backlog is full: it has not accepted earlier links yet.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && since.elapsed() < BUSY_TIME => {
                self.busy.insert(lid, since);
                SendOutcome::Full
            }
            Err(error) => {
                if is_exhausted(&error) {
                    tracing::warn!(lid, %error, "no link can be made: raise the limit of open files (ulimit -n)");
                } else {
                    tracing::debug!(lid, %error, "no card answers");
                }
                self.outgoing.mark_dead(lid);
                SendOutcome::Unreachable
            }
        }
    }

    pub(super) fn poll(&mut self, budget: usize, sink: &mut impl Sink) -> usize {
        if self.polled.elapsed() > POLL_SOCKETS {
            self.poll_sockets();
        }
        let mut taken = 0;
        for index in self.turn.next(self.incoming.len()) {
            let place = &mut self.incoming[index];
            let Some(link) = place else { continue };
            // Fairness: no link delivers more than 16 packets in one call.
            let share = (budget - taken).min(16);
            match link.poll(share, sink) {
                Ok(count) => taken += count,
                Err(ring::Corrupt(reason)) => {
                    tracing::warn!(lid = link.source(), reason, "a peer broke its ring: the link is closed");
                    *place = None;
                }
            }
            if taken == budget {
                break;
            }
        }
        taken
    }

    /// As [`super::Fabric::close`].
    pub(super) fn close(&mut self) {
        socket::refuse_connections(self.listener.as_fd());
        self.outgoing.links.clear();
        self.incoming.clear();
    }

    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.sleeper.announce();
        let empty = self.incoming.iter().flatten().all(Incoming::announce_sleep);
        if !empty {
            self.finish_sleep();
        }
        empty
    }

    pub(super) fn finish_sleep(&mut self) {
        self.incoming.iter().flatten().for_each(Incoming::awake);
        self.sleeper.woke();
        self.poll_sockets();
    }

    /// Accepts links, takes wake-up bytes, and notices processes that have ended.
    fn poll_sockets(&mut self) {
        self.polled = Instant::now();
        for key in self.sleeper.epoll.ready() {
            match key {
                LISTENER => self.accept(),
                key if key & OUTGOING != 0 => {
                    let lid = key as u16;
                    if let Some(link) = self.outgoing.links.get_mut(&lid)
                        && !link.drain()
                    {
                        // Closed because of that, perhaps.
                        if let Some(speed) = link.peer_speed() {
                            self.speeds.admits(lid.into(), speed);
                        }
                        self.outgoing.mark_dead(lid);
                    }
                }
                key => self.poll_incoming(key as usize),
            }
        }
    }

    fn poll_incoming(&mut self, index: usize) {
        let Some(place) = self.incoming.get_mut(index) else { return };
        let Some(link) = place else { return };
        let speeds = &mut self.speeds;
        match link.handle_socket(speeds.own(), |node, speed| speeds.admits(node, speed)) {
            Ok(()) => {
                // What a process sent before it ended is still delivered.
                if link.is_finished() {
                    tracing::debug!(lid = link.source(), "a peer has ended, or was refused");
                    *place = None;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a link is refused");
                *place = None;
            }
        }
    }

    /// Refuses the next link, for which there is no file descriptor: its peer would wait for as long
    /// as this process lives. False if there is none to spare for that either.
    fn refuse_one(&mut self) -> bool {
        let Some(spare) = self.spare.take() else { return false };
        drop(spare);
        let refused = self.listener.accept();
        let is_refused = refused.is_ok();
        drop(refused);
        self.spare = wait::event(0).ok();
        is_refused
    }

    fn accept(&mut self) {
        // Bounded, as other users can connect all the time.
        for _ in 0..ACCEPT_BUDGET {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let link = match Incoming::new(socket) {
                        Ok(link) => link,
                        Err(error) => {
                            tracing::warn!(%error, "a link is refused");
                            continue;
                        }
                    };
                    let index = free_slot(&mut self.incoming);
                    if let Err(error) = self.sleeper.epoll.watch(link.as_fd(), index as u64) {
                        tracing::warn!(%error, "a link cannot be watched");
                        continue;
                    }
                    self.incoming[index] = Some(link);
                    // The greeting has usually arrived already.
                    self.poll_incoming(index);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "a link is refused: if files are exhausted, raise the limit of open files (ulimit -n)"
                    );
                    if !is_exhausted(&error) || !self.refuse_one() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
