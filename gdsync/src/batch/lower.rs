//! From descriptors to memory operations, including timeline points and flushes.
//!
//! The lowering is generic over its [`Driver`]: a stream posts with it, `gdsync explain` prints its operations, and
//! the proof of the merges runs it.

use crate::batch::shape::Descriptor;
use crate::batch::{Chunk, Fate, LastPoint, Word, Words};
use crate::memop::{Condition, MemOp, MemOpCaps, StreamError};
use crate::memory::{HostAddr, StreamAddr, TimelinePoint};
use crate::queue::{Doorbell, PeerOp, Release};
use gdsync_sys::prm::wait;

/// The stream's part of the lowering.
pub(crate) trait Driver: Sized {
    type Send;
    type Wait;
    type ProgramWord;
    type Bytes;
    type Receives;
    type Ticket;
    /// Why a descriptor cannot be lowered.
    type Error: From<StreamError>;

    /// Translates an address of the library's own memory: rings, records, registers, timelines.
    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError>;

    /// Returns the stream's address of `len` bytes of the program's memory.
    fn address(&self, word: &Self::ProgramWord, len: usize) -> Result<StreamAddr, StreamError>;

    /// Returns the stream's address of a write of bytes, and its words. Only for drivers whose batches have such
    /// writes.
    fn words<'b>(&self, _bytes: &'b Self::Bytes) -> Result<(StreamAddr, Words<'b>), Self::Error> {
        Err(StreamError::Unsupported { what: "writes of bytes" }.into())
    }

    /// Marks a send as posted. Returns what hands it to the card; `None` if the card has it already.
    fn commit_send(&self, send: &mut Self::Send) -> Result<Option<Release>, Self::Error>;

    /// Returns the stream's address of the trigger that releases a send. Only for drivers with triggers.
    fn trigger(&self, _send: &Self::Send) -> Result<StreamAddr, StreamError> {
        Err(StreamError::Unsupported { what: "triggers" })
    }

    /// Marks a wait as posted. Returns the waiting operation; `None` if the completion has arrived. A covered or
    /// collected wait gets no operation.
    fn commit_wait(&self, wait: &mut Self::Wait, fate: Fate, point: TimelinePoint) -> Option<PeerOp>;

    /// Makes a collector wait for the entries of waits with [`Fate::Collected`] since the last call. Returns the
    /// stream's address of its word, and the number to wait for. Only for drivers with collectors.
    fn collect(&self) -> Result<(StreamAddr, u64), Self::Error> {
        Err(StreamError::Unsupported { what: "collectors" }.into())
    }

    /// Marks receives as posted. Returns the operation that announces them. Only for drivers with receives.
    fn commit_receives(&self, _receives: &mut Self::Receives) -> Result<PeerOp, Self::Error> {
        Err(StreamError::Unsupported { what: "receives" }.into())
    }

    /// Marks a ticket as posted. Returns the stream's address of its trigger, and the number to write. Only for
    /// drivers with tickets.
    fn commit_ticket(&self, _ticket: &mut Self::Ticket) -> Result<(StreamAddr, u64), Self::Error> {
        Err(StreamError::Unsupported { what: "tickets" }.into())
    }

    /// Marks the receives that a send also announces as posted. Returns the operation that announces them.
    fn commit_announced(&self, _send: &mut Self::Send) -> Result<Option<PeerOp>, Self::Error> {
        Ok(None)
    }

    /// Appends the operations that ring the card for a send and announce receives.
    fn ring(
        lowering: &mut Lowering<'_, Self>,
        _send: &Self::Send,
        doorbell: Doorbell,
        receives: Option<PeerOp>,
    ) -> Result<(), StreamError> {
        lowering.doorbell(doorbell, receives)
    }
}

type Lowered<D> = Descriptor<
    <D as Driver>::Send,
    <D as Driver>::Wait,
    <D as Driver>::ProgramWord,
    <D as Driver>::Bytes,
    <D as Driver>::Receives,
    <D as Driver>::Ticket,
>;

/// The timeline points of a submission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Points {
    /// The last point of the previous submission.
    pub(crate) before: TimelinePoint,
    /// The last point of this one.
    pub(crate) end: TimelinePoint,
    /// True if none of its operations writes the last point.
    pub(crate) open: bool,
    /// The point after its sends.
    pub(crate) sends: TimelinePoint,
    /// True if it writes points itself.
    pub(crate) has_own: bool,
}

impl Points {
    /// Returns the points of a submission as planned, after `before`.
    #[inline]
    pub(crate) fn planned(before: TimelinePoint, plan: &Chunk) -> Self {
        let last = before.after(plan.points);
        // Operations after the last written point need another.
        let (end, sends) = match plan.last_point {
            LastPoint::AtEnd => (last, last),
            LastPoint::BeforeWrite => (last.next(), last),
            LastPoint::Earlier => (last.next(), last.next()),
        };
        Points { before, end, open: end != last, sends, has_own: plan.points > 0 }
    }

    /// Returns the point of a submission without waits for completions.
    pub(crate) fn next(before: TimelinePoint) -> Self {
        let end = before.next();
        Points { before, end, open: true, sends: end, has_own: false }
    }
}

/// Lowers the descriptors of one submission in order.
pub(crate) struct Lowering<'a, D> {
    pub(crate) driver: D,
    caps: &'a MemOpCaps,
    /// Address of the timeline's word.
    timeline: HostAddr,
    /// The operations so far.
    pub(crate) ops: &'a mut Vec<MemOp>,
    merged: bool,
    pub(crate) point: TimelinePoint,
    /// True if the last descriptor was a wait for a completion (merged batches only).
    in_run: bool,
    /// True if a collector waits for some of the run.
    collected: bool,
    /// True if the last point is not written yet (merged batches only).
    unwritten: bool,
}

impl<'a, D: Driver> Lowering<'a, D> {
    /// Makes a lowering that appends to `ops`; `before` is the last point of the previous submission.
    #[inline]
    pub(crate) fn new(
        driver: D,
        caps: &'a MemOpCaps,
        timeline: HostAddr,
        merged: bool,
        before: TimelinePoint,
        ops: &'a mut Vec<MemOp>,
    ) -> Self {
        Lowering {
            driver,
            caps,
            timeline,
            ops,
            merged,
            point: before,
            in_run: false,
            collected: false,
            unwritten: false,
        }
    }

    #[inline]
    pub(crate) fn lower(&mut self, descriptor: &mut Lowered<D>, fate: Fate) -> Result<(), D::Error> {
        match descriptor {
            Descriptor::Send(send) => return self.send(send, fate),
            Descriptor::WaitCq(wait) => self.wait(wait, fate)?,
            Descriptor::Receives(receives) => {
                self.end_run()?;
                let record = self.driver.commit_receives(receives)?;
                self.announce(Some(record))?;
            }
            Descriptor::Ticket(ticket) => {
                self.end_run()?;
                let (addr, number) = self.driver.commit_ticket(ticket)?;
                self.release(addr, number)?;
            }
            Descriptor::Wait32(word, condition, value) => {
                self.catch_up()?;
                let addr = self.driver.address(word, 4)?;
                self.wait32(addr, *condition, *value)?;
                self.flush();
            }
            Descriptor::Wait64(word, condition, value) => {
                self.catch_up()?;
                let (addr, condition, value) = (self.driver.address(word, 8)?, *condition, *value);
                self.check_condition(condition)?;
                need(self.caps.ops_64_bit, "64-bit memory operations")?;
                self.ops.push(MemOp::Wait64 { addr, condition, value });
                self.flush();
            }
            Descriptor::Write32(word, value) => {
                self.end_run()?;
                let addr = self.driver.address(word, 4)?;
                self.write32(addr, *value);
            }
            Descriptor::Write64(word, value) => {
                self.end_run()?;
                let addr = self.driver.address(word, 8)?;
                self.write64(addr, *value)?;
            }
            Descriptor::Bytes(bytes) => {
                self.end_run()?;
                let (mut addr, words) = self.driver.words(bytes)?;
                for word in words {
                    match word {
                        Word::Short(value) => self.write32(addr, value),
                        Word::Long(value) => self.write64(addr, value)?,
                    }
                    addr = StreamAddr::new(addr.get() + word.len() as u64);
                }
            }
            Descriptor::Barrier => {
                self.end_run()?;
                self.ops.push(MemOp::Barrier);
            }
            Descriptor::Flush => {
                self.end_run()?;
                need(self.caps.flush_remote, "flushing what cards wrote")?;
                self.ops.push(MemOp::FlushRemote);
            }
        }
        Ok(())
    }

    /// Marks a send as posted, and rings for it unless a later one does.
    #[inline]
    pub(crate) fn send(&mut self, send: &mut D::Send, fate: Fate) -> Result<(), D::Error> {
        self.end_run()?;
        let release = self.driver.commit_send(send)?;
        let receives = self.driver.commit_announced(send)?;
        match release {
            Some(Release::Ring(doorbell)) if fate == Fate::Kept => {
                return Ok(D::ring(self, send, doorbell, receives)?);
            }
            Some(Release::Ticket(ticket)) if fate == Fate::Kept => {
                let addr = self.driver.trigger(send)?;
                self.release(addr, ticket)?;
            }
            _ => {}
        }
        Ok(self.announce(receives)?)
    }

    /// Appends the announcement of receives, after all earlier reads of their buffers.
    pub(crate) fn announce(&mut self, receives: Option<PeerOp>) -> Result<(), StreamError> {
        let Some(record) = receives else { return Ok(()) };
        self.peer_op(PeerOp::Fence)?;
        self.peer_op(record)
    }

    /// Appends the write of a ticket, after everything before it.
    fn release(&mut self, addr: StreamAddr, ticket: u64) -> Result<(), StreamError> {
        self.peer_op(PeerOp::Fence)?;
        self.write64(addr, wait::word(ticket))
    }

    #[inline]
    fn wait(&mut self, wait: &mut D::Wait, fate: Fate) -> Result<(), D::Error> {
        if !self.in_run {
            // A wait may depend on the CPU's reaction to an earlier point.
            self.catch_up()?;
            self.point = self.point.next();
            self.in_run = self.merged;
            self.unwritten = self.merged;
        }
        match self.driver.commit_wait(wait, fate, self.point) {
            _ if fate == Fate::Covered => {}
            _ if fate == Fate::Collected => self.collected = true,
            Some(op) if self.merged => self.peer_op(op)?,
            Some(op) => {
                self.peer_op(op)?;
                self.flush();
                self.write_point(self.point)?;
            }
            None if self.merged => {}
            None => self.progress(self.point)?,
        }
        Ok(())
    }

    /// Ends a run of waits before any other descriptor.
    #[inline]
    fn end_run(&mut self) -> Result<(), D::Error> {
        if self.in_run {
            self.in_run = false;
            if std::mem::take(&mut self.collected) {
                let (addr, value) = self.driver.collect()?;
                self.ops.push(MemOp::Wait64 { addr, condition: Condition::Geq, value });
            }
            self.flush();
        }
        Ok(())
    }

    /// Prepares for the last descriptor of a submission. The program may ask whether the stream is idle as soon as
    /// it sees its last write, so no operation follows that, and the point is before it.
    #[inline]
    pub(crate) fn before_last(&mut self, descriptor: &Lowered<D>) -> Result<(), D::Error> {
        if descriptor.is_write() { self.catch_up() } else { Ok(()) }
    }

    /// Writes the last point, unless it is written: before a wait for a word, before a last write, and at the end.
    #[inline]
    pub(crate) fn catch_up(&mut self) -> Result<(), D::Error> {
        self.end_run()?;
        if std::mem::take(&mut self.unwritten) { Ok(self.progress(self.point)?) } else { Ok(()) }
    }

    pub(crate) fn progress(&mut self, point: TimelinePoint) -> Result<(), StreamError> {
        self.peer_op(PeerOp::Fence)?;
        self.write_point(point)
    }

    #[inline]
    fn write_point(&mut self, point: TimelinePoint) -> Result<(), StreamError> {
        let addr = self.driver.translate(self.timeline, 4)?;
        self.write32(addr, point.get());
        Ok(())
    }

    /// Appends a doorbell's operations, with receives announced before or together with the send.
    #[inline(always)]
    pub(crate) fn doorbell(
        &mut self,
        doorbell: Doorbell,
        receives: Option<PeerOp>,
    ) -> Result<(), StreamError> {
        let [before, mut record, between, register] = doorbell.peer_ops();
        match receives.map(|receives| doorbell.record_with(receives)) {
            Some(Some(both)) => record = both,
            Some(None) => self.announce(receives)?,
            None => {}
        }
        self.peer_op(before)?;
        self.peer_op(record)?;
        self.peer_op(between)?;
        self.peer_op(register)
    }

    #[inline(always)]
    fn peer_op(&mut self, op: PeerOp) -> Result<(), StreamError> {
        match op {
            // A write with its own system fence needs none before it.
            PeerOp::Fence if self.caps.writes_are_fenced => Ok(()),
            PeerOp::Fence => {
                self.ops.push(MemOp::Barrier);
                Ok(())
            }
            PeerOp::StoreDword { addr, value } => {
                let addr = self.driver.translate(addr, 4)?;
                self.write32(addr, value);
                Ok(())
            }
            // Never two 32-bit stores: the card takes the doorbell when it sees the first.
            PeerOp::StoreQword { addr, value } => {
                let addr = self.driver.translate(addr, 8)?;
                self.write64(addr, value)
            }
            PeerOp::PollAnd { addr, value } => {
                let addr = self.driver.translate(addr, 4)?;
                self.wait32(addr, Condition::And, value)
            }
            PeerOp::PollNor { addr, value } => {
                let addr = self.driver.translate(addr, 4)?;
                self.wait32(addr, Condition::Nor, value)
            }
        }
    }

    /// Flushes after a wait: the stream may see a word that a card has written before the card's earlier data.
    fn flush(&mut self) {
        if self.caps.flush_after_wait {
            self.ops.push(MemOp::FlushRemote);
        }
    }

    #[inline]
    fn write32(&mut self, addr: StreamAddr, value: u32) {
        self.ops.push(MemOp::Write32 { addr, value });
    }

    #[inline]
    fn write64(&mut self, addr: StreamAddr, value: u64) -> Result<(), StreamError> {
        need(self.caps.ops_64_bit, "64-bit memory operations")?;
        self.ops.push(MemOp::Write64 { addr, value });
        Ok(())
    }

    fn wait32(&mut self, addr: StreamAddr, condition: Condition, value: u32) -> Result<(), StreamError> {
        self.check_condition(condition)?;
        self.ops.push(MemOp::Wait32 { addr, condition, value });
        Ok(())
    }

    fn check_condition(&self, condition: Condition) -> Result<(), StreamError> {
        need(condition != Condition::Nor || self.caps.wait_nor, "waiting for NOR")
    }
}

#[inline]
fn need(has: bool, what: &'static str) -> Result<(), StreamError> {
    if has { Ok(()) } else { Err(StreamError::Unsupported { what }) }
}

#[cfg(test)]
mod tests;
