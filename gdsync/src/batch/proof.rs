//! The proof of the merges: a merged batch and the plain one do the same, as far as anybody can tell.
//!
//! A case is a system: streams with batches, queue pairs and completion queues, a card that takes its time, a CPU that reacts to what
//! streams have passed. It runs merged and plain, each with an order of steps of its own. `docs/merging.md` says what is compared, and
//! on which premises.

use crate::batch::outline::{Program, Sketch, Target};
use crate::memop::{Condition, MemOp, MemOpCaps};
use gdsync_sys::prm::doorbell;
use std::collections::HashMap;

/// Queue pairs and completion queues of a case; words that streams write; all are few, so that they meet.
const QUEUES: usize = 4;
const STREAMS: usize = 2;

/// Decisions, from bytes.
pub(crate) struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Choices { bytes: bytes.iter() }
    }

    /// Below `limit`; 0 once the bytes are used up.
    fn below(&mut self, limit: usize) -> usize {
        usize::from(*self.bytes.next().unwrap_or(&0)) % limit.max(1)
    }

    fn is_over(&self) -> bool {
        self.bytes.len() == 0
    }
}

/// Where the CPU comes in: once it knows from the timeline that a stream has passed a wait, it writes a word.
#[derive(Clone, Debug)]
struct Reaction {
    stream: usize,
    /// Position of the wait among the stream's descriptors.
    after: usize,
    word: u32,
}

/// A system.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    caps: MemOpCaps,
    /// Descriptors of each stream, and where its batches end.
    streams: [Vec<Sketch>; STREAMS],
    ends: [Vec<usize>; STREAMS],
    /// Of each queue pair: the completion queue of its sends, that of what it sends, and every how-manieth send completes.
    queue_pairs: Vec<(u32, u32, u32)>,
    reactions: Vec<Reaction>,
    seed: u64,
}

impl Case {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut choices = Choices::new(bytes);
        let seed = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        let fenced = choices.below(4) > 0;
        let caps = MemOpCaps {
            max_ops: [255, 8, 9, 12, 20][choices.below(5)],
            writes_are_fenced: fenced,
            flush_after_wait: choices.below(4) == 1,
            ..MemOpCaps::FULL
        };
        let queue_pairs = (0..QUEUES)
            .map(|_| {
                (choices.below(QUEUES) as u32, choices.below(QUEUES) as u32, [1, 1, 2, 3][choices.below(4)])
            })
            .collect();
        let mut case = Case {
            caps,
            streams: Default::default(),
            ends: Default::default(),
            queue_pairs,
            reactions: Vec::new(),
            seed,
        };
        case.fill(&mut choices);
        case
    }

    fn fill(&mut self, choices: &mut Choices<'_>) {
        let (mut sends, mut waits) = ([0u32; QUEUES], [0u32; QUEUES]);
        // Words only grow: those of the streams, then those of the CPU.
        let mut values = [0u32; STREAMS];
        while !choices.is_over() {
            let stream = choices.below(STREAMS);
            let position = self.streams[stream].len();
            // A queue pair belongs to one stream.
            let own = choices.below(QUEUES / STREAMS) * STREAMS + stream;
            let queue = choices.below(QUEUES);
            let sketch = match choices.below(16) {
                0..=4 => {
                    sends[own] += 1;
                    Sketch::Send { queue_pair: own as u32, index: sends[own] - 1 }
                }
                5..=9 => {
                    waits[queue] += 1;
                    Sketch::Wait { queue: queue as u32, index: waits[queue] - 1 }
                }
                10 => {
                    waits[queue] += 1;
                    Sketch::WaitChecked { queue: queue as u32, index: waits[queue] - 1 }
                }
                11 => {
                    values[stream] += 1;
                    Sketch::WriteValue32 { word: stream as u32, value: values[stream] }
                }
                12 => {
                    let value = choices.below(3) as u32;
                    let word = (1 - stream) as u32;
                    Sketch::WaitValue32 { word, condition: Condition::Geq, value }
                }
                13 => match self.reaction(stream) {
                    Some(word) => Sketch::WaitValue32 { word, condition: Condition::Geq, value: 1 },
                    None => Sketch::Barrier,
                },
                14 => Sketch::Barrier,
                _ => {
                    self.ends[stream].push(position);
                    // Waits may be posted in another order than they were prepared in.
                    if let [.., Sketch::Wait { queue, index }, Sketch::Wait { queue: other, index: next }] =
                        &mut self.streams[stream][..]
                        && queue == other
                    {
                        std::mem::swap(index, next);
                    }
                    continue;
                }
            };
            self.streams[stream].push(sketch);
        }
        for (ends, stream) in self.ends.iter_mut().zip(&self.streams) {
            ends.push(stream.len());
            ends.dedup();
        }
    }

    /// A word that the CPU writes once the stream's last wait for a completion is known to have passed.
    fn reaction(&mut self, stream: usize) -> Option<u32> {
        let is_wait = |sketch: &Sketch| matches!(sketch, Sketch::Wait { .. } | Sketch::WaitChecked { .. });
        let after = self.streams[stream].iter().rposition(is_wait)?;
        let word = (STREAMS + self.reactions.len()) as u32;
        self.reactions.push(Reaction { stream, after, word });
        Some(word)
    }

    /// Runs it both ways.
    ///
    /// # Errors
    /// What differs, or does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut ends = Vec::new();
        for merged in [false, true] {
            // Several orders of steps: they may not matter.
            for order in 0..2 {
                let mut system = System::new(self, merged, self.seed.wrapping_add(order))?;
                system.run()?;
                ends.push(system.end());
            }
        }
        let Some(plain) = ends.first() else { return Ok(()) };
        match ends.iter().find(|end| *end != plain) {
            Some(other) => Err(format!("it ends as {other:?}, and plain as {plain:?}")),
            None => Ok(()),
        }
    }
}

/// One stream of a system.
#[derive(Debug, Default)]
struct Running {
    ops: Vec<MemOp>,
    /// Position of the descriptor of each operation.
    of: Vec<usize>,
    /// The point of each descriptor that is a wait for a completion.
    points: Vec<Option<u32>>,
    next: usize,
    /// What it has done: doorbells by queue pair, words.
    rung: HashMap<u32, u32>,
    records: HashMap<u32, u32>,
    words: HashMap<u32, u32>,
    progress: u32,
    /// Bounds of runs of waits, by descriptor: the first of the run that it is in.
    run_start: Vec<usize>,
}

/// How a system ends.
#[derive(Debug, PartialEq, Eq)]
struct End {
    /// Descriptors that each stream has not come past: from the one that it is blocked at, or rather its run, on.
    blocked: Vec<Option<usize>>,
    words: Vec<(u32, u32)>,
    sent: Vec<u32>,
    completions: Vec<u32>,
}

struct System<'a> {
    case: &'a Case,
    streams: Vec<Running>,
    words: HashMap<u32, u32>,
    /// Sends of each queue pair that the card was told of, and has performed.
    rung: Vec<u32>,
    sent: Vec<u32>,
    /// Completions that the card has written to each queue.
    written: Vec<u32>,
    random: u64,
}

fn is_completion(sketch: &Sketch) -> bool {
    matches!(sketch, Sketch::Wait { .. } | Sketch::WaitChecked { .. })
}

impl<'a> System<'a> {
    fn new(case: &'a Case, merged: bool, seed: u64) -> Result<Self, String> {
        let streams =
            (0..STREAMS).map(|stream| Running::new(case, stream, merged)).collect::<Result<_, _>>()?;
        let zeroes = || vec![0; QUEUES];
        Ok(System {
            case,
            streams,
            words: HashMap::new(),
            rung: zeroes(),
            sent: zeroes(),
            written: zeroes(),
            random: seed | 1,
        })
    }

    fn random(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % limit
    }

    /// Until nobody can do anything.
    fn run(&mut self) -> Result<(), String> {
        let actors = STREAMS + QUEUES + 1;
        loop {
            // Anybody may be slow.
            let lucky = self.random(actors);
            if self.act(lucky)? {
                continue;
            }
            let first = self.random(actors);
            let mut moved = false;
            for actor in (0..actors).map(|i| (first + i) % actors) {
                if self.act(actor)? {
                    moved = true;
                    break;
                }
            }
            if !moved {
                return Ok(());
            }
        }
    }

    fn act(&mut self, actor: usize) -> Result<bool, String> {
        if actor < STREAMS {
            return self.step(actor);
        }
        if actor < STREAMS + QUEUES {
            return Ok(self.send(actor - STREAMS));
        }
        Ok(self.react())
    }

    /// The card performs the next send of a queue pair that it was told of.
    fn send(&mut self, queue_pair: usize) -> bool {
        if self.sent[queue_pair] == self.rung[queue_pair] {
            return false;
        }
        self.sent[queue_pair] += 1;
        let (own, remote, every) = self.case.queue_pairs[queue_pair];
        self.written[remote as usize] += 1;
        if self.sent[queue_pair].is_multiple_of(every) {
            self.written[own as usize] += 1;
        }
        true
    }

    /// The CPU writes a word that is due.
    fn react(&mut self) -> bool {
        let due = self.case.reactions.iter().find(|reaction| {
            let stream = &self.streams[reaction.stream];
            let passed = stream.points[reaction.after].is_some_and(|point| stream.progress >= point);
            passed && !self.words.contains_key(&reaction.word)
        });
        let Some(word) = due.map(|reaction| reaction.word) else { return false };
        self.words.insert(word, 1);
        true
    }

    /// A stream performs its next operation, if it can.
    fn step(&mut self, stream: usize) -> Result<bool, String> {
        let Some(op) = self.streams[stream].ops.get(self.streams[stream].next).copied() else {
            return Ok(false);
        };
        if op.is_wait() {
            // Here anybody may look for as long as they like.
            self.compare_at_wait(stream)?;
        }
        let satisfied = match (op, Target::of(&op)) {
            (MemOp::Wait32 { .. }, Some(Target::Entry(queue, index) | Target::Status(queue, index))) => {
                self.written[queue as usize] > index
            }
            (MemOp::Wait32 { condition, value, .. }, Some(Target::Word(word))) => {
                condition.holds32(self.words.get(&word).copied().unwrap_or(0), value)
            }
            (MemOp::Write32 { value, .. }, Some(Target::Record(queue_pair))) => {
                self.streams[stream].records.insert(queue_pair, value);
                true
            }
            (MemOp::Write64 { value, .. }, Some(Target::Register(queue_pair))) => {
                self.ring(stream, queue_pair, (value >> 32) as u32 + 1)?;
                true
            }
            (MemOp::Write32 { value, .. }, Some(Target::Word(word))) => {
                self.streams[stream].words.insert(word, value);
                self.words.insert(word, value);
                true
            }
            (MemOp::Write32 { value, .. }, Some(Target::Progress)) => {
                self.tell(stream, value)?;
                true
            }
            (MemOp::Barrier | MemOp::FlushRemote, None) => true,
            other => return Err(format!("an operation that nobody asked for: {other:?}")),
        };
        self.streams[stream].next += usize::from(satisfied);
        Ok(satisfied)
    }

    fn ring(&mut self, stream: usize, queue_pair: u32, count: u32) -> Result<(), String> {
        let running = &mut self.streams[stream];
        if running.records.get(&queue_pair) != Some(&doorbell::record(count)) {
            return Err(format!("queue pair {queue_pair} is rung for {count} and its record says otherwise"));
        }
        let before = running.rung.insert(queue_pair, count).unwrap_or(0);
        if before >= count {
            return Err(format!("queue pair {queue_pair} is rung for {count} after {before}"));
        }
        self.rung[queue_pair as usize] = count;
        Ok(())
    }

    /// The stream writes a point: whatever it stands for must have passed.
    fn tell(&mut self, stream: usize, value: u32) -> Result<(), String> {
        let running = &mut self.streams[stream];
        if value <= running.progress {
            return Err(format!("point {value} is written after {}", running.progress));
        }
        running.progress = value;
        let sketches = &self.case.streams[stream];
        for (sketch, _) in
            sketches.iter().zip(&running.points).filter(|(_, point)| point.is_some_and(|own| own <= value))
        {
            let (Sketch::Wait { queue, index } | Sketch::WaitChecked { queue, index }) = *sketch else {
                continue;
            };
            if self.written[queue as usize] <= index {
                return Err(format!("point {value} is written before completion {index} of queue {queue}"));
            }
        }
        Ok(())
    }

    /// What a stream has done when it comes to a wait: all that stands before the wait, or its run, and nothing else.
    fn compare_at_wait(&self, stream: usize) -> Result<(), String> {
        let running = &self.streams[stream];
        let at = running.of[running.next];
        self.compare(stream, running.run_start[at])?;
        let is_word = !is_completion(&self.case.streams[stream][at]);
        let due = running.points[..at].iter().flatten().max();
        if is_word && due.is_some_and(|due| running.progress < *due) {
            return Err(format!(
                "stream {stream} waits for a word at {at}, and point {due:?} is not written"
            ));
        }
        Ok(())
    }

    fn compare(&self, stream: usize, before: usize) -> Result<(), String> {
        let running = &self.streams[stream];
        let (mut rung, mut words) = (HashMap::new(), HashMap::new());
        for sketch in &self.case.streams[stream][..before] {
            match *sketch {
                Sketch::Send { queue_pair, index } => drop(rung.insert(queue_pair, index + 1)),
                Sketch::WriteValue32 { word, value } => drop(words.insert(word, value)),
                _ => {}
            }
        }
        if rung == running.rung && words == running.words {
            return Ok(());
        }
        let found = (&running.rung, &running.words);
        Err(format!("stream {stream} before descriptor {before} has done {found:?}, not {:?}", (rung, words)))
    }

    fn end(&self) -> End {
        let blocked = |running: &Running| {
            let at = running.of.get(running.next)?;
            Some(running.run_start[*at])
        };
        let mut words: Vec<_> = self.words.iter().map(|(word, value)| (*word, *value)).collect();
        words.sort_unstable();
        End {
            blocked: self.streams.iter().map(blocked).collect(),
            words,
            sent: self.sent.clone(),
            completions: self.written.clone(),
        }
    }
}

impl Running {
    fn new(case: &Case, stream: usize, merged: bool) -> Result<Self, String> {
        let sketches = &case.streams[stream];
        let mut running = Running { points: vec![None; sketches.len()], ..Running::default() };
        for (i, sketch) in sketches.iter().enumerate() {
            let goes_on = i > 0 && is_completion(sketch) && is_completion(&sketches[i - 1]);
            running.run_start.push(if goes_on { running.run_start[i - 1] } else { i });
        }
        let mut program = Program::new();
        let mut start = 0;
        for end in &case.ends[stream] {
            program.compile(&sketches[start..*end], &case.caps, merged).map_err(|error| error.to_string())?;
            for submission in program.submissions() {
                if submission.len() > case.caps.max_ops {
                    return Err(format!("{} operations of {}", submission.len(), case.caps.max_ops));
                }
            }
            running.take(&program, start);
            start = *end;
        }
        Ok(running)
    }

    /// Appends a batch, and finds out which point each of its waits has: the first that is written after it.
    fn take(&mut self, program: &Program, start: usize) {
        let first = self.ops.len();
        self.ops.extend(program.operations());
        self.of.extend(program.descriptors().iter().map(|descriptor| start + *descriptor as usize));
        let mut point = None;
        for i in (first..self.ops.len()).rev() {
            match (self.ops[i], Target::of(&self.ops[i])) {
                (MemOp::Write32 { value, .. }, Some(Target::Progress)) => point = Some(value),
                (_, Some(Target::Entry(..) | Target::Status(..))) => {
                    self.points[self.of[i]] = point;
                }
                _ => {}
            }
        }
        // Waits that are covered have their run's.
        let known: Vec<_> = self.points[start..].to_vec();
        for (position, covered) in program.covered().iter().enumerate().filter(|(_, covered)| **covered) {
            debug_assert!(covered);
            let run = self.run_start[start + position];
            let others = (start..start + known.len()).filter(|other| self.run_start[*other] == run);
            self.points[start + position] = others.filter_map(|other| known[other - start]).max();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `GDSYNC_MERGE_CASES`: how many cases (default: 5,000). `.ci/run` says 100,000.
    fn cases() -> u32 {
        std::env::var("GDSYNC_MERGE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(5_000)
    }

    #[test]
    fn merged_batches_do_what_plain_ones_do() {
        let config =
            ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
        let bytes = proptest::collection::vec(any::<u8>(), 16..220);
        let result = proptest::test_runner::TestRunner::new(config).run(&bytes, |bytes| {
            let case = Case::new(&bytes);
            case.check().map_err(|what| TestCaseError::fail(format!("{what}\n{case:#?}")))
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }
}
