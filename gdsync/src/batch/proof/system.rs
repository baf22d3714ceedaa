//! A running system: its streams perform compiled batches, beside a card and a CPU.

use crate::batch::outline::{Descriptor, PaperSend, PaperWait, Target};
use crate::batch::proof::card::Card;
use crate::batch::proof::running::{Running, Step};
use crate::batch::proof::{Case, Mode, QUEUES, STREAMS, is_completion};
use crate::memop::MemOp;
use gdsync_sys::prm::{doorbell, wait};
use std::collections::HashMap;

/// The final state of a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// For each stream, the first descriptor of the run at which it is blocked.
    blocked: Vec<Option<usize>>,
    words: Vec<(u32, u32)>,
    sent: Vec<u32>,
    completions: Vec<u32>,
}

pub(super) struct System<'a> {
    case: &'a Case,
    streams: Vec<Running>,
    card: Card<'a>,
    words: HashMap<u32, u32>,
    random: u64,
}

impl<'a> System<'a> {
    pub(super) fn new(case: &'a Case, mode: Mode, seed: u64) -> Result<Self, String> {
        let streams =
            (0..STREAMS).map(|stream| Running::new(case, stream, mode)).collect::<Result<_, _>>()?;
        Ok(System { case, streams, card: Card::new(case), words: HashMap::new(), random: seed | 1 })
    }

    fn random(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % limit
    }

    /// Runs until no actor can act: a stream, its collector, the CPU's thread that posts on it, a queue pair of the
    /// card, or the CPU's thread that reacts.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let actors = 3 * STREAMS + QUEUES + 1;
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
        let Some(actor) = actor.checked_sub(3 * STREAMS) else {
            let stream = actor % STREAMS;
            return match actor / STREAMS {
                0 => self.step(stream),
                1 => self.card.execute(stream),
                _ => Ok(self.advance(stream)),
            };
        };
        Ok(if actor < QUEUES { self.card.send(actor) } else { self.react() })
    }

    /// Advances the CPU, which prepares sends some time before it posts their batch.
    fn advance(&mut self, stream: usize) -> bool {
        let may_post = self.random(2) == 0;
        match self.streams[stream].advance(may_post) {
            None => return false,
            Some(Step::Prepare(Descriptor::Send(send))) => self.card.prepare(&send),
            Some(Step::Prepare(_)) => {}
            Some(Step::Post(requests)) => self.card.collect(stream, requests),
        }
        true
    }

    /// Performs a reaction of the CPU that is due.
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

    /// Performs a stream's next operation, if possible.
    fn step(&mut self, stream: usize) -> Result<bool, String> {
        let Some(op) = self.streams[stream].op() else { return Ok(false) };
        self.check_order(stream, op)?;
        if op.is_wait() && !std::mem::replace(&mut self.streams[stream].is_at_wait, true) {
            // The stream may stay here for any time, and every observer sees its effects.
            self.compare_at_wait(stream)?;
        }
        let satisfied = match (op, Target::of(&op)) {
            (MemOp::Wait32 { .. }, Some(Target::Entry(queue, index) | Target::Status(queue, index))) => {
                self.card.has(&PaperWait { queue, index, checked: false })
            }
            (MemOp::Wait64 { condition, value, .. }, Some(Target::Arrival)) => {
                condition.holds64(self.card.arrival(stream), value)
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
            (MemOp::Write64 { value, .. }, Some(Target::Trigger(trigger))) => {
                self.release(stream, trigger, value)?;
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
        let running = &mut self.streams[stream];
        running.next += usize::from(satisfied);
        running.is_at_wait &= !satisfied;
        running.unflushed |= self.case.caps.flush_after_wait && satisfied && op.is_wait();
        running.unflushed &= op != MemOp::FlushRemote;
        Ok(satisfied)
    }

    /// Checks the order of operations: without fenced writes, a barrier is before every signal to a card; if waits
    /// need a flush, one is between the waits of a run and anything else.
    fn check_order(&self, stream: usize, op: MemOp) -> Result<(), String> {
        let running = &self.streams[stream];
        let target = Target::of(&op);
        let is_signal = matches!(target, Some(Target::Record(_) | Target::Register(_) | Target::Trigger(_)));
        let before = running.next.checked_sub(1).map(|before| running.ops[before]);
        if is_signal && !self.case.caps.writes_are_fenced && before != Some(MemOp::Barrier) {
            return Err(format!("stream {stream} writes {target:?} behind no barrier"));
        }
        let is_of_run = matches!(target, Some(Target::Entry(..) | Target::Status(..) | Target::Arrival));
        if running.unflushed && op != MemOp::FlushRemote && !(op.is_wait() && is_of_run) {
            return Err(format!("stream {stream} performs {op:?} behind no flush"));
        }
        Ok(())
    }

    /// Writes the word of a trigger for a stream: the ticket of one of its sends, beyond the word's value, after
    /// everything before that send is done.
    fn release(&mut self, stream: usize, trigger: u32, word: u64) -> Result<(), String> {
        let (ticket, before) = (wait::word(word), self.card.number(trigger));
        let has_reached = |other: u64| ticket.wrapping_sub(other) as i64 >= 0;
        if !has_reached(before.wrapping_add(1)) {
            return Err(format!("trigger {trigger} is written {ticket} after {before}"));
        }
        let running = &mut self.streams[stream];
        let mut position = None;
        for (at, descriptor) in running.descriptors.iter().enumerate() {
            if let Descriptor::Send(PaperSend { queue_pair, index, trigger: Some((own, number)) }) =
                *descriptor
                && own == trigger
                && has_reached(number)
            {
                running.rung.insert(queue_pair, index + 1);
                position = (number == ticket).then_some(at);
            }
        }
        let Some(position) = position else {
            return Err(format!("no send of stream {stream} has ticket {ticket} of trigger {trigger}"));
        };
        for descriptor in &running.descriptors[..position] {
            let is_done = match descriptor {
                Descriptor::WaitCq(wait) => self.card.has(wait),
                Descriptor::Wait32(word, condition, value) => {
                    condition.holds32(self.words.get(word).copied().unwrap_or(0), *value)
                }
                Descriptor::Write32(word, value) => running.words.get(word) >= Some(value),
                // A doorbell may ring later, and another trigger may be written later.
                _ => true,
            };
            if !is_done {
                return Err(format!("ticket {ticket} of trigger {trigger} is written before {descriptor:?}"));
            }
        }
        self.card.store(trigger, word);
        Ok(())
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
        self.card.ring(queue_pair, count);
        Ok(())
    }

    /// Writes a point for a stream: all its waits must have passed.
    fn write_point(&mut self, stream: usize, value: u32) -> Result<(), String> {
        let running = &mut self.streams[stream];
        if value <= running.progress {
            return Err(format!("point {value} is written after {}", running.progress));
        }
        running.progress = value;
        for (descriptor, point) in running.descriptors.iter().zip(&running.points) {
            if let Descriptor::WaitCq(wait) = descriptor
                && point.is_some_and(|own| own <= value)
                && !self.card.has(wait)
            {
                return Err(format!("point {value} is written before {wait:?} has passed"));
            }
        }
        Ok(())
    }

    /// Checks that a stream at a wait has done everything before the wait's run, and nothing else.
    fn compare_at_wait(&self, stream: usize) -> Result<(), String> {
        let running = &self.streams[stream];
        let at = running.of[running.next];
        self.compare(stream, running.run_start[at])?;
        let is_word = !is_completion(&running.descriptors[at]);
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
        for descriptor in &running.descriptors[..before] {
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
        let mut words: Vec<_> = self.words.iter().map(|(word, value)| (*word, *value)).collect();
        words.sort_unstable();
        let (sent, completions) = self.card.state();
        End { blocked: self.streams.iter().map(Running::blocked).collect(), words, sent, completions }
    }
}
