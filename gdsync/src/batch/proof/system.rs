//! A system that runs: its streams perform what their batches compile to, beside a card and a CPU.

use super::{Case, QUEUES, STREAMS, is_completion};
use crate::batch::outline::{Descriptor, Program, Target};
use crate::memop::MemOp;
use gdsync_sys::prm::doorbell;
use std::collections::HashMap;

/// One stream of a system.
#[derive(Debug, Default)]
struct Running {
    ops: Vec<MemOp>,
    /// Position of the descriptor of each operation.
    of: Vec<usize>,
    /// The point of each descriptor that is a wait for a completion.
    points: Vec<Option<u32>>,
    next: usize,
    /// Sends that it has rung for and doorbell records that it has written, by queue pair; words
    /// that it has written.
    rung: HashMap<u32, u32>,
    records: HashMap<u32, u32>,
    words: HashMap<u32, u32>,
    progress: u32,
    /// Of each descriptor: the first of the run of waits that it belongs to, or itself.
    run_start: Vec<usize>,
}

/// The state in which a system ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Of each stream: the first descriptor of the run at which it is blocked.
    blocked: Vec<Option<usize>>,
    words: Vec<(u32, u32)>,
    sent: Vec<u32>,
    completions: Vec<u32>,
}

pub(super) struct System<'a> {
    case: &'a Case,
    streams: Vec<Running>,
    words: HashMap<u32, u32>,
    /// Of each queue pair: sends that were rung for, and sends that the card has performed.
    rung: Vec<u32>,
    sent: Vec<u32>,
    /// Completions that the card has written to each queue.
    written: Vec<u32>,
    random: u64,
}

impl<'a> System<'a> {
    pub(super) fn new(case: &'a Case, merged: bool, seed: u64) -> Result<Self, String> {
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

    /// Runs until no actor can do anything: a stream, a queue pair of the card, or the CPU.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let actors = STREAMS + QUEUES + 1;
        loop {
            // Any actor may be slow.
            let chosen = self.random(actors);
            if self.act(chosen)? {
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

    /// The card performs the next send of a queue pair that was rung for.
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

    /// The CPU performs a reaction that is due.
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
            // The stream may stay here for any time, and every observer sees what it has done.
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
                self.write_point(stream, value)?;
                true
            }
            (MemOp::Barrier | MemOp::FlushRemote, None) => true,
            other => return Err(format!("an operation that no descriptor has: {other:?}")),
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

    /// The stream writes a point: all waits that it stands for must have passed.
    fn write_point(&mut self, stream: usize, value: u32) -> Result<(), String> {
        let running = &mut self.streams[stream];
        if value <= running.progress {
            return Err(format!("point {value} is written after {}", running.progress));
        }
        running.progress = value;
        for (descriptor, point) in self.case.streams[stream].iter().zip(&running.points) {
            if let Descriptor::WaitCq(wait) = descriptor
                && point.is_some_and(|own| own <= value)
                && self.written[wait.queue as usize] <= wait.index
            {
                return Err(format!("point {value} is written before {wait:?} has passed"));
            }
        }
        Ok(())
    }

    /// At a wait, a stream has done all that stands before the wait's run, and nothing else.
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
        for descriptor in &self.case.streams[stream][..before] {
            match *descriptor {
                Descriptor::Send(send) => drop(rung.insert(send.queue_pair, send.index + 1)),
                Descriptor::Write32(word, value) => drop(words.insert(word, value)),
                _ => {}
            }
        }
        if rung == running.rung && words == running.words {
            return Ok(());
        }
        let found = (&running.rung, &running.words);
        Err(format!("stream {stream} before descriptor {before} has done {found:?}, not {:?}", (rung, words)))
    }

    pub(super) fn end(&self) -> End {
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
        let descriptors = &case.streams[stream];
        let mut running = Running { points: vec![None; descriptors.len()], ..Running::default() };
        for i in 0..descriptors.len() {
            let continues = i > 0 && descriptors[i - 1..=i].iter().all(is_completion);
            running.run_start.push(if continues { running.run_start[i - 1] } else { i });
        }
        let mut program = Program::new();
        let mut start = 0;
        for end in &case.ends[stream] {
            program
                .compile(&descriptors[start..*end], &case.caps, merged)
                .map_err(|error| error.to_string())?;
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

    /// Appends a batch. The point of each of its waits is the first that is written after it.
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
        // A covered wait has the point of its run.
        let known: Vec<_> = self.points[start..].to_vec();
        for (position, _) in program.covered().iter().enumerate().filter(|(_, covered)| **covered) {
            let run = self.run_start[start + position];
            let others = (start..start + known.len()).filter(|other| self.run_start[*other] == run);
            self.points[start + position] = others.filter_map(|other| known[other - start]).max();
        }
    }
}
