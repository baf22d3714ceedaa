//! The agent of the connection manager: the thread that receives the peers' messages and runs the timers.

use super::host;
use super::id::IdState;
use super::manager::{File, Inner, Link, Manager};
use super::message::{Message, MessageKind};
use crate::card::OpenCard;
use crate::errno::Result;
use crate::events::wake::Signal;
use crate::events::wake::readable;
use gdsync_sys::thread;
use softhca::card::ManagementDatagram;
use softhca::fabric::{Door, Node, Service, Services};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Interval of the check that the peers' processes live.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Manager {
    /// Opens a file, and starts the agent if it does not run. Also returns the descriptor that the program polls.
    ///
    /// # Errors
    /// The system's, if it gives no descriptor or thread.
    pub(crate) fn open(self: &Arc<Self>) -> Result<(File, OwnedFd)> {
        let (signal, fd) = Signal::new()?;
        let signal = Arc::new(signal);
        self.make_wake()?;
        let mut inner = self.lock();
        if inner.services.is_none() {
            inner.door = Door::open()?;
            inner.services = Some(Services::new()?);
        }
        if !inner.has_agent {
            start(self)?;
            inner.has_agent = true;
        }
        let number = inner.add_file(signal.clone());
        drop(inner);
        Ok((File { manager: self.clone(), number, signal }, fd))
    }
}

/// Interval at which an idle agent checks whether anything else uses the manager.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the agent's thread, which ends when nothing else uses the manager. The process's own manager never
/// ends, and its cards stay: a thread that ended would free memory while the program ends, when libraries
/// such as libfabric restore the C library's `munmap`.
fn start(manager: &Arc<Manager>) -> Result<()> {
    let manager = manager.clone();
    thread::start(Builder::new().name("softhca-cm".to_owned()), move || run(&manager))?;
    Ok(())
}

fn run(manager: &Arc<Manager>) {
    let Some((wake, services)) = manager.wake().zip(manager.lock().services.clone()) else { return };
    loop {
        let mut inner = manager.lock();
        if inner.is_idle() && Arc::strong_count(manager) == 1 {
            inner.has_agent = false;
            let cards = std::mem::take(&mut inner.cards);
            drop(inner);
            // After the lock is released: the cards' threads end here.
            drop(cards);
            return;
        }
        let timer = next_timer(&inner).map(|at| at.saturating_duration_since(Instant::now()));
        let longest = timer.or_else(|| inner.is_idle().then_some(IDLE_CHECK_INTERVAL));
        drop(inner);
        // Fails only if a signal ends it; the loop repeats.
        let _ = readable(&[wake.as_fd(), services.as_fd()], longest);
        // Before receiving: a later arrival raises it again.
        wake.drain();
        work(&mut manager.lock(), Instant::now());
    }
}

/// Returns the claims on port numbers, each with whether an identifier listens there. For as long as the manager is
/// locked: an identifier's end frees its port.
fn services(inner: &Inner) -> Vec<(Arc<Service>, bool)> {
    let mut services: Vec<(Arc<Service>, bool)> = Vec::new();
    for id in inner.ids.values() {
        let Some(claim) = id.port.as_ref().and_then(|port| port.claim.as_ref()) else { continue };
        let listens = id.state == IdState::Listen;
        match services.iter_mut().find(|(known, _)| Arc::ptr_eq(known, claim)) {
            Some((_, any)) => *any |= listens,
            None => services.push((claim.clone(), listens)),
        }
    }
    services
}

fn next_timer(inner: &Inner) -> Option<Instant> {
    let timers = inner.connections.values().filter_map(|link| link.connection.next_timer());
    let peers = inner.connections.values().any(|link| !link.connection.is_over());
    timers.chain(peers.then(|| Instant::now() + PEER_CHECK_INTERVAL)).min()
}

/// Does all work that is due.
fn work(inner: &mut Inner, now: Instant) {
    // Before receiving: the last messages of a process that has ended have arrived.
    let ended = ended_peers(inner, now);
    let cards = host::as_services(&inner.cards);
    for (service, listens) in services(inner) {
        service.answer(if listens { &cards } else { &[] });
    }
    for open in inner.cards.clone() {
        for datagram in open.card.take_management() {
            arrived(inner, &open, &datagram, now);
        }
    }
    let due: Vec<u32> = inner.connections.keys().copied().collect();
    for local in due {
        let Some(link) = inner.connections.get_mut(&local) else { continue };
        let reaction = link.connection.expire(now);
        inner.react(local, reaction);
    }
    for local in ended {
        let Some(link) = inner.connections.get_mut(&local) else { continue };
        let reaction = link.connection.peer_ended(now);
        inner.react(local, reaction);
    }
}

fn arrived(inner: &mut Inner, open: &Arc<OpenCard>, datagram: &ManagementDatagram, now: Instant) {
    let source = datagram.source;
    let Some(message) = Message::decode(&datagram.bytes) else {
        tracing::warn!(source, "a malformed connection message");
        return;
    };
    tracing::debug!(source, ?message, "a connection message has arrived");
    let local = receiver(inner, open, source, &message);
    let link = inner.connections.get_mut(&local).filter(|link| {
        link.node == source && Arc::ptr_eq(&link.card, open) && link.connection.is_from_peer(&message)
    });
    match link {
        Some(link) => {
            let reaction = link.connection.arrive(&message, now);
            inner.react(local, reaction);
        }
        None => inner.unmatched(open, datagram, &message),
    }
}

/// Returns the connection of a message: by its own ID, or by the sender's if the sender does not know that.
fn receiver(inner: &Inner, open: &Arc<OpenCard>, source: Node, message: &Message) -> u32 {
    if message.remote_id != 0 || message.kind != MessageKind::Rej {
        return message.remote_id;
    }
    inner.connection_to(open, source, message.local_id).unwrap_or_default()
}

/// Returns the connections whose peer's process has ended since the last check; none if that was just now.
fn ended_peers(inner: &mut Inner, now: Instant) -> Vec<u32> {
    if inner.last_peer_check.is_some_and(|last| now.duration_since(last) < PEER_CHECK_INTERVAL) {
        return Vec::new();
    }
    inner.last_peer_check = Some(now);
    let has_ended = |link: &mut Link| {
        let is_linked = link.card.card.is_linked(link.node);
        std::mem::replace(&mut link.was_linked, is_linked) && !is_linked
    };
    let ended = inner.connections.iter_mut().filter_map(|(local, link)| has_ended(link).then_some(*local));
    ended.inspect(|local| tracing::debug!(local, "the process of a connection's peer has ended")).collect()
}
