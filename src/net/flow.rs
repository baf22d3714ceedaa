//! Messages of all queue pairs, as many under way as the window allows.
//!
//! Streams post them, a batch at a time, of which the last completes. The CPU takes completions, and posts the receives of
//! the other side's messages anew. A side that neither begins messages nor has receives sleeps until the other has finished.

use super::lanes::{Direction, Lane, Moved, Phase};
use super::side::Net;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::Progress;
use crate::sides::{Channel, Message};
use gdsync::{Batch, PreparedSend};
use std::time::{Duration, Instant};

impl Net {
    /// Moves the messages of a phase: until this side's have completed, and the other's have arrived.
    pub(super) fn exchange(&mut self, channel: &mut Channel, phase: Phase) -> Result<Moved, Failure> {
        let (lanes, total) = (self.options.qps, phase.total);
        for (lane, number) in self.lanes.iter_mut().zip(0..) {
            lane.begin(total / lanes + u64::from(number < total % lanes));
        }
        let received: Vec<u64> = self.lanes.iter().map(|lane| lane.received).collect();
        let hidden = self.options.sides.json || self.side.rank > 0 || phase.duration.is_some();
        let mut progress = Progress::new(hidden, total, "messages");
        let start = Instant::now();
        let (mut own, mut other) = (None, None);
        if !self.sends() {
            own = Some(Direction::default());
        }
        if !self.awaits() {
            other = Some(Direction::default());
        }
        loop {
            let mut has_moved = false;
            if own.is_none() {
                self.end_early(channel, phase, start)?;
                has_moved |= self.post_some()?;
                let done = self.collect()?;
                progress.advance(done);
                has_moved |= done > 0;
                if self.lanes.iter().all(Lane::is_done) {
                    own = Some(self.report_sent(channel, start)?);
                }
            }
            if self.receives() {
                has_moved |= self.receive_some()?;
            }
            if other.is_none() {
                // Where there is nothing else to do, the CPU sleeps.
                let is_idle = own.is_some() && !self.receives();
                let message = if is_idle { channel.next(None).map(Some) } else { channel.receive_now() }?;
                other = message.map(|message| self.sent(message)).transpose()?.flatten();
            }
            self.side.results.error.check()?;
            if let (Some(own), Some(other)) = (&own, &other)
                && self.have_arrived(&received, &other.counts)
            {
                return Ok(Moved { own: own.clone(), other: other.clone() });
            }
            if !has_moved {
                std::thread::yield_now();
            }
        }
    }

    /// Ends the phase where its time is up, or where the user, or the other side for the user, wants it to end.
    fn end_early(&mut self, channel: &mut Channel, phase: Phase, start: Instant) -> Result<(), Failure> {
        let is_interrupted = self.side.rank == 0 && interrupt::requested();
        if is_interrupted && self.awaits() && !self.has_asked {
            // The other side begins messages, too.
            self.has_asked = true;
            channel.send(&Message::Stop { next: 0 })?;
        }
        let is_over = phase.duration.is_some_and(|duration| start.elapsed() >= duration);
        if is_interrupted || is_over || channel.limit().end() == 0 {
            self.lanes.iter_mut().for_each(|lane| lane.end(phase.least));
        }
        Ok(())
    }

    /// Posts a batch on each queue pair that has room for one.
    fn post_some(&mut self) -> Result<bool, Failure> {
        let (window, batch) = (self.options.window(), self.options.batch());
        let mut has_moved = false;
        for index in 0..self.lanes.len() {
            let count = self.lanes[index].room(window, batch);
            if count == 0 {
                continue;
            }
            let mut sends = Batch::new();
            for ahead in 0..count {
                sends = sends.send(self.prepare(index, ahead, ahead + 1 == count)?);
            }
            self.side.post(sends)?;
            self.lanes[index].note_posted(count);
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Prepares a message, the next but `ahead` of a queue pair. Where there is no room, takes what completes and arrives
    /// meanwhile.
    pub(super) fn prepare(
        &mut self,
        index: usize,
        ahead: u64,
        completes: bool,
    ) -> Result<PreparedSend, Failure> {
        loop {
            let request = self.lanes[index].request(ahead);
            let request = if completes { request } else { request.unsignaled() };
            if let Some(send) = self.side.connection.prepare(index, request)? {
                return Ok(send);
            }
            self.collect()?;
            if self.receives() {
                self.receive_some()?;
            }
            self.side.results.error.check()?;
        }
    }

    /// Takes completions of this side's messages: of how many.
    pub(super) fn collect(&mut self) -> Result<u64, Failure> {
        let mut count = 0;
        for (lane, queue_pair) in self.lanes.iter_mut().zip(&self.side.connection.queue_pairs) {
            if lane.pending.is_empty() {
                continue;
            }
            let queue = queue_pair.send_cq();
            while self.side.connection.take(&queue)?.is_some() {
                self.side.results.error.check()?;
                let before = lane.done;
                lane.note_done();
                count += lane.done - before;
            }
        }
        Ok(count)
    }

    /// Says what this side has sent, since the phase began.
    pub(super) fn report_sent(&self, channel: &mut Channel, start: Instant) -> Result<Direction, Failure> {
        let took = start.elapsed();
        let counts: Vec<u64> = self.lanes.iter().map(|lane| lane.phase.end - lane.phase.start).collect();
        let ns = u64::try_from(took.as_nanos())?;
        channel.send(&Message::Sent { counts: counts.clone(), ns })?;
        Ok(Direction { counts, took })
    }

    /// What the other side has sent, if the message says it.
    fn sent(&self, message: Message) -> Result<Option<Direction>, Failure> {
        match message {
            Message::Sent { counts, ns } if counts.len() == self.lanes.len() => {
                Ok(Some(Direction { counts, took: Duration::from_nanos(ns) }))
            }
            Message::Until { .. } => Ok(None),
            other => {
                Err(format!("the other side says something else than what it has sent: {other:?}").into())
            }
        }
    }

    /// Takes messages of the other side, and posts their receives anew: a batch of each queue pair at most, so that this
    /// side's own go on meanwhile.
    fn receive_some(&mut self) -> Result<bool, Failure> {
        let (size, batch) = (self.places.size, self.options.batch());
        let mut has_moved = false;
        for (lane, queue_pair) in self.lanes.iter_mut().zip(&self.side.connection.queue_pairs) {
            let queue = queue_pair.recv_cq();
            for _ in 0..batch {
                let Some(completion) = self.side.connection.take(&queue)? else { break };
                self.side.results.error.check()?;
                if u64::from(completion.byte_len) != size {
                    return Err(format!(
                        "a message of {} bytes has come, not of {size}",
                        completion.byte_len
                    )
                    .into());
                }
                lane.received += 1;
                queue_pair.post_recv(lane.next_landing(), 0)?;
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    /// Posts the first receives of each queue pair.
    pub(super) fn post_receives(&mut self, count: u64) -> Result<(), Failure> {
        for (lane, queue_pair) in self.lanes.iter_mut().zip(&self.side.connection.queue_pairs) {
            (0..count).try_for_each(|_| queue_pair.post_recv(lane.next_landing(), 0))?;
        }
        Ok(())
    }

    /// Whether everything that the other side has sent is here. What takes no receive is, when it has completed there.
    fn have_arrived(&mut self, before: &[u64], sent: &[u64]) -> bool {
        let is_counted = self.receives();
        let mut all = self.lanes.iter_mut().zip(before.iter().zip(sent));
        all.all(|(lane, (before, sent))| {
            if !is_counted {
                lane.received = before + sent;
            }
            lane.received == before + sent
        })
    }
}
