//! Ranks that send to each other: threads of this process with software streams. In each round every rank sends a block
//! to every other, and its stream checks every received byte.

use super::{median, micros_since};
use gdsync::stream::Event;
use gdsync::{ConnectOptions, PinnedMemory, QueuePair, SoftStream, Stream};
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use gdsync_cli::pattern::Pattern;
use gdsync_notify::bootstrap::Bootstrap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

pub(super) const BLOCK: usize = 256;
/// Messages of one peer that may be in a rank's memory: a peer is at most a round ahead.
pub(super) const PLACES: usize = 2;
pub(super) const AHEAD: usize = 2;
/// Rounds that follow an interrupt. A rank is at most `AHEAD + 1` rounds ahead of another: it has seen the messages of all
/// others in the rounds before. So no rank has reached the new end, and all learn of it before they do.
const LAST_ROUNDS: u64 = 4 * AHEAD as u64;
/// Time limit for the ranks to meet, and for every wait.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
pub(super) struct RankId {
    pub(super) number: usize,
    pub(super) ranks: usize,
}

impl RankId {
    pub(super) fn of(bootstrap: &Bootstrap) -> Self {
        RankId { number: bootstrap.rank() as usize, ranks: bootstrap.size() as usize }
    }

    pub(super) fn peers(self) -> impl Iterator<Item = usize> {
        (0..self.ranks).filter(move |peer| *peer != self.number)
    }

    /// Returns the offset of a message from or to a peer.
    pub(super) fn offset(self, peer: usize, round: u64) -> usize {
        ((round as usize % PLACES) * self.ranks + peer) * BLOCK
    }

    pub(super) fn bytes(self) -> usize {
        PLACES * self.ranks * BLOCK
    }
}

/// Connects a rank's queue pairs, one for each peer, with the peers'.
pub(super) fn connect(
    queue_pairs: &[QueuePair],
    id: RankId,
    bootstrap: &mut Bootstrap,
) -> Result<(), Failure> {
    let endpoint = |queue_pair: &QueuePair| Ok(queue_pair.endpoint()?.to_string());
    let endpoints: Vec<String> = queue_pairs.iter().map(endpoint).collect::<Result<_, Failure>>()?;
    let all = bootstrap.all_gather(endpoints.join("\n").as_bytes())?;
    // Many threads share few processors, so cards and ranks may be late.
    let options = ConnectOptions::default().timeout(20).retry_count(7).rnr_retry(7);
    for (peer, queue_pair) in id.peers().zip(queue_pairs) {
        // A peer has no endpoint for itself.
        let own = id.number - usize::from(id.number > peer);
        let endpoint = std::str::from_utf8(&all[peer])?.lines().nth(own).ok_or("a rank lacks a peer")?;
        queue_pair.connect(&endpoint.parse()?, options)?;
    }
    Ok(bootstrap.barrier()?)
}

/// A rank, whose messages are exchanged by one of several variants.
pub(super) trait Rank {
    /// Returns the stream of a variant; none if the card does not support it.
    fn stream(&self, variant: usize) -> Option<&Stream<SoftStream>>;

    /// Returns the sources and the targets of messages.
    fn memory(&self, variant: usize) -> Result<[PinnedMemory; 2], Failure>;

    /// Called before the first round of a run.
    fn begin(&mut self, _variant: usize, _round: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Enqueues a round of a run that ends before round `last`. Returns the memory operations.
    fn enqueue(&mut self, variant: usize, round: u64, last: u64) -> Result<usize, Failure>;

    /// Called after the stream has passed the oldest round.
    fn pass(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Called after the rounds of a run, outside of their time.
    fn finish(&mut self, _variant: usize) -> Result<(), Failure> {
        Ok(())
    }
}

/// A variant's time in each run, in µs a round, and the memory operations of one rank in a round.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) times: Vec<f64>,
    pub(super) operations: f64,
    /// Rounds of all runs.
    pub(super) rounds: u64,
}

impl Measured {
    pub(super) fn median(&self) -> f64 {
        median(self.times.iter().copied())
    }
}

/// Runs `play` for each rank of a job, in a thread of this process, and returns the results.
pub(super) fn on_threads<T: Send + 'static>(
    ranks: u32,
    patience: Duration,
    play: impl Fn(Bootstrap) -> Result<T, Failure> + Clone + Send + 'static,
) -> Result<Vec<T>, Failure> {
    let (sender, done) = channel();
    for bootstrap in Bootstrap::threads(ranks, patience)? {
        let (sender, play) = (sender.clone(), play.clone());
        std::thread::Builder::new().name("bench-rank".to_owned()).spawn(move || {
            // No caller takes it if another rank has failed.
            let _ = sender.send(play(bootstrap).map_err(|error| error.to_string()));
        })?;
    }
    drop(sender);
    // If one fails, the others wait for it, and end with the process.
    (0..ranks).map(|_| Ok(done.recv().map_err(|_| "a rank has panicked")??)).collect()
}

/// Measures each variant in each run, by ranks that `make` creates in their threads. The variants take turns in being
/// first.
pub(super) fn measure<R: Rank, const VARIANTS: usize>(
    ranks: usize,
    runs: usize,
    rounds: u64,
    make: impl Fn(Bootstrap) -> Result<R, Failure> + Clone + Send + 'static,
) -> Result<[Measured; VARIANTS], Failure> {
    let (begin, leaves, end) = (Barrier::new(ranks), AtomicBool::new(false), AtomicU64::new(0));
    let together = Arc::new(Together { begin, leaves, end });
    let all: Vec<[Measured; VARIANTS]> = on_threads(u32::try_from(ranks)?, TIMEOUT, move |bootstrap| {
        let id = RankId::of(&bootstrap);
        make(bootstrap).and_then(|rank| play(rank, id, &together, runs, rounds))
    })?;
    let mut measured: [Measured; VARIANTS] = std::array::from_fn(|_| Measured::default());
    for played in all {
        for (all, one) in measured.iter_mut().zip(played) {
            all.operations += one.operations / ranks as f64;
            all.rounds = one.rounds;
            // All begin together, and the last one ends the round.
            all.times.resize(one.times.len(), 0.0);
            all.times.iter_mut().zip(one.times).for_each(|(most, time)| *most = most.max(time));
        }
    }
    Ok(measured)
}

/// State that the ranks share.
struct Together {
    begin: Barrier,
    /// True if they leave before the next run.
    leaves: AtomicBool,
    /// The round before which the present run ends.
    end: AtomicU64,
}

fn play<R: Rank, const VARIANTS: usize>(
    mut rank: R,
    id: RankId,
    together: &Together,
    runs: usize,
    rounds: u64,
) -> Result<[Measured; VARIANTS], Failure> {
    let mut measured: [Measured; VARIANTS] = std::array::from_fn(|_| Measured::default());
    // Rounds so far, by all variants: no two messages are equal.
    let mut first = 0;
    for run in 0..runs {
        // After an interrupt, all ranks leave at the same run: one of them checks for it.
        if together.begin.wait().is_leader() {
            together.leaves.store(run > 0 && interrupt::requested(), Ordering::Relaxed);
        }
        together.begin.wait();
        if together.leaves.load(Ordering::Relaxed) {
            break;
        }
        for variant in (0..VARIANTS).map(|turn| (turn + run) % VARIANTS) {
            if rank.stream(variant).is_none() {
                continue;
            }
            let (time, operations, end) = play_run(&mut rank, id, variant, first..first + rounds, together)?;
            let played = end - first;
            // The parity stays the same: places are used in turn.
            first = end.next_multiple_of(PLACES as u64);
            let measured = &mut measured[variant];
            measured.times.push(time / played as f64);
            measured.operations = operations as f64 / played as f64;
            measured.rounds += played;
        }
    }
    // A rank that ends takes its queue pairs along.
    together.begin.wait();
    Ok(measured)
}

/// Returns µs and memory operations of all rounds, and the round before which they have ended.
fn play_run<R: Rank>(
    rank: &mut R,
    id: RankId,
    variant: usize,
    rounds: std::ops::Range<u64>,
    Together { begin, end, .. }: &Together,
) -> Result<(f64, usize, u64), Failure> {
    const NO_VARIANT: &str = "the card cannot go that way";
    rank.begin(variant, rounds.start)?;
    end.store(rounds.end, Ordering::SeqCst);
    begin.wait();
    let (start, mut operations) = (Instant::now(), 0);
    let wrong = Arc::new(AtomicU64::new(0));
    let mut under_way: VecDeque<Event> = VecDeque::new();
    for round in rounds {
        if interrupt::requested() {
            end.fetch_min(round + LAST_ROUNDS, Ordering::SeqCst);
        }
        let last = end.load(Ordering::SeqCst);
        if round == last {
            break;
        }
        let [source, target] = rank.memory(variant)?;
        let fill = move |peer| content(id.number, peer, round).fill(&source, id.offset(peer, round), BLOCK);
        rank.stream(variant).ok_or(NO_VARIANT)?.launch(move || id.peers().for_each(fill))?;
        operations += rank.enqueue(variant, round, last)?;
        let stream = rank.stream(variant).ok_or(NO_VARIANT)?;
        let wrong = wrong.clone();
        stream.launch(move || {
            let is_wrong = |peer: &usize| {
                let content = content(*peer, id.number, round);
                content.check(&target, id.offset(*peer, round), 0, BLOCK).is_err()
            };
            wrong.fetch_add(id.peers().filter(is_wrong).count() as u64, Ordering::Relaxed);
        })?;
        under_way.push_back(stream.record()?);
        if under_way.len() == AHEAD {
            under_way.pop_front().iter().for_each(Event::synchronize);
            rank.pass()?;
        }
    }
    for round in under_way {
        round.synchronize();
        rank.pass()?;
    }
    let time = micros_since(start);
    rank.finish(variant)?;
    let end = end.load(Ordering::SeqCst);
    begin.wait();
    match wrong.load(Ordering::Relaxed) {
        0 => Ok((time, operations, end)),
        wrong => Err(format!("rank {}: {wrong} messages are not as they were sent", id.number).into()),
    }
}

/// Returns the content of a message, different for each sender, receiver and round.
fn content(from: usize, to: usize, round: u64) -> Pattern {
    Pattern::new(0, (round << 16 | (from as u64) << 8 | to as u64) << 1)
}
