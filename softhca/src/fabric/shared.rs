//! The fabric of one host: shared memory between processes.
//!
//! Every card has a LID, claimed as an abstract Unix socket name: it is unique on the host (in one network namespace), and
//! nothing is left behind when the process dies. A link carries packets one way. The sender makes it: shared memory with
//! a ring, whose descriptor travels to the receiver over a socket; the socket then only wakes sleepers, and its end
//! tells that the other process is gone.
//!
//! A forked child without exec shares the descriptors and must not use the fabric; all of them close at exec.

use super::link::{Incoming, Outgoing};
use super::ring;
use super::sleeper::Sleeper;
use super::sys;
use super::{FORGET_DEAD_AFTER, FabricError, LISTENER, OUTGOING, SendOutcome};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIDs that a card may have: the unicast range of InfiniBand.
pub(super) const LIDS: std::ops::RangeInclusive<u16> = 1..=0xbfff;
/// How often sockets are looked at while packets keep coming and nobody sleeps.
const LOOK_AT_SOCKETS: Duration = Duration::from_millis(1);
/// A card's access to the fabric. Used by one thread at a time.
pub(super) struct Shared {
    lid: u16,
    listener: UnixListener,
    outgoing: HashMap<u16, Outgoing>,
    incoming: Vec<Option<Incoming>>,
    /// LIDs that do not answer, and since when.
    dead: HashMap<u16, Instant>,
    sleeper: Arc<Sleeper>,
    looked: Instant,
}

/// The abstract socket name of a LID. Users do not see each other's cards.
fn name_of(lid: u16) -> Vec<u8> {
    format!("gdsync-softhca/{}/{lid}", sys::own_user()).into_bytes()
}

impl Shared {
    /// Claims a LID that is free.
    ///
    /// # Errors
    /// [`FabricError`].
    pub(super) fn bind() -> Result<Shared, FabricError> {
        // Somewhere: a LID that has just become free is not soon another card's, which would get what was still sent to the one before.
        let seed = RandomState::new().hash_one(()) as u32;
        let count = u32::from(*LIDS.end());
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for step in 0..count {
            let lid = (seed.wrapping_add(step) % count) as u16 + 1;
            let address = SocketAddr::from_abstract_name(name_of(lid))?;
            match UnixListener::bind_addr(&address) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    let sleeper = Arc::new(Sleeper::new()?);
                    sleeper.epoll.watch(listener.as_fd(), LISTENER)?;
                    return Ok(Shared {
                        lid,
                        listener,
                        outgoing: HashMap::new(),
                        incoming: Vec::new(),
                        dead: HashMap::new(),
                        sleeper,
                        looked: Instant::now(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(FabricError::NoLid { last: error }),
            }
        }
        Err(FabricError::NoLid { last })
    }

    /// The LID.
    pub(super) fn lid(&self) -> u16 {
        self.lid
    }

    /// What the engine's thread sleeps on; usable by other threads, too.
    pub(super) fn sleeper(&self) -> Arc<Sleeper> {
        self.sleeper.clone()
    }

    /// Sends a packet, without ever blocking.
    ///
    /// # Safety
    /// Each payload part is readable memory. The header is at most [`MAX_HEADER`] bytes, the payload [`MAX_PAYLOAD`].
    pub(super) unsafe fn try_send(
        &mut self,
        lid: u16,
        header: &[u8],
        payload: &[(*const u8, usize)],
    ) -> SendOutcome {
        if !self.outgoing.contains_key(&lid) {
            match self.connect(lid) {
                SendOutcome::Sent => {}
                other => return other,
            }
        }
        let Some(link) = self.outgoing.get_mut(&lid) else { return SendOutcome::Unreachable };
        // SAFETY: the caller's.
        match unsafe { link.push(header, payload) } {
            Ok(()) => SendOutcome::Sent,
            Err(ring::PushError::Full) if link.is_closed() => {
                self.forget(lid);
                SendOutcome::Unreachable
            }
            Err(ring::PushError::Full) => SendOutcome::Full,
            Err(ring::PushError::Corrupt) => {
                tracing::warn!(lid, "a peer broke the ring that leads to it: the link is closed");
                self.forget(lid);
                SendOutcome::Unreachable
            }
        }
    }

    /// Whether [`Self::try_send`] would find no room for a packet of that size: for those who ask before they fetch a payload
    /// at a price. If so, the fabric wakes its sleeper when there is room.
    pub(super) fn is_full(&self, lid: u16, header: usize, payload: usize) -> bool {
        self.outgoing.get(&lid).is_some_and(|link| link.is_full(header, payload))
    }

    /// False where the process of that LID is known to be gone.
    pub(super) fn is_alive(&mut self, lid: u16) -> bool {
        match self.outgoing.get(&lid) {
            Some(link) if link.is_closed() => {
                self.forget(lid);
                false
            }
            Some(_) => true,
            None => !self.is_dead(lid),
        }
    }

    fn is_dead(&mut self, lid: u16) -> bool {
        if self.dead.get(&lid).is_some_and(|since| since.elapsed() > FORGET_DEAD_AFTER) {
            self.dead.remove(&lid);
        }
        self.dead.contains_key(&lid)
    }

    fn forget(&mut self, lid: u16) {
        self.outgoing.remove(&lid);
        self.dead.insert(lid, Instant::now());
    }

    fn connect(&mut self, lid: u16) -> SendOutcome {
        if lid == self.lid || !LIDS.contains(&lid) || self.is_dead(lid) {
            return SendOutcome::Unreachable;
        }
        match Outgoing::connect(&name_of(lid), self.lid) {
            Ok(link) => {
                if let Err(error) = self.sleeper.epoll.watch(link.as_fd(), OUTGOING | u64::from(lid)) {
                    tracing::warn!(lid, %error, "a link cannot be watched");
                    return SendOutcome::Full;
                }
                self.outgoing.insert(lid, link);
                SendOutcome::Sent
            }
            // The peer's backlog is full: it has not come round to accepting yet.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => SendOutcome::Full,
            Err(error) => {
                tracing::debug!(lid, %error, "no card answers");
                self.dead.insert(lid, Instant::now());
                SendOutcome::Unreachable
            }
        }
    }

    /// Hands over at most `budget` packets: source LID, header, payload in two parts. Returns how many.
    ///
    /// The payload parts are memory that the sender can still write to: copy, do not trust twice.
    pub(super) fn poll(
        &mut self,
        budget: usize,
        mut take: impl FnMut(u16, &[u8], [(*const u8, usize); 2]),
    ) -> usize {
        if self.looked.elapsed() > LOOK_AT_SOCKETS {
            self.look_at_sockets();
        }
        let mut taken = 0;
        for place in &mut self.incoming {
            let Some(link) = place else { continue };
            // Fair between links: none gets more than its share of a call.
            let share = (budget - taken).min(16);
            match link.poll(share, &mut take) {
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

    /// Before sleeping: peers will wake the sleeper from now on. False where packets are there already, or the sleeper was
    /// woken meanwhile.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.sleeper.announce();
        let empty = self.incoming.iter().flatten().all(Incoming::announce_sleep);
        if !empty {
            self.finish_sleep();
        }
        empty
    }

    /// After sleeping, or after [`Self::prepare_sleep`] when work was found meanwhile.
    pub(super) fn finish_sleep(&mut self) {
        self.incoming.iter().flatten().for_each(Incoming::awake);
        self.sleeper.woke();
        self.look_at_sockets();
    }

    /// Accepts links, takes wake-up bytes, and notices processes that are gone.
    fn look_at_sockets(&mut self) {
        self.looked = Instant::now();
        for key in self.sleeper.epoll.ready() {
            match key {
                LISTENER => self.accept(),
                key if key & OUTGOING != 0 => {
                    let lid = key as u16;
                    if let Some(link) = self.outgoing.get_mut(&lid)
                        && !link.drain()
                    {
                        self.forget(lid);
                    }
                }
                key => self.look_at_incoming(key as usize),
            }
        }
    }

    fn look_at_incoming(&mut self, index: usize) {
        let Some(place) = self.incoming.get_mut(index) else { return };
        let Some(link) = place else { return };
        match link.look() {
            Ok(()) => {
                // What a process sent before it died is still delivered.
                if link.is_finished() {
                    tracing::debug!(lid = link.source(), "a peer is gone");
                    *place = None;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a link is refused");
                *place = None;
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let index = self.incoming.iter().position(Option::is_none).unwrap_or(self.incoming.len());
                    let link = match Incoming::new(socket) {
                        Ok(link) => link,
                        Err(error) => {
                            tracing::warn!(%error, "a link is refused");
                            continue;
                        }
                    };
                    if let Err(error) = self.sleeper.epoll.watch(link.as_fd(), index as u64) {
                        tracing::warn!(%error, "a link cannot be watched");
                        continue;
                    }
                    if index == self.incoming.len() {
                        self.incoming.push(None);
                    }
                    self.incoming[index] = Some(link);
                    // Its greeting is usually there already.
                    self.look_at_incoming(index);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "the fabric cannot accept links");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
