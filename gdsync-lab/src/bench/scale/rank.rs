//! One rank of a team: it connects, and plays rounds in which every rank sends a block to every other, by notified writes and
//! by the collective.

use super::PATIENCE;
use gdsync::{Batch, Device, ProtectionDomain, QueuePairConfig, SoftStream, Stream};
use gdsync_cli::failure::Failure;
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::collective::{Collective, Collectives, Plan};
use gdsync_notify::{
    ConnectionKind, NotificationWord, Operation, Queue, Segment, Team, TeamConfig, WaitNotification,
};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of a message.
pub(super) const BLOCK: usize = 64;
/// Rounds use halves of the memory in turn: who has heard from all in one round has been read by all in the last.
const HALVES: usize = 2;
/// Ranks that a batch sends to: a queue has room for the requests.
const TO_AT_ONCE: usize = 32;
/// Time-outs of connections: many ranks share few processors, and a rank is late.
const TIMEOUT: u8 = 20;

/// What the ranks of a process share.
pub(super) struct Shared {
    pub(super) device: Device,
    pub(super) port: u8,
    pub(super) rounds: u64,
    pub(super) connections: ConnectionKind,
    pub(super) together: Barrier,
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

/// What a rank has found. Of rounds, all together.
pub(super) struct Played {
    pub(super) connected: Instant,
    pub(super) connected_kib: u64,
    pub(super) used_kib: u64,
    pub(super) writes_us: f64,
    pub(super) writes_operations: u64,
    pub(super) collective_us: f64,
    pub(super) collective_operations: u64,
    pub(super) bytes_checked: u64,
}

/// A rank's part, from its begin to its end. `resident`: the memory of the process.
pub(super) fn play(
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
    // The first round of each finds everything cold.
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

struct Rank {
    number: u32,
    size: u32,
    /// All others. Not all ranks begin with the same one.
    others: Vec<u32>,
    queue: Queue,
    stream: Stream<SoftStream>,
    outbox: Segment,
    inbox: Segment,
    /// Of each half, the words that say that the others have written, in the order of `others`.
    words: [Vec<NotificationWord>; HALVES],
    plan: Plan,
}

/// Byte `at` of what a rank has for another in a round.
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

    /// A round by notified writes. Returns the memory operations.
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

    /// A round by the collective. Returns the memory operations.
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
                Err(format!("rank {}: {what} hangs at {:?}", self.number, self.stream.oldest_wait()).into())
            }
        }
    }

    /// Checks the blocks of all others.
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
