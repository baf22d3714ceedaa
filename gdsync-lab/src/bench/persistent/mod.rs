//! `gdsync bench persistent`: rounds in which every rank sends to every other, by persistent requests,
//! which a stream or the card waits for, and by notified writes.

mod requests;
mod writes;

use super::ranks::{self, BLOCK, Measured, Place};
use super::table::{Outcome, Row};
use gdsync::stream::StreamOptions;
use gdsync::{Device, PinnedMemory, ProtectionDomain, QueuePairConfig, SoftStream, Stream, Trigger};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use gdsync_notify::bootstrap::Bootstrap;
use requests::Requests;
use writes::Writes;

/// Ranks of the rows.
const RANKS: [usize; 3] = [2, 4, 8];
/// In each, every way is measured once.
const RUNS: usize = 10;

/// Persistent requests: all of a round together, one by one, and all together where the card waits, by a trigger and a
/// collector. The reference: notified writes, in one batch a round.
const WAYS: [&str; 4] = [
    "start_all, wait_all",
    "start, wait_on",
    "start_all, wait_all, trigger and collector",
    "notified writes",
];
const SINGLY: usize = 1;
const CARD_WAITS: usize = 2;
const NOTIFIED: usize = 3;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let (rounds, mut runs, mut bytes_checked) = (options.rounds, RUNS, 0);
    let mut rows = Vec::new();
    for ranks in RANKS {
        let hca = options.hca.clone();
        let make = move |bootstrap| Rank::new(hca::open(hca.as_ref())?, bootstrap);
        let measured: [Measured; WAYS.len()] = ranks::measure(ranks, RUNS, rounds, make)?;
        let [ours @ .., notified] = &measured;
        runs = runs.min(notified.times.len());
        let played: usize = measured.iter().map(|way| way.times.len()).sum();
        bytes_checked += (ranks * (ranks - 1) * played * BLOCK) as u64 * rounds;
        for (what, way) in WAYS.into_iter().zip(ours).filter(|(_, way)| !way.times.is_empty()) {
            let pairs = way.times.iter().zip(&notified.times);
            let ratios: Vec<f64> = pairs.map(|(one, two)| one / two).collect();
            let row =
                Row::default().text(format!("{ranks} ranks, {what}")).key("ranks", ranks).key("what", what);
            rows.push(
                row.number("gdsync_us", way.median(), 2)
                    .number("reference_us", notified.median(), 2)
                    .ratios(&ratios, 2)
                    .number("gdsync_operations", way.operations, 2)
                    .number("reference_operations", notified.operations, 2),
            );
        }
    }
    let heading = format!("{runs} RUNS OF {rounds} ROUNDS");
    let header = [&*heading, "REQUESTS µs", "WRITES µs", "RATIO", "FROM", "TO", "OPERATIONS", "OF WRITES"];
    // Every byte of every message was checked.
    let all = Row::default().key("runs", runs).key("rounds", rounds).key("verified", true);
    let outcome = Outcome::of(all.key("bytes_checked", bytes_checked), &header, &rows);
    let title = "A round in which every rank sends to every other";
    Ok(outcome.lines(title, ["Ranks", "Median time of a round, µs"], "ranks", &rows, |row| {
        let what = row.name().split_once(", ").map_or("", |(_, what)| what);
        [(what.to_owned(), "gdsync_us"), (WAYS[NOTIFIED].to_owned(), "reference_us")]
    }))
}

struct Rank {
    stream: Stream<SoftStream>,
    requests: Requests,
    /// On queue pairs with a trigger, by a stream that has a collector. None where the card cannot wait.
    card_waits: Option<(Requests, Stream<SoftStream>)>,
    writes: Writes,
}

impl Rank {
    fn new((device, port): (Device, u8), mut bootstrap: Bootstrap) -> Result<Self, Failure> {
        let pd = ProtectionDomain::new(&device)?;
        let place = Place::of(&bootstrap);
        let config = QueuePairConfig::default().port(port);
        let requests = Requests::new(&pd, config, place, &mut bootstrap)?;
        let waits = device.card_waits()?;
        let card_waits = match waits.data && waits.queues {
            false => None,
            true => {
                let trigger = Trigger::new(&pd)?;
                let requests = Requests::new(&pd, config.trigger(&trigger), place, &mut bootstrap)?;
                let options = StreamOptions::default().collect_from(Some(2));
                Some((requests, Stream::with_options(SoftStream::new()?, options)?))
            }
        };
        let writes = Writes::new((&pd, port), place, bootstrap)?;
        Ok(Rank { stream: Stream::new(SoftStream::new()?)?, requests, card_waits, writes })
    }

    fn requests(&mut self, way: usize) -> (&mut Requests, &Stream<SoftStream>) {
        match &mut self.card_waits {
            Some((requests, stream)) if way == CARD_WAITS => (requests, stream),
            _ => (&mut self.requests, &self.stream),
        }
    }
}

impl ranks::Rank for Rank {
    fn stream(&self, way: usize) -> Option<&Stream<SoftStream>> {
        match way {
            CARD_WAITS => self.card_waits.as_ref().map(|(_, stream)| stream),
            _ => Some(&self.stream),
        }
    }

    fn memory(&self, way: usize) -> Result<[PinnedMemory; 2], Failure> {
        match (way, &self.card_waits) {
            (NOTIFIED, _) => self.writes.memory(),
            (CARD_WAITS, Some((requests, _))) => Ok(requests.memory()),
            _ => Ok(self.requests.memory()),
        }
    }

    fn begin(&mut self, way: usize, round: u64) -> Result<(), Failure> {
        if way != NOTIFIED {
            let (requests, stream) = self.requests(way);
            requests.expect_first(stream, round)?;
            stream.synchronize()?;
        }
        Ok(())
    }

    fn enqueue(&mut self, way: usize, round: u64, last: u64) -> Result<usize, Failure> {
        if way == NOTIFIED {
            return self.writes.enqueue(&self.stream, round);
        }
        let (requests, stream) = self.requests(way);
        requests.enqueue(stream, way == SINGLY, round, last)
    }

    fn finish(&mut self, way: usize) -> Result<(), Failure> {
        match way {
            NOTIFIED => self.writes.finish(),
            way => self.requests(way).0.finish(),
        }
    }
}
