//! Teams with a rank that is killed at a random moment, and survivors that go on.

use crate::death::{be_killed, team};
use crate::ranks::{LONG, Prepare, Ranks, config, domain, ended_well};
use gdsync::queue::OrderError;
use gdsync::stream::PostFailure;
use gdsync::{Batch, PinnedMemory, QueueError, QueuePair, SoftStream, Stream};
use gdsync_notify::bootstrap::{Bootstrap, Job, Rendezvous};
use gdsync_notify::{NotifyError, Operation, Queue, Segment, SegmentSpec, Team, WaitNotification};
use gdsync_test_support::process::role;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

const SIZE: u32 = 8;
/// Size of a segment's slot; a message may be shorter.
const SLOT: usize = 200;
/// Size of a segment: a slot for each rank, for even rounds and for odd rounds.
const LEN: usize = 2 * SIZE as usize * SLOT;
/// Rounds before the death, with a new process, and after deaths.
const BEFORE: u32 = 1;
const REPLACED: u32 = 2;
const AFTER: u32 = 3;

/// `GDSYNC_DEATH_RUNS`: the number of deaths, each in its own team (default: 2). If it is set, the survivors do 1,000
/// rounds each time, else 100.
fn runs() -> (u32, u32) {
    let runs = std::env::var("GDSYNC_DEATH_RUNS").ok().and_then(|runs| runs.parse().ok());
    runs.map_or((2, 100), |runs| (runs, 1000))
}

/// Returns a random number that differs between runs.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (now.as_nanos() as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A rank is dead, so the round cannot be completed.
struct Dead;

fn unless_dead<T>(result: Result<T, NotifyError>) -> Result<T, Dead> {
    match result {
        Ok(value) => Ok(value),
        Err(NotifyError::PeerDead { .. }) => Err(Dead),
        Err(other) => panic!("{other}"),
    }
}

fn message(from: u32, to: u32, phase: u32, round: u32) -> Vec<u8> {
    let seed = (from * 31 + to * 17 + phase * 7919 + round * 101) as usize;
    (0..seed % (SLOT + 1)).map(|i| (i * 7 + i / 13 + seed) as u8).collect()
}

struct Rank {
    team: Team,
    outbox: Segment,
    inbox: Segment,
    /// True for odd ranks, whose stream writes and waits.
    stream: Option<Stream<SoftStream>>,
    /// Wrong messages that a stream has found.
    wrong: Arc<AtomicU32>,
}

/// Returns the offset of a rank's message in a round, and its notification. Even and odd rounds differ, so that no
/// message overwrites one that is still being read.
fn slot(of: u32, round: u32) -> u32 {
    of + (round % 2) * SIZE
}

/// Asserts that a message is right and that nothing follows it.
fn is_right(inbox: &Segment, from: u32, own: u32, phase: u32, round: u32) -> bool {
    let expected = message(from, own, phase, round);
    let mut bytes = vec![0; expected.len()];
    inbox.read(slot(from, round) as usize * SLOT, &mut bytes).unwrap();
    bytes == expected
}

impl Rank {
    fn new() -> Rank {
        let team = team(2);
        let (outbox, inbox) = (team.allocate(LEN, 0).unwrap(), team.allocate(LEN, 2 * SIZE).unwrap());
        Rank::of(team, outbox, inbox)
    }

    /// A new process that replaces a killed one.
    fn in_place() -> Rank {
        // It registers memory where its predecessor had allocated.
        let memory = PinnedMemory::allocate(LEN).unwrap();
        let specs = [
            SegmentSpec::Host { len: LEN, notifications: 0 },
            SegmentSpec::Registered { memory: &memory, notifications: 2 * SIZE },
        ];
        let config = config().queues(2);
        let (team, segments) = Team::join_as_replacement(&domain(), meet_again(), config, &specs).unwrap();
        let [outbox, inbox] = segments.try_into().unwrap();
        Rank::of(team, outbox, inbox)
    }

    fn of(team: Team, outbox: Segment, inbox: Segment) -> Rank {
        for from in 0..SIZE {
            inbox.expect_from(from..from + 1, from).unwrap();
            inbox.expect_from(SIZE + from..SIZE + from + 1, from).unwrap();
        }
        let stream = (team.rank() % 2 == 1).then(|| Stream::new(SoftStream::new().unwrap()).unwrap());
        Rank { team, outbox, inbox, stream, wrong: Arc::default() }
    }

    fn queue(&self) -> Queue {
        self.team.queue(u32::from(self.stream.is_some())).unwrap()
    }

    /// Every member writes to every member, itself included.
    fn round(&self, phase: u32, round: u32) -> Result<(), Dead> {
        match &self.stream {
            Some(stream) => self.round_by_stream(stream, phase, round),
            None => self.round_by_cpu(phase, round),
        }
    }

    fn fill(&self, to: u32, phase: u32, round: u32) -> gdsync::Slice {
        let (bytes, at) = (message(self.team.rank(), to, phase, round), slot(to, round) as usize * SLOT);
        self.outbox.write(at, &bytes).unwrap();
        self.outbox.slice(at..at + bytes.len()).unwrap()
    }

    fn round_by_cpu(&self, phase: u32, round: u32) -> Result<(), Dead> {
        let (queue, own, members) = (self.queue(), self.team.rank(), self.team.members());
        let into = slot(own, round);
        for to in &members {
            let from = self.fill(*to, phase, round);
            let at = u64::from(into) * SLOT as u64;
            unless_dead(queue.write_notify(&from, *to, &self.inbox, at, into, round + 1))?;
        }
        for from in members {
            let id = slot(from, round);
            assert_eq!(unless_dead(self.inbox.notify_waitsome(id..id + 1, LONG))?, Some(id));
            assert_eq!(self.inbox.notify_reset(id).unwrap(), round + 1, "round {round}, from {from}");
            assert!(is_right(&self.inbox, from, own, phase, round), "round {round}, from {from}");
        }
        Ok(())
    }

    fn round_by_stream(&self, stream: &Stream<SoftStream>, phase: u32, round: u32) -> Result<(), Dead> {
        let (queue, own, members) = (self.queue(), self.team.rank(), self.team.members());
        let into = slot(own, round);
        let mut batch = Batch::new();
        for to in &members {
            let from = self.fill(*to, phase, round);
            let at = u64::from(into) * SLOT as u64;
            let sends = queue.sends(Operation::WriteNotify {
                from: &from,
                rank: *to,
                to: &self.inbox,
                offset: at,
                id: into,
                value: round + 1,
            });
            batch = unless_dead(sends)?.into_iter().fold(batch, Batch::send);
        }
        for from in &members {
            batch = batch.wait_notification(&self.inbox.notification(slot(*from, round)).unwrap());
        }
        match stream.post(batch) {
            Ok(_) => {}
            // A queue pair to a rank that has died since is in the error state.
            Err(error) => match error.source {
                PostFailure::Queue(QueueError::State(_)) => return Err(Dead),
                // It was shared with that rank and is recovered.
                PostFailure::Queue(QueueError::Order(OrderError::Stale { .. })) => return Err(Dead),
                other => panic!("{other}"),
            },
        }
        let (inbox, wrong, froms) = (self.inbox.clone(), self.wrong.clone(), members.clone());
        let check = move || {
            for from in froms {
                // A status of 0 means that the message has arrived.
                let status = inbox.notification_status(slot(from, round)).unwrap().load();
                if status == 0 && !is_right(&inbox, from, own, phase, round) {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        stream.launch(check).unwrap();
        assert!(stream.synchronize_timeout(LONG).unwrap(), "it stands at: {:?}", stream.oldest_wait());
        for from in members {
            unless_dead(self.inbox.check_notification(slot(from, round)))?;
        }
        Ok(())
    }

    /// Recovers from a rank's death. Another death may interrupt that.
    fn begin_anew(&self) -> Result<(), Dead> {
        if let Some(stream) = &self.stream {
            assert!(stream.synchronize_timeout(LONG).unwrap(), "it stands at: {:?}", stream.oldest_wait());
        }
        self.team.shrink().unwrap();
        unless_dead(self.queue().flush(LONG))?;
        unless_dead(self.team.barrier())?;
        (0..2 * SIZE).for_each(|id| _ = self.inbox.notify_reset(id).unwrap());
        unless_dead(self.team.barrier())
    }

    /// Continues after a death until so many rounds pass without another.
    fn go_on(&self, rounds: u32) {
        loop {
            if self.begin_anew().is_err() {
                continue;
            }
            // All survivors are in the same team, so their messages belong to the same phase.
            let phase = AFTER + SIZE - self.team.members().len() as u32;
            if (0..rounds).all(|round| self.round(phase, round).is_ok()) {
                return;
            }
        }
    }

    fn assert_dropped(&self, victims: &[u32]) {
        let left: Vec<_> = (0..SIZE).filter(|rank| !victims.contains(rank)).collect();
        assert_eq!(self.team.members(), left);
    }

    fn end(&self) {
        self.queue().flush(LONG).unwrap();
        self.team.barrier().unwrap();
        assert_eq!(self.wrong.load(Ordering::Relaxed), 0, "wrong messages");
    }
}

/// The bootstrap where survivors and a new process meet.
fn meet_again() -> Bootstrap {
    let rank = Job::from_env().unwrap().rank();
    let job = Job::new(rank, SIZE, Rendezvous::Local("again".to_owned())).unwrap();
    Bootstrap::join(&job, LONG).unwrap()
}

/// Kills this process after some microseconds.
fn die_later(delay: u32) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_micros(delay.into()));
        be_killed()
    });
}

/// One rank. The role is a list of numbers: the survivors' rounds; a rank that is killed after some microseconds; and
/// perhaps another, killed some microseconds after it has seen that.
fn live_or_die(role: &str) {
    let numbers: Vec<u32> = role.split(',').map(|number| number.parse().unwrap()).collect();
    let (rounds, victims) = (numbers[0], numbers[1..].as_chunks::<2>().0);
    let rank = Rank::new();
    let die_as = |victim: usize| {
        let found = victims.get(victim).filter(|[who, _]| *who == rank.team.rank());
        found.into_iter().for_each(|[_, delay]| die_later(*delay));
    };
    rank.team.barrier().unwrap();
    die_as(0);
    _ = (0..).find(|round| rank.round(BEFORE, *round).is_err());
    die_as(1);
    rank.go_on(rounds);
    rank.assert_dropped(&victims.iter().map(|[who, _]| *who).collect::<Vec<_>>());
    rank.end();
}

/// Starts eight ranks, some of which are killed, and asserts that the others pass.
fn run(test: &'static str, rounds: u32, victims: &[(u32, u32)]) {
    let ranks = Ranks::new(module_path!(), test, SIZE);
    let victim = |(rank, delay): &(u32, u32)| format!(",{rank},{delay}");
    let role = format!("{rounds}{}", victims.iter().map(victim).collect::<String>());
    let children: Vec<_> = (0..SIZE).map(|rank| ranks.spawn(rank, &role)).collect();
    for (rank, child) in (0..).zip(children) {
        if victims.iter().any(|(victim, _)| *victim == rank) {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{output:?}");
        } else {
            ended_well(child);
        }
    }
}

#[test]
fn seven_of_eight_go_on_after_a_death_at_any_moment() {
    const TEST: &str = "seven_of_eight_go_on_after_a_death_at_any_moment";
    if let Some(role) = role() {
        return live_or_die(&role);
    }
    let (runs, rounds) = runs();
    for number in 0..runs {
        let seed = seed();
        let (victim, delay) = (seed as u32 % SIZE, (seed >> 32) as u32 % 300_000);
        println!("run {number}: rank {victim} is killed after {delay} µs");
        run(TEST, rounds, &[(victim, delay)]);
    }
}

#[test]
fn six_of_eight_go_on_after_a_death_while_they_agree_on_one() {
    const TEST: &str = "six_of_eight_go_on_after_a_death_while_they_agree_on_one";
    if let Some(role) = role() {
        return live_or_die(&role);
    }
    let (runs, rounds) = runs();
    for number in 0..runs {
        let seed = seed();
        let (victim, delay) = (seed as u32 % SIZE, (seed >> 32) as u32 % 100_000);
        let (next, later) =
            ((victim + 1 + (seed >> 8) as u32 % (SIZE - 1)) % SIZE, (seed >> 16) as u32 % 3000);
        println!("run {number}: rank {victim} is killed after {delay} µs, and {next} {later} µs later");
        run(TEST, rounds, &[(victim, delay), (next, later)]);
    }
}

#[test]
fn a_new_process_takes_the_place_of_a_killed_one() {
    const TEST: &str = "a_new_process_takes_the_place_of_a_killed_one";
    const VICTIM: u32 = 0;
    let all_do = |rank: &Rank, phase: u32| {
        for round in 0..50 {
            assert!(rank.round(phase, round).is_ok(), "no other rank has died");
        }
    };
    match role().as_deref() {
        Some("new") => {
            let rank = Rank::in_place();
            all_do(&rank, REPLACED);
            return rank.end();
        }
        Some(_) => {
            let rank = Rank::new();
            rank.team.barrier().unwrap();
            if rank.team.rank() == VICTIM {
                die_later(50_000);
            }
            // `None` with DC.
            let number = |to| rank.queue().queue_pair(to).ok().map(QueuePair::number);
            let numbers: Vec<_> = (0..SIZE).map(number).collect();
            let error = rank.team.replace(Bootstrap::threads(1, LONG).unwrap().remove(0)).unwrap_err();
            assert!(matches!(error, NotifyError::Mismatch { what: "ranks in its bootstrap", .. }), "{error}");
            _ = (0..).find(|round| rank.round(BEFORE, *round).is_err());
            rank.go_on(50);
            rank.assert_dropped(&[VICTIM]);
            assert_eq!(rank.team.replace(meet_again()).unwrap(), [VICTIM]);
            assert_eq!(rank.team.members().len(), SIZE as usize);
            let now: Vec<_> = (0..SIZE).map(number).collect();
            assert_eq!(now, numbers, "queue pairs stay");
            all_do(&rank, REPLACED);
            return rank.end();
        }
        None => {}
    }
    let ranks = Ranks::new(module_path!(), TEST, SIZE);
    let mut children: Vec<_> = (0..SIZE).map(|rank| ranks.spawn(rank, "old")).collect();
    let output = children.remove(VICTIM as usize).wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{output:?}");
    children.push(ranks.spawn(VICTIM, "new"));
    children.into_iter().for_each(|child| _ = ended_well(child));
}
