//! Control connections with each rank: a queue pair for each, and for all of them one completion queue of sends,
//! one of receives, and one queue of receives. So a look costs the same however many ranks there are.
//!
//! A probe is an empty write, which the other side's card answers without its process. So a rank
//! whose process is stopped is not given up as long as its card answers. A rank that takes its messages
//! late makes senders wait (RNR), which is no death either.

use super::News;
use super::letters::{Letter, Letters};
use super::message::{Message, longest};
use super::watch::{Turn, Watch};
use crate::action::Action;
use crate::error::{DeathCause, NotifyError};
use gdsync::qp::{SharedReceiveQueue, SharedReceiveQueueConfig};
use gdsync::queue::{FailureCause, StateError};
use gdsync::verbs::QueueApi;
use gdsync::{
    Access, Completion, CompletionQueue, ConnectOptions, Endpoint, MemoryRegion, ProtectionDomain,
    QueueError, QueuePair, QueuePairConfig, WorkRequest,
};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Messages under way to one rank.
const MESSAGES: usize = 4;
/// Sends that a queue pair takes: messages, and a probe.
const SENDS: u32 = MESSAGES as u32 + 1;
/// Different messages under way.
const LETTERS: usize = 16;
/// Of the number of a send: it is a probe. The rest is the rank.
const PROBE: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct Mesh {
    rank: u32,
    config: QueuePairConfig<'static>,
    /// In the order of the ranks; `None` is this rank itself.
    links: Vec<Option<Link>>,
    /// The ranks of the queue pairs that live.
    ranks: HashMap<u32, u32>,
    sends: CompletionQueue,
    arrivals: CompletionQueue,
    receives: SharedReceiveQueue,
    /// The slots of receives.
    memory: MemoryRegion,
    slot_bytes: usize,
    letters: Letters,
    /// Ranks for which messages wait.
    due: VecDeque<u32>,
    /// Some of those may be sent: messages are new, or others have made room.
    may_send: bool,
    /// When probes were thought of.
    last_look: Instant,
    period: Duration,
}

/// The connection with another rank.
#[derive(Debug)]
struct Link {
    queue_pair: QueuePair,
    /// Messages that are posted and have not arrived, oldest first: their slots, if they are not in the request.
    under_way: VecDeque<Option<usize>>,
    /// Messages for which there was no room yet.
    waiting: VecDeque<Letter>,
    /// It stands in the list of ranks for which messages wait.
    is_due: bool,
    probe_under_way: bool,
    last_probe: Instant,
    /// The connection is cut: nothing is sent, and nothing that arrives is taken.
    is_cut: bool,
    /// Another process is taking the rank's place: nothing is sent yet. What has arrived from it.
    early: Option<Vec<Message>>,
}

impl Link {
    fn is_flushed(&self) -> bool {
        self.is_cut || (self.waiting.is_empty() && self.under_way.is_empty())
    }
}

impl Mesh {
    /// Unconnected. `config` says by which port, and the like.
    pub(super) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        (rank, size): (u32, u32),
        watch: Watch,
    ) -> Result<Self, NotifyError> {
        let slot_bytes = longest(size).next_multiple_of(64);
        // Of an exchange, as many messages arrive as there are other ranks.
        let depth = size.next_power_of_two().clamp(16, 1024);
        let entries = size.saturating_mul(2).clamp(64, 1 << 15);
        let device = pd.device();
        let mut mesh = Mesh {
            rank,
            // Commands of the device make no queue pair with a shared queue of receives.
            config: config.queues(QueueApi::Verbs).send_depth(SENDS).send_segments(1),
            links: (0..size).map(|_| None).collect(),
            ranks: HashMap::new(),
            sends: CompletionQueue::new(&device, entries)?,
            arrivals: CompletionQueue::new(&device, 2 * depth)?,
            receives: SharedReceiveQueue::new(pd, SharedReceiveQueueConfig::from(depth).segments(1))?,
            memory: MemoryRegion::allocate(pd, depth as usize * slot_bytes, Access::LOCAL_WRITE)?,
            slot_bytes,
            letters: Letters::new(pd, LETTERS, slot_bytes)?,
            due: VecDeque::new(),
            may_send: false,
            last_look: Instant::now(),
            period: watch.period,
        };
        for other in (0..size).filter(|other| *other != rank) {
            mesh.make(pd, other, None)?;
        }
        (0..depth as usize).try_for_each(|slot| mesh.receive(slot))?;
        Ok(mesh)
    }

    /// Makes the queue pair for a rank.
    fn make(
        &mut self,
        pd: &ProtectionDomain,
        rank: u32,
        early: Option<Vec<Message>>,
    ) -> Result<(), NotifyError> {
        let config = self.config.completion_queues(&self.sends, &self.arrivals);
        let queue_pair = QueuePair::new(pd, config.shared_receive_queue(&self.receives))?;
        self.ranks.insert(queue_pair.number(), rank);
        self.links[rank as usize] = Some(Link {
            queue_pair,
            under_way: VecDeque::new(),
            waiting: VecDeque::new(),
            is_due: false,
            probe_under_way: false,
            last_probe: Instant::now(),
            is_cut: false,
            early,
        });
        Ok(())
    }

    fn size(&self) -> u32 {
        self.links.len() as u32
    }

    /// The endpoint for a rank; `None` for this rank itself.
    pub(super) fn endpoint(&self, rank: u32) -> Result<Option<Endpoint>, NotifyError> {
        let link = self.links[rank as usize].as_ref();
        Ok(link.map(|link| link.queue_pair.endpoint()).transpose()?)
    }

    pub(super) fn connect(
        &mut self,
        rank: u32,
        remote: &Endpoint,
        options: ConnectOptions,
    ) -> Result<(), NotifyError> {
        let Some(link) = &mut self.links[rank as usize] else { return Ok(()) };
        link.last_probe = Instant::now();
        Ok(link.queue_pair.connect(remote, options)?)
    }

    /// Makes a new connection in the place of that with a dropped rank, which was cut. Nothing is sent by
    /// it before [`Self::begin`].
    pub(super) fn renew(&mut self, pd: &ProtectionDomain, rank: u32) -> Result<(), NotifyError> {
        if let Some(old) = self.links[rank as usize].take() {
            self.ranks.remove(&old.queue_pair.number());
            // The card reads nothing of it any more, and its completions are not returned.
            drop(old.queue_pair);
            old.under_way.into_iter().flatten().for_each(|slot| self.letters.done(slot));
            self.may_send = true;
        }
        self.make(pd, rank, Some(Vec::new()))
    }

    /// All renewed connections are connected on both sides. Returns what has arrived by them.
    pub(super) fn begin(&mut self) -> Vec<(u32, Message)> {
        let mut arrived = Vec::new();
        for (rank, link) in (0..).zip(&mut self.links).filter_map(|(rank, link)| Some((rank, link.as_mut()?)))
        {
            let early = link.early.take().unwrap_or_default();
            arrived.extend(early.into_iter().map(|message| (rank, message)));
        }
        self.may_send = true;
        arrived
    }

    /// Posts the receive of a slot.
    fn receive(&self, slot: usize) -> Result<(), NotifyError> {
        let start = slot * self.slot_bytes;
        let slice = self.memory.slice(start..start + self.slot_bytes)?;
        Ok(self.receives.post_recv(&[slice], slot as u64)?)
    }

    /// Sends a message as soon as there is room.
    pub(super) fn send(&mut self, rank: u32, letter: &Letter) {
        let Some(link) = self.links[rank as usize].as_mut().filter(|link| !link.is_cut) else { return };
        link.waiting.push_back(letter.clone());
        if !std::mem::replace(&mut link.is_due, true) {
            self.due.push_back(rank);
        }
        self.may_send = true;
    }

    /// Every message has arrived at the rank's memory.
    pub(super) fn is_flushed(&self, rank: u32) -> bool {
        self.links[rank as usize].as_ref().is_none_or(Link::is_flushed)
    }

    /// Takes what has arrived, sends what waits, and probes while nothing is under way.
    pub(super) fn poll(&mut self) -> News {
        let mut news = News::default();
        self.take_arrived(&mut news);
        self.take_sent(&mut news);
        if std::mem::take(&mut self.may_send) {
            self.send_waiting(&mut news);
        }
        if self.last_look.elapsed() >= self.period / 4 {
            self.last_look = Instant::now();
            self.look(&mut news);
        }
        news
    }

    /// The death of a rank whose connection has failed; `None` where it has not.
    fn failure(&self, rank: u32) -> Option<DeathCause> {
        let link = self.links[rank as usize].as_ref().filter(|link| !link.is_cut && link.early.is_none())?;
        link.queue_pair.failure().map(DeathCause::NoAnswer)
    }

    fn take_sent(&mut self, news: &mut News) {
        loop {
            let done = match self.sends.poll() {
                Ok(Some(done)) => done,
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "a control message was lost"),
            };
            let rank = (done.wr_id & !PROBE) as u32;
            let Some(link) = self.links.get_mut(rank as usize).and_then(Option::as_mut) else { continue };
            if done.wr_id & PROBE != 0 {
                link.probe_under_way = false;
            } else if let Some(Some(slot)) = link.under_way.pop_front() {
                self.letters.done(slot);
            }
            (self.may_send, news.has_sent) = (true, true);
            if done.status.is_err() {
                news.dead.extend(self.failure(rank).map(|cause| (rank, cause)));
            }
        }
    }

    fn send_waiting(&mut self, news: &mut News) {
        for _ in 0..self.due.len() {
            let Some(rank) = self.due.pop_front() else { return };
            let sent = self.send_to(rank);
            let Some(link) = &mut self.links[rank as usize] else { continue };
            link.is_due = !link.waiting.is_empty();
            if link.is_due {
                self.due.push_back(rank);
            }
            match sent {
                Ok(()) => {}
                // The next completion makes room.
                Err(NotifyError::Local(QueueError::Full(_))) => return,
                Err(error) => news.dead.extend(self.unusable(rank, &error)),
            }
        }
    }

    /// The death of a rank to which nothing can be posted.
    fn unusable(&self, rank: u32, error: &NotifyError) -> Option<(u32, DeathCause)> {
        if !matches!(error, NotifyError::Local(QueueError::State(StateError::Failed { .. }))) {
            tracing::error!(%error, rank, "a control connection cannot be used");
        }
        let cause = self.failure(rank).unwrap_or(DeathCause::NoAnswer(FailureCause::Aborted));
        Some((rank, cause))
    }

    fn send_to(&mut self, rank: u32) -> Result<(), NotifyError> {
        let Some(link) = self.links[rank as usize].as_mut().filter(|link| link.early.is_none()) else {
            return Ok(());
        };
        while link.under_way.len() < MESSAGES
            && let Some(letter) = link.waiting.front()
        {
            let number = u64::from(rank);
            let slot = if letter.len() <= link.queue_pair.max_inline() as usize {
                link.queue_pair.post_send(WorkRequest::send_inline(letter).wr_id(number))?;
                None
            } else {
                // A completion makes room.
                let Some((slot, slice)) = self.letters.place(letter)? else { return Ok(()) };
                link.queue_pair.post_send(WorkRequest::send(&[slice]).wr_id(number))?;
                self.letters.posted(slot);
                Some(slot)
            };
            link.under_way.push_back(slot);
            link.waiting.pop_front();
        }
        Ok(())
    }

    /// Probes, and finds connections that have failed without a completion.
    fn look(&mut self, news: &mut News) {
        let turn = Turn::now((self.rank, self.size()), self.period);
        for rank in 0..self.size() {
            if let Some(cause) = self.failure(rank) {
                news.dead.push((rank, cause));
            } else if turn.probes(rank)
                && let Err(error) = self.probe(rank)
            {
                news.dead.extend(self.unusable(rank, &error));
            }
        }
    }

    fn probe(&mut self, rank: u32) -> Result<(), NotifyError> {
        let Some(link) = &mut self.links[rank as usize] else { return Ok(()) };
        let is_idle = link.under_way.is_empty() && !link.probe_under_way;
        let may_probe = !link.is_cut && link.early.is_none();
        if !is_idle || !may_probe || link.last_probe.elapsed() < self.period {
            return Ok(());
        }
        match link.queue_pair.post_send(Action::Probe.request().wr_id(PROBE | u64::from(rank))) {
            Ok(()) => (link.probe_under_way, link.last_probe) = (true, Instant::now()),
            // The next look finds room.
            Err(QueueError::Full(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn take_arrived(&mut self, news: &mut News) {
        loop {
            match self.arrivals.poll() {
                Ok(Some(one)) => self.take_one(one, news),
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "a control message was lost"),
            }
        }
    }

    fn take_one(&mut self, one: Completion, news: &mut News) {
        let (slot, size) = (one.wr_id as usize, self.size());
        // Of a queue pair that is gone, there are none.
        let link = self.ranks.get(&one.qp_num).map(|rank| (*rank, &mut self.links[*rank as usize]));
        if let Some((rank, Some(link))) = link.filter(|_| one.status.is_ok()) {
            let mut bytes = vec![0; (one.byte_len as usize).min(self.slot_bytes)];
            self.memory.read(slot * self.slot_bytes, &mut bytes);
            match (Message::decode(&bytes, size), &mut link.early) {
                (None, _) => tracing::error!(rank, "a control message makes no sense"),
                (Some(_), _) if link.is_cut => {}
                (Some(message), Some(early)) => early.push(message),
                (Some(message), None) => news.arrived.push((rank, message)),
            }
        }
        if let Err(error) = self.receive(slot) {
            tracing::error!(%error, "a receive of control messages is not posted again");
        }
    }

    /// Cuts a connection, and takes what had arrived before: nothing of that rank arrives any more.
    pub(super) fn cut(&mut self, rank: u32) -> News {
        let mut news = News::default();
        let Some(link) = self.links[rank as usize].as_mut().filter(|link| !link.is_cut) else { return news };
        if let Err(error) = link.queue_pair.abort() {
            tracing::error!(%error, rank, "the control connection with a dead rank could not be ended");
        }
        self.take_arrived(&mut news);
        if let Some(link) = &mut self.links[rank as usize] {
            link.is_cut = true;
            link.waiting.clear();
        }
        news.has_sent = true;
        news
    }
}

#[cfg(test)]
mod tests;
