//! One side of a run: set-up, warm-up, measurement and check.

use super::Report;
use super::lanes::{Direction, Lane, Moved, Phase, Places, WORD};
use crate::cli::{NetMode, NetOperation, NetOptions, SidesOptions};
use crate::failure::Failure;
use crate::interrupt::{self, NothingYet};
use crate::progress::Progress;
use crate::sides::side::{Remote, Requirements, SETUP, Side, SideRun};
use crate::sides::timing::Times;
use crate::sides::{Arrival, CHUNKS, Channel, Peer, Usage, Work};
use gdsync::verbs::Mtu;
use gdsync::{Access, Batch, ConnectOptions, MemoryRegion, QueuePair, QueuePairConfig};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Seeds of the messages of the warm-up and of the measurement; only the latter are checked.
const WARM_UP: u64 = 0;
pub(super) const MEASURED: u64 = 1;

pub(super) struct Net {
    pub(super) options: NetOptions,
    pub(super) side: Side,
    pub(super) places: Places,
    /// One lane for each queue pair of the connection, in its order.
    pub(super) lanes: Vec<Lane>,
    /// Results of atomic operations on the other side's counters.
    pub(super) results: MemoryRegion,
    pub(super) has_asked: bool,
    moved: Moved,
    warm_up: u64,
    usage: (Duration, Duration),
}

impl Net {
    /// Creates the side's objects, connects them with the other side's, and posts the first receives.
    pub(super) fn new(
        options: &NetOptions,
        rank: u64,
        other: Peer,
        channel: &mut Channel,
    ) -> Result<Self, Failure> {
        let places = Places::new(options);
        let is_read = options.operation == NetOperation::Read;
        let source = if is_read { Access::REMOTE_READ } else { Access::empty() };
        let lanes = usize::try_from(options.qps)?;
        let changed = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let needs = Requirements {
            queue_pairs: options.qps,
            config: config(options)?,
            words: (lanes * WORD, changed),
            work: Work { size: places.bytes(), batch: options.batch(), source },
            divisor: 1,
        };
        let (side, remote) = Side::new(&options.sides, (rank, other), needs, channel)?;
        let found = lanes * usize::try_from(places.slots)? * WORD;
        let results = MemoryRegion::allocate(&side.pd, found, Access::LOCAL_WRITE)?;
        connect(&side.connection.queue_pairs, &remote, options)?;
        let driver = side.driver.as_ref();
        let lane = |lane| Lane::new(lane, places, options.operation, driver, &results, &remote);
        let lanes = (0..options.qps).map(lane).collect::<Result<_, _>>()?;
        let (moved, usage) = (Moved::default(), Default::default());
        let (options, has_asked, warm_up) = (options.clone(), false, 0);
        let mut net = Net { options, side, places, lanes, results, has_asked, moved, warm_up, usage };
        if net.receives() {
            net.post_receives(receives(&net.options))?;
        }
        Ok(net)
    }

    /// True if this side sends messages.
    pub(super) fn sends(&self) -> bool {
        self.side.rank == 0 || self.options.bidirectional
    }

    /// True if the other side sends messages.
    pub(super) fn awaits(&self) -> bool {
        self.side.rank > 0 || self.options.bidirectional
    }

    /// True if the other side's messages consume receives.
    pub(super) fn receives(&self) -> bool {
        self.awaits() && self.options.operation == NetOperation::Send
    }

    pub(super) fn measured(&self) -> Phase {
        let sides = &self.options.sides;
        let total = if sides.duration.is_some() { u64::MAX } else { sides.iters };
        Phase { total, duration: sides.duration, least: self.places.slots }
    }

    /// Messages that this side has sent in the last phase.
    fn begun(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.posted - lane.phase.start).sum()
    }

    /// Fills the messages that this side sends, if they are checked.
    pub(super) fn fill(&mut self, content: u64) -> Result<(), Failure> {
        self.side.driver.produce(content)?;
        self.side.driver.synchronize()
    }
}

impl SideRun for Net {
    type Report = Report;

    fn side(&mut self) -> &mut Side {
        &mut self.side
    }

    fn run(&mut self, channel: &mut Channel) -> Result<(), Failure> {
        if self.options.mode == NetMode::Latency {
            self.fill(MEASURED)?;
        } else {
            self.fill(WARM_UP)?;
            self.side.meet(channel, Some(SETUP))?;
            let (total, duration) = (self.options.sides.warmup(), self.options.sides.warm_up_time());
            self.warm_up = self.exchange(channel, Phase { total, duration, least: 0 })?.messages();
            // The other side must have finished before the memory that it may still read changes.
            self.side.meet(channel, None)?;
            self.fill(MEASURED)?;
        }
        self.side.meet(channel, None)?;
        self.side.operations = 0;
        let before = Usage::now()?;
        self.moved = match self.options.mode {
            NetMode::Latency if self.sends() => self.one_by_one(channel)?,
            NetMode::Latency => self.exchange(channel, self.measured())?.measured(),
            _ => self.exchange(channel, self.measured())?,
        };
        self.warm_up = self.warm_up.max(self.moved.own.warm_up).max(self.moved.other.warm_up);
        self.usage = Usage::now()?.since(&before);
        self.side.meet(channel, None)?;
        self.verify()
    }

    fn report(&self) -> Result<Report, Failure> {
        let (options, messages) = (&self.options, self.moved.messages());
        if messages == 0 {
            return Err(NothingYet.into());
        }
        let asked = options.sides.iters * if options.bidirectional { 2 } else { 1 };
        let interrupted_of = (messages < asked).then_some(asked);
        let setting = self.side.setting((options.batch(), options.size()), interrupted_of, self.usage)?;
        let has_times = options.mode == NetMode::Latency && self.moved.own.messages() > 0;
        let times = has_times.then(|| Times::new(&self.side.results.timing()));
        let operations = self.side.operations as f64 / self.begun().max(1) as f64;
        Ok(Report::new(options, setting, &self.moved, self.warm_up, times, operations))
    }
}

/// Receives that a queue pair has posted at a time.
fn receives(options: &NetOptions) -> u64 {
    match options.mode {
        NetMode::Latency => 2 * CHUNKS * options.batch(),
        _ => 2 * options.window(),
    }
}

/// Returns a configuration whose queues hold all messages under way.
fn config(options: &NetOptions) -> Result<QueuePairConfig<'static>, Failure> {
    let sends = match options.mode {
        NetMode::Latency => 2 * CHUNKS * options.batch(),
        _ => 2 * options.window(),
    };
    let receives = if options.operation == NetOperation::Send { receives(options) } else { 1 };
    let config =
        QueuePairConfig::default().send_depth(u32::try_from(sends)?).recv_depth(u32::try_from(receives)?);
    Ok(if options.operation.is_atomic() {
        config.access(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)
    } else {
        config
    })
}

/// Connects each queue pair with the other side's of the same index.
fn connect(queue_pairs: &[QueuePair], remote: &Remote, options: &NetOptions) -> Result<(), Failure> {
    let (own, others) = (queue_pairs.len(), remote.endpoints.len());
    if own != others {
        return Err(format!("the other side has {others} queue pairs and this one {own}").into());
    }
    // The CPU reposts receives, so a sender may have to wait for long: RNR retries are unlimited.
    let route = ConnectOptions::default().mtu(options.sides.mtu.and_then(Mtu::from_bytes));
    let mut pairs = queue_pairs.iter().zip(&remote.endpoints);
    Ok(pairs.try_for_each(|(queue_pair, endpoint)| queue_pair.connect(endpoint, route))?)
}

impl Net {
    /// Checks every byte of every filled slot; for atomic operations, the counters and the results.
    fn verify(&mut self) -> Result<(), Failure> {
        if !self.options.sides.check {
            return Ok(());
        }
        let operation = self.options.operation;
        if operation.is_atomic() {
            return self.counters().and_then(|()| self.found());
        }
        let has_data = if operation == NetOperation::Read { self.sends() } else { self.awaits() };
        if has_data {
            self.side.driver.arrived(MEASURED, Arrival { is_checked: true, is_timed: false })?;
            // Findings of kernels are available once a chunk has passed.
            self.side.driver.mark(0)?;
            self.side.driver.pass()?;
        }
        self.side.results.error.check()
    }

    /// Checks that this side's counters equal the other side's operations.
    fn counters(&self) -> Result<(), Failure> {
        for (index, lane) in self.lanes.iter().enumerate() {
            let counted = self.side.connection.words.word64(index * WORD)?.load();
            if counted != lane.received {
                return Err(format!(
                    "the counter of queue pair {index} is {counted} after {} operations of the other side",
                    lane.received
                )
                .into());
            }
        }
        Ok(())
    }

    /// Checks that each operation of this side has returned the value left by the one before it.
    fn found(&self) -> Result<(), Failure> {
        for (index, lane) in self.lanes.iter().enumerate() {
            let first = index * self.places.slots as usize;
            for (slot, expected) in lane.found().enumerate() {
                let found = self.results.word64((first + slot) * WORD)?.load();
                if found != expected {
                    return Err(format!(
                        "operation {expected} of queue pair {index} has found {found} in the counter of the other side"
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    /// Sends the messages of warm-up and measurement one at a time: the stream posts each, waits for its completion and
    /// takes the time. The CPU enqueues a chunk ahead, and polls completions once the stream has passed them.
    fn one_by_one(&mut self, channel: &mut Channel) -> Result<Moved, Failure> {
        let (mut warmup, duration) = (self.options.sides.warmup(), self.options.sides.duration);
        let iters = if duration.is_some() { u64::MAX / 2 } else { self.options.sides.iters };
        let mut end = warmup + iters;
        let hidden = self.side.hides_progress(duration);
        let mut progress = Progress::new(hidden, end, "messages");
        let (start, mut ends) = (Instant::now(), None);
        let (mut next, mut passed, mut chunks) = (0, 0, VecDeque::new());
        self.side.driver.begin()?;
        while next < end || !chunks.is_empty() {
            if interrupt::requested() || ends.is_some_and(|at| Instant::now() >= at) {
                // At least one, so that there is something to check.
                end = next.max(1);
            }
            let is_warm = self.options.sides.warm_up_time().is_some_and(|time| start.elapsed() >= time);
            if is_warm && (1..warmup).contains(&next) {
                (end, warmup) = (end.min(next + iters), next);
                self.side.results.timing().warm_up_ends_at(warmup);
            }
            if next < end && (chunks.len() as u64) < CHUNKS {
                if next == warmup {
                    ends = duration.map(|duration| Instant::now() + duration);
                }
                let whole = if next < warmup { warmup } else { end };
                let count = self.options.batch().min(whole - next);
                (next..next + count).try_for_each(|sequence| self.enqueue(sequence))?;
                next += count;
                self.side.driver.mark(count)?;
                chunks.push_back(count);
            } else if let Some(count) = chunks.pop_front() {
                self.side.driver.pass()?;
                passed += count;
                self.collect()?;
                self.side.results.error.check()?;
                if self.lanes[0].done < passed {
                    return Err("the stream has passed a completion that is not there".into());
                }
                progress.advance(count);
            }
        }
        self.side.driver.synchronize()?;
        self.lanes[0].phase = 0..next;
        let sent = self.report_sent(channel, start, warmup)?.measured();
        let own = Direction { took: self.side.results.timing().elapsed(), ..sent };
        Ok(Moved { own, other: Direction::default() })
    }

    fn enqueue(&mut self, sequence: u64) -> Result<(), Failure> {
        self.side.results.error.check()?;
        let send = self.prepare(0, 0, true)?;
        self.lanes[0].note_posted(1);
        let wait = self.side.connection.queue_pair().send_cq().prepare_wait()?;
        self.side.post(Batch::new().send(send).wait(wait))?;
        self.side.driver.arrived(sequence, Arrival { is_checked: false, is_timed: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{BenchOptions, Between, Cli, Command, Invocation, NetOptions};
    use crate::sides::{Channel, Peer};
    use std::io::pipe;

    type Change = fn(&mut Net) -> Result<(), Failure>;

    /// Runs a measurement between two threads and returns how each side's check ends. `before` and `after` modify the
    /// sides, by rank.
    fn outcomes(words: &str, before: [Change; 2], after: [Change; 2]) -> [Result<(), String>; 2] {
        let words = format!("gdsync bench net --iters 100 --qps 2 {words}");
        let options = match Cli::parse_words(words.split_whitespace()).unwrap() {
            Invocation::Command(Command::Bench(BenchOptions {
                between: Some(Between::Net(net)), ..
            })) => *net,
            other => panic!("{other:?}"),
        };
        let ((first_in, second_out), (second_in, first_out)) = (pipe().unwrap(), pipe().unwrap());
        let play = |options: &NetOptions, rank: u64, mut channel: Channel| {
            let mut side = Net::new(options, rank, Peer::Local, &mut channel)?;
            side.fill(MEASURED)?;
            before[rank as usize](&mut side)?;
            side.side.meet(&mut channel, None)?;
            let phase = side.measured();
            side.exchange(&mut channel, phase)?;
            side.side.meet(&mut channel, None)?;
            after[rank as usize](&mut side)?;
            let outcome = side.verify().map_err(|error| error.to_string());
            // Neither side releases its memory before the other has checked its own.
            side.side.meet(&mut channel, None)?;
            Ok::<_, Failure>(outcome)
        };
        std::thread::scope(|scope| {
            let second =
                scope.spawn(|| play(&options, 1, Channel::new(second_in, second_out).unwrap()).unwrap());
            let first = play(&options, 0, Channel::new(first_in, first_out).unwrap()).unwrap();
            [first, second.join().unwrap()]
        })
    }

    const NOTHING: [Change; 2] = [|_| Ok(()), |_| Ok(())];

    #[test]
    fn what_has_arrived_is_what_was_sent() {
        for operation in ["send", "write", "read", "fetch-add", "compare-swap"] {
            let ended = outcomes(&format!("--operation {operation} --bidirectional"), NOTHING, NOTHING);
            assert_eq!(ended, [Ok(()), Ok(())], "{operation}");
        }
    }

    #[test]
    fn wrong_messages_are_found_where_they_arrive() {
        let wrong: Change = |side| side.fill(7);
        for (operation, sender, finder) in [("send", 0, 1), ("write", 0, 1), ("read", 1, 0)] {
            let mut before = NOTHING;
            before[sender] = wrong;
            let ended = outcomes(&format!("--operation {operation}"), before, NOTHING);
            assert_eq!(ended[finder], Err("message 1 is wrong at byte 0".to_owned()), "{operation}");
            assert_eq!(ended[1 - finder], Ok(()), "{operation}");
            let unchecked = outcomes(&format!("--operation {operation} --check=false"), before, NOTHING);
            assert_eq!(unchecked, [Ok(()), Ok(())], "{operation}");
        }
    }

    fn set_counter(side: &Net, queue_pair: usize, value: u64) -> Result<(), Failure> {
        side.side.connection.words.word64(queue_pair * WORD)?.store(value);
        Ok(())
    }

    #[test]
    fn a_counter_that_has_counted_wrong_is_named() {
        let count: Change = |side| set_counter(side, 1, 51);
        for operation in ["fetch-add", "compare-swap"] {
            let ended = outcomes(&format!("--operation {operation}"), NOTHING, [|_| Ok(()), count]);
            let said = "the counter of queue pair 1 is 51 after 50 operations of the other side";
            assert_eq!(ended, [Ok(()), Err(said.to_owned())], "{operation}");
            let begun = [(|_| Ok(())) as Change, |side| set_counter(side, 0, 1000)];
            let said = ended_of(operation, begun);
            assert!(said[0].contains(" of queue pair 0 has found "), "{said:?}");
            assert!(said[1].contains("the counter of queue pair 0 is "), "{said:?}");
        }
    }

    /// Returns the errors of both sides if `begun` modifies the counters first.
    fn ended_of(operation: &str, begun: [Change; 2]) -> [String; 2] {
        outcomes(&format!("--operation {operation}"), begun, NOTHING).map(Result::unwrap_err)
    }
}
