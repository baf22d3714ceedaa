//! `gdsync bench alltoall`: in each round every rank sends to every other and waits for all messages, by waits of the
//! card or by doorbells.

use super::pair;
use super::ranks::{self, AHEAD, BLOCK, Measured, RankId};
use super::table::{Outcome, Row};
use gdsync::queue::QueueError;
use gdsync::stream::StreamOptions;
use gdsync::verbs::{DEFAULT_PORT, provider};
use gdsync::{
    Access, Batch, CompletionQueue, Device, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair,
    QueuePairConfig, RemoteMemory, SoftStream, Stream, Trigger, WorkRequest,
};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use gdsync_notify::bootstrap::Bootstrap;
use std::sync::Arc;

const RANKS: u32 = 8;
/// A rank's number is one byte of its messages.
const MOST_RANKS: u32 = 256;
/// Receives for one peer: those of enqueued rounds, of the peer's next, and one more.
const RECEIVES: u32 = AHEAD as u32 + 2;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let cards = Arc::new(cards(options)?);
    let (ranks, rounds) = (options.ranks.unwrap_or(RANKS), options.rounds());
    if ranks > MOST_RANKS {
        return Err(format!("--ranks {ranks} is more than the {MOST_RANKS} of alltoall: give fewer").into());
    }
    let ranks = ranks as usize;
    // One variant after the other, as a software card polls all existing queue pairs.
    let measure = |by_word: bool| -> Result<Measured, Failure> {
        let cards = Arc::clone(&cards);
        let [measured] = ranks::measure(ranks, 1, rounds, move |bootstrap| {
            let (device, port) = &cards[bootstrap.rank() as usize % cards.len()];
            Rank::new((device, *port), bootstrap, by_word)
        })?;
        Ok(measured)
    };
    let (word, doorbells) = (measure(true)?, measure(false)?);
    let rounds = word.rounds.min(doorbells.rounds);
    let bytes_checked = (ranks * (ranks - 1)) as u64 * rounds * BLOCK as u64;
    let row = Row::named("a round")
        .compared(&[[word.median(), doorbells.median()]])
        .number("gdsync_operations", word.operations, 2)
        .number("reference_operations", doorbells.operations, 2);
    let heading =
        format!("RANKS {ranks}, CARDS {}, ROUNDS {rounds}, BYTES CHECKED {bytes_checked}", cards.len());
    let header = [&*heading, "WORD µs", "DOORBELLS µs", "RATIO OF MEDIANS", "OPERATIONS", "BY DOORBELLS"];
    let rows = [row.clone()];
    // Every byte of every message was checked, in both variants.
    let all = row.key("ranks", ranks).key("rounds", rounds).key("cards", cards.len());
    let outcome = Outcome::of(Row::default(), &header, &rows);
    let outcome = outcome.comparison(&format!("A round among {ranks} ranks"), [header[1], header[2]], &rows);
    Ok(Outcome { json: all.key("verified", true).key("bytes_checked", bytes_checked).into(), ..outcome })
}

/// Returns the named card, or all software cards of this process.
fn cards(options: &BenchOptions) -> Result<Vec<(Device, u8)>, Failure> {
    if options.hca.is_some() {
        return Ok(vec![hca::open(options.hca.as_ref())?]);
    }
    let api = provider::software();
    let open = |name: String| Ok((Device::open(api, Some(&name))?, DEFAULT_PORT));
    Device::names(api)?.into_iter().map(open).collect()
}

/// A rank of one variant. Either the card waits, one word releases all sends and one reports all messages; or the
/// stream rings and waits for each peer.
struct Rank {
    id: RankId,
    queue_pairs: Vec<QueuePair>,
    sent: CompletionQueue,
    source: MemoryRegion,
    target: MemoryRegion,
    remote: Vec<RemoteMemory>,
    stream: Stream<SoftStream>,
}

impl Rank {
    fn new((device, port): (&Device, u8), mut bootstrap: Bootstrap, by_word: bool) -> Result<Self, Failure> {
        let pd = ProtectionDomain::new(device)?;
        let id = RankId::of(&bootstrap);
        let depth = 2 * AHEAD as u32;
        let sent = CompletionQueue::new(device, 4 * depth * bootstrap.size())?;
        let trigger = by_word.then(|| Trigger::new(&pd)).transpose()?;
        let config = QueuePairConfig::default().port(port).send_depth(depth).recv_depth(RECEIVES);
        let mut queue_pairs = Vec::new();
        for _ in id.peers() {
            let received = CompletionQueue::new(device, 2 * RECEIVES)?;
            let config = config.completion_queues(&sent, &received);
            let config = trigger.as_ref().map_or(config, |trigger| config.trigger(trigger));
            queue_pairs.push(QueuePair::new(&pd, config)?);
        }
        ranks::connect(&queue_pairs, id, &mut bootstrap)?;
        for queue_pair in &queue_pairs {
            (0..RECEIVES).try_for_each(|_| queue_pair.post_recv(&[], 0))?;
        }
        let source = MemoryRegion::allocate(&pd, id.bytes(), Access::empty())?;
        let target = MemoryRegion::allocate(&pd, id.bytes(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let all = bootstrap.all_gather(target.remote().to_string().as_bytes())?;
        let remote = |bytes: &Vec<u8>| Ok(std::str::from_utf8(bytes)?.parse()?);
        let options = StreamOptions::default().collect_from(by_word.then_some(2));
        Ok(Rank {
            id,
            queue_pairs,
            sent,
            source,
            target,
            remote: all.iter().map(remote).collect::<Result<_, Failure>>()?,
            stream: Stream::with_options(SoftStream::new()?, options)?,
        })
    }
}

impl ranks::Rank for Rank {
    fn stream(&self, _: usize) -> Option<&Stream<SoftStream>> {
        Some(&self.stream)
    }

    fn memory(&self, _: usize) -> Result<[PinnedMemory; 2], Failure> {
        Ok([self.source.memory().clone(), self.target.memory().clone()])
    }

    fn enqueue(&mut self, _: usize, round: u64, _: u64) -> Result<usize, Failure> {
        let id = self.id;
        let (mut sends, mut waits) = (Batch::new(), Vec::new());
        for (peer, queue_pair) in id.peers().zip(&self.queue_pairs) {
            let (from, to) = (id.offset(peer, round), id.offset(id.number, round));
            let slices = [self.source.slice(from..from + BLOCK)?];
            let remote = self.remote[peer].slice(to..to + BLOCK)?;
            let write = WorkRequest::write(&slices, remote).immediate(round as u32);
            sends = sends.send(queue_pair.prepare(write)?);
            waits.push(queue_pair.recv_cq().prepare_wait()?);
        }
        let posted = self.stream.post(waits.into_iter().fold(sends, Batch::wait));
        Ok(posted.map_err(|error| error.to_string())?.operations)
    }

    /// Takes the completions of the round, and posts receives for a later one.
    fn pass(&mut self) -> Result<(), Failure> {
        for queue_pair in &self.queue_pairs {
            pair::collect(&queue_pair.recv_cq(), 1)?;
            queue_pair.post_recv(&[], 0).map_err(|error: QueueError| error.to_string())?;
        }
        // Its sends, or others acknowledged before them.
        pair::collect(&self.sent, self.queue_pairs.len() as u64)
    }
}
