//! The compiled batches of a stream, and the stream's progress.

use crate::batch::outline::{Descriptor, Program, Target};
use crate::batch::proof::card::Request;
use crate::batch::proof::{Case, Mode, is_completion};
use crate::memop::MemOp;
use std::collections::HashMap;
use std::ops::Range;

#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) descriptors: Vec<Descriptor>,
    batches: Vec<Batch>,
    /// Batches posted and descriptors prepared by the CPU.
    posted: usize,
    prepared: usize,
    pub(super) ops: Vec<MemOp>,
    /// Position of each operation's descriptor.
    pub(super) of: Vec<usize>,
    pub(super) points: Vec<Option<u32>>,
    /// For each descriptor, the first of its run of waits, or itself.
    pub(super) run_start: Vec<usize>,
    pub(super) next: usize,
    /// True if the next operation is a wait that the stream has found unsatisfied.
    pub(super) is_at_wait: bool,
    /// True if a wait was satisfied, and no flush has followed.
    pub(super) unflushed: bool,
    /// Sends rung or released, and doorbell records written, by queue pair; words written.
    pub(super) rung: HashMap<u32, u32>,
    pub(super) records: HashMap<u32, u32>,
    pub(super) words: HashMap<u32, u32>,
    pub(super) progress: u32,
}

#[derive(Debug)]
struct Batch {
    /// The ends of its descriptors and of its operations.
    descriptors: usize,
    ops: usize,
    requests: Vec<Request>,
}

/// The CPU's next step for a stream.
pub(super) enum Step {
    Prepare(Descriptor),
    Post(Vec<Request>),
}

impl Running {
    pub(super) fn new(case: &Case, stream: usize, mode: Mode) -> Result<Self, String> {
        let descriptors: Vec<_> =
            case.streams[stream].iter().map(|descriptor| mode.of(*descriptor)).collect();
        let mut running = Running { points: vec![None; descriptors.len()], ..Running::default() };
        for i in 0..descriptors.len() {
            let continues = i > 0 && descriptors[i - 1..=i].iter().all(is_completion);
            running.run_start.push(if continues { running.run_start[i - 1] } else { i });
        }
        let mut program = Program::new();
        if let Some(queues) = case.collect_from.filter(|_| mode.by_card) {
            program = program.collect_from(queues);
        }
        running.descriptors = descriptors;
        let mut start = 0;
        for end in &case.ends[stream] {
            program
                .compile(&running.descriptors[start..*end], &case.caps, mode.merged)
                .map_err(|error| error.to_string())?;
            for submission in program.submissions() {
                if submission.len() > case.caps.max_ops {
                    return Err(format!("{} operations of {}", submission.len(), case.caps.max_ops));
                }
            }
            running.take(&program, start..*end)?;
            start = *end;
        }
        Ok(running)
    }

    /// Returns the next operation, if the CPU has posted it.
    pub(super) fn op(&self) -> Option<MemOp> {
        let posted = self.posted.checked_sub(1).and_then(|last| self.batches.get(last))?;
        self.ops[..posted.ops].get(self.next).copied()
    }

    /// Returns the run of waits, or the descriptor, at which it is blocked.
    pub(super) fn blocked(&self) -> Option<usize> {
        Some(self.run_start[*self.of.get(self.next)?])
    }

    /// Prepares the next descriptor, or posts the next batch if it may or must.
    pub(super) fn advance(&mut self, may_post: bool) -> Option<Step> {
        let next = self.descriptors.get(self.prepared).copied();
        let batch = self.batches.get_mut(self.posted).filter(|batch| batch.descriptors <= self.prepared);
        match (batch, next) {
            (Some(batch), next) if may_post || next.is_none() => {
                self.posted += 1;
                Some(Step::Post(std::mem::take(&mut batch.requests)))
            }
            (_, next) => {
                self.prepared += usize::from(next.is_some());
                next.map(Step::Prepare)
            }
        }
    }

    /// Appends a batch. The point of each of its waits is the first that is written after it.
    fn take(&mut self, program: &Program, descriptors: Range<usize>) -> Result<(), String> {
        let first = self.ops.len();
        self.ops.extend(program.operations());
        self.of.extend(program.descriptors().iter().map(|at| descriptors.start + *at as usize));
        let mut point = None;
        for i in (first..self.ops.len()).rev() {
            match (self.ops[i], Target::of(&self.ops[i])) {
                (MemOp::Write32 { value, .. }, Some(Target::Progress)) => point = Some(value),
                (_, Some(Target::Entry(..) | Target::Status(..) | Target::Arrival)) => {
                    self.points[self.of[i]] = point;
                }
                _ => {}
            }
        }
        let mut requests = Vec::new();
        let mut runs = HashMap::new();
        let mut start = descriptors.start;
        for submission in program.submissions() {
            let end = submission.clone().last().map_or(start, |last| self.of[first + last] + 1);
            self.share_points(start..end);
            let last = submission.clone().last().map(|last| self.ops[first + last]);
            let word =
                last.as_ref().and_then(Target::of).is_some_and(|target| matches!(target, Target::Word(_)));
            if self.descriptors[start..end].last().is_some_and(Descriptor::is_write) && !word {
                return Err(format!("{last:?} follows the write {}, the last of its submission", end - 1));
            }
            for i in submission {
                if let (MemOp::Wait64 { value, .. }, Some(Target::Arrival)) =
                    (self.ops[first + i], Target::of(&self.ops[first + i]))
                {
                    runs.insert(value, self.run(self.of[first + i], start..end));
                }
            }
            start = end;
        }
        for (number, entries) in program.collected() {
            let run =
                runs.remove(&number).ok_or_else(|| format!("the stream waits for no arrival {number}"))?;
            let waits = run.filter_map(|at| match self.descriptors[at] {
                Descriptor::WaitCq(wait) if !wait.checked => Some(wait),
                _ => None,
            });
            if let Some(wait) = entries.iter().find(|wait| wait.checked) {
                return Err(format!("{wait:?} is collected, and has a word of its own"));
            }
            requests.extend(entries.into_iter().map(Request::Wait));
            requests.push(Request::Write { number, waits: waits.collect() });
        }
        self.batches.push(Batch { descriptors: descriptors.end, ops: self.ops.len(), requests });
        Ok(())
    }

    /// Returns the part of a run that is in one submission.
    fn run(&self, of: usize, submission: Range<usize>) -> Range<usize> {
        let is_in = |at: &usize| self.run_start[*at] == self.run_start[of];
        let start = submission.clone().find(is_in).unwrap_or(of);
        start..submission.rev().find(is_in).map_or(of, |last| last + 1)
    }

    /// Gives waits without operations the point of their run.
    fn share_points(&mut self, submission: Range<usize>) {
        for at in submission.clone() {
            if self.points[at].is_none() && is_completion(&self.descriptors[at]) {
                self.points[at] =
                    self.run(at, submission.clone()).filter_map(|other| self.points[other]).max();
            }
        }
    }
}
