//! Control connections over RC: a queue pair for each rank, with one send completion queue, one receive completion
//! queue and one shared receive queue for all. So the cost of a poll does not grow with the team.
//!
//! A probe is an empty write, which the remote card acknowledges without its process. So a stopped process is not given
//! up while its card answers. A rank that takes messages late makes senders wait (RNR), which is no death either.

use super::Events;
use super::message::{Message, longest};
use super::probe::{ControlOptions, ProbeTurn};
use crate::error::{DeathCause, NotifyError, Result};
use crate::requests::Request;
use gdsync::advanced::QueueApi;
use gdsync::qp::{SharedReceiveQueue, SharedReceiveQueueConfig};
use gdsync::queue::{FailureCause, StateError};
use gdsync::{
    Access, Completion, CompletionQueue, ConnectOptions, Endpoint, MemoryRegion, ProtectionDomain,
    QueueError, QueuePair, QueuePairConfig, Slice, WorkRequest,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MESSAGES: usize = 4;
/// Send queue depth: messages and a probe.
const SENDS: u32 = MESSAGES as u32 + 1;
const SEND_BUFFERS: usize = 16;
/// The bit of a `wr_id` that marks a probe; the rest is the rank.
const PROBE: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct RcTransport {
    rank: u32,
    config: QueuePairConfig<'static>,
    /// By rank; `None` for this rank itself.
    peers: Vec<Option<Peer>>,
    rank_of_number: HashMap<u32, u32>,
    sends: CompletionQueue,
    arrivals: CompletionQueue,
    receives: SharedReceiveQueue,
    memory: MemoryRegion,
    slot_bytes: usize,
    send_buffers: SendBuffers,
    due: VecDeque<u32>,
    /// True if waiting messages may have room.
    may_send: bool,
    last_check: Instant,
    period: Duration,
}

#[derive(Debug)]
struct Peer {
    queue_pair: QueuePair,
    /// Slots of the messages in flight, oldest first; `None` for inline data.
    in_flight: VecDeque<Option<usize>>,
    waiting: VecDeque<Encoded>,
    /// True if the rank is in `due`.
    is_due: bool,
    probe_in_flight: bool,
    last_probe: Instant,
    /// True if nothing is sent, and arrivals are discarded.
    is_cut: bool,
    /// Messages that have arrived while another process takes the rank's place; nothing is sent to it meanwhile.
    early: Option<Vec<Message>>,
}

impl Peer {
    fn is_flushed(&self) -> bool {
        self.is_cut || (self.waiting.is_empty() && self.in_flight.is_empty())
    }
}

impl RcTransport {
    /// Creates unconnected queue pairs; port, GID and the like come from `config`.
    pub(super) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        (rank, size): (u32, u32),
        options: ControlOptions,
    ) -> Result<Self> {
        let slot_bytes = longest(size).next_multiple_of(64);
        // An exchange brings one message from each other rank.
        let depth = size.next_power_of_two().clamp(16, 1024);
        let entries = size.saturating_mul(2).clamp(64, 1 << 15);
        let device = pd.device();
        let mut rc = RcTransport {
            rank,
            // gdsync creates no DEVX queue pair with a shared receive queue.
            config: config.queues(QueueApi::Verbs).send_depth(SENDS).send_segments(1),
            peers: (0..size).map(|_| None).collect(),
            rank_of_number: HashMap::new(),
            sends: CompletionQueue::new(&device, entries)?,
            arrivals: CompletionQueue::new(&device, 2 * depth)?,
            receives: SharedReceiveQueue::new(pd, SharedReceiveQueueConfig::from(depth).segments(1))?,
            memory: MemoryRegion::allocate(pd, depth as usize * slot_bytes, Access::LOCAL_WRITE)?,
            slot_bytes,
            send_buffers: SendBuffers::new(pd, SEND_BUFFERS, slot_bytes)?,
            due: VecDeque::new(),
            may_send: false,
            last_check: Instant::now(),
            period: options.period,
        };
        for other in (0..size).filter(|other| *other != rank) {
            rc.make(pd, other, None)?;
        }
        (0..depth as usize).try_for_each(|slot| rc.receive(slot))?;
        Ok(rc)
    }

    fn make(&mut self, pd: &ProtectionDomain, rank: u32, early: Option<Vec<Message>>) -> Result<()> {
        let config = self.config.completion_queues(&self.sends, &self.arrivals);
        let queue_pair = QueuePair::new(pd, config.shared_receive_queue(&self.receives))?;
        self.rank_of_number.insert(queue_pair.number(), rank);
        self.peers[rank as usize] = Some(Peer {
            queue_pair,
            in_flight: VecDeque::new(),
            waiting: VecDeque::new(),
            is_due: false,
            probe_in_flight: false,
            last_probe: Instant::now(),
            is_cut: false,
            early,
        });
        Ok(())
    }

    fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    pub(super) fn endpoint(&self, rank: u32) -> Result<Option<Endpoint>> {
        let peer = self.peers[rank as usize].as_ref();
        Ok(peer.map(|peer| peer.queue_pair.endpoint()).transpose()?)
    }

    pub(super) fn connect(&mut self, rank: u32, remote: &Endpoint, options: ConnectOptions) -> Result<()> {
        let Some(peer) = &mut self.peers[rank as usize] else { return Ok(()) };
        peer.last_probe = Instant::now();
        Ok(peer.queue_pair.connect(remote, options)?)
    }

    /// Replaces the connection to a dropped rank, which was cut. The new one sends nothing before [`Self::begin`].
    pub(super) fn renew(&mut self, pd: &ProtectionDomain, rank: u32) -> Result<()> {
        if let Some(old) = self.peers[rank as usize].take() {
            self.rank_of_number.remove(&old.queue_pair.number());
            // The card reads its slots no more, and its completions are not returned.
            drop(old.queue_pair);
            old.in_flight.into_iter().flatten().for_each(|slot| self.send_buffers.done(slot));
            self.may_send = true;
        }
        self.make(pd, rank, Some(Vec::new()))
    }

    /// Starts using the renewed connections, connected on both sides. Returns what has arrived over them.
    pub(super) fn begin(&mut self) -> Vec<(u32, Message)> {
        let mut arrived = Vec::new();
        for (rank, peer) in (0..).zip(&mut self.peers).filter_map(|(rank, peer)| Some((rank, peer.as_mut()?)))
        {
            let early = peer.early.take().unwrap_or_default();
            arrived.extend(early.into_iter().map(|message| (rank, message)));
        }
        self.may_send = true;
        arrived
    }

    fn receive(&self, slot: usize) -> Result<()> {
        let start = slot * self.slot_bytes;
        let slice = self.memory.slice(start..start + self.slot_bytes)?;
        Ok(self.receives.post_recv(&[slice], slot as u64)?)
    }

    pub(super) fn send(&mut self, rank: u32, encoded: &Encoded) {
        let Some(peer) = self.peers[rank as usize].as_mut().filter(|peer| !peer.is_cut) else { return };
        peer.waiting.push_back(encoded.clone());
        if !std::mem::replace(&mut peer.is_due, true) {
            self.due.push_back(rank);
        }
        self.may_send = true;
    }

    /// Returns true if every message has arrived in the rank's memory.
    pub(super) fn is_flushed(&self, rank: u32) -> bool {
        self.peers[rank as usize].as_ref().is_none_or(Peer::is_flushed)
    }

    /// Takes arrived messages, sends waiting ones, and probes ranks to which nothing is in flight.
    pub(super) fn poll(&mut self) -> Events {
        let mut events = Events::default();
        self.take_arrived(&mut events);
        self.take_sent(&mut events);
        if std::mem::take(&mut self.may_send) {
            self.send_waiting(&mut events);
        }
        if self.last_check.elapsed() >= self.period / 4 {
            self.last_check = Instant::now();
            self.check_peers(&mut events);
        }
        events
    }

    /// Returns the cause of death of a rank whose connection has failed.
    fn failure(&self, rank: u32) -> Option<DeathCause> {
        let peer = self.peers[rank as usize].as_ref().filter(|peer| !peer.is_cut && peer.early.is_none())?;
        peer.queue_pair.failure().map(DeathCause::NoAnswer)
    }

    fn take_sent(&mut self, events: &mut Events) {
        loop {
            let done = match self.sends.poll() {
                Ok(Some(done)) => done,
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "a control message was lost"),
            };
            let rank = (done.wr_id & !PROBE) as u32;
            let Some(peer) = self.peers.get_mut(rank as usize).and_then(Option::as_mut) else { continue };
            if done.wr_id & PROBE != 0 {
                peer.probe_in_flight = false;
            } else if let Some(Some(slot)) = peer.in_flight.pop_front() {
                self.send_buffers.done(slot);
            }
            (self.may_send, events.has_sent) = (true, true);
            if done.status.is_err() {
                events.dead.extend(self.failure(rank).map(|cause| (rank, cause)));
            }
        }
    }

    fn send_waiting(&mut self, events: &mut Events) {
        for _ in 0..self.due.len() {
            let Some(rank) = self.due.pop_front() else { return };
            let sent = self.send_to(rank);
            let Some(peer) = &mut self.peers[rank as usize] else { continue };
            peer.is_due = !peer.waiting.is_empty();
            if peer.is_due {
                self.due.push_back(rank);
            }
            match sent {
                Ok(()) => {}
                Err(NotifyError::LocalQueue(QueueError::Full(_))) => return,
                Err(error) => events.dead.extend(self.unusable(rank, &error)),
            }
        }
    }

    /// Returns the death of a rank to which nothing can be posted.
    fn unusable(&self, rank: u32, error: &NotifyError) -> Option<(u32, DeathCause)> {
        if !matches!(error, NotifyError::LocalQueue(QueueError::State(StateError::Failed { .. }))) {
            tracing::error!(%error, rank, "a control connection cannot be used");
        }
        let cause = self.failure(rank).unwrap_or(DeathCause::NoAnswer(FailureCause::Aborted));
        Some((rank, cause))
    }

    fn send_to(&mut self, rank: u32) -> Result<()> {
        let Some(peer) = self.peers[rank as usize].as_mut().filter(|peer| peer.early.is_none()) else {
            return Ok(());
        };
        while peer.in_flight.len() < MESSAGES
            && let Some(encoded) = peer.waiting.front()
        {
            let number = u64::from(rank);
            let slot = if encoded.len() <= peer.queue_pair.max_inline() as usize {
                peer.queue_pair.post_send(WorkRequest::send_inline(encoded).wr_id(number))?;
                None
            } else {
                let Some((slot, slice)) = self.send_buffers.place(encoded)? else { return Ok(()) };
                peer.queue_pair.post_send(WorkRequest::send(&[slice]).wr_id(number))?;
                self.send_buffers.posted(slot);
                Some(slot)
            };
            peer.in_flight.push_back(slot);
            peer.waiting.pop_front();
        }
        Ok(())
    }

    /// Probes ranks and finds connections that have failed without a completion.
    fn check_peers(&mut self, events: &mut Events) {
        let turn = ProbeTurn::now((self.rank, self.size()), self.period);
        for rank in 0..self.size() {
            if let Some(cause) = self.failure(rank) {
                events.dead.push((rank, cause));
            } else if turn.probes(rank)
                && let Err(error) = self.probe(rank)
            {
                events.dead.extend(self.unusable(rank, &error));
            }
        }
    }

    fn probe(&mut self, rank: u32) -> Result<()> {
        let Some(peer) = &mut self.peers[rank as usize] else { return Ok(()) };
        let is_idle = peer.in_flight.is_empty() && !peer.probe_in_flight;
        let may_probe = !peer.is_cut && peer.early.is_none();
        if !is_idle || !may_probe || peer.last_probe.elapsed() < self.period {
            return Ok(());
        }
        match peer.queue_pair.post_send(Request::Probe.work_request().wr_id(PROBE | u64::from(rank))) {
            Ok(()) => (peer.probe_in_flight, peer.last_probe) = (true, Instant::now()),
            // Retried at the next poll.
            Err(QueueError::Full(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn take_arrived(&mut self, events: &mut Events) {
        loop {
            match self.arrivals.poll() {
                Ok(Some(completion)) => self.take_one(completion, events),
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "a control message was lost"),
            }
        }
    }

    fn take_one(&mut self, completion: Completion, events: &mut Events) {
        let (slot, size) = (completion.wr_id as usize, self.size());
        // A destroyed queue pair has no peer.
        let peer =
            self.rank_of_number.get(&completion.qp_num).map(|rank| (*rank, &mut self.peers[*rank as usize]));
        if let Some((rank, Some(peer))) = peer.filter(|_| completion.status.is_ok()) {
            let mut bytes = vec![0; (completion.byte_len as usize).min(self.slot_bytes)];
            self.memory.read(slot * self.slot_bytes, &mut bytes);
            match (Message::decode(&bytes, size), &mut peer.early) {
                (None, _) => tracing::error!(rank, "a control message makes no sense"),
                (Some(_), _) if peer.is_cut => {}
                (Some(message), Some(early)) => early.push(message),
                (Some(message), None) => events.arrived.push((rank, message)),
            }
        }
        if let Err(error) = self.receive(slot) {
            tracing::error!(%error, "a receive of control messages is not posted again");
        }
    }

    /// Cuts a connection off. Returns what had arrived before; nothing more is accepted from the rank.
    pub(super) fn cut(&mut self, rank: u32) -> Events {
        let mut events = Events::default();
        let Some(peer) = self.peers[rank as usize].as_mut().filter(|peer| !peer.is_cut) else {
            return events;
        };
        if let Err(error) = peer.queue_pair.abort() {
            tracing::error!(%error, rank, "the control connection with a dead rank could not be ended");
        }
        self.take_arrived(&mut events);
        if let Some(peer) = &mut self.peers[rank as usize] {
            peer.is_cut = true;
            peer.waiting.clear();
        }
        events.has_sent = true;
        events
    }
}

/// An encoded message for one rank or several.
pub(super) type Encoded = Arc<Vec<u8>>;

#[derive(Debug)]
pub(super) struct SendBuffers {
    memory: MemoryRegion,
    slot_bytes: usize,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The newest content, kept while the slot is free.
    encoded: Option<Encoded>,
    in_flight: u32,
}

impl SendBuffers {
    pub(super) fn new(pd: &ProtectionDomain, slots: usize, slot_bytes: usize) -> Result<Self> {
        let memory = MemoryRegion::allocate(pd, slots * slot_bytes, Access::LOCAL_WRITE)?;
        Ok(SendBuffers { memory, slot_bytes, slots: (0..slots).map(|_| Slot::default()).collect() })
    }

    /// Returns a slot with the message and its memory; `None` while other messages occupy all slots.
    pub(super) fn place(&mut self, encoded: &Encoded) -> Result<Option<(usize, Slice)>> {
        let holds = |slot: &Slot| slot.encoded.as_ref().is_some_and(|known| Arc::ptr_eq(known, encoded));
        let Some(at) = self
            .slots
            .iter()
            .position(holds)
            .or_else(|| self.slots.iter().position(|slot| slot.in_flight == 0))
        else {
            return Ok(None);
        };
        let (slot, start) = (&mut self.slots[at], at * self.slot_bytes);
        if !holds(slot) {
            self.memory.write(start, encoded);
            slot.encoded = Some(encoded.clone());
        }
        Ok(Some((at, self.memory.slice(start..start + encoded.len())?)))
    }

    pub(super) fn posted(&mut self, slot: usize) {
        self.slots[slot].in_flight += 1;
    }

    /// Counts a send that has completed, or whose queue pair is gone.
    pub(super) fn done(&mut self, slot: usize) {
        self.slots[slot].in_flight -= 1;
    }
}

#[cfg(test)]
mod tests;
