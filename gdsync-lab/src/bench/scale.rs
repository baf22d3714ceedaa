//! `gdsync bench scale`: the cost of a team as it grows. Ranks are threads of one process with a software stream each;
//! every size is a separate process, so that memory and caches are fresh.

use super::in_a_process;
use super::ranks::on_threads;
use super::table::{Outcome, Row};
use gdsync::{Batch, Device, ProtectionDomain, QueuePairConfig, SoftStream, Stream};
use gdsync_cli::cli::{BenchOptions, Connections, Process};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_cli::{child, interrupt};
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::collective::{Collective, Collectives, Plan};
use gdsync_notify::{
    ConnectionKind, NotificationWord, Operation, Queue, Segment, Team, TeamConfig, WaitNotification,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const MOST_RANKS: u32 = 512;
/// The team with whose messages those of others are compared.
const REFERENCE_RANKS: u32 = 8;
/// Messages of all rounds together, for large teams.
const MESSAGES: u64 = 1_000_000;
const LEAST_ROUNDS: u64 = 5;
/// Time limit for the ranks to meet, and for every wait.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Serialize, Deserialize)]
struct Options {
    ranks: u32,
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

/// Returns the results of a size's process: see [`run_one`].
fn measured(options: &BenchOptions, ranks: u32) -> Result<Value, Failure> {
    let messages = u64::from(ranks) * u64::from(ranks - 1);
    let rounds = options.rounds().min((MESSAGES / messages).max(LEAST_ROUNDS));
    let (connections, hca) = (options.connections, options.hca.clone());
    let options = Options { ranks, rounds, connections, hca };
    in_a_process(&format!("the process of {ranks} ranks"), Process::BenchScale, &options)
}

/// Returns a row for each size. A round exchanges every rank's messages; its time is also divided by their number, and
/// by the same quotient for [`REFERENCE_RANKS`].
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

/// Performs the ranks of one size in this process, and writes the results.
pub(crate) fn run_one() -> Result<(), Failure> {
    let options: Options = child::options()?;
    let (device, port) = hca::open(options.hca.as_ref())?;
    let (ranks, rounds) = (options.ranks, options.rounds);
    let before = resident_kib()?;
    let (connections, together) = (options.connections.into(), Barrier::new(ranks as usize));
    let shared = Arc::new(Shared { device, port, rounds, connections, together });
    let start = Instant::now();
    let all = on_threads(ranks, PATIENCE, move |bootstrap| play(&shared, bootstrap, resident_kib))?;
    let latest = |pick: fn(&Played) -> Instant| all.iter().map(pick).max().unwrap_or(start);
    let mean = |pick: fn(&Played) -> u64| {
        all.iter().map(pick).sum::<u64>() as f64 / (u64::from(ranks) * rounds) as f64
    };
    let variants = f64::from(ranks) * f64::from(ranks - 1);
    let most = |pick: fn(&Played) -> u64| {
        all.iter().map(pick).max().unwrap_or_default().saturating_sub(before) as f64 / variants
    };
    let longest = |pick: fn(&Played) -> f64| all.iter().map(pick).fold(0.0, f64::max) / rounds as f64;
    let measured = json!({
        "ranks": ranks,
        "rounds": rounds,
        // From the first rank's begin to the end of the last one's `Team::new`.
        "connect_s": latest(|one| one.connected).duration_since(start).as_secs_f64(),
        // Memory of the process for each ordered pair of ranks: when all are connected, and after the rounds.
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

/// Includes shared memory.
fn resident_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "/proc/self/status has no VmRSS".into())
}

const BLOCK: usize = 64;
/// Rounds use halves of the memory in turn: a rank that has heard from all in one round has been read by all in the
/// last.
const HALVES: usize = 2;
/// Ranks that a batch sends to: a queue has room for the requests.
const TO_AT_ONCE: usize = 32;
/// ACK time-out: many ranks share few processors, and may be late.
const TIMEOUT: u8 = 20;

struct Shared {
    device: Device,
    port: u8,
    rounds: u64,
    connections: ConnectionKind,
    together: Barrier,
}

impl Shared {
    fn config(&self) -> TeamConfig {
        let queue_pair = QueuePairConfig::default().port(self.port).recv_depth(1);
        let config =
            TeamConfig::default().connections(self.connections).queue_pair(queue_pair).timeout(PATIENCE);
        let connect = config.connect.timeout(TIMEOUT);
        config.connect(connect)
    }
}

/// The results of a rank; rounds are summed.
struct Played {
    connected: Instant,
    connected_kib: u64,
    used_kib: u64,
    writes_us: f64,
    writes_operations: u64,
    collective_us: f64,
    collective_operations: u64,
    bytes_checked: u64,
}

/// Performs a rank from begin to end. `resident`: the memory of the process.
fn play(
    shared: &Shared,
    bootstrap: Bootstrap,
    resident: fn() -> Result<u64, Failure>,
) -> Result<Played, Failure> {
    let pd = ProtectionDomain::new(&shared.device)?;
    let team = Team::new(&pd, bootstrap, shared.config())?;
    let connected = Instant::now();
    shared.together.wait();
    let connected_kib = resident()?;
    let rank = Rank::new(&team)?;
    let (mut writes_operations, mut collective_operations) = (0, 0);
    // The first round of each kind finds everything cold.
    rank.write(0)?;
    shared.together.wait();
    let start = Instant::now();
    for round in 1..=shared.rounds {
        writes_operations += rank.write(round)?;
    }
    let writes = start.elapsed();
    rank.gather()?;
    shared.together.wait();
    let start = Instant::now();
    for _ in 0..shared.rounds {
        collective_operations += rank.gather()?;
    }
    let collective = start.elapsed();
    rank.queue.flush(PATIENCE)?;
    team.barrier()?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    Ok(Played {
        connected,
        connected_kib,
        used_kib: resident()?,
        writes_us: micros(writes),
        writes_operations,
        collective_us: micros(collective),
        collective_operations,
        bytes_checked: 2 * (shared.rounds + 1) * rank.others.len() as u64 * BLOCK as u64,
    })
}

/// One rank of a team: it connects, and performs rounds in which every rank sends a block to every other, by notified
/// writes and by the collective.
struct Rank {
    number: u32,
    size: u32,
    /// All others; ranks begin with different ones.
    others: Vec<u32>,
    queue: Queue,
    stream: Stream<SoftStream>,
    outbox: Segment,
    inbox: Segment,
    /// For each half, the words in which the others report their writes, in the order of `others`.
    words: [Vec<NotificationWord>; HALVES],
    plan: Plan,
}

fn byte(from: u32, to: u32, round: u64, at: usize) -> u8 {
    (u64::from(from) * 131 + u64::from(to) * 61 + round * 29 + at as u64 * 7) as u8
}

fn block(from: u32, to: u32, round: u64) -> [u8; BLOCK] {
    std::array::from_fn(|at| byte(from, to, round, at))
}

impl Rank {
    fn new(team: &Team) -> Result<Self, Failure> {
        let (number, size) = (team.rank(), team.size());
        let others: Vec<u32> = (1..size).map(|distance| (number + distance) % size).collect();
        let all = size as usize * BLOCK;
        let outbox = team.allocate(HALVES * all, 0)?;
        let inbox = team.allocate(HALVES * all, HALVES as u32 * size)?;
        let half = |half: u32| {
            others.iter().map(|from| inbox.notification(half * size + from)).collect::<Result<Vec<_>, _>>()
        };
        let words = [half(0)?, half(1)?];
        let (queue, what) = (team.queue(0)?, Collective::AllToAll { block: BLOCK });
        let segment = team.allocate(what.bytes(size), what.notifications(size))?;
        let plan = Collectives::new(&queue, &segment)?.plan(what)?;
        let stream = Stream::new(SoftStream::new()?)?;
        Ok(Rank { number, size, others, queue, stream, outbox, inbox, words, plan })
    }

    /// Performs a round by notified writes. Returns the memory operations.
    fn write(&self, round: u64) -> Result<u64, Failure> {
        let half = round as usize % HALVES;
        let base = half * self.size as usize * BLOCK;
        let value = u32::try_from(round + 1)?;
        let id = half as u32 * self.size + self.number;
        let mut operations = 0;
        let mut post = |batch: Batch| -> Result<(), Failure> {
            let posted = self.stream.post_timeout(batch, PATIENCE).map_err(|error| error.to_string())?;
            operations += posted.operations as u64;
            Ok(())
        };
        for some in self.others.chunks(TO_AT_ONCE) {
            let mut batch = Batch::new();
            for to in some {
                let at = base + *to as usize * BLOCK;
                self.outbox.write(at, &block(self.number, *to, round))?;
                let from = &self.outbox.slice(at..at + BLOCK)?;
                let (rank, to, offset) = (*to, &self.inbox, (base + self.number as usize * BLOCK) as u64);
                let write = Operation::WriteNotify { from, rank, to, offset, id, value };
                batch = self.queue.prepare(write)?.fold(batch, Batch::send);
            }
            post(batch)?;
        }
        post(self.words[half].iter().fold(Batch::new(), |batch, word| batch.wait_notification(word)))?;
        self.synchronize("a round of writes")?;
        let mut bytes = vec![0; self.size as usize * BLOCK];
        self.inbox.read(base, &mut bytes)?;
        self.check(&bytes, round)?;
        Ok(operations)
    }

    /// Performs a round by the collective. Returns the memory operations.
    fn gather(&self) -> Result<u64, Failure> {
        let round = self.plan.round();
        let input: Vec<u8> = (0..self.size).flat_map(|to| block(self.number, to, round)).collect();
        self.plan.segment().write(self.plan.input(round).start, &input)?;
        let operations = self.plan.post(&self.stream)? as u64;
        self.synchronize("a round of the collective")?;
        self.plan.check()?;
        let mut bytes = vec![0; self.size as usize * BLOCK];
        self.plan.segment().read(self.plan.output(round).start, &mut bytes)?;
        self.check(&bytes, round)?;
        Ok(operations)
    }

    fn synchronize(&self, what: &str) -> Result<(), Failure> {
        match self.stream.synchronize_timeout(PATIENCE)? {
            true => Ok(()),
            false => {
                Err(format!("rank {}: {what} hangs at {:?}", self.number, self.stream.explain_wait()).into())
            }
        }
    }

    fn check(&self, bytes: &[u8], round: u64) -> Result<(), Failure> {
        let is_wrong = |from: &&u32| {
            let at = **from as usize * BLOCK;
            bytes[at..at + BLOCK] != block(**from, self.number, round)
        };
        match self.others.iter().find(is_wrong) {
            Some(from) => {
                Err(format!("round {round}: what rank {from} sent to {} is wrong", self.number).into())
            }
            None => Ok(()),
        }
    }
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
