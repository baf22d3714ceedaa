//! `gdsync bench alltoall`: in each round every rank sends to every other, and waits for what all
//! others send; by the waits of the card, and by doorbells. Ranks are threads with software streams.

mod rank;

use super::outcome::Outcome;
use super::{Comparison, comparison_chart, micros_since, outcome};
use gdsync::Device;
use gdsync::verbs::{DEFAULT_PORT, provider};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use rank::{BLOCK, Rank, Way};
use serde::Serialize;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Ranks where `--ranks` does not say.
const RANKS: u32 = 8;
/// The number of a rank is a byte of its messages.
const MOST_RANKS: u32 = 256;

#[derive(Debug, Serialize)]
struct Results {
    ranks: usize,
    rounds: u64,
    cards: usize,
    /// Every byte of every message was checked.
    verified: bool,
    /// By each of both ways.
    bytes_checked: u64,
    #[serde(flatten)]
    round: Comparison,
    /// Memory operations of a rank's round.
    gdsync_operations: f64,
    reference_operations: f64,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let cards = cards(options)?;
    let (ranks, rounds) = (options.ranks.unwrap_or(RANKS), options.rounds);
    if ranks > MOST_RANKS {
        return Err(format!("--ranks {ranks} is more than the {MOST_RANKS} of alltoall: give fewer").into());
    }
    let ranks = ranks as usize;
    let (word, gdsync_operations) = measure(&cards, ranks, rounds, Way::Word)?;
    let (doorbells, reference_operations) = measure(&cards, ranks, rounds, Way::Doorbells)?;
    let messages = (ranks * (ranks - 1)) as u64 * rounds;
    let results = Results {
        ranks,
        rounds,
        cards: cards.len(),
        verified: true,
        bytes_checked: messages * BLOCK as u64,
        round: Comparison::new("a round", vec![(word, doorbells)]),
        gdsync_operations,
        reference_operations,
    };
    let heading = format!(
        "RANKS {ranks}, CARDS {}, ROUNDS {rounds}, BYTES CHECKED {}",
        results.cards, results.bytes_checked
    );
    let mut cells = results.round.row();
    cells.extend([gdsync_operations, reference_operations].map(|count| format!("{count:.2}")));
    let header = [&heading, "WORD µs", "DOORBELLS µs", "RATIO", "OPERATIONS", "BY DOORBELLS"];
    let title = format!("A round among {ranks} ranks");
    let chart = comparison_chart(&title, [header[1], header[2]], [&results.round].into_iter());
    Ok(outcome(&results, &header, vec![cells])?.chart(chart))
}

/// The card that is named; all software cards of this process, where none is.
fn cards(options: &BenchOptions) -> Result<Vec<(Device, u8)>, Failure> {
    if options.hca.is_some() {
        return Ok(vec![hca::open(options.hca.as_ref())?]);
    }
    let api = provider::software();
    let open = |name: String| Ok((Device::open(api, Some(&name))?, DEFAULT_PORT));
    Device::names(api)?.into_iter().map(open).collect()
}

/// The time of a round in µs, and the memory operations of one rank's.
fn measure(cards: &[(Device, u8)], count: usize, rounds: u64, way: Way) -> Result<(f64, f64), Failure> {
    let mut ranks = Vec::new();
    for number in 0..count {
        let (device, port) = &cards[number % cards.len()];
        ranks.push(Rank::new((device, *port), number, count, way)?);
    }
    Rank::connect(&mut ranks)?;
    let (sender, done) = channel();
    let begin = Arc::new(Barrier::new(count + 1));
    for mut rank in ranks {
        let (sender, begin) = (sender.clone(), begin.clone());
        std::thread::Builder::new().name("alltoall-rank".to_owned()).spawn(move || {
            begin.wait();
            let played = rank.play(rounds).map_err(|error| error.to_string());
            // Kept until all are done: a rank that leaves takes its queue pairs along.
            let _ = sender.send((played, rank));
        })?;
    }
    drop(sender);
    begin.wait();
    let start = Instant::now();
    let mut played = Vec::new();
    while played.len() < count {
        let (result, rank) = done.recv().map_err(|_| "a rank has panicked")?;
        // The others wait for this one: they end with the process.
        result?;
        played.push(rank);
    }
    let time = micros_since(start) / rounds as f64;
    let operations: u64 = played.iter().map(|rank| rank.operations).sum();
    Ok((time, operations as f64 / (count as u64 * rounds) as f64))
}
