//! Random lives of teams: ranks of one process notify, prepare, take back, await, gather and fail at random. Then all
//! connections fail, or everything is dropped in any order: every stream ends.
//!
//! `GDSYNC_LIVES_SECONDS` is the time of the test (default 3 s), `GDSYNC_LIVES_SEED` the seed of its first life.

use crate::ranks::{LONG, config, each_on_a_thread};
use gdsync::{Batch, Device, PreparedSend, ProtectionDomain, SoftStream, Stream};
use gdsync_notify::collective::{Collective, Collectives, Plan};
use gdsync_notify::{ConnectionKind, Operation, Queue, Segment, Team, WaitNotification};
use gdsync_test_support::lives::{self, Random, threads};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, pair, skipped};
use softhca::SPEED_VARIABLE;
use std::any::Any;
use std::io::Write;
use std::time::{Duration, Instant};

const RANKS: u32 = 3;
const KINDS: usize = 9;
/// Time for a call that finds no room.
const SOON: Duration = Duration::from_millis(5);

/// A rank, and its stream.
struct Rank {
    team: Team,
    segment: Segment,
    queue: Queue,
    plan: Plan,
    stream: Stream<SoftStream>,
    sends: Vec<Vec<PreparedSend>>,
}

impl Rank {
    /// Makes a random step. Returns whether it was not refused.
    fn step(&mut self, kind: usize, random: &mut Random) -> bool {
        let (own, to, segment) = (self.team.rank(), random.below(RANKS as usize) as u32, &self.segment);
        let request = Operation::Notify { rank: to, to: segment, id: own, value: 1 };
        match kind {
            0 => self.queue.post(request).is_ok(),
            1 => self.queue.prepare(request).map(|sends| self.sends.push(sends.collect())).is_ok(),
            2 if self.sends.is_empty() => false,
            2 => {
                let sends = self.sends.remove(0);
                self.stream.post(sends.into_iter().fold(Batch::new(), Batch::send)).is_ok()
            }
            3 => self.queue.prepare_waits(to).is_ok_and(|waits| {
                self.stream.post(waits.into_iter().fold(Batch::new(), Batch::wait)).is_ok()
            }),
            // Its own notification is its program's to set.
            4 if to == own => false,
            4 => {
                let word = segment.notification(to).unwrap();
                self.stream.post(Batch::new().wait_notification(&word)).is_ok()
            }
            5 => self.plan.post(&self.stream).is_ok(),
            6 => self.sends.pop().is_some(),
            7 => self.queue.flush(SOON).is_ok(),
            _ => self.queue.queue_pair(to).is_ok_and(|queue_pair| queue_pair.abort().is_ok()),
        }
    }

    fn parts(self) -> Vec<Box<dyn Any>> {
        let Rank { team, segment, queue, plan, stream, sends } = self;
        vec![
            Box::new(team),
            Box::new(segment),
            Box::new(queue),
            Box::new(plan),
            Box::new(stream),
            Box::new(sends),
        ]
    }
}

/// Lives a life. Returns the steps that were not refused, by kind.
fn live(seed: u64, done: &mut [usize; KINDS]) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let mut ranks = each_on_a_thread(RANKS, |bootstrap| {
        let team = Team::new(&pd, bootstrap, config().connections(ConnectionKind::Each)).unwrap();
        let segment = team.allocate(64, RANKS).unwrap();
        (0..RANKS).for_each(|rank| segment.expect_from(rank..rank + 1, rank).unwrap());
        let queue = team.queue(0).unwrap();
        let gather = Collective::AllGather { block: 8 };
        let gathered = team.allocate(gather.bytes(RANKS), gather.notifications(RANKS)).unwrap();
        let plan = Collectives::new(&queue, &gathered).unwrap().plan(gather).unwrap();
        let queue = queue.with_timeout(SOON);
        Rank { team, segment, queue, plan, stream: pair::soft(), sends: Vec::new() }
    });
    for _ in 0..5 + random.below(40) {
        // A failure ends most of what follows.
        let kinds = if random.below(8) == 0 { KINDS } else { KINDS - 1 };
        let kind = random.below(kinds);
        let was_done = ranks[random.below(RANKS as usize)].step(kind, &mut random);
        done[kind] += usize::from(was_done);
    }
    if random.below(2) == 0 {
        for (rank, to) in ranks.iter().flat_map(|rank| (0..RANKS).map(move |to| (rank, to))) {
            rank.queue.queue_pair(to).unwrap().abort().unwrap();
        }
        for Rank { team, stream, .. } in &ranks {
            let has_ended = stream.synchronize_timeout(LONG).unwrap();
            assert!(has_ended, "life {seed}: rank {} waits: {:?}", team.rank(), stream.oldest_wait());
        }
    }
    let mut parts: Vec<Box<dyn Any>> = ranks.into_iter().flat_map(Rank::parts).collect();
    while !parts.is_empty() {
        drop(parts.swap_remove(random.below(parts.len())));
    }
}

#[test]
fn streams_end_when_their_teams_do() {
    let test = "streams_end_when_their_teams_do";
    if on_system() {
        return skipped(test, "it fails queue pairs of the software card of this process");
    }
    if !alone(module_path!(), test, &[(SPEED_VARIABLE, "20")]) {
        return;
    }
    let (seconds, first) = lives::settings();
    let (own, end) = (threads(), Instant::now() + Duration::from_secs(seconds));
    let (mut seed, mut done) = (first, [0; KINDS]);
    while Instant::now() < end {
        live(seed, &mut done);
        let deadline = Instant::now() + LONG;
        while threads() != own {
            assert!(Instant::now() < deadline, "a stream of life {seed} still waits");
            // Any stream reaps the work of dropped streams.
            drop(pair::soft());
            std::thread::sleep(Duration::from_millis(1));
        }
        seed += 1;
    }
    let text = format!("{} lives, {own} threads before and after, {done:?} steps by kind\n", seed - first);
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    assert!(seed > first + 5 || seconds < 3, "{} lives", seed - first);
}
