//! Queue pairs of the library.

use super::bench::Bench;
use super::kept::{Places, Start};
use super::program::{By, DEPTH, KEEP, Kind, LinkPlan};
use gdsync::memop::Word32;
use gdsync::qp::SharedReceiveQueue;
use gdsync::queue::WorkError;
use gdsync::verbs::Transport;
use gdsync::{
    Access, Batch, Completion, MemoryRegion, PinnedMemory, PreparedSend, PreparedWait, QueueError, QueuePair,
    QueuePairConfig, Trigger, WorkRequest,
};
use gdsync_cli::failure::Failure;
use std::collections::VecDeque;

/// What has ended.
pub(super) enum Next {
    Polled(Completion),
    /// A start of a persistent request.
    Start {
        key: u64,
        outcome: Result<(), WorkError>,
    },
}

/// A queue pair of the library.
pub(super) struct Driven {
    pub(super) queue_pair: QueuePair,
    pub(super) region: MemoryRegion,
    pub(super) by: By,
    /// Its number among those of its end.
    pub(super) life: u32,
    /// Prepared sends, and how many of them are messages.
    pending: Vec<PreparedSend>,
    pub(super) messages: usize,
    /// The stream writes the number of sends here before it gives them to the card; and that number.
    begun: Word32,
    sends: u32,
    /// Batches that streams have refused after its failure.
    refused: Vec<Batch>,
    /// Indices of the completions that come next, of sends and of receives, and those after the last successes.
    pub(super) next: [u32; 2],
    pub(super) good: [u32; 2],
    /// True after a failed start of a persistent request, which does not tell whether it had an entry, until a completion with
    /// an index: the above lag.
    pub(super) lags: [bool; 2],
    /// Most sends of refused lists whose completions, which come for NOPs, are not returned.
    pub(super) hidden: u32,
    /// True if streams wait for sends that other streams are given later. Two may wait for each other.
    pub(super) is_awaited_ahead: bool,
    /// Persistent requests, and their starts whose outcome is not known, of sends and of receives.
    pub(super) kept: Places,
    pub(super) starts: [VecDeque<Start>; 2],
    /// Completions that were polled while starts before them were open.
    polled: [VecDeque<Completion>; 2],
}

impl Driven {
    pub(super) fn new(
        plan: &LinkPlan,
        by: By,
        (memory, life): (PinnedMemory, u32),
        (bench, receives): (&Bench, Option<&SharedReceiveQueue>),
    ) -> Result<Self, Failure> {
        let transport = if plan.kind == Kind::Uc { Transport::Uc } else { Transport::Rc };
        let config = QueuePairConfig::default().transport(transport).access(Access::all());
        let config = config.send_depth(2 * DEPTH as u32).recv_depth(DEPTH as u32);
        let config = receives.map_or(config, |receives| config.shared_receive_queue(receives));
        let own = matches!(by, By::Trigger(_)).then(|| Trigger::new(&bench.pd)).transpose()?;
        let trigger = match by {
            By::Shared(stream) => Some(&bench.streams[stream].trigger),
            By::Master(stream) => Some(&bench.streams[stream].mastered),
            _ => own.as_ref(),
        };
        let config = trigger.map_or(config, |trigger| config.trigger(trigger));
        Ok(Driven {
            queue_pair: QueuePair::new(&bench.pd, config)?,
            region: MemoryRegion::register(&bench.pd, memory, Access::all())?,
            by,
            life,
            pending: Vec::new(),
            messages: 0,
            begun: Word32::new(&PinnedMemory::allocate(4)?, 0)?,
            sends: 0,
            refused: Vec::new(),
            next: [0; 2],
            good: [0; 2],
            lags: [false; 2],
            hidden: 0,
            is_awaited_ahead: false,
            kept: [const { None }; 2 * KEEP],
            starts: Default::default(),
            polled: Default::default(),
        })
    }

    /// Returns the stream of its sends.
    pub(super) fn stream(&self) -> Option<usize> {
        self.by.stream()
    }

    /// Resets it. Returns false if streams have not passed its work.
    pub(super) fn reset(&mut self, life: u32) -> bool {
        self.pending.clear();
        self.messages = 0;
        self.life = life;
        self.refused.clear();
        (self.is_awaited_ahead, self.hidden) = (false, 0);
        self.kept = [const { None }; 2 * KEEP];
        let is_reset = self.queue_pair.reset().is_ok();
        if is_reset {
            // Otherwise it is polled until it is dropped.
            (self.starts, self.polled) = Default::default();
        }
        is_reset
    }

    /// Posts a request. Returns false if there is no room, or if the queue pair has failed.
    pub(super) fn post(
        &mut self,
        request: WorkRequest<'_>,
        serial: u64,
        is_message: bool,
        rung: bool,
        bench: &Bench,
    ) -> Result<bool, String> {
        let posted = match self.by {
            By::Cpu => self.queue_pair.post_send(request.wr_id(serial)),
            _ => self.queue_pair.prepare(request.wr_id(serial)).map(|send| {
                self.pending.push(send);
                self.sends = serial as u32 + 1;
                self.messages += usize::from(is_message);
            }),
        };
        match posted {
            // Tickets of a trigger are posted in the order in which they are taken.
            Ok(()) if rung || matches!(self.by, By::Shared(_) | By::Master(_)) => {
                self.ring(bench).map(|()| true)
            }
            Ok(()) => Ok(true),
            Err(QueueError::Full(_) | QueueError::State(_)) => Ok(false),
            Err(error) => Err(format!("the library refuses a send: {error}")),
        }
    }

    /// Posts the prepared sends on its stream.
    pub(super) fn ring(&mut self, bench: &Bench) -> Result<(), String> {
        let Some(stream) = self.by.stream() else { return Ok(()) };
        if !self.pending.is_empty() {
            let batch = Batch::new().write_value32(&self.begun, self.sends);
            let batch = self.pending.drain(..).fold(batch, Batch::send);
            self.refused.extend(bench.streams[stream].post(batch)?);
        }
        self.messages = 0;
        Ok(())
    }

    /// Posts the prepared sends before a wait for them, but for one of that other stream, which may wait for them ahead.
    pub(super) fn get_ready(&mut self, ahead_on: Option<usize>, bench: &Bench) -> Result<(), String> {
        let is_of_other = self.by.stream().is_some_and(|own| ahead_on.is_some_and(|on| on != own));
        self.is_awaited_ahead |= is_of_other && !self.pending.is_empty();
        if is_of_other { Ok(()) } else { self.ring(bench) }
    }

    /// Adds to a batch that the stream comes to the sends before this serial number.
    pub(super) fn begin(&mut self, batch: Batch, sends: u32) -> Batch {
        self.sends = sends;
        batch.write_value32(&self.begun, sends)
    }

    /// Takes the next completion of a queue, in the order of the work. `oldest` is the index of the oldest receive.
    pub(super) fn next_ended(&mut self, queue: usize, oldest: Option<u16>) -> Result<Option<Next>, String> {
        // Before the poll: what it takes from the queue comes to the program's next poll.
        let first = self.starts[queue].front();
        let outcome = first.map(|start| (start.key, start.status.get()));
        let queues = [self.queue_pair.send_cq(), self.queue_pair.recv_cq()];
        while let Some(completion) =
            queues[queue].poll().map_err(|error| format!("polling fails: {error}"))?
        {
            self.polled[queue].push_back(completion);
        }
        let polled = self.polled[queue].front();
        let is_next = |key: u64| match queue {
            0 => polled.is_none_or(|completion| completion.wr_id > key),
            _ => oldest.map(u64::from) == Some(key),
        };
        let Some((key, outcome)) = outcome.filter(|(key, _)| is_next(*key)) else {
            return Ok(self.polled[queue].pop_front().map(Next::Polled));
        };
        let Some(outcome) = outcome else { return Ok(None) };
        let place = self.starts[queue].pop_front().map_or(0, |start| start.place);
        if let Some(kept) = &mut self.kept[place] {
            kept.open -= 1;
            kept.has_failed |= outcome.is_err();
        }
        Ok(Some(Next::Start { key, outcome }))
    }

    /// Returns whether the outcome of a persistent request's start is not known.
    pub(super) fn has_open_starts(&self) -> bool {
        self.starts.iter().any(|starts| !starts.is_empty())
    }

    /// Returns whether the card has a send only after its stream has reached it.
    pub(super) fn has_begun(&self, serial: u64) -> bool {
        self.by == By::Cpu || (self.begun.load().wrapping_sub(serial as u32) as i32) > 0
    }

    /// Prepares a wait for the next completion of sends (queue 0), or of receives for which messages are coming.
    pub(super) fn prepare_wait(&self, queue: usize, coming: usize) -> Result<Option<PreparedWait>, String> {
        let queues = [self.queue_pair.send_cq(), self.queue_pair.recv_cq()];
        if self.queue_pair.failure().is_some() {
            return Ok(None);
        }
        match queues[queue].prepare_wait() {
            Ok(wait) if queue == 0 || wait.index().wrapping_sub(self.next[1]) < coming as u32 => {
                Ok(Some(wait))
            }
            Ok(_) | Err(QueueError::Order(_)) => Ok(None),
            Err(error) => Err(format!("the library refuses a wait: {error}")),
        }
    }
}
