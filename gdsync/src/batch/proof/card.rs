//! The card of a system: its queue pairs, triggers and collectors.

use crate::batch::outline::{PaperSend, PaperWait};
use crate::batch::proof::{Case, QUEUES, STREAMS};
use gdsync_sys::prm::wait::{self, WaitDataSeg};
use std::collections::{HashMap, VecDeque};

pub(super) struct Card<'a> {
    case: &'a Case,
    queue_pairs: Vec<QueuePair>,
    written: Vec<u32>,
    triggers: HashMap<u32, u64>,
    collectors: Vec<Collector>,
}

#[derive(Clone, Debug, Default)]
struct QueuePair {
    /// Sends for which the card was rung: by a stream, or by the CPU if a trigger releases them.
    rung: u32,
    sent: u32,
    /// The WAITs of sends that a trigger releases, with the trigger, in the order of the sends.
    waits: VecDeque<(u32, WaitDataSeg)>,
}

#[derive(Clone, Debug, Default)]
struct Collector {
    queue: VecDeque<Request>,
    arrival: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Request {
    Wait(PaperWait),
    Write {
        number: u64,
        /// All waits that it stands for.
        waits: Vec<PaperWait>,
    },
}

impl<'a> Card<'a> {
    pub(super) fn new(case: &'a Case) -> Self {
        Card {
            case,
            queue_pairs: vec![QueuePair::default(); QUEUES],
            written: vec![0; QUEUES],
            triggers: HashMap::new(),
            collectors: vec![Collector::default(); STREAMS],
        }
    }

    pub(super) fn has(&self, wait: &PaperWait) -> bool {
        self.written[wait.queue as usize] > wait.index
    }

    pub(super) fn number(&self, trigger: u32) -> u64 {
        let word = self.triggers.get(&trigger).copied();
        word.map_or(self.case.first_ticket.wrapping_sub(1), wait::word)
    }

    pub(super) fn arrival(&self, stream: usize) -> u64 {
        self.collectors[stream].arrival
    }

    /// Returns the number of performed sends of each queue pair, and of completions of each queue.
    pub(super) fn state(&self) -> (Vec<u32>, Vec<u32>) {
        (self.queue_pairs.iter().map(|queue_pair| queue_pair.sent).collect(), self.written.clone())
    }

    /// Handles a stream's write of a doorbell register.
    pub(super) fn ring(&mut self, queue_pair: u32, count: u32) {
        self.queue_pairs[queue_pair as usize].rung = count;
    }

    /// Handles a stream's write of a trigger's word.
    pub(super) fn store(&mut self, trigger: u32, word: u64) {
        self.triggers.insert(trigger, word);
    }

    /// Handles the CPU's preparation of a send. The CPU rings at once if a trigger releases it.
    pub(super) fn prepare(&mut self, send: &PaperSend) {
        if let Some((trigger, ticket)) = send.trigger {
            let queue_pair = &mut self.queue_pairs[send.queue_pair as usize];
            queue_pair.waits.push_back((trigger, WaitDataSeg::reached(0, 0, ticket)));
            queue_pair.rung = send.index + 1;
        }
    }

    /// Adds the CPU's work requests for a stream's collector.
    pub(super) fn collect(&mut self, stream: usize, requests: Vec<Request>) {
        self.collectors[stream].queue.extend(requests);
    }

    /// Performs the next send of a queue pair, if it is rung and released.
    pub(super) fn send(&mut self, at: usize) -> bool {
        let queue_pair = &self.queue_pairs[at];
        let held = |(trigger, wait): &(u32, WaitDataSeg)| wait.is_met(self.number(*trigger)) != Ok(true);
        if queue_pair.sent == queue_pair.rung || queue_pair.waits.front().is_some_and(held) {
            return false;
        }
        let queue_pair = &mut self.queue_pairs[at];
        queue_pair.waits.pop_front();
        queue_pair.sent += 1;
        let (own, remote, every) = self.case.queue_pairs[at];
        self.written[remote as usize] += 1;
        if queue_pair.sent.is_multiple_of(every) {
            self.written[own as usize] += 1;
        }
        true
    }

    /// Executes the next work request of a stream's collector, if possible.
    pub(super) fn execute(&mut self, stream: usize) -> Result<bool, String> {
        match self.collectors[stream].queue.front() {
            None => return Ok(false),
            Some(Request::Wait(wait)) if !self.has(wait) => return Ok(false),
            Some(Request::Wait(_)) => {}
            Some(Request::Write { number, waits }) => {
                if let Some(wait) = waits.iter().find(|wait| !self.has(wait)) {
                    return Err(format!("arrival {number} of stream {stream} is written before {wait:?}"));
                }
                let number = *number;
                let before = std::mem::replace(&mut self.collectors[stream].arrival, number);
                if number <= before {
                    return Err(format!("arrival {number} of stream {stream} is written after {before}"));
                }
            }
        }
        self.collectors[stream].queue.pop_front();
        Ok(true)
    }
}
