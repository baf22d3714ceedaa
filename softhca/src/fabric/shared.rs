//! The fabric of one host: shared memory between processes.
//!
//! Every card has a number, claimed as an abstract Unix socket name. The kernel keeps the name unique on the
//! host (in one network namespace) and frees it when the process ends. A link carries packets one way. The sending card
//! makes it: shared memory with a ring, whose descriptor it sends to the receiving card over a socket. After that the
//! socket only wakes sleepers, and its end shows that the other process has ended.
//!
//! Both sides of a link ask the kernel for the other side's user, and give up a link to another user before
//! any memory is sent or mapped.
//!
//! A forked child must not use the fabric: it closes the sockets ([`super::close_sockets_in_child`]), or shares them until it
//! calls exec.

use super::error::FabricError;
use super::groups::{self, Group, Groups};
use super::names::{self, Claim, Name};
use super::network::Network;
use super::packet::{Hole, NUMBERS, Node, PayloadPart, SendOutcome, Sink};
use super::peers::{
    ACCEPT_BUDGET, LISTENER, OUTGOING, OtherSpeed, Peers, RoundRobin, Speeds, WAKE, free_slot,
};
use super::ring::{self, Consumer};
use super::shared_link::{Incoming, Outgoing};
use super::sleeper::Sleeper;
use crate::os::socket::{self, is_exhausted};
use crate::os::wait::{self, Woken};
use crate::speed::Speed;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two polls of the sockets while the engine is busy.
const POLL_SOCKETS: Duration = Duration::from_millis(1);
/// Time for which a card may be too busy to accept a link. Another user with the name of a card that has
/// ended could keep it busy forever.
const BUSY_TIME: Duration = Duration::from_secs(10);

/// A card's access to the fabric, used by one thread at a time.
pub(super) struct Shared {
    number: u16,
    listener: Name,
    outgoing: Peers<Outgoing>,
    /// Cards that have not accepted a link yet, with the time of the first attempt.
    busy: HashMap<u16, Instant>,
    incoming: Vec<Option<Incoming>>,
    round_robin: RoundRobin,
    speeds: Speeds,
    sleeper: Arc<Sleeper>,
    polled: Instant,
    /// The end of the last packet on its link.
    position: u64,
    /// A descriptor to close when none is left for refusing a link.
    spare: Option<OwnedFd>,
    groups: Groups,
}

impl Shared {
    /// Claims a free number.
    ///
    /// # Errors
    /// [`FabricError`].
    pub(super) fn bind(speed: Speed) -> Result<Shared, FabricError> {
        Self::on(names::claim(names::seed())?, speed)
    }

    fn on(Claim { number, listener }: Claim, speed: Speed) -> Result<Shared, FabricError> {
        let sleeper = Arc::new(Sleeper::new(false)?);
        sleeper.epoll.watch(listener.as_fd(), LISTENER)?;
        Ok(Shared {
            number,
            listener,
            outgoing: Peers::new(),
            busy: HashMap::new(),
            incoming: Vec::new(),
            round_robin: RoundRobin::default(),
            speeds: Speeds::new(speed),
            sleeper,
            polled: Instant::now(),
            position: 0,
            spare: Some(wait::event(0)?),
            groups: Groups::default(),
        })
    }

    /// Returns the link to a card, and makes it if there is none.
    fn link_to(&mut self, node: Node) -> Result<&mut Outgoing, SendOutcome> {
        if !self.outgoing.links.contains_key(&node) {
            match self.connect(node) {
                SendOutcome::Sent => {}
                other => return Err(other),
            }
        }
        self.outgoing.links.get_mut(&node).ok_or(SendOutcome::Unreachable)
    }

    fn connect(&mut self, node: Node) -> SendOutcome {
        let number =
            u16::try_from(node).ok().filter(|number| *number != self.number && NUMBERS.contains(number));
        let Some(number) = number.filter(|_| !self.outgoing.is_dead(node)) else {
            return SendOutcome::Unreachable;
        };
        let made =
            names::connect(number).and_then(|socket| Outgoing::over(socket, self.number, self.speeds.own));
        let since = self.busy.remove(&number).unwrap_or_else(Instant::now);
        match made {
            Ok(link) => {
                if let Err(error) = self.sleeper.epoll.watch(link.as_fd(), OUTGOING | node) {
                    tracing::warn!(number, %error, "a link cannot be watched");
                    return SendOutcome::Full;
                }
                self.outgoing.links.insert(node, link);
                SendOutcome::Sent
            }
            // The peer's backlog is full: it has not accepted earlier links yet.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && since.elapsed() < BUSY_TIME => {
                self.busy.insert(number, since);
                SendOutcome::Full
            }
            Err(error) => {
                if is_exhausted(&error) {
                    tracing::warn!(number, %error, "no link can be made: raise the limit of open files (ulimit -n)");
                } else {
                    tracing::debug!(number, %error, "no card answers");
                }
                self.outgoing.mark_dead(node);
                SendOutcome::Unreachable
            }
        }
    }

    fn rings(&self) -> impl Iterator<Item = &(Node, Consumer)> {
        self.incoming.iter().flatten().filter_map(|link| link.greeted.as_ref())
    }

    /// Accepts links, reads wake-up bytes, and notices processes that have ended.
    fn poll_sockets(&mut self) {
        self.polled = Instant::now();
        for key in self.sleeper.epoll.ready() {
            self.poll_socket(key);
        }
    }

    fn poll_socket(&mut self, key: u64) {
        match key {
            LISTENER => self.accept(),
            WAKE => {}
            key if key & OUTGOING != 0 => {
                let node = key & !OUTGOING;
                if let Some(link) = self.outgoing.links.get_mut(&node)
                    && !link.drain()
                {
                    // Possibly closed because of the speed.
                    if let Some(speed) = link.ring.consumer_speed() {
                        self.speeds.admits(node, speed);
                    }
                    self.outgoing.mark_dead(node);
                }
            }
            key => self.poll_incoming(key as usize),
        }
    }

    fn poll_incoming(&mut self, index: usize) {
        let Some(place) = self.incoming.get_mut(index) else { return };
        let Some(link) = place else { return };
        let speeds = &mut self.speeds;
        match link.handle_socket(speeds.own, |node, speed| speeds.admits(node, speed)) {
            Ok(()) => {
                // The packets that a process sent before it ended are still delivered.
                if link.is_finished() {
                    tracing::debug!(number = link.source(), "a peer has ended, or was refused");
                    *place = None;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a link is refused");
                *place = None;
            }
        }
    }

    /// Refuses the next link if there is no file descriptor for it, as its peer would wait while this process
    /// lives. Returns false if there is no spare descriptor for that either.
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

impl Network for Shared {
    fn number(&self) -> u16 {
        self.number
    }

    fn speed(&self) -> Speed {
        self.speeds.own
    }

    fn take_refused(&mut self) -> Vec<OtherSpeed> {
        self.speeds.take_refused()
    }

    fn sleeper(&self) -> Arc<Sleeper> {
        self.sleeper.clone()
    }

    fn is_of_one_host(&self) -> bool {
        true
    }

    unsafe fn try_send(&mut self, node: Node, header: &[u8], payload: &[PayloadPart]) -> SendOutcome {
        let link = match self.link_to(node) {
            Ok(link) => link,
            Err(outcome) => return outcome,
        };
        // SAFETY: guaranteed by the caller.
        match unsafe { link.push(header, payload) } {
            Ok(()) => {
                self.position = link.ring.position();
                SendOutcome::Sent
            }
            Err(ring::PushError::Full) if link.closed => {
                self.outgoing.mark_dead(node);
                SendOutcome::Unreachable
            }
            Err(ring::PushError::Full) => SendOutcome::Full,
            Err(ring::PushError::Unreadable(gone)) => SendOutcome::Unreadable(gone),
            Err(ring::PushError::Corrupt) => {
                tracing::warn!(number = node, "a peer broke the ring that leads to it: the link is closed");
                self.outgoing.mark_dead(node);
                SendOutcome::Unreachable
            }
        }
    }

    /// Never drops the link, as placed packets may still be filled: the caller sends a packet that a broken
    /// link does not take by [`Self::try_send`], which drops it.
    unsafe fn place(
        &mut self,
        node: Node,
        header: &[u8],
        payload: &[PayloadPart],
        holes: &mut Vec<Hole>,
    ) -> SendOutcome {
        let link = match self.link_to(node) {
            Ok(link) => link,
            Err(outcome) => return outcome,
        };
        // SAFETY: guaranteed by the caller.
        match unsafe { link.ring.place(header, payload, holes) } {
            Ok(()) => {
                self.position = link.ring.position();
                SendOutcome::Sent
            }
            Err(ring::PushError::Full) if !link.closed => SendOutcome::Full,
            Err(ring::PushError::Unreadable(gone)) => SendOutcome::Unreadable(gone),
            Err(ring::PushError::Full | ring::PushError::Corrupt) => SendOutcome::Unreachable,
        }
    }

    fn publish(&mut self, node: Node) {
        if let Some(link) = self.outgoing.links.get_mut(&node) {
            link.publish();
        }
    }

    fn take_back(&mut self, node: Node) {
        if let Some(link) = self.outgoing.links.get_mut(&node) {
            link.ring.take_back();
        }
    }

    fn withdraw(&mut self, node: Node) {
        if let Some(link) = self.outgoing.links.get_mut(&node) {
            link.ring.withdraw();
        }
    }

    fn is_full(&self, node: Node, header: usize, payload: usize) -> bool {
        self.outgoing.links.get(&node).is_some_and(|link| link.is_full(header, payload))
    }

    fn is_alive(&mut self, node: Node) -> bool {
        u16::try_from(node).is_ok() && self.outgoing.is_alive(node, Outgoing::has_ended)
    }

    fn is_stopped(&self, node: Node) -> bool {
        self.outgoing.links.get(&node).is_some_and(Outgoing::is_stopped)
    }

    fn process(&self, node: Node) -> u32 {
        let incoming =
            self.incoming.iter().flatten().filter(|link| link.source() == node).map(Incoming::process);
        let outgoing = self.outgoing.links.get(&node).map(Outgoing::process);
        outgoing.into_iter().chain(incoming).find(|pid| *pid != 0).unwrap_or(0)
    }

    fn is_linked(&mut self, node: Node) -> bool {
        self.is_alive(node) && self.outgoing.links.contains_key(&node)
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn has_taken(&self, node: Node, position: u64) -> bool {
        self.outgoing.links.get(&node).is_none_or(|link| link.ring.has_taken(position))
    }

    fn rounds(&self, node: Node) -> Option<u64> {
        self.outgoing.links.get(&node).map(|link| link.ring.rounds())
    }

    fn end_round(&mut self) {
        let links = self.incoming.iter_mut().flatten();
        links.filter_map(|link| link.greeted.as_mut()).for_each(|(_, ring)| ring.end_round());
    }

    fn arrived(&mut self, node: Node) -> u64 {
        // The link itself may have just arrived.
        self.poll_sockets();
        let of_node = self.rings().filter(|(from, _)| *from == node);
        of_node.last().map_or(0, |(_, ring)| ring.arrived())
    }

    fn has_received(&self, node: Node, position: u64) -> bool {
        self.rings().filter(|(from, _)| *from == node).all(|(_, ring)| ring.has_taken(position))
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        if self.polled.elapsed() > POLL_SOCKETS {
            self.poll_sockets();
        }
        self.round_robin.poll(&mut self.incoming, budget, |link, share| match link.poll(share, sink) {
            Ok(count) => (count, true),
            Err(ring::Corrupt(reason)) => {
                tracing::warn!(number = link.source(), reason, "a peer broke its ring: the link is closed");
                (0, false)
            }
        })
    }

    fn close(&mut self) {
        socket::shut_down(self.listener.as_fd());
        self.outgoing.links.clear();
        self.incoming.clear();
    }

    fn prepare_sleep(&mut self) -> bool {
        self.sleeper.announce();
        let empty = self.rings().all(|(_, ring)| ring.announce_sleep());
        if !empty {
            self.cancel_sleep();
        }
        empty
    }

    fn cancel_sleep(&mut self) {
        self.rings().for_each(|(_, ring)| ring.awake());
        self.sleeper.cancel();
    }

    fn finish_sleep(&mut self) {
        self.rings().for_each(|(_, ring)| ring.awake());
        match self.sleeper.withdraw() {
            Woken::ByTime => {}
            Woken::By(key) => self.poll_socket(key),
            Woken::Unknown => self.poll_sockets(),
        }
    }

    fn join(&mut self, group: &Group) -> io::Result<()> {
        self.groups.join(group, self.number)
    }

    fn leave(&mut self, group: &Group) {
        self.groups.leave(group);
    }

    fn members(&self, group: &Group) -> Vec<Node> {
        groups::members(group).into_iter().map(Node::from).collect()
    }
}

#[cfg(test)]
mod tests;
