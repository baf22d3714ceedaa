//! `gdsync bench scale`: what a team costs as it grows. Ranks are threads of one process with a software stream each; every
//! size has a process of its own, so that no size finds the memory and the caches of another.

mod rank;

use super::in_a_process;
use super::ranks::on_threads;
use super::table::{Outcome, Row};
use gdsync_cli::child;
use gdsync_cli::cli::{BenchOptions, Connections, Process};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_cli::interrupt;
use rank::{BLOCK, Played, Shared};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Ranks of the largest team, where `--ranks` does not say.
const MOST_RANKS: u32 = 512;
/// The team beside whose messages those of others are.
const REFERENCE_RANKS: u32 = 8;
/// Messages of all rounds together, of large teams.
const MESSAGES: u64 = 1_000_000;
/// Rounds that a large team has at least.
const LEAST_ROUNDS: u64 = 5;
/// For the ranks to meet, and for everything that they wait for.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the process of a team is to do.
#[derive(Serialize, Deserialize)]
struct Options {
    ranks: u32,
    /// Of each kind.
    rounds: u64,
    connections: Connections,
    hca: Option<Hca>,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let most = options.ranks.unwrap_or(MOST_RANKS);
    let sizes = (1..).map(|power| 1 << power).take_while(|size| *size <= most);
    let measured =
        interrupt::rounds(sizes).map(|ranks| measured(options, ranks)).collect::<Result<Vec<_>, _>>()?;
    let rows = rows(&measured);
    let heading = format!("RANKS, {BLOCK} BYTES TO EACH, VERIFIED");
    let header = [
        heading.as_str(),
        "CONNECT s",
        "KiB A WAY",
        "USED KiB",
        "WRITES µs",
        "A MESSAGE µs",
        "TO 8 RANKS",
        "OPERATIONS",
        "COLLECTIVE µs",
        "A MESSAGE µs",
        "TO 8 RANKS",
        "OPERATIONS",
    ];
    // Every byte of every message was checked.
    let all = Row::default().key("block_bytes", BLOCK).key("verified", true);
    let axes = ["Ranks", "Time of a round divided by its messages, µs"];
    let title = format!("A message of {BLOCK} bytes as a team grows");
    Ok(Outcome::of(all, &header, &rows).lines(title, axes, "ranks", &rows, |_| {
        [
            ("notified writes".to_owned(), "writes_message_us"),
            ("collective".to_owned(), "collective_message_us"),
        ]
    }))
}

/// What the process of a size has found: see [`run_one`].
fn measured(options: &BenchOptions, ranks: u32) -> Result<Value, Failure> {
    let messages = u64::from(ranks) * u64::from(ranks - 1);
    let rounds = options.rounds.min((MESSAGES / messages).max(LEAST_ROUNDS));
    let (connections, hca) = (options.connections, options.hca.clone());
    let options = Options { ranks, rounds, connections, hca };
    in_a_process(&format!("the process of {ranks} ranks"), Process::BenchScale, &options)
}

/// A round takes every rank's messages: beside its time is the time divided by them, and that divided by the same among
/// [`REFERENCE_RANKS`].
fn rows(measured: &[Value]) -> Vec<Row> {
    let number = |one: &Value, key: &str| one[key].as_f64().unwrap_or(f64::NAN);
    let message = |one: &Value, key: &str| {
        let ranks = number(one, "ranks");
        number(one, key) / (ranks * (ranks - 1.0))
    };
    let reference = measured.iter().find(|one| one["ranks"] == REFERENCE_RANKS);
    let row = |one: &Value| {
        let copied = |row: Row, key, decimals| row.number(key, number(one, key), decimals);
        let ratio = |key| reference.map(|reference| message(one, key) / message(reference, key));
        let row = Row::default().cell("ranks", one["ranks"].clone(), one["ranks"].to_string());
        let row = row.key("rounds", one["rounds"].clone()).key("bytes_checked", one["bytes_checked"].clone());
        let row = copied(row, "connect_s", 2);
        let row = copied(copied(row, "connected_kib", 1), "used_kib", 1);
        let row = copied(row, "writes_us", 0).number("writes_message_us", message(one, "writes_us"), 2);
        let row = copied(row.number("writes_ratio", ratio("writes_us"), 2), "writes_operations", 1);
        let row = copied(row, "collective_us", 0);
        let row = row.number("collective_message_us", message(one, "collective_us"), 2);
        copied(row.number("collective_ratio", ratio("collective_us"), 2), "collective_operations", 1)
    };
    measured.iter().map(row).collect()
}

/// The ranks of one size, in this process. Writes what it has found.
pub(crate) fn run_one() -> Result<(), Failure> {
    let options: Options = child::options()?;
    let (device, port) = hca::open(options.hca.as_ref())?;
    let (ranks, rounds) = (options.ranks, options.rounds);
    let before = resident_kib()?;
    let (connections, together) = (options.connections.into(), Barrier::new(ranks as usize));
    let shared = Arc::new(Shared { device, port, rounds, connections, together });
    let start = Instant::now();
    let all = on_threads(ranks, PATIENCE, move |bootstrap| rank::play(&shared, bootstrap, resident_kib))?;
    let latest = |pick: fn(&Played) -> Instant| all.iter().map(pick).max().unwrap_or(start);
    let mean = |pick: fn(&Played) -> u64| {
        all.iter().map(pick).sum::<u64>() as f64 / (u64::from(ranks) * rounds) as f64
    };
    let ways = f64::from(ranks) * f64::from(ranks - 1);
    let most = |pick: fn(&Played) -> u64| {
        all.iter().map(pick).max().unwrap_or_default().saturating_sub(before) as f64 / ways
    };
    let longest = |pick: fn(&Played) -> f64| all.iter().map(pick).fold(0.0, f64::max) / rounds as f64;
    let measured = json!({
        "ranks": ranks,
        "rounds": rounds,
        // From the first rank's begin to the end of the last one's `Team::new`.
        "connect_s": latest(|one| one.connected).duration_since(start).as_secs_f64(),
        // Memory of the process for each way from a rank to another: when all are connected, and behind the rounds.
        "connected_kib": most(|one| one.connected_kib),
        "used_kib": most(|one| one.used_kib),
        // A round by notified writes, and one by the collective: the time of all ranks, and the operations of one.
        "writes_us": longest(|one| one.writes_us),
        "writes_operations": mean(|one| one.writes_operations),
        "collective_us": longest(|one| one.collective_us),
        "collective_operations": mean(|one| one.collective_operations),
        "bytes_checked": all.iter().map(|one| one.bytes_checked).sum::<u64>(),
    });
    Ok(writeln!(std::io::stdout(), "{measured}")?)
}

/// Memory of this process that is there, shared memory included.
fn resident_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "/proc/self/status has no VmRSS".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_beside_those_of_eight_ranks() {
        let measured = |ranks: u32, us: f64| {
            json!({
                "ranks": ranks,
                "connect_s": 1.0,
                "connected_kib": 2.0,
                "used_kib": 3.0,
                "writes_us": us,
                "writes_operations": 4.0,
                "collective_us": 2.0 * us,
                "collective_operations": 5.0,
            })
        };
        let found = rows(&[measured(2, 2.0), measured(8, 56.0), measured(16, 480.0)]);
        let ratios = |row: &Row| ["writes_ratio", "collective_ratio"].map(|key| row.get(key));
        assert_eq!([0, 1, 2].map(|at| ratios(&found[at])), [[1.0; 2], [1.0; 2], [2.0; 2]]);
        assert_eq!(found[2].get("collective_message_us"), 4.0);
        let text = Outcome::of(Row::default(), &[""; 12], &found[2..]).text();
        let expected = "16  1.00  2.0  3.0  480  2.00  2.00  4.0  960  4.00  2.00  5.0";
        assert_eq!(text.lines().last(), Some(expected));
        assert!(Value::from(rows(&[measured(2, 1.0)])[0].clone())["writes_ratio"].is_null());
    }

    #[test]
    fn a_process_has_memory() {
        assert!(resident_kib().unwrap() > 100);
    }
}
