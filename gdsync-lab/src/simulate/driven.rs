//! Queue pairs of the library.

use super::bench::Bench;
use super::program::{By, DEPTH, Kind, LinkPlan};
use gdsync::verbs::Transport;
use gdsync::{
    Access, Batch, MemoryRegion, PinnedMemory, PreparedWait, QueueError, QueuePair, QueuePairConfig, Trigger,
    WorkRequest,
};
use gdsync_cli::failure::Failure;

/// A queue pair of the library.
pub(super) struct Driven {
    pub(super) queue_pair: QueuePair,
    pub(super) region: MemoryRegion,
    by: By,
    /// Its number among those of its end.
    pub(super) life: u32,
    /// Prepared sends, how many of them, and how many of those are messages.
    pending: (Batch, usize),
    pub(super) messages: usize,
    /// Batches that streams have refused after its failure.
    refused: Vec<Batch>,
    /// Indices of the completions that come next, of sends and of receives, and of the first errors.
    pub(super) next: [u32; 2],
    pub(super) errors: [Option<u32>; 2],
}

impl Driven {
    pub(super) fn new(
        plan: &LinkPlan,
        by: By,
        (memory, life): (PinnedMemory, u32),
        bench: &Bench,
    ) -> Result<Self, Failure> {
        let transport = if plan.kind == Kind::Uc { Transport::Uc } else { Transport::Rc };
        let config = QueuePairConfig::default().transport(transport).access(Access::all());
        let config = config.send_depth(2 * DEPTH as u32).recv_depth(DEPTH as u32);
        let own = matches!(by, By::Trigger(_)).then(|| Trigger::new(&bench.pd)).transpose()?;
        let shared = by.stream().filter(|_| matches!(by, By::Shared(_)));
        let shared = shared.map(|stream| &bench.streams[stream].trigger);
        let config = own.as_ref().or(shared).map_or(config, |trigger| config.trigger(trigger));
        Ok(Driven {
            queue_pair: QueuePair::new(&bench.pd, config)?,
            region: MemoryRegion::register(&bench.pd, memory, Access::all())?,
            by,
            life,
            pending: (Batch::new(), 0),
            messages: 0,
            refused: Vec::new(),
            next: [0; 2],
            errors: [None; 2],
        })
    }

    /// Resets it. Returns false if streams have not passed its work.
    pub(super) fn reset(&mut self, life: u32) -> bool {
        (self.pending, self.messages) = ((Batch::new(), 0), 0);
        (self.life, self.errors) = (life, [None; 2]);
        self.refused.clear();
        self.queue_pair.reset().is_ok()
    }

    /// Posts a request. Returns false if there is no room, or if the queue pair has failed.
    pub(super) fn post(
        &mut self,
        request: WorkRequest<'_>,
        is_message: bool,
        rung: bool,
        bench: &Bench,
    ) -> Result<bool, String> {
        let posted = match self.by {
            By::Cpu => self.queue_pair.post_send(request),
            _ => self.queue_pair.prepare(request).map(|send| {
                self.pending.0 = std::mem::take(&mut self.pending.0).send(send);
                self.pending.1 += 1;
                self.messages += usize::from(is_message);
            }),
        };
        match posted {
            // Tickets of a trigger are posted in the order in which they are taken.
            Ok(()) if rung || matches!(self.by, By::Shared(_)) => self.ring(bench).map(|()| true),
            Ok(()) => Ok(true),
            Err(QueueError::Full(_) | QueueError::State(_)) => Ok(false),
            Err(error) => Err(format!("the library refuses a send: {error}")),
        }
    }

    /// Posts the prepared sends on its stream.
    pub(super) fn ring(&mut self, bench: &Bench) -> Result<(), String> {
        let Some(stream) = self.by.stream() else { return Ok(()) };
        if std::mem::take(&mut self.pending.1) > 0 {
            let batch = std::mem::take(&mut self.pending.0);
            self.refused.extend(bench.streams[stream].post(batch)?);
        }
        self.messages = 0;
        Ok(())
    }

    /// Prepares a wait for the next completion of sends (queue 0) or receives, if all of its work is given to the card.
    pub(super) fn prepare_wait(&self, queue: usize, coming: usize) -> Result<Option<PreparedWait>, String> {
        let queues = [self.queue_pair.send_cq(), self.queue_pair.recv_cq()];
        if self.pending.1 > 0 || self.queue_pair.failure().is_some() {
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
