//! Ranks that send to each other: threads of this process with software streams. In each round every rank sends a block to
//! every other, and has its stream check every byte of what the others have sent.

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

/// Bytes of a message.
pub(super) const BLOCK: usize = 256;
/// Messages of one peer that may be in a rank's memory: a peer is at most a round ahead.
pub(super) const PLACES: usize = 2;
/// Rounds that a rank has enqueued at a time.
pub(super) const AHEAD: usize = 2;
/// For the ranks to meet, and for everything that they wait for.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Numbers of a rank and of its peers.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) number: usize,
    pub(super) ranks: usize,
}

impl Place {
    pub(super) fn of(bootstrap: &Bootstrap) -> Self {
        Place { number: bootstrap.rank() as usize, ranks: bootstrap.size() as usize }
    }

    pub(super) fn peers(self) -> impl Iterator<Item = usize> {
        (0..self.ranks).filter(move |peer| *peer != self.number)
    }

    /// Where a message from or to a peer lies.
    pub(super) fn offset(self, peer: usize, round: u64) -> usize {
        ((round as usize % PLACES) * self.ranks + peer) * BLOCK
    }

    /// Bytes of all messages, in and out.
    pub(super) fn bytes(self) -> usize {
        PLACES * self.ranks * BLOCK
    }
}

/// Connects a rank's queue pairs, one for each peer, with those of the peers.
pub(super) fn connect(
    queue_pairs: &[QueuePair],
    place: Place,
    bootstrap: &mut Bootstrap,
) -> Result<(), Failure> {
    let endpoint = |queue_pair: &QueuePair| Ok(queue_pair.endpoint()?.to_string());
    let endpoints: Vec<String> = queue_pairs.iter().map(endpoint).collect::<Result<_, Failure>>()?;
    let all = bootstrap.all_gather(endpoints.join("\n").as_bytes())?;
    // Many threads share few processors: a card may be late, and a rank, too.
    let options = ConnectOptions::default().timeout(20).retry_count(7).rnr_retry(7);
    for (peer, queue_pair) in place.peers().zip(queue_pairs) {
        // Among a peer's endpoints, there is none for itself.
        let own = place.number - usize::from(place.number > peer);
        let endpoint = std::str::from_utf8(&all[peer])?.lines().nth(own).ok_or("a rank lacks a peer")?;
        queue_pair.connect(&endpoint.parse()?, options)?;
    }
    Ok(bootstrap.barrier()?)
}

/// A rank, whose messages go by one of several ways.
pub(super) trait Rank {
    /// The stream of a way; none where the card cannot go it.
    fn stream(&self, variant: usize) -> Option<&Stream<SoftStream>>;

    /// Where messages come from, and where they go to.
    fn memory(&self, variant: usize) -> Result<[PinnedMemory; 2], Failure>;

    /// Before the first round of a run.
    fn begin(&mut self, _way: usize, _round: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Enqueues a round, of which `last` is the first that the run has no more. Returns the memory operations.
    fn enqueue(&mut self, variant: usize, round: u64, last: u64) -> Result<usize, Failure>;

    /// After the stream has passed the oldest round.
    fn pass(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Behind the rounds of a run, whose time does not have it.
    fn finish(&mut self, _way: usize) -> Result<(), Failure> {
        Ok(())
    }
}

/// What one way took in each run, in µs a round, and its memory operations in a round of one rank.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) times: Vec<f64>,
    pub(super) operations: f64,
}

impl Measured {
    pub(super) fn median(&self) -> f64 {
        median(self.times.iter().copied())
    }
}

/// What each rank of a job has found: a thread of this process plays it.
pub(super) fn on_threads<T: Send + 'static>(
    ranks: u32,
    patience: Duration,
    play: impl Fn(Bootstrap) -> Result<T, Failure> + Clone + Send + 'static,
) -> Result<Vec<T>, Failure> {
    let (sender, done) = channel();
    for bootstrap in Bootstrap::threads(ranks, patience)? {
        let (sender, play) = (sender.clone(), play.clone());
        std::thread::Builder::new().name("bench-rank".to_owned()).spawn(move || {
            // No caller takes it where another rank has failed.
            let _ = sender.send(play(bootstrap).map_err(|error| error.to_string()));
        })?;
    }
    drop(sender);
    // Where one fails, the others wait for it: they end with the process.
    (0..ranks).map(|_| Ok(done.recv().map_err(|_| "a rank has panicked")??)).collect()
}

/// Each way in each run, by ranks that `make` makes in their threads. The ways take turns in being the first.
pub(super) fn measure<R: Rank, const VARIANTS: usize>(
    ranks: usize,
    runs: usize,
    rounds: u64,
    make: impl Fn(Bootstrap) -> Result<R, Failure> + Clone + Send + 'static,
) -> Result<[Measured; VARIANTS], Failure> {
    let begin = Arc::new(Barrier::new(ranks));
    let leaves = Arc::new(AtomicBool::new(false));
    let all: Vec<[Measured; VARIANTS]> = on_threads(u32::try_from(ranks)?, TIMEOUT, move |bootstrap| {
        let place = Place::of(&bootstrap);
        make(bootstrap).and_then(|rank| play(rank, place, (&begin, &leaves), runs, rounds))
    })?;
    let mut measured: [Measured; VARIANTS] = std::array::from_fn(|_| Measured::default());
    for played in all {
        for (all, one) in measured.iter_mut().zip(played) {
            all.operations += one.operations / ranks as f64;
            // All begin together, and the last one ends the round.
            all.times.resize(one.times.len(), 0.0);
            all.times.iter_mut().zip(one.times).for_each(|(most, time)| *most = most.max(time));
        }
    }
    Ok(measured)
}

fn play<R: Rank, const VARIANTS: usize>(
    mut rank: R,
    place: Place,
    (begin, leaves): (&Barrier, &AtomicBool),
    runs: usize,
    rounds: u64,
) -> Result<[Measured; VARIANTS], Failure> {
    let mut measured: [Measured; VARIANTS] = std::array::from_fn(|_| Measured::default());
    // Rounds so far, by all ways: no message is like another.
    let mut first = 0;
    for run in 0..runs {
        // All ranks leave at the same run where the user interrupts: one of them looks.
        if begin.wait().is_leader() {
            leaves.store(run > 0 && interrupt::requested(), Ordering::Relaxed);
        }
        begin.wait();
        if leaves.load(Ordering::Relaxed) {
            break;
        }
        for variant in (0..VARIANTS).map(|turn| (turn + run) % VARIANTS) {
            if rank.stream(variant).is_none() {
                continue;
            }
            let (time, operations) = play_run(&mut rank, place, variant, first..first + rounds, begin)?;
            // Of the same parity as the last: places are used in turn.
            first = (first + rounds).next_multiple_of(PLACES as u64);
            measured[variant].times.push(time / rounds as f64);
            measured[variant].operations = operations as f64 / rounds as f64;
        }
    }
    // A rank that leaves takes its queue pairs along.
    begin.wait();
    Ok(measured)
}

/// Returns µs and memory operations of all rounds.
fn play_run<R: Rank>(
    rank: &mut R,
    place: Place,
    variant: usize,
    rounds: std::ops::Range<u64>,
    begin: &Barrier,
) -> Result<(f64, usize), Failure> {
    const NO_VARIANT: &str = "the card cannot go that way";
    rank.begin(variant, rounds.start)?;
    begin.wait();
    let (start, mut operations) = (Instant::now(), 0);
    let wrong = Arc::new(AtomicU64::new(0));
    let mut under_way: VecDeque<Event> = VecDeque::new();
    let last = rounds.end;
    for round in rounds {
        let [source, target] = rank.memory(variant)?;
        let fill =
            move |peer| content(place.number, peer, round).fill(&source, place.offset(peer, round), BLOCK);
        rank.stream(variant).ok_or(NO_VARIANT)?.launch(move || place.peers().for_each(fill))?;
        operations += rank.enqueue(variant, round, last)?;
        let stream = rank.stream(variant).ok_or(NO_VARIANT)?;
        let wrong = wrong.clone();
        stream.launch(move || {
            let is_wrong = |peer: &usize| {
                let content = content(*peer, place.number, round);
                content.check(&target, place.offset(*peer, round), 0, BLOCK).is_err()
            };
            wrong.fetch_add(place.peers().filter(is_wrong).count() as u64, Ordering::Relaxed);
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
    begin.wait();
    match wrong.load(Ordering::Relaxed) {
        0 => Ok((time, operations)),
        wrong => Err(format!("rank {}: {wrong} messages are not as they were sent", place.number).into()),
    }
}

/// What one rank sends to another in a round: different for all of them.
fn content(from: usize, to: usize, round: u64) -> Pattern {
    Pattern::new(0, (round << 16 | (from as u64) << 8 | to as u64) << 1)
}
