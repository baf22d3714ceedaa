//! `gdsync bench scale`: what a team costs as it grows. Ranks are threads of one process with a software stream each; every
//! size has a process of its own, so that no size finds the memory and the caches of another.

mod rank;

use super::outcome;
use super::outcome::Outcome;
use gdsync_cli::child;
use gdsync_cli::cli::{self, BenchOptions, BenchScaleOptions};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use gdsync_cli::interrupt;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Series};
use gdsync_notify::bootstrap::Bootstrap;
use rank::{BLOCK, Played, Shared};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
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

#[derive(Debug, Serialize)]
struct Results {
    block_bytes: usize,
    /// Every byte of every message was checked.
    verified: bool,
    rows: Vec<Row>,
}

/// What the process of a size has found.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    ranks: u32,
    rounds: u64,
    /// From the first rank's begin to the end of the last one's `Team::new`.
    connect_s: f64,
    /// Memory of the process for each way from a rank to another: when all are connected, and behind the rounds.
    connected_kib: f64,
    used_kib: f64,
    /// A round by notified writes, and one by the collective: the time of all ranks, and the memory operations of one.
    writes_us: f64,
    writes_operations: f64,
    collective_us: f64,
    collective_operations: f64,
    bytes_checked: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    measured: Measured,
    /// The time of a round divided by its messages.
    writes_message_us: f64,
    collective_message_us: f64,
    /// Divided by that among [`REFERENCE_RANKS`].
    writes_ratio: Option<f64>,
    collective_ratio: Option<f64>,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let most = options.ranks.unwrap_or(MOST_RANKS);
    let sizes = (1..).map(|power| 1 << power).take_while(|size| *size <= most);
    let measured =
        interrupt::rounds(sizes).map(|ranks| in_a_process(options, ranks)).collect::<Result<Vec<_>, _>>()?;
    let results = Results { block_bytes: BLOCK, verified: true, rows: rows(measured) };
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
    let cells = results.rows.iter().map(Row::cells).collect();
    Ok(outcome(&results, &header, cells)?.chart(message_chart(&results.rows)))
}

/// What a message costs by the number of ranks.
fn message_chart(rows: &[Row]) -> Chart {
    let line = |name: &str, pick: fn(&Row) -> f64| {
        Series::new(name, rows.iter().map(|row| (f64::from(row.measured.ranks), pick(row))))
    };
    Chart {
        title: format!("A message of {BLOCK} bytes as a team grows"),
        content: Content::Lines {
            x: Axis::new("Ranks", Scale::Counts),
            y: Axis::new("Time of a round divided by its messages, µs", Scale::Log),
            series: vec![
                line("notified writes", |row| row.writes_message_us),
                line("collective", |row| row.collective_message_us),
            ],
        },
    }
}

fn in_a_process(options: &BenchOptions, ranks: u32) -> Result<Measured, Failure> {
    let messages = u64::from(ranks) * u64::from(ranks - 1);
    let rounds = options.rounds.min((MESSAGES / messages).max(LEAST_ROUNDS));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench-scale", "--ranks", &ranks.to_string(), "--rounds", &rounds.to_string()]);
    command.args(["--connections", &cli::word(&options.connections)]);
    if let Some(hca) = &options.hca {
        command.args(["--hca", &hca.to_string()]);
    }
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    child::dies_with_this_process(&mut command);
    let output = command.output().map_err(|error| format!("cannot start {ranks} ranks: {error}"))?;
    if !output.status.success() {
        return Err(child::failure(format_args!("the process of {ranks} ranks"), output.status));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn rows(measured: Vec<Measured>) -> Vec<Row> {
    let message = |us: f64, ranks: u32| us / (f64::from(ranks) * f64::from(ranks - 1));
    let of = |pick: fn(&Measured) -> f64| {
        let reference = measured.iter().find(|one| one.ranks == REFERENCE_RANKS);
        reference.map(|one| message(pick(one), one.ranks))
    };
    let [writes, collective] = [of(|one| one.writes_us), of(|one| one.collective_us)];
    let row = |measured: Measured| {
        let writes_message_us = message(measured.writes_us, measured.ranks);
        let collective_message_us = message(measured.collective_us, measured.ranks);
        Row {
            writes_message_us,
            collective_message_us,
            writes_ratio: writes.map(|reference| writes_message_us / reference),
            collective_ratio: collective.map(|reference| collective_message_us / reference),
            measured,
        }
    };
    measured.into_iter().map(row).collect()
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let Measured { ranks, connect_s, connected_kib, used_kib, .. } = self.measured;
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let way = |us: f64, message: f64, of: Option<f64>, operations: f64| {
            [format!("{us:.0}"), format!("{message:.2}"), ratio(of), format!("{operations:.1}")]
        };
        let Measured { writes_us, writes_operations, collective_us, collective_operations, .. } =
            self.measured;
        let first = [
            ranks.to_string(),
            format!("{connect_s:.2}"),
            format!("{connected_kib:.1}"),
            format!("{used_kib:.1}"),
        ];
        let writes = way(writes_us, self.writes_message_us, self.writes_ratio, writes_operations);
        let collective =
            way(collective_us, self.collective_message_us, self.collective_ratio, collective_operations);
        [&first[..], &writes, &collective].concat()
    }
}

/// The ranks of one size, in this process. Writes what it has found.
pub(crate) fn run_one(options: &BenchScaleOptions) -> Result<(), Failure> {
    let (device, port) = hca::open(options.hca.as_ref())?;
    let (ranks, rounds) = (options.ranks, options.rounds);
    let before = resident_kib()?;
    let shared = Shared::new(device, port, ranks, rounds, options.connections.into());
    let (sender, ended) = channel();
    let start = Instant::now();
    for bootstrap in Bootstrap::threads(ranks, PATIENCE)? {
        let (shared, sender) = (shared.clone(), sender.clone());
        std::thread::Builder::new().name("scale-rank".to_owned()).spawn(move || {
            let played = rank::play(&shared, bootstrap, resident_kib).map_err(|error| error.to_string());
            // No caller takes it where another rank has failed.
            let _ = sender.send(played);
        })?;
    }
    drop(sender);
    let mut all: Vec<Played> = Vec::new();
    while all.len() < ranks as usize {
        // The others wait for one that has failed: they end with the process.
        all.push(ended.recv().map_err(|_| "a rank has panicked")??);
    }
    let latest = |pick: fn(&Played) -> Instant| all.iter().map(pick).max().unwrap_or(start);
    let mean = |pick: fn(&Played) -> u64| {
        all.iter().map(pick).sum::<u64>() as f64 / (u64::from(ranks) * rounds) as f64
    };
    let ways = f64::from(ranks) * f64::from(ranks - 1);
    let most = |pick: fn(&Played) -> u64| {
        all.iter().map(pick).max().unwrap_or_default().saturating_sub(before) as f64 / ways
    };
    let longest = |pick: fn(&Played) -> f64| all.iter().map(pick).fold(0.0, f64::max) / rounds as f64;
    let measured = Measured {
        ranks,
        rounds,
        connect_s: latest(|one| one.connected).duration_since(start).as_secs_f64(),
        connected_kib: most(|one| one.connected_kib),
        used_kib: most(|one| one.used_kib),
        writes_us: longest(|one| one.writes_us),
        writes_operations: mean(|one| one.writes_operations),
        collective_us: longest(|one| one.collective_us),
        collective_operations: mean(|one| one.collective_operations),
        bytes_checked: all.iter().map(|one| one.bytes_checked).sum(),
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&measured)?)?)
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
        let measured = |ranks: u32, us: f64| Measured {
            ranks,
            rounds: 1,
            connect_s: 1.0,
            connected_kib: 2.0,
            used_kib: 3.0,
            writes_us: us,
            writes_operations: 4.0,
            collective_us: 2.0 * us,
            collective_operations: 5.0,
            bytes_checked: 1,
        };
        let found = rows(vec![measured(2, 2.0), measured(8, 56.0), measured(16, 480.0)]);
        let ratios: Vec<_> = found.iter().map(|row| (row.writes_ratio, row.collective_ratio)).collect();
        assert_eq!(ratios, [1.0, 1.0, 2.0].map(|ratio| (Some(ratio), Some(ratio))));
        assert_eq!(found[2].collective_message_us, 4.0);
        assert_eq!(found[2].cells()[0..6], ["16", "1.00", "2.0", "3.0", "480", "2.00"].map(str::to_owned));
        assert!(rows(vec![measured(2, 1.0)])[0].writes_ratio.is_none(), "there is nothing beside it");
    }

    #[test]
    fn a_process_has_memory() {
        assert!(resident_kib().unwrap() > 100);
    }
}
