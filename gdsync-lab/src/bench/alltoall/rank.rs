//! One rank: its queue pairs to all others, its stream, and its rounds.

use crate::bench::pair;
use gdsync::queue::QueueError;
use gdsync::stream::{Event, StreamOptions};
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairConfig, RemoteMemory, SoftStream, Stream, Trigger, WorkRequest,
};
use gdsync_cli::failure::Failure;
use gdsync_cli::pattern::Pattern;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a message.
pub(super) const BLOCK: usize = 256;
/// Rounds that a rank has enqueued at a time.
const AHEAD: u64 = 2;
/// Messages of one peer that may be in a rank's memory: a peer is at most a round ahead.
const PLACES: u64 = 2;
/// Receives of one peer: those of rounds that are enqueued, of the peer's next, and one more.
const RECEIVES: u64 = AHEAD + 2;

/// How the stream hands its work to the card.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The card waits: one word releases all sends, and one tells of all messages.
    Word,
    /// The stream rings and waits for each peer.
    Doorbells,
}

pub(super) struct Rank {
    number: usize,
    /// By peer; none for itself.
    queue_pairs: Vec<Option<QueuePair>>,
    /// Where all sends complete.
    sent: CompletionQueue,
    source: MemoryRegion,
    target: MemoryRegion,
    /// The targets of all ranks.
    remote: Vec<RemoteMemory>,
    stream: Stream<SoftStream>,
    /// Messages that were not as they were sent.
    wrong: Arc<AtomicU64>,
    /// Memory operations of the stream.
    pub(super) operations: u64,
}

/// The place of a message between a rank and one of `ranks` peers.
fn place(peer: usize, round: u64, ranks: usize) -> usize {
    ((round % PLACES) as usize * ranks + peer) * BLOCK
}

/// What one rank sends to another in a round: different for all of them.
fn content(from: usize, to: usize, round: u64) -> Pattern {
    Pattern::new(0, (round << 16 | (from as u64) << 8 | to as u64) << 1)
}

impl Rank {
    pub(super) fn new(
        (device, port): (&Device, u8),
        number: usize,
        ranks: usize,
        way: Way,
    ) -> Result<Self, Failure> {
        let pd = ProtectionDomain::new(device)?;
        let bytes = PLACES as usize * ranks * BLOCK;
        let entries = u32::try_from(8 * AHEAD as usize * ranks)?;
        let (sent, trigger) = (
            CompletionQueue::new(device, entries)?,
            if way == Way::Word { Some(Trigger::new(&pd)?) } else { None },
        );
        let depth = 2 * AHEAD as u32;
        let config = QueuePairConfig::default().port(port).send_depth(depth).recv_depth(RECEIVES as u32);
        let queue_pair = |peer| -> Result<Option<QueuePair>, Failure> {
            if peer == number {
                return Ok(None);
            }
            let received = CompletionQueue::new(device, 2 * RECEIVES as u32)?;
            let config = config.completion_queues(&sent, &received);
            let config = trigger.as_ref().map_or(config, |trigger| config.trigger(trigger));
            Ok(Some(QueuePair::new(&pd, config)?))
        };
        let queue_pairs = (0..ranks).map(queue_pair).collect::<Result<_, _>>()?;
        let options = StreamOptions::default().collect_from((way == Way::Word).then_some(2));
        Ok(Rank {
            number,
            queue_pairs,
            sent,
            source: MemoryRegion::allocate(&pd, bytes, Access::empty())?,
            target: MemoryRegion::allocate(&pd, bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            remote: Vec::new(),
            stream: Stream::with_options(SoftStream::new()?, options)?,
            wrong: Arc::default(),
            operations: 0,
        })
    }

    fn peers(&self) -> impl Iterator<Item = (usize, &QueuePair)> {
        self.queue_pairs
            .iter()
            .enumerate()
            .filter_map(|(peer, queue_pair)| Some((peer, queue_pair.as_ref()?)))
    }

    /// Connects all ranks with each other, and posts the first receives.
    pub(super) fn connect(ranks: &mut [Rank]) -> Result<(), Failure> {
        let targets: Vec<RemoteMemory> = ranks.iter().map(|rank| rank.target.remote()).collect();
        // Many threads share few processors: a card may be late, and a rank, too.
        let options = ConnectOptions::default().timeout(20).retry_count(7).rnr_retry(7);
        for rank in ranks.iter() {
            for (peer, queue_pair) in rank.peers() {
                let there = ranks[peer].queue_pairs[rank.number].as_ref().ok_or("a rank lacks a peer")?;
                queue_pair.connect(&there.endpoint()?, options)?;
                (0..RECEIVES).try_for_each(|_| queue_pair.post_recv(&[], 0))?;
            }
        }
        ranks.iter_mut().for_each(|rank| rank.remote.clone_from(&targets));
        Ok(())
    }

    /// Sends a message to each other rank, and waits for one of each, so many times. Every byte is
    /// checked.
    pub(super) fn play(&mut self, rounds: u64) -> Result<(), Failure> {
        let mut under_way: VecDeque<Event> = VecDeque::new();
        for round in 0..rounds {
            self.enqueue(round)?;
            under_way.push_back(self.stream.record()?);
            if under_way.len() as u64 == AHEAD {
                self.pass(under_way.pop_front())?;
            }
        }
        while !under_way.is_empty() {
            self.pass(under_way.pop_front())?;
        }
        match self.wrong.load(Ordering::Relaxed) {
            0 => Ok(()),
            wrong => Err(format!("rank {}: {wrong} messages are not as they were sent", self.number).into()),
        }
    }

    fn enqueue(&mut self, round: u64) -> Result<(), Failure> {
        let (ranks, number) = (self.queue_pairs.len(), self.number);
        let others = move || (0..ranks).filter(move |peer| *peer != number);
        let source = self.source.clone();
        self.stream.launch(move || {
            others().for_each(|peer| {
                content(number, peer, round).fill(&source, place(peer, round, ranks), BLOCK)
            });
        })?;
        let (mut sends, mut waits) = (Vec::new(), Vec::new());
        for (peer, queue_pair) in self.peers() {
            let (from, to) = (place(peer, round, ranks), place(number, round, ranks));
            let slices = [self.source.slice(from..from + BLOCK)?];
            let remote = self.remote[peer].slice(to..to + BLOCK)?;
            sends.push(queue_pair.prepare(WorkRequest::write(&slices, remote).immediate(round as u32))?);
            waits.push(queue_pair.recv_cq().prepare_wait()?);
        }
        let batch = waits.into_iter().fold(sends.into_iter().fold(Batch::new(), Batch::send), Batch::wait);
        let posted = self.stream.post(batch).map_err(|error| error.to_string())?;
        self.operations += posted.operations as u64;
        let (target, wrong) = (self.target.clone(), self.wrong.clone());
        self.stream.launch(move || {
            let is_wrong = |peer: &usize| {
                content(*peer, number, round).check(&target, place(*peer, round, ranks), 0, BLOCK).is_err()
            };
            wrong.fetch_add(others().filter(is_wrong).count() as u64, Ordering::Relaxed);
        })?;
        Ok(())
    }

    /// Waits for the oldest round, takes its completions, and posts receives for a later one.
    fn pass(&self, round: Option<Event>) -> Result<(), Failure> {
        round.iter().for_each(Event::synchronize);
        for (_, queue_pair) in self.peers() {
            pair::collect(&queue_pair.recv_cq(), 1)?;
            queue_pair.post_recv(&[], 0).map_err(|error: QueueError| error.to_string())?;
        }
        // Its sends, or others that were acknowledged before them.
        pair::collect(&self.sent, self.queue_pairs.len() as u64 - 1)
    }
}
