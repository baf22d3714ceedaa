//! The measured traffic: each queue pair keeps a window of messages under way.
//!
//! Streams post the messages in batches; the last message of a batch is signaled. The CPU polls completions and reposts
//! the receives of the other side's messages. A side that neither sends nor posts receives sleeps until the other has
//! finished.

use super::lanes::{Direction, Lane, Moved, Phase};
use super::side::Net;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::Progress;
use crate::sides::{Channel, Message};
use gdsync::{Batch, PreparedSend};
use std::time::{Duration, Instant};

impl Net {
    /// Performs a phase: until this side's messages have completed and the other side's have arrived.
    pub(super) fn exchange(&mut self, channel: &mut Channel, phase: Phase) -> Result<Moved, Failure> {
        let (lanes, total) = (self.options.qps, phase.total);
        for (lane, number) in self.lanes.iter_mut().zip(0..) {
            lane.begin(total / lanes + u64::from(number < total % lanes));
        }
        let received: Vec<u64> = self.lanes.iter().map(|lane| lane.received).collect();
        let hidden = self.side.hides_progress(phase.duration);
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
                    own = Some(self.report_sent(channel, start, 0)?);
                }
            }
            if self.receives() {
                has_moved |= self.receive_some()?;
            }
            if other.is_none() {
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

    /// Ends the phase if its time is up, or if the user or the other side has asked for its end.
    fn end_early(&mut self, channel: &mut Channel, phase: Phase, start: Instant) -> Result<(), Failure> {
        let is_interrupted = self.side.rank == 0 && interrupt::requested();
        if is_interrupted && self.awaits() && !self.has_asked {
            self.has_asked = true;
            channel.send(&Message::Stop { next: 0 })?;
        }
        let is_over = phase.duration.is_some_and(|duration| start.elapsed() >= duration);
        if is_interrupted || is_over || channel.run_length().end() == 0 {
            self.lanes.iter_mut().for_each(|lane| lane.end(phase.least));
        }
        Ok(())
    }

    /// Posts a batch on each queue pair that has room for one. Returns whether any was posted.
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

    /// Prepares message `ahead` after the next of a queue pair. While there is no room, polls completions and arrivals.
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

    /// Polls the completions of this side's messages. Returns how many messages have completed.
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

    /// Reports what this side has sent since the phase began, and how much of that was its warm-up.
    pub(super) fn report_sent(
        &self,
        channel: &mut Channel,
        start: Instant,
        warm_up: u64,
    ) -> Result<Direction, Failure> {
        let took = start.elapsed();
        let counts: Vec<u64> = self.lanes.iter().map(|lane| lane.phase.end - lane.phase.start).collect();
        let ns = u64::try_from(took.as_nanos())?;
        channel.send(&Message::Sent { counts: counts.clone(), warm_up, ns })?;
        Ok(Direction { counts, warm_up, took })
    }

    /// Returns what the other side has sent, if the message reports it.
    fn sent(&self, message: Message) -> Result<Option<Direction>, Failure> {
        match message {
            Message::Sent { counts, warm_up, ns } if counts.len() == self.lanes.len() => {
                Ok(Some(Direction { counts, warm_up, took: Duration::from_nanos(ns) }))
            }
            Message::Until { .. } => Ok(None),
            other => {
                Err(format!("the other side says something else than what it has sent: {other:?}").into())
            }
        }
    }

    /// Takes messages of the other side and reposts their receives: at most a batch for each queue pair, so that this
    /// side's own messages proceed meanwhile.
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

    pub(super) fn post_receives(&mut self, count: u64) -> Result<(), Failure> {
        for (lane, queue_pair) in self.lanes.iter_mut().zip(&self.side.connection.queue_pairs) {
            (0..count).try_for_each(|_| queue_pair.post_recv(lane.next_landing(), 0))?;
        }
        Ok(())
    }

    /// Returns whether everything that the other side has sent is here. Messages without receives are here once they
    /// have completed at the sender.
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
