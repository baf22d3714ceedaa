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

use super::message::{Message, longest};
use crate::error::{DeathCause, NotifyError};
use gdsync::qp::{DcTarget, DcTargetConfig, SharedReceiveQueue};
use gdsync::queue::{FailureCause, StateError, Syndrome, WorkError};
use gdsync::verbs::{DcAddress, Transport};
use gdsync::{
    Access, ConnectOptions, Endpoint, MemoryRegion, ProtectionDomain, QueueError, QueuePair, QueuePairConfig,
    RemoteMemory, WorkRequest,
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
/// Messages that have room until they are taken.
const RECEIVES: usize = 256;
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
    /// Something may be posted; else probes alone are, when it is time.
    is_due: bool,
    last_post: Instant,
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
    /// The rank that is looked at first, so that each has its turn.
    next: usize,
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
    /// Nothing is sent to it, and nothing that arrives is taken.
    is_cut: bool,
}

/// What a look has found.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) arrived: Vec<(u32, Message)>,
    pub(super) dead: Vec<(u32, DeathCause)>,
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
        let slots = RECEIVES + lanes * SLOTS;
        let memory = MemoryRegion::allocate(pd, slots * slot_bytes, Access::LOCAL_WRITE)?;
        let receives = SharedReceiveQueue::new(pd, RECEIVES as u32)?;
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
            let first = RECEIVES + at * SLOTS;
            let free = if for_probes { Vec::new() } else { (first..first + SLOTS).collect() };
            let (queue_pair, next) = (QueuePair::new(pd, of_lanes)?, at % lanes);
            Ok(Lane { for_probes, queue_pair, given: 0, under_way: VecDeque::new(), free, next })
        };
        let lanes = (0..2 * lanes).map(lane).collect::<Result<_, NotifyError>>()?;
        let ranks = (0..size).map(|_| Far::new()).collect();
        let last_post = Instant::now();
        let hub = Hub { rank, target, receives, memory, slot_bytes, lanes, ranks, is_due: true, last_post };
        (0..RECEIVES).try_for_each(|slot| hub.receive(slot))?;
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
            self.is_due = true;
        }
    }

    /// Every message has arrived in the rank's memory.
    pub(super) fn is_flushed(&self, rank: u32) -> bool {
        let far = &self.ranks[rank as usize];
        let sends = |lane: &Lane| {
            lane.under_way.iter().any(|request| request.rank == rank && request.message.is_some())
        };
        far.is_cut || (far.waiting.is_empty() && !self.lanes.iter().any(sends))
    }

    /// Nothing is sent to a dead rank, and nothing that arrives from it is taken any more.
    pub(super) fn cut(&mut self, rank: u32) {
        let far = &mut self.ranks[rank as usize];
        far.is_cut = true;
        far.waiting.clear();
    }

    /// Takes what has arrived, sends what waits, and probes each rank once in `period` while nothing is
    /// under way to it. `is_here` says which ranks are of the team.
    pub(super) fn poll(&mut self, period: Duration, is_here: impl Fn(u32) -> bool) -> News {
        let mut news = News::default();
        self.take_arrived(&mut news);
        // Many looks find nothing: a rank that waits looks often.
        let posts = std::mem::take(&mut self.is_due) || self.last_post.elapsed() >= period / 16;
        self.last_post = if posts { Instant::now() } else { self.last_post };
        for lane in 0..self.lanes.len() {
            if let Err(error) = self.progress(lane, (period, posts), &is_here, &mut news) {
                tracing::error!(%error, "control messages cannot be sent");
            }
        }
        for (rank, far) in (0..).zip(&mut self.ranks).filter(|(rank, _)| is_here(*rank)) {
            let early = std::mem::take(&mut far.early);
            news.arrived.splice(0..0, early.into_iter().map(|message| (rank, message)));
        }
        let (arrived, late): (Vec<_>, Vec<_>) =
            news.arrived.into_iter().partition(|(rank, _)| is_here(*rank));
        late.into_iter().for_each(|(rank, message)| self.ranks[rank as usize].early.push(message));
        News { arrived, dead: news.dead }
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
        while let Some(done) = queue.poll().map_err(QueueError::from)? {
            let lane = &mut self.lanes[lane];
            let Some(at) = lane.under_way.iter().position(|request| request.number == done.wr_id) else {
                continue;
            };
            let Some(request) = lane.under_way.remove(at) else { continue };
            self.is_due = true;
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
        }
    }

    /// Posts messages and probes, as many as there is room for.
    fn post(
        &mut self,
        at: usize,
        period: Duration,
        is_here: &impl Fn(u32) -> bool,
    ) -> Result<(), NotifyError> {
        let (lanes, size) = (self.lanes.len() / 2, self.ranks.len());
        let first = at % lanes;
        for _ in (first..size).step_by(lanes) {
            let lane = &mut self.lanes[at];
            let rank = lane.next as u32;
            lane.next = if lane.next + lanes < size { lane.next + lanes } else { first };
            if rank == self.rank || lane.under_way.len() == SENDS || !is_here(rank) {
                continue;
            }
            let posted = self.post_to(at, rank, period);
            match posted {
                // It is brought back by the next look.
                Err(NotifyError::Local(QueueError::State(StateError::Failed { .. }))) => return Ok(()),
                posted => posted?,
            }
        }
        Ok(())
    }

    /// Posts the next message to a rank; or, from a queue pair for probes, one of those, if it is time.
    fn post_to(&mut self, lane: usize, rank: u32, period: Duration) -> Result<(), NotifyError> {
        let (lane, far, now) = (&mut self.lanes[lane], &mut self.ranks[rank as usize], Instant::now());
        let Some(address) = far.address.as_ref().filter(|_| !far.is_cut && far.under_way.is_none()) else {
            return Ok(());
        };
        let number = lane.given + 1;
        let message = if lane.for_probes {
            if far.probe.is_some() || !far.waiting.is_empty() || far.last_probe.elapsed() < period {
                return Ok(());
            }
            let nothing = RemoteMemory { addr: 0, len: 0, rkey: 0 };
            let probe = WorkRequest::write_inline(&[], nothing).wr_id(number).to_target(address);
            lane.queue_pair.post_send(probe)?;
            (far.last_probe, far.probe) = (now, Some(number));
            None
        } else {
            let slot = lane.free.last().copied().filter(|_| now >= far.not_before);
            let (Some(message), Some(slot)) = (far.waiting.front(), slot) else { return Ok(()) };
            let start = slot * self.slot_bytes;
            let (own, key) = (self.rank.to_le_bytes(), self.target.key().to_le_bytes());
            let bytes = [&own[..], &key, &message.encode()].concat();
            self.memory.write(start, &bytes);
            let slices = [self.memory.slice(start..start + bytes.len())?];
            lane.queue_pair.post_send(WorkRequest::send(&slices).wr_id(number).to_target(address))?;
            lane.free.pop();
            far.under_way = Some(number);
            far.waiting.pop_front().map(|message| (message, slot))
        };
        lane.given = number;
        lane.under_way.push_back(Request { number, rank, message });
        Ok(())
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
