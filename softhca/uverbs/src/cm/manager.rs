//! The connection manager of the process: its files, identifiers and connections.
//!
//! One lock guards all of them. It is never held while waiting for another process.

use super::connection::{Connection, Reaction};
use super::event::{Event, EventKind};
use super::host;
use super::id::{Id, QpType, Route};
use super::message::Message;
use crate::card::{Cards, OpenCard};
use crate::errno::{Errno, Result};
use crate::events::wake::Signal;
use crate::events::wake::Wake;
use crate::uapi::ucm::EventResp;
use parking_lot::{Mutex, MutexGuard};
use softhca::fabric::{Door, Node, Services};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for messages to leave: a busy peer proves the key of its link late.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// Time between two checks whether they have left.
const LEAVE_INTERVAL: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(crate) struct Manager {
    cards: Arc<Cards>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    last_file: u32,
    files: HashMap<u32, Events>,
    pub(crate) ids: BTreeMap<u32, Id>,
    pub(crate) memberships: BTreeMap<u32, Membership>,
    last_membership: u32,
    /// Connections by local communication ID.
    pub(crate) connections: HashMap<u32, Link>,
    last_connection: u32,
    /// The process's claims on port numbers, since its first file.
    pub(crate) services: Option<Services>,
    /// Where other hosts ask for them, on the fabric of several hosts.
    pub(crate) door: Option<Door>,
    /// The process's cards, empty until they are first needed.
    pub(crate) cards: Vec<Arc<OpenCard>>,
    /// Time of the agent's last check that the peers' processes live.
    pub(crate) last_peer_check: Option<Instant>,
    pub(crate) has_agent: bool,
}

/// A connection, and the path to its peer.
#[derive(Debug)]
pub(crate) struct Link {
    /// `None` once the program has abandoned it.
    pub(crate) id: Option<u32>,
    pub(crate) connection: Connection,
    pub(crate) card: Arc<OpenCard>,
    pub(crate) node: Node,
    /// The index of its messages' partition key.
    pub(crate) pkey_index: u16,
    /// True if the card has had a link to the node since the last message.
    pub(crate) was_linked: bool,
}

/// An identifier in a multicast group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) id: u32,
    pub(crate) events_reported: u32,
}

#[derive(Debug)]
struct Events {
    waiting: VecDeque<Event>,
    signal: Arc<Signal>,
}

pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// An open file of the connection manager. The manager closes it with the last reference.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) manager: Arc<Manager>,
    pub(crate) number: u32,
    pub(crate) signal: Arc<Signal>,
}

impl Drop for File {
    fn drop(&mut self) {
        self.manager.close(self.number);
    }
}

impl Manager {
    pub(crate) fn new(cards: Arc<Cards>) -> Arc<Manager> {
        // Connection numbers start anywhere: a peer may still know those of an earlier process.
        let inner = Inner { last_connection: random() as u32, ..Inner::default() };
        Arc::new(Manager { cards, inner: Mutex::new(inner) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Creates the agent's wake-up, if there is none.
    ///
    /// # Errors
    /// The system's, if it gives no descriptor.
    pub(crate) fn make_wake(&self) -> Result<()> {
        if self.cards.management.get().is_none() {
            // Another thread may have set it meanwhile.
            let _ = self.cards.management.set(Wake::new()?);
        }
        Ok(())
    }

    /// Returns the agent's wake-up, which exists while a file is open.
    pub(crate) fn wake(&self) -> Option<&Wake> {
        self.cards.management.get()
    }

    /// Wakes the agent because its work has changed.
    pub(crate) fn notice(&self) {
        if let Some(wake) = self.wake() {
            wake.raise();
        }
    }

    /// Returns the process's cards, and starts them if needed.
    pub(crate) fn cards(&self) -> Vec<Arc<OpenCard>> {
        let mut inner = self.lock();
        if inner.cards.is_empty() {
            drop(inner);
            let cards = host::cards(&self.cards);
            inner = self.lock();
            inner.cards = cards;
        }
        inner.cards.clone()
    }

    fn close(&self, file: u32) {
        let now = Instant::now();
        let mut inner = self.lock();
        let ids: Vec<u32> = inner.ids.iter().filter(|(_, id)| id.file == file).map(|(id, _)| *id).collect();
        // A connection request's identifier goes with its listener.
        let gone: Vec<Id> = ids.into_iter().flat_map(|id| inner.destroy(id, now)).collect();
        let closed = inner.files.remove(&file);
        drop(inner);
        self.notice();
        // After the lock is released, because it waits, and closes files.
        wait_until_sent(&gone);
        drop((gone, closed));
    }
}

impl Inner {
    /// Adds a file without events. Returns its number.
    pub(crate) fn add_file(&mut self, signal: Arc<Signal>) -> u32 {
        self.last_file += 1;
        self.files.insert(self.last_file, Events { waiting: VecDeque::new(), signal });
        self.last_file
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.files.is_empty() && self.connections.is_empty()
    }

    /// Adds an identifier under the lowest free number, as the kernel does: librdmacm has a table of them.
    pub(crate) fn add(&mut self, id: Id) -> u32 {
        let mut number = 0;
        for taken in self.ids.keys() {
            if *taken != number {
                break;
            }
            number += 1;
        }
        self.ids.insert(number, id);
        number
    }

    pub(crate) fn create(&mut self, file: u32, uid: u64, space: u16, qp_type: u8) -> Result<u32> {
        let qp_type = QpType::of(space, qp_type)?;
        Ok(self.add(Id::new(file, uid, space, qp_type, psn())))
    }

    /// Returns the identifier of a file.
    ///
    /// # Errors
    /// ENOENT if there is none of that number, EINVAL if it belongs to another file.
    pub(crate) fn id(&mut self, file: u32, number: u32) -> Result<&mut Id> {
        let id = self.ids.get_mut(&number).ok_or(Errno::NO_ENTRY)?;
        if id.file == file { Ok(id) } else { Err(Errno::INVALID) }
    }

    /// Ends an identifier, drops its events, and returns it, and then those of its connection requests.
    pub(crate) fn destroy(&mut self, number: u32, now: Instant) -> Vec<Id> {
        let Some(id) = self.ids.remove(&number) else { return Vec::new() };
        if let Some(local) = id.connection {
            self.abandon(local, now);
        }
        self.memberships.retain(|_, membership| membership.id != number);
        let events = self.take_events(id.file, |event| event.owner == number);
        let requests =
            events.iter().filter_map(Event::request).flat_map(|request| self.destroy(request, now));
        let requests: Vec<Id> = requests.collect();
        [id].into_iter().chain(requests).collect()
    }

    /// Takes back pending events of a file.
    pub(crate) fn take_events(&mut self, file: u32, is_taken: impl FnMut(&Event) -> bool) -> VecDeque<Event> {
        let Some(events) = self.files.get_mut(&file) else { return VecDeque::new() };
        let (taken, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut events.waiting).into_iter().partition(is_taken);
        if kept.is_empty() && !taken.is_empty() {
            events.signal.lower();
        }
        events.waiting = kept;
        taken
    }

    pub(crate) fn add_membership(&mut self, membership: Membership) -> u32 {
        loop {
            self.last_membership = self.last_membership.wrapping_add(1);
            if let Entry::Vacant(place) = self.memberships.entry(self.last_membership) {
                place.insert(membership);
                return self.last_membership;
            }
        }
    }

    /// Abandons a connection for the program. It stays until its peer knows.
    fn abandon(&mut self, local: u32, now: Instant) {
        let Some(link) = self.connections.get_mut(&local) else { return };
        link.id = None;
        let send = link.connection.abandon(now);
        self.react(local, Reaction { send, event: None });
    }

    /// Adds a connection made by `make` from its communication ID. Returns the ID.
    pub(crate) fn connect(&mut self, make: impl FnOnce(u32) -> Link) -> u32 {
        loop {
            self.last_connection = self.last_connection.wrapping_add(1);
            let local = self.last_connection;
            // No connection has ID 0.
            if local != 0 && !self.connections.contains_key(&local) {
                self.connections.insert(local, make(local));
                return local;
            }
        }
    }

    /// Returns the connection of an identifier.
    ///
    /// # Errors
    /// EINVAL if it has none.
    pub(crate) fn connection(&mut self, local: Option<u32>) -> Result<&mut Link> {
        local.and_then(|local| self.connections.get_mut(&local)).ok_or(Errno::INVALID)
    }

    /// Performs the effects of a step of a connection.
    pub(crate) fn react(&mut self, local: u32, reaction: Reaction) {
        let Some(link) = self.connections.get_mut(&local) else { return };
        if let Some(message) = &reaction.send {
            link.send(message);
        }
        let id = link.id;
        if id.is_none() && link.connection.is_over() {
            let gone = self.connections.remove(&local);
            tracing::debug!(local, ?gone, "a connection is over");
        }
        if let (Some(number), Some(event)) = (id, reaction.event) {
            self.report_event(number, event);
        }
    }

    /// Adds an event for the program, to the file of its owner.
    pub(crate) fn push(&mut self, event: Event) {
        let Some(id) = self.ids.get(&event.owner) else { return };
        let Some(events) = self.files.get_mut(&id.file) else { return };
        events.waiting.push_back(event);
        if events.waiting.len() == 1 {
            events.signal.raise();
        } else {
            // Threads wait for one event each.
            events.signal.wake();
        }
    }

    /// Adds an event of an identifier without a parameter.
    pub(crate) fn push_plain(&mut self, number: u32, kind: EventKind, status: i32) {
        if let Some(id) = self.ids.get(&number) {
            self.push(Event::new(kind, number, id.uid, status));
        }
    }

    /// Takes the next event of a file if `deliver` succeeds; it stays otherwise.
    ///
    /// # Errors
    /// EAGAIN if there is none, or that of `deliver`.
    pub(crate) fn next_event(
        &mut self,
        file: u32,
        deliver: impl FnOnce(&EventResp) -> Result<()>,
    ) -> Result<()> {
        let events = self.files.get_mut(&file).ok_or(Errno::BAD_FD)?;
        let first = events.waiting.front().ok_or(Errno(libc::EAGAIN))?;
        deliver(&first.response)?;
        let (is_request, membership) = (first.request().is_some(), first.membership());
        let owner = first.owner;
        events.waiting.pop_front();
        if events.waiting.is_empty() {
            events.signal.lower();
        }
        if let Some(id) = self.ids.get_mut(&owner) {
            id.events_reported += 1;
            id.backlog += u32::from(is_request);
        }
        if let Some(membership) = membership.and_then(|number| self.memberships.get_mut(&number)) {
            membership.events_reported += 1;
        }
        Ok(())
    }

    /// Moves an identifier with its events to another file. Returns how many events the program has received.
    ///
    /// # Errors
    /// As [`Self::id`].
    pub(crate) fn migrate(&mut self, from: u32, number: u32, to: u32) -> Result<u32> {
        let id = self.id(from, number)?;
        let reported = id.events_reported;
        if from == to {
            return Ok(reported);
        }
        id.file = to;
        for event in self.take_events(from, |event| event.owner == number) {
            if let Some(request) = event.request().and_then(|request| self.ids.get_mut(&request)) {
                request.file = to;
            }
            self.push(event);
        }
        Ok(reported)
    }
}

/// Waits until the messages to the peers of these identifiers have left, as a kernel would send those of a process that ends.
/// No lock is held.
pub(crate) fn wait_until_sent<'a>(ids: impl IntoIterator<Item = &'a Id>) {
    let routes: Vec<&Route> = ids.into_iter().filter_map(|id| id.route.as_ref()).collect();
    let waits = |route: &&Route| !route.card.card.has_sent_management(route.node);
    let end = Instant::now() + LEAVE_TIME;
    while routes.iter().any(waits) && Instant::now() < end {
        std::thread::sleep(LEAVE_INTERVAL);
    }
}

impl Link {
    pub(crate) fn send(&mut self, message: &Message) {
        send(&self.card, (self.node, self.pkey_index), message);
        self.was_linked = self.card.card.is_linked(self.node);
    }
}

/// Sends a message with a partition key, by its index. It may be lost.
pub(crate) fn send(open: &OpenCard, (node, pkey_index): (Node, u16), message: &Message) {
    tracing::debug!(node, ?message, "a connection message leaves");
    if let Err(error) = open.card.send_management(node, pkey_index, &message.encode()) {
        tracing::error!(%error, "a connection message is too long");
    }
}

pub(crate) fn psn() -> u32 {
    random() as u32 & 0xff_ffff
}
