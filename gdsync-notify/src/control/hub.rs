//! Control connections over DC: a few queue pairs reach all ranks, and one target hears them.
//!
//! A message names its sender, and the access key of the sender's target, which tells one process in the
//! place of a rank from the next. To each rank at most one message is under way. One that fails ends what
//! the card has not begun behind it: the queue pair is reset, and that is posted again. So messages to a
//! rank arrive once, and in their order, as on a connection.
//!
//! Probes have queue pairs of their own. A rank that has taken part in the last exchange may end while
//! others still wait for each other; a probe of it waits until the card gives it up, and messages would
//! wait behind it.

use super::News;
use super::message::{Message, longest};
use super::watch::Turn;
use crate::action::Action;
use crate::error::{DeathCause, NotifyError};
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

/// Queue pairs for messages, and as many for probes: a dead rank holds up those that are reached by the
/// same one.
const LANES: usize = 4;
/// Messages under way from one queue pair.
const SLOTS: usize = 8;
/// Requests under way from one queue pair.
const SENDS: usize = 64;
/// Messages that have room until they are taken: in an exchange each rank sends one, and the fast ones that of the next.
/// In a very large team some are sent again.
const RECEIVES: std::ops::RangeInclusive<usize> = 256..=4096;
/// Bytes before a message: the sender's rank, and its access key; little endian.
const ENVELOPE: usize = 12;
/// Retries where a rank has no room for a message; then others have their turn.
const RNR_RETRIES: u8 = 6;

#[derive(Debug)]
pub(super) struct Hub {
    rank: u32,
    target: DcTarget,
    receives: SharedReceiveQueue,
    /// First the slots of receives, then those of each queue pair for messages.
    memory: MemoryRegion,
    slot_bytes: usize,
    /// For messages, then as many for probes.
    lanes: Vec<Lane>,
    /// In the order of the ranks.
    ranks: Vec<Far>,
    /// There may be room for a message that waits.
    is_due: bool,
    /// When it was time last for probes, and for messages to ranks that had no room.
    last_turn: Instant,
    /// There are messages of processes that are not of the team yet.
    has_early: bool,
    /// The ranks that are probed now.
    turn: Turn,
}

/// A queue pair, which reaches every [`LANES`]th rank.
#[derive(Debug)]
struct Lane {
    for_probes: bool,
    queue_pair: QueuePair,
    /// Requests are numbered from 1.
    given: u64,
    /// Oldest first.
    under_way: VecDeque<Request>,
    free: Vec<usize>,
    /// Ranks with messages that wait, in the order of their turns. One may be there twice.
    due: VecDeque<u32>,
}

#[derive(Debug)]
struct Request {
    number: u64,
    rank: u32,
    /// None of a probe.
    message: Option<(Message, usize)>,
}

/// Another rank.
#[derive(Debug)]
struct Far {
    address: Option<DcAddress>,
    key: u64,
    /// Messages that are not under way.
    waiting: VecDeque<Message>,
    /// The message that is.
    under_way: Option<u64>,
    probe: Option<u64>,
    /// What has arrived from a process that is not of the team yet.
    early: Vec<Message>,
    last_probe: Instant,
    /// It had no room for a message: nothing is sent before.
    not_before: Instant,
    /// Its queue pair knows that messages wait.
    is_due: bool,
    /// Nothing is sent to it, and nothing that arrives is taken.
    is_cut: bool,
}

impl Far {
    fn new() -> Self {
        Far {
            address: None,
            key: 0,
            waiting: VecDeque::new(),
            under_way: None,
            probe: None,
            early: Vec::new(),
            last_probe: Instant::now(),
            not_before: Instant::now(),
            is_due: false,
            is_cut: false,
        }
    }
}

impl Hub {
    /// `access` is what other ranks may do through the target, which they also write to.
    pub(super) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        access: Access,
        (rank, size): (u32, u32),
        options: ConnectOptions,
    ) -> Result<Self, NotifyError> {
        let slot_bytes = (ENVELOPE + longest(size)).next_multiple_of(64);
        let lanes = LANES.min(size as usize);
        let room = (2 * size as usize).clamp(*RECEIVES.start(), *RECEIVES.end());
        let slots = room + lanes * SLOTS;
        let memory = MemoryRegion::allocate(pd, slots * slot_bytes, Access::LOCAL_WRITE)?;
        let receives = SharedReceiveQueue::new(pd, room as u32)?;
        let of_target = DcTargetConfig::default()
            // The operating system's random numbers are in it.
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
        let lane = |at: usize| {
            let for_probes = at >= lanes;
            let first = room + at * SLOTS;
            let free = if for_probes { Vec::new() } else { (first..first + SLOTS).collect() };
            let (queue_pair, under_way) = (QueuePair::new(pd, of_lanes)?, VecDeque::new());
            Ok(Lane { for_probes, queue_pair, given: 0, under_way, free, due: VecDeque::new() })
        };
        let lanes = (0..2 * lanes).map(lane).collect::<Result<_, NotifyError>>()?;
        let ranks = (0..size).map(|_| Far::new()).collect();
        let turn = Turn::now((rank, size), Duration::ZERO);
        let hub = Hub {
            rank,
            target,
            receives,
            memory,
            slot_bytes,
            lanes,
            ranks,
            is_due: true,
            last_turn: Instant::now(),
            has_early: false,
            turn,
        };
        (0..room).try_for_each(|slot| hub.receive(slot))?;
        Ok(hub)
    }

    pub(super) fn target(&self) -> &DcTarget {
        &self.target
    }

    /// The address of another rank's target.
    pub(super) fn address(
        &self,
        remote: &Endpoint,
        key: u64,
        options: ConnectOptions,
    ) -> Result<DcAddress, NotifyError> {
        Ok(self.lanes[0].queue_pair.dc_address(remote, key, options)?)
    }

    pub(super) fn connect(&mut self, rank: u32, address: DcAddress) {
        let key = address.key();
        self.ranks[rank as usize] = Far { address: Some(address), key, ..Far::new() };
    }

    /// Posts the receive of a slot.
    fn receive(&self, slot: usize) -> Result<(), NotifyError> {
        let start = slot * self.slot_bytes;
        let slice = self.memory.slice(start..start + self.slot_bytes)?;
        Ok(self.receives.post_recv(&[slice], slot as u64)?)
    }

    /// Sends a message as soon as its turn has come.
    pub(super) fn send(&mut self, rank: u32, message: Message) {
        let far = &mut self.ranks[rank as usize];
        if !far.is_cut && rank != self.rank {
            far.waiting.push_back(message);
            self.is_waiting(rank);
        }
    }

    /// Messages to a rank wait.
    fn is_waiting(&mut self, rank: u32) {
        let lane = rank as usize % (self.lanes.len() / 2);
        if !std::mem::replace(&mut self.ranks[rank as usize].is_due, true) {
            self.lanes[lane].due.push_back(rank);
        }
        self.is_due = true;
    }

    /// Every message has arrived in the rank's memory.
    pub(super) fn is_flushed(&self, rank: u32) -> bool {
        let far = &self.ranks[rank as usize];
        far.is_cut || (far.waiting.is_empty() && far.under_way.is_none())
    }

    /// Nothing is sent to a dead rank, and nothing that arrives from it is taken any more.
    pub(super) fn cut(&mut self, rank: u32) -> News {
        let far = &mut self.ranks[rank as usize];
        far.waiting.clear();
        News { has_sent: !std::mem::replace(&mut far.is_cut, true), ..News::default() }
    }

    /// Takes what has arrived, sends what waits, and probes each rank once in `period` while nothing is
    /// under way to it. `is_here` says which ranks are of the team.
    pub(super) fn poll(&mut self, period: Duration, is_here: impl Fn(u32) -> bool) -> News {
        let mut news = News::default();
        self.take_arrived(&mut news);
        // A rank that waits looks often, and most looks find nothing: what takes a step for each rank is rare.
        let is_time = self.last_turn.elapsed() >= period / 16;
        if is_time {
            self.last_turn = Instant::now();
            self.turn = Turn::now((self.rank, self.ranks.len() as u32), period);
        }
        let posts = std::mem::take(&mut self.is_due) || is_time;
        for lane in 0..self.lanes.len() {
            let posts = if self.lanes[lane].for_probes { is_time } else { posts };
            if let Err(error) = self.progress(lane, (period, posts), &is_here, &mut news) {
                tracing::error!(%error, "control messages cannot be sent");
            }
        }
        if self.has_early {
            for (rank, far) in (0..).zip(&mut self.ranks).filter(|(rank, _)| is_here(*rank)) {
                let early = std::mem::take(&mut far.early);
                news.arrived.splice(0..0, early.into_iter().map(|message| (rank, message)));
            }
            self.has_early = self.ranks.iter().any(|far| !far.early.is_empty());
        }
        let (arrived, late): (Vec<_>, Vec<_>) =
            news.arrived.into_iter().partition(|(rank, _)| is_here(*rank));
        self.has_early |= !late.is_empty();
        late.into_iter().for_each(|(rank, message)| self.ranks[rank as usize].early.push(message));
        News { arrived, ..news }
    }

    fn take_arrived(&self, news: &mut News) {
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
                    Some((rank, message)) => news.arrived.push((rank, message)),
                    None => tracing::debug!("a control message of no rank that lives"),
                }
            }
            if let Err(error) = self.receive(slot) {
                tracing::error!(%error, "a receive of control messages is not posted again");
            }
        }
    }

    /// The sender of a message, and what it says; none of a process that is no rank, or not any more.
    fn open(&self, bytes: &[u8]) -> Option<(u32, Message)> {
        let ([r0, r1, r2, r3, key @ ..], message) = bytes.split_first_chunk::<ENVELOPE>()?;
        let rank = u32::from_le_bytes([*r0, *r1, *r2, *r3]);
        let far = self.ranks.get(rank as usize)?;
        let is_known = !far.is_cut && far.address.is_some() && far.key == u64::from_le_bytes(*key);
        let message = Message::decode(message, self.ranks.len() as u32).filter(|_| is_known)?;
        Some((rank, message))
    }

    fn progress(
        &mut self,
        lane: usize,
        (period, posts): (Duration, bool),
        is_here: &impl Fn(u32) -> bool,
        news: &mut News,
    ) -> Result<(), NotifyError> {
        let queue = self.lanes[lane].queue_pair.send_cq();
        while !self.lanes[lane].under_way.is_empty()
            && let Some(done) = queue.poll().map_err(QueueError::from)?
        {
            let lane = &mut self.lanes[lane];
            let Some(at) = lane.under_way.iter().position(|request| request.number == done.wr_id) else {
                continue;
            };
            let Some(request) = lane.under_way.remove(at) else { continue };
            (self.is_due, news.has_sent) = (true, true);
            lane.free.extend(request.message.as_ref().map(|(_, slot)| *slot));
            self.ended(request, done.status, period, news);
        }
        if self.lanes[lane].queue_pair.failure().is_some() {
            // Entries have still to come, where it is blocked: the next look finds them.
            if self.lanes[lane].queue_pair.reset().is_err() {
                return Ok(());
            }
        }
        if posts { self.post(lane, period, is_here) } else { Ok(()) }
    }

    /// A request has ended.
    fn ended(&mut self, request: Request, status: Result<(), WorkError>, period: Duration, news: &mut News) {
        let Request { number, rank, message } = request;
        let far = &mut self.ranks[rank as usize];
        let under_way = if message.is_some() { &mut far.under_way } else { &mut far.probe };
        if *under_way != Some(number) {
            // It was for another process in the rank's place.
            return;
        }
        *under_way = None;
        let Err(error) = status else { return };
        let is_full = error.kind() == Some(Syndrome::RnrRetryExceeded);
        if !is_full && !error.is_flush() {
            news.dead.push((rank, DeathCause::NoAnswer(FailureCause::Work(error))));
            return;
        }
        if is_full {
            far.not_before = Instant::now() + period / 8;
        }
        if let Some((message, _)) = message.filter(|_| !far.is_cut) {
            far.waiting.push_front(message);
            self.is_waiting(rank);
        }
    }

    /// Posts messages, or probes, as many as there is room for.
    fn post(
        &mut self,
        at: usize,
        period: Duration,
        is_here: &impl Fn(u32) -> bool,
    ) -> Result<(), NotifyError> {
        let (lanes, size) = (self.lanes.len() / 2, self.ranks.len() as u32);
        let now = Instant::now();
        let posted = if self.lanes[at].for_probes {
            let turn = self.turn;
            let mut probed = (0..size).skip(at % lanes).step_by(lanes).filter(|rank| turn.probes(*rank));
            probed.try_for_each(|rank| match is_here(rank) && self.lanes[at].under_way.len() < SENDS {
                true => self.probe(at, rank, (now, period)),
                false => Ok(()),
            })
        } else {
            self.post_messages(at, now, is_here)
        };
        match posted {
            // It is brought back by the next look.
            Err(NotifyError::Local(QueueError::State(StateError::Failed { .. }))) => Ok(()),
            posted => posted,
        }
    }

    /// Posts the next message to each rank that has one, in the order of their turns.
    fn post_messages(
        &mut self,
        at: usize,
        now: Instant,
        is_here: &impl Fn(u32) -> bool,
    ) -> Result<(), NotifyError> {
        for _ in 0..self.lanes[at].due.len() {
            // A completion makes room.
            if self.lanes[at].free.is_empty() {
                return Ok(());
            }
            let Some(rank) = self.lanes[at].due.pop_front() else { return Ok(()) };
            let posted = if is_here(rank) { self.post_message(at, rank, now) } else { Ok(()) };
            let (lane, far) = (&mut self.lanes[at], &mut self.ranks[rank as usize]);
            far.is_due = !far.waiting.is_empty();
            lane.due.extend(far.is_due.then_some(rank));
            posted?;
        }
        Ok(())
    }

    /// Posts a probe of a rank, if it is time.
    fn probe(
        &mut self,
        lane: usize,
        rank: u32,
        (now, period): (Instant, Duration),
    ) -> Result<(), NotifyError> {
        let (lane, far) = (&mut self.lanes[lane], &mut self.ranks[rank as usize]);
        let is_idle = !far.is_cut && far.under_way.is_none() && far.probe.is_none() && far.waiting.is_empty();
        let Some(address) = far.address.as_ref().filter(|_| is_idle) else { return Ok(()) };
        if now.saturating_duration_since(far.last_probe) < period {
            return Ok(());
        }
        let number = lane.given + 1;
        lane.queue_pair.post_send(Action::Probe.request().wr_id(number).to_target(address))?;
        (far.last_probe, far.probe, lane.given) = (now, Some(number), number);
        lane.under_way.push_back(Request { number, rank, message: None });
        Ok(())
    }

    /// Posts the next message to a rank, unless one is under way.
    fn post_message(&mut self, lane: usize, rank: u32, now: Instant) -> Result<(), NotifyError> {
        let (lane, far) = (&mut self.lanes[lane], &mut self.ranks[rank as usize]);
        let may_send = !far.is_cut && far.under_way.is_none() && now >= far.not_before;
        let (Some(address), Some(message), Some(slot)) =
            (far.address.as_ref().filter(|_| may_send), far.waiting.front(), lane.free.last().copied())
        else {
            return Ok(());
        };
        let (number, start) = (lane.given + 1, slot * self.slot_bytes);
        let (own, key) = (self.rank.to_le_bytes(), self.target.key().to_le_bytes());
        let bytes = [&own[..], &key, &message.encode()].concat();
        self.memory.write(start, &bytes);
        let slices = [self.memory.slice(start..start + bytes.len())?];
        lane.queue_pair.post_send(WorkRequest::send(&slices).wr_id(number).to_target(address))?;
        lane.free.pop();
        (far.under_way, lane.given) = (Some(number), number);
        let message = far.waiting.pop_front().map(|message| (message, slot));
        lane.under_way.push_back(Request { number, rank, message });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
