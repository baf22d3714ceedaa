//! The control connection to one rank: a queue pair for short messages, and for probes.
//!
//! A probe is an empty write, which the other side's card answers without its process. So a rank
//! whose process is stopped is not given up as long as its card answers.

use super::message::{Message, longest};
use crate::error::{DeathCause, NotifyError};
use gdsync::queue::FailureCause;
use gdsync::{
    Access, ConnectOptions, Endpoint, MemoryRegion, ProtectionDomain, QueueError, QueuePair, QueuePairConfig,
    RemoteMemory, WorkRequest,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Messages to a rank, and from it, that the memory of a connection holds.
const SLOTS: usize = 4;
/// Sends that a queue pair takes: messages, and a probe.
const SENDS: u32 = SLOTS as u32 + 1;
/// The number of a probe; messages have those of their slots.
const PROBE: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: u32,
    pub(super) queue_pair: QueuePair,
    /// First the slots of messages to the rank, then those of messages from it.
    memory: MemoryRegion,
    slot_bytes: usize,
    size: u32,
    /// Messages that are posted and have not arrived, oldest first.
    under_way: usize,
    /// The slot of the next message.
    next_slot: usize,
    /// Messages for which there was no room yet.
    waiting: VecDeque<Message>,
    probe_under_way: bool,
    last_probe: Instant,
    /// The connection is cut: nothing is sent, and nothing that arrives is taken.
    is_cut: bool,
}

impl Link {
    pub(super) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'_>,
        rank: u32,
        size: u32,
    ) -> Result<Self, NotifyError> {
        let slot_bytes = longest(size).next_multiple_of(64);
        let memory = MemoryRegion::allocate(pd, 2 * SLOTS * slot_bytes, Access::LOCAL_WRITE)?;
        let config = config.send_depth(SENDS).recv_depth(SLOTS as u32);
        let link = Link {
            rank,
            queue_pair: QueuePair::new(pd, config)?,
            memory,
            slot_bytes,
            size,
            under_way: 0,
            next_slot: 0,
            waiting: VecDeque::new(),
            probe_under_way: false,
            last_probe: Instant::now(),
            is_cut: false,
        };
        (0..SLOTS).try_for_each(|slot| link.receive(slot))?;
        Ok(link)
    }

    pub(super) fn connect(&mut self, remote: &Endpoint, options: ConnectOptions) -> Result<(), NotifyError> {
        self.last_probe = Instant::now();
        Ok(self.queue_pair.connect(remote, options)?)
    }

    /// Posts the receive of a slot.
    fn receive(&self, slot: usize) -> Result<(), NotifyError> {
        let start = (SLOTS + slot) * self.slot_bytes;
        let slice = self.memory.slice(start..start + self.slot_bytes)?;
        Ok(self.queue_pair.post_recv(&[slice], slot as u64)?)
    }

    /// Sends a message as soon as there is room.
    pub(super) fn send(&mut self, message: Message) {
        if !self.is_cut {
            self.waiting.push_back(message);
        }
    }

    /// Every message has arrived at the other side's memory.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_cut || (self.waiting.is_empty() && self.under_way == 0)
    }

    /// Takes what has arrived, sends what waits, and probes once in `period` while nothing is under
    /// way. Returns why the rank is dead, if it is.
    pub(super) fn poll(&mut self, period: Duration, arrived: &mut Vec<Message>) -> Option<DeathCause> {
        if self.is_cut {
            return None;
        }
        self.take_arrived(arrived);
        let result = self.progress(period);
        // A failure may show while messages are taken or sent.
        match (self.queue_pair.failure(), result) {
            (Some(cause), _) => Some(DeathCause::NoAnswer(cause)),
            (None, Err(error)) => {
                tracing::error!(%error, rank = self.rank, "a control connection cannot be used");
                Some(DeathCause::NoAnswer(FailureCause::Aborted))
            }
            (None, Ok(())) => None,
        }
    }

    fn progress(&mut self, period: Duration) -> Result<(), NotifyError> {
        let queue = self.queue_pair.send_cq();
        while let Some(done) = queue.poll().map_err(QueueError::from)? {
            match done.wr_id {
                PROBE => self.probe_under_way = false,
                _ => self.under_way -= 1,
            }
        }
        if self.queue_pair.failure().is_some() {
            return Ok(());
        }
        while self.under_way < SLOTS
            && let Some(message) = self.waiting.pop_front()
        {
            let bytes = message.encode();
            let start = self.next_slot * self.slot_bytes;
            self.memory.write(start, &bytes);
            let slices = [self.memory.slice(start..start + bytes.len())?];
            self.queue_pair.post_send(WorkRequest::send(&slices).wr_id(self.next_slot as u64))?;
            self.next_slot = (self.next_slot + 1) % SLOTS;
            self.under_way += 1;
        }
        if !self.probe_under_way && self.under_way == 0 && self.last_probe.elapsed() >= period {
            let nothing = RemoteMemory { addr: 0, len: 0, rkey: 0 };
            self.queue_pair.post_send(WorkRequest::write_inline(&[], nothing).wr_id(PROBE))?;
            (self.probe_under_way, self.last_probe) = (true, Instant::now());
        }
        Ok(())
    }

    fn take_arrived(&self, arrived: &mut Vec<Message>) {
        loop {
            let one = match self.queue_pair.recv_cq().poll() {
                Ok(Some(one)) => one,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, rank = self.rank, "a control message was lost");
                    return;
                }
            };
            // A flushed receive: the connection has failed.
            if one.status.is_err() {
                continue;
            }
            let slot = one.wr_id as usize;
            let mut bytes = vec![0; (one.byte_len as usize).min(self.slot_bytes)];
            self.memory.read((SLOTS + slot) * self.slot_bytes, &mut bytes);
            match Message::decode(&bytes, self.size) {
                Some(message) => arrived.push(message),
                None => tracing::error!(rank = self.rank, "a control message makes no sense"),
            }
            if let Err(error) = self.receive(slot) {
                tracing::debug!(%error, rank = self.rank, "no control message is received any more");
            }
        }
    }

    /// Cuts the connection, and takes what had arrived before: nothing arrives any more.
    pub(super) fn cut(&mut self, arrived: &mut Vec<Message>) {
        if self.is_cut {
            return;
        }
        if let Err(error) = self.queue_pair.abort() {
            tracing::error!(%error, rank = self.rank, "the control connection with a dead rank could not be ended");
        }
        self.take_arrived(arrived);
        self.is_cut = true;
        self.waiting.clear();
    }
}
