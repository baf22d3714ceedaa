//! Control connections over DC: a few queue pairs reach all ranks, and one target receives from all.
//!
//! A message carries its sender and the access key of the sender's target, which distinguishes successive processes of
//! a rank. At most one message to each rank is in flight. If it fails, the card flushes later requests unbegun;
//! the queue pair is reset, and they are reposted. So messages to a rank arrive once and in order, as on a connection.
//!
//! Probes have their own queue pairs. A rank that has taken part in the last exchange may end while others still wait for
//! each other; a probe of it occupies the queue pair until the card gives it up, and messages must not wait behind it.

use super::Events;
use super::message::{Message, longest};
use super::probe::ProbeTurn;
use crate::error::{DeathCause, NotifyError, Result};
use crate::requests::Request;
use gdsync::qp::{DcTarget, DcTargetConfig, SharedReceiveQueue};
use gdsync::queue::{FailureCause, StateError, Syndrome, WorkError};
use gdsync::verbs::{DcAddress, Transport};
use gdsync::{
    Access, ConnectOptions, Endpoint, MemoryRegion, ProtectionDomain, QueueError, QueuePair, QueuePairConfig,
    WorkRequest,
};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Queue pairs for messages, and as many for probes. A dead rank delays those that share its queue pair.
const DCIS: usize = 4;
const SLOTS: usize = 8;
const SENDS: usize = 64;
/// Receive buffers: one for each rank's message and one for its next; very large teams retry some messages.
const RECEIVES: std::ops::RangeInclusive<usize> = 256..=4096;
/// Bytes before a message: the sender's rank and access key, little endian.
const ENVELOPE: usize = 12;
/// RNR retries before other ranks get their turn.
const RNR_RETRIES: u8 = 6;

#[derive(Debug)]
pub(super) struct DcTransport {
    rank: u32,
    target: DcTarget,
    receives: SharedReceiveQueue,
    /// The receive slots, then the send slots of each queue pair for messages.
    memory: MemoryRegion,
    slot_bytes: usize,
    /// For messages, then as many for probes.
    dcis: Vec<Dci>,
    peers: Vec<Peer>,
    /// True if a waiting message may have room.
    is_due: bool,
    /// The last time of probes, and of messages to ranks that had no room.
    last_turn: Instant,
    /// True if some `early` is not empty.
    has_early: bool,
    turn: ProbeTurn,
}

/// A DC initiator, which reaches every [`DCIS`]th rank.
#[derive(Debug)]
struct Dci {
    for_probes: bool,
    queue_pair: QueuePair,
    /// The newest request's number; they start at 1.
    given: u64,
    in_flight: VecDeque<Outstanding>,
    free: Vec<usize>,
    /// Ranks with waiting messages in the order of their turns. A rank may be listed twice.
    due: VecDeque<u32>,
}

#[derive(Debug)]
struct Outstanding {
    number: u64,
    rank: u32,
    /// The message and its slot; `None` for a probe.
    message: Option<(Message, usize)>,
}

#[derive(Debug)]
struct Peer {
    address: Option<DcAddress>,
    key: u64,
    waiting: VecDeque<Message>,
    in_flight: Option<u64>,
    probe: Option<u64>,
    /// Messages from a process that is not in the team yet.
    early: Vec<Message>,
    last_probe: Instant,
    /// The time before which nothing is sent, after the rank had no room.
    not_before: Instant,
    /// True if the rank is in its queue pair's `due`.
    is_due: bool,
    is_cut: bool,
}

impl Peer {
    fn new() -> Self {
        Peer {
            address: None,
            key: 0,
            waiting: VecDeque::new(),
            in_flight: None,
            probe: None,
            early: Vec::new(),
            last_probe: Instant::now(),
            not_before: Instant::now(),
            is_due: false,
            is_cut: false,
        }
    }
}

impl DcTransport {
    /// `access` is what other ranks may do through the target, to which they also write data.
    pub(super) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        access: Access,
        (rank, size): (u32, u32),
        options: ConnectOptions,
    ) -> Result<Self> {
        let slot_bytes = (ENVELOPE + longest(size)).next_multiple_of(64);
        let dcis = DCIS.min(size as usize);
        let room = (2 * size as usize).clamp(*RECEIVES.start(), *RECEIVES.end());
        let slots = room + dcis * SLOTS;
        let memory = MemoryRegion::allocate(pd, slots * slot_bytes, Access::LOCAL_WRITE)?;
        let receives = SharedReceiveQueue::new(pd, room as u32)?;
        let of_target = DcTargetConfig::default()
            // Seeded by the operating system's random numbers.
            .key(RandomState::new().hash_one(rank))
            .access(access)
            .port(config.port)
            .gid_index(config.gid_index)
            .pkey_index(config.pkey_index)
            .connections(options);
        let target = DcTarget::new(pd, &receives, of_target)?;
        let of_lanes = config
            .transport(Transport::Dc)
            .send_depth(SENDS as u32)
            .connections(options.rnr_retry(RNR_RETRIES));
        let dci = |at: usize| {
            let for_probes = at >= dcis;
            let first = room + at * SLOTS;
            let free = if for_probes { Vec::new() } else { (first..first + SLOTS).collect() };
            let (queue_pair, in_flight) = (QueuePair::new(pd, of_lanes)?, VecDeque::new());
            Ok(Dci { for_probes, queue_pair, given: 0, in_flight, free, due: VecDeque::new() })
        };
        let dcis = (0..2 * dcis).map(dci).collect::<Result<_>>()?;
        let peers = (0..size).map(|_| Peer::new()).collect();
        let turn = ProbeTurn::now((rank, size), Duration::ZERO);
        let dc = DcTransport {
            rank,
            target,
            receives,
            memory,
            slot_bytes,
            dcis,
            peers,
            is_due: true,
            last_turn: Instant::now(),
            has_early: false,
            turn,
        };
        (0..room).try_for_each(|slot| dc.receive(slot))?;
        Ok(dc)
    }

    pub(super) fn target(&self) -> &DcTarget {
        &self.target
    }

    pub(super) fn address(&self, remote: &Endpoint, key: u64, options: ConnectOptions) -> Result<DcAddress> {
        Ok(self.dcis[0].queue_pair.dc_address(remote, key, options)?)
    }

    pub(super) fn connect(&mut self, rank: u32, address: DcAddress) {
        let key = address.key();
        self.peers[rank as usize] = Peer { address: Some(address), key, ..Peer::new() };
    }

    fn receive(&self, slot: usize) -> Result<()> {
        let start = slot * self.slot_bytes;
        let slice = self.memory.slice(start..start + self.slot_bytes)?;
        Ok(self.receives.post_recv(&[slice], slot as u64)?)
    }

    pub(super) fn send(&mut self, rank: u32, message: Message) {
        let peer = &mut self.peers[rank as usize];
        if !peer.is_cut && rank != self.rank {
            peer.waiting.push_back(message);
            self.is_waiting(rank);
        }
    }

    /// Lists a rank as one with waiting messages.
    fn is_waiting(&mut self, rank: u32) {
        let dci = rank as usize % (self.dcis.len() / 2);
        if !std::mem::replace(&mut self.peers[rank as usize].is_due, true) {
            self.dcis[dci].due.push_back(rank);
        }
        self.is_due = true;
    }

    /// Returns true if every message has arrived in the rank's memory.
    pub(super) fn is_flushed(&self, rank: u32) -> bool {
        let peer = &self.peers[rank as usize];
        peer.is_cut || (peer.waiting.is_empty() && peer.in_flight.is_none())
    }

    /// Cuts a dead rank off: nothing more is sent to it or accepted from it.
    pub(super) fn cut(&mut self, rank: u32) -> Events {
        let peer = &mut self.peers[rank as usize];
        peer.waiting.clear();
        Events { has_sent: !std::mem::replace(&mut peer.is_cut, true), ..Events::default() }
    }

    /// Takes arrived messages, posts waiting ones, and probes each rank once per `period` while nothing is in flight to
    /// it. `is_here` returns whether a rank is in the team.
    pub(super) fn poll(&mut self, period: Duration, is_here: impl Fn(u32) -> bool) -> Events {
        let mut events = Events::default();
        self.take_arrived(&mut events);
        // Waiting ranks poll often and mostly find nothing, so steps that touch every rank are rare.
        let is_time = self.last_turn.elapsed() >= period / 16;
        if is_time {
            self.last_turn = Instant::now();
            self.turn = ProbeTurn::now((self.rank, self.peers.len() as u32), period);
        }
        let posts = std::mem::take(&mut self.is_due) || is_time;
        for dci in 0..self.dcis.len() {
            let posts = if self.dcis[dci].for_probes { is_time } else { posts };
            if let Err(error) = self.progress(dci, (period, posts), &is_here, &mut events) {
                tracing::error!(%error, "control messages cannot be sent");
            }
        }
        if self.has_early {
            for (rank, peer) in (0..).zip(&mut self.peers).filter(|(rank, _)| is_here(*rank)) {
                let early = std::mem::take(&mut peer.early);
                events.arrived.splice(0..0, early.into_iter().map(|message| (rank, message)));
            }
            self.has_early = self.peers.iter().any(|peer| !peer.early.is_empty());
        }
        let (arrived, late): (Vec<_>, Vec<_>) =
            events.arrived.into_iter().partition(|(rank, _)| is_here(*rank));
        self.has_early |= !late.is_empty();
        late.into_iter().for_each(|(rank, message)| self.peers[rank as usize].early.push(message));
        Events { arrived, ..events }
    }

    fn take_arrived(&self, events: &mut Events) {
        let queue = self.target.recv_cq();
        loop {
            let one = match queue.poll() {
                Ok(Some(one)) => one,
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "a control message was lost"),
            };
            let slot = one.wr_id as usize;
            if one.status.is_ok() {
                let mut bytes = vec![0; (one.byte_len as usize).min(self.slot_bytes)];
                self.memory.read(slot * self.slot_bytes, &mut bytes);
                match self.open(&bytes) {
                    Some((rank, message)) => events.arrived.push((rank, message)),
                    None => tracing::debug!("a control message of no rank that lives"),
                }
            }
            if let Err(error) = self.receive(slot) {
                tracing::error!(%error, "a receive of control messages is not posted again");
            }
        }
    }

    /// Parses a message. Returns `None` if its sender is no rank, or no longer one.
    fn open(&self, bytes: &[u8]) -> Option<(u32, Message)> {
        let ([r0, r1, r2, r3, key @ ..], message) = bytes.split_first_chunk::<ENVELOPE>()?;
        let rank = u32::from_le_bytes([*r0, *r1, *r2, *r3]);
        let peer = self.peers.get(rank as usize)?;
        let is_known = !peer.is_cut && peer.address.is_some() && peer.key == u64::from_le_bytes(*key);
        let message = Message::decode(message, self.peers.len() as u32).filter(|_| is_known)?;
        Some((rank, message))
    }

    fn progress(
        &mut self,
        dci: usize,
        (period, posts): (Duration, bool),
        is_here: &impl Fn(u32) -> bool,
        events: &mut Events,
    ) -> Result<()> {
        let queue = self.dcis[dci].queue_pair.send_cq();
        while !self.dcis[dci].in_flight.is_empty()
            && let Some(done) = queue.poll().map_err(QueueError::from)?
        {
            let dci = &mut self.dcis[dci];
            let Some(at) = dci.in_flight.iter().position(|request| request.number == done.wr_id) else {
                continue;
            };
            let Some(request) = dci.in_flight.remove(at) else { continue };
            (self.is_due, events.has_sent) = (true, true);
            dci.free.extend(request.message.as_ref().map(|(_, slot)| *slot));
            self.ended(request, done.status, period, events);
        }
        if self.dcis[dci].queue_pair.failure().is_some() {
            // If completions are outstanding, the next poll resets it.
            if self.dcis[dci].queue_pair.reset().is_err() {
                return Ok(());
            }
        }
        if posts { self.post(dci, period, is_here) } else { Ok(()) }
    }

    fn ended(
        &mut self,
        request: Outstanding,
        status: Result<(), WorkError>,
        period: Duration,
        events: &mut Events,
    ) {
        let Outstanding { number, rank, message } = request;
        let peer = &mut self.peers[rank as usize];
        let in_flight = if message.is_some() { &mut peer.in_flight } else { &mut peer.probe };
        if *in_flight != Some(number) {
            // It was for an earlier process of the rank.
            return;
        }
        *in_flight = None;
        let Err(error) = status else { return };
        let is_full = error.kind() == Some(Syndrome::RnrRetryExceeded);
        if !is_full && !error.is_flush() {
            events.dead.push((rank, DeathCause::NoAnswer(FailureCause::Work(error))));
            return;
        }
        if is_full {
            peer.not_before = Instant::now() + period / 8;
        }
        if let Some((message, _)) = message.filter(|_| !peer.is_cut) {
            peer.waiting.push_front(message);
            self.is_waiting(rank);
        }
    }

    /// Posts as many messages or probes as there is room for.
    fn post(&mut self, at: usize, period: Duration, is_here: &impl Fn(u32) -> bool) -> Result<()> {
        let (dcis, size) = (self.dcis.len() / 2, self.peers.len() as u32);
        let now = Instant::now();
        let posted = if self.dcis[at].for_probes {
            let turn = self.turn;
            let mut probed = (0..size).skip(at % dcis).step_by(dcis).filter(|rank| turn.probes(*rank));
            probed.try_for_each(|rank| match is_here(rank) && self.dcis[at].in_flight.len() < SENDS {
                true => self.probe(at, rank, (now, period)),
                false => Ok(()),
            })
        } else {
            self.post_messages(at, now, is_here)
        };
        match posted {
            // The next poll recovers it.
            Err(NotifyError::LocalQueue(QueueError::State(StateError::Failed { .. }))) => Ok(()),
            posted => posted,
        }
    }

    /// Posts the next message to each rank that has one, in turn.
    fn post_messages(&mut self, at: usize, now: Instant, is_here: &impl Fn(u32) -> bool) -> Result<()> {
        for _ in 0..self.dcis[at].due.len() {
            if self.dcis[at].free.is_empty() {
                return Ok(());
            }
            let Some(rank) = self.dcis[at].due.pop_front() else { return Ok(()) };
            let posted = if is_here(rank) { self.post_message(at, rank, now) } else { Ok(()) };
            let (dci, peer) = (&mut self.dcis[at], &mut self.peers[rank as usize]);
            peer.is_due = !peer.waiting.is_empty();
            dci.due.extend(peer.is_due.then_some(rank));
            posted?;
        }
        Ok(())
    }

    /// Probes a rank if it is time.
    fn probe(&mut self, dci: usize, rank: u32, (now, period): (Instant, Duration)) -> Result<()> {
        let (dci, peer) = (&mut self.dcis[dci], &mut self.peers[rank as usize]);
        let is_idle =
            !peer.is_cut && peer.in_flight.is_none() && peer.probe.is_none() && peer.waiting.is_empty();
        let Some(address) = peer.address.as_ref().filter(|_| is_idle) else { return Ok(()) };
        if now.saturating_duration_since(peer.last_probe) < period {
            return Ok(());
        }
        let number = dci.given + 1;
        dci.queue_pair.post_send(Request::Probe.work_request().wr_id(number).to_target(address))?;
        (peer.last_probe, peer.probe, dci.given) = (now, Some(number), number);
        dci.in_flight.push_back(Outstanding { number, rank, message: None });
        Ok(())
    }

    /// Posts the next message to a rank, unless one is in flight.
    fn post_message(&mut self, dci: usize, rank: u32, now: Instant) -> Result<()> {
        let (dci, peer) = (&mut self.dcis[dci], &mut self.peers[rank as usize]);
        let may_send = !peer.is_cut && peer.in_flight.is_none() && now >= peer.not_before;
        let (Some(address), Some(message), Some(slot)) =
            (peer.address.as_ref().filter(|_| may_send), peer.waiting.front(), dci.free.last().copied())
        else {
            return Ok(());
        };
        let (number, start) = (dci.given + 1, slot * self.slot_bytes);
        let (own, key) = (self.rank.to_le_bytes(), self.target.key().to_le_bytes());
        let bytes = [&own[..], &key, &message.encode()].concat();
        self.memory.write(start, &bytes);
        let slices = [self.memory.slice(start..start + bytes.len())?];
        dci.queue_pair.post_send(WorkRequest::send(&slices).wr_id(number).to_target(address))?;
        dci.free.pop();
        (peer.in_flight, dci.given) = (Some(number), number);
        let message = peer.waiting.pop_front().map(|message| (message, slot));
        dci.in_flight.push_back(Outstanding { number, rank, message });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
