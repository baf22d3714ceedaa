//! The messages of each queue pair: their counts, and the slots that they take in turn.

use crate::cli::{NetMode, NetOperation, NetOptions, SidesOptions};
use crate::failure::Failure;
use crate::sides::Driver;
use crate::sides::side::Remote;
use gdsync::{MemoryRegion, RemoteMemory, Slice, WorkRequest};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Bytes of message memory of a side, exceeded only if one message of each queue pair takes more. If not every message
/// under way has a slot, messages share slots.
const MEMORY: u64 = 64 << 20;
/// Bytes of an atomic operation's operand.
pub(super) const WORD: usize = 8;

/// The layout of a side's messages: the slots of each queue pair in a row, queue pair after queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Slots of a queue pair.
    pub(super) slots: u64,
    pub(super) size: u64,
    lanes: u64,
}

impl Places {
    /// Takes as many slots as messages under way, as far as memory allows, but no more than measured messages, so that
    /// every slot is filled and can be checked.
    pub(super) fn new(options: &NetOptions) -> Self {
        let (size, lanes) = (options.size(), options.qps);
        let window = if options.mode == NetMode::Latency { 1 } else { options.window() };
        let measured = if options.sides.duration.is_some() { u64::MAX } else { options.sides.iters / lanes };
        let fit = (MEMORY / lanes).checked_div(size).unwrap_or(u64::MAX);
        Places { slots: window.min(measured).min(fit).max(1), size, lanes }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lanes * self.slots * self.size
    }

    fn range(&self, lane: u64, slot: u64, size: u64) -> Result<Range<usize>, Failure> {
        let start = usize::try_from((lane * self.slots + slot) * size)?;
        Ok(start..start + usize::try_from(size)?)
    }
}

/// A message's slot on both sides.
struct Slot {
    local: [Slice; 1],
    remote: RemoteMemory,
    landing: [Slice; 1],
}

pub(super) struct Lane {
    slots: Vec<Slot>,
    operation: NetOperation,
    /// Messages posted, including earlier phases.
    pub(super) posted: u64,
    pub(super) done: u64,
    /// Messages posted before this phase, and by its end.
    pub(super) phase: Range<u64>,
    /// Messages covered by each outstanding completion.
    pub(super) pending: VecDeque<u64>,
    /// Messages of the other side that have arrived, including earlier phases.
    pub(super) received: u64,
    receives: u64,
}

impl Lane {
    /// Creates the lane of queue pair `lane`. `results`: the memory for the results of atomic operations.
    pub(super) fn new(
        lane: u64,
        places: Places,
        operation: NetOperation,
        driver: &dyn Driver,
        results: &MemoryRegion,
        remote: &Remote,
    ) -> Result<Self, Failure> {
        let slot = |slot| {
            let range = places.range(lane, slot, places.size)?;
            let (source, target) = (driver.source(range.clone())?, driver.target(range.clone())?);
            let (local, remote) = match operation {
                NetOperation::Send | NetOperation::Write => (source, remote.data.slice(range)?),
                NetOperation::Read => (target.clone(), remote.source.slice(range)?),
                NetOperation::FetchAdd | NetOperation::CompareSwap => {
                    let counter = usize::try_from(lane)? * WORD;
                    let found = places.range(lane, slot, WORD as u64)?;
                    (results.slice(found)?, remote.words.slice(counter..counter + WORD)?)
                }
            };
            Ok::<_, Failure>(Slot { local: [local], remote, landing: [target] })
        };
        Ok(Lane {
            slots: (0..places.slots).map(slot).collect::<Result<_, _>>()?,
            operation,
            posted: 0,
            done: 0,
            phase: 0..0,
            pending: VecDeque::new(),
            received: 0,
            receives: 0,
        })
    }

    pub(super) fn begin(&mut self, count: u64) {
        self.phase = self.posted..self.posted.saturating_add(count);
    }

    /// Ends the phase as soon as `least` messages are posted.
    pub(super) fn end(&mut self, least: u64) {
        let least = self.phase.start.saturating_add(least).max(self.posted);
        self.phase.end = self.phase.end.min(least);
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.phase.end
    }

    /// Returns how many messages to post now: a whole batch or the rest of the phase, if the window allows; else 0.
    pub(super) fn room(&self, window: u64, batch: u64) -> u64 {
        let count = batch.min(self.phase.end - self.posted);
        if self.posted - self.done + count <= window { count } else { 0 }
    }

    /// Returns the request of message `ahead` after the next.
    pub(super) fn request(&self, ahead: u64) -> WorkRequest<'_> {
        let sequence = self.posted + ahead;
        let Slot { local, remote, .. } = &self.slots[(sequence % self.slots.len() as u64) as usize];
        match self.operation {
            NetOperation::Send => WorkRequest::send(local),
            NetOperation::Write => WorkRequest::write(local, *remote),
            NetOperation::Read => WorkRequest::read(local, *remote),
            NetOperation::FetchAdd => WorkRequest::fetch_add(&local[0], *remote, 1),
            NetOperation::CompareSwap => {
                WorkRequest::compare_swap(&local[0], *remote, sequence, sequence + 1)
            }
        }
    }

    /// Notes `count` posted messages, covered by one completion.
    pub(super) fn note_posted(&mut self, count: u64) {
        self.posted += count;
        self.pending.push_back(count);
    }

    pub(super) fn note_done(&mut self) {
        self.done += self.pending.pop_front().unwrap_or(0);
    }

    pub(super) fn next_landing(&mut self) -> &[Slice] {
        let slot = (self.receives % self.slots.len() as u64) as usize;
        self.receives += 1;
        &self.slots[slot].landing
    }

    /// Returns the expected results of atomic operations: for each slot, the value before the last operation that used
    /// it.
    pub(super) fn found(&self) -> impl Iterator<Item = u64> {
        let (count, slots) = (self.posted, self.slots.len() as u64);
        (0..slots.min(count)).map(move |slot| last_of(count, slots, slot))
    }
}

/// Returns the last of the numbers below `count` that equals `slot` modulo `slots`; `slot` is less than both.
fn last_of(count: u64, slots: u64, slot: u64) -> u64 {
    count - 1 - (count - 1 - slot) % slots
}

/// The number of messages that this side sends.
#[derive(Clone, Copy)]
pub(super) struct Phase {
    /// Messages of all queue pairs together.
    pub(super) total: u64,
    pub(super) duration: Option<Duration>,
    /// Messages of each queue pair that are sent even if the phase ends early.
    pub(super) least: u64,
}

/// Messages of one direction, and their time.
#[derive(Clone, Debug, Default)]
pub(super) struct Direction {
    pub(super) counts: Vec<u64>,
    /// The first messages of each queue pair, which are not measured.
    pub(super) warm_up: u64,
    pub(super) took: Duration,
}

impl Direction {
    /// Subtracts the warm-up messages of each queue pair.
    pub(super) fn measured(mut self) -> Self {
        self.counts.iter_mut().for_each(|count| *count = count.saturating_sub(self.warm_up));
        self
    }

    pub(super) fn messages(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Completed messages of both directions in a phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Moved {
    pub(super) own: Direction,
    pub(super) other: Direction,
}

impl Moved {
    /// Like [`Direction::measured`], for both directions.
    pub(super) fn measured(self) -> Self {
        Moved { own: self.own.measured(), other: self.other.measured() }
    }

    pub(super) fn messages(&self) -> u64 {
        self.own.messages() + self.other.messages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{BenchOptions, Between, Cli, Command, Invocation};

    fn options(words: &str) -> NetOptions {
        let words = format!("gdsync bench net {words}");
        match Cli::parse_words(words.split_whitespace()).unwrap() {
            Invocation::Command(Command::Bench(BenchOptions {
                between: Some(Between::Net(net)), ..
            })) => *net,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn places_are_as_many_as_are_filled_and_fit() {
        for (words, slots) in [
            ("--size 8", 64),
            ("--size 8 --iters 10", 10),
            ("--size 8 --qps 4 --iters 10", 2),
            ("--size 8 --duration 1s --window 100", 100),
            ("--size 1M", 64),
            ("--size 1M --qps 4", 16),
            ("--size 1G", 1),
            ("--size 0 --iters 30", 30),
            ("--mode latency", 1),
        ] {
            let options = options(words);
            let places = Places::new(&options);
            assert_eq!(places.slots, slots, "{words}");
            assert_eq!(places.bytes(), slots * options.size() * options.qps, "{words}");
        }
    }

    #[test]
    fn the_last_message_of_each_place_is_known() {
        for (count, slots) in [(1, 4), (4, 4), (7, 4), (12, 4), (5, 1)] {
            for slot in 0..slots.min(count) {
                let expected = (0..count).filter(|number| number % slots == slot).max();
                assert_eq!(Some(last_of(count, slots, slot)), expected, "{count} {slots} {slot}");
            }
        }
    }
}
