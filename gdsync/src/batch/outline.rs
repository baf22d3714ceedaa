//! Batches on paper: the batch compiler's output for descriptors without queues or streams.
//!
//! Queue pairs, completion queues and words are numbers here, and addresses encode their targets ([`Target::of`]).
//! The planner and the lowering are those of [`crate::Stream::post`]. `gdsync explain` prints the program; benches
//! and the proof of the merges use it, too.

use crate::batch::{Collecting, Driver, Fate, Keyed, Lowering, Planner, Points, SendKey, WaitKey, shape};
use crate::memop::{MemOp, MemOpCaps, StreamError};
use crate::memory::{HostAddr, StreamAddr, TimelinePoint};
use crate::queue::{Doorbell, PeerOp, Release, Status};
use gdsync_sys::prm::cqe::OWNER_MASK_DWORD;
use gdsync_sys::prm::doorbell;
use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::Range;

/// Largest number of a queue pair, a completion queue or a word.
pub const MAX_NUMBER: u32 = (1 << NUMBER_BITS) - 1;

const NUMBER_BITS: u32 = 20;
const NUMBER_AT: u32 = 40;
const KIND_AT: u32 = 60;
/// Bytes of a completion entry, and the offset of the dword that a stream reads.
const ENTRY: u64 = 64;
const ENTRY_DWORD: u64 = 60;

/// A descriptor on paper; words are numbers. Numbers have 20 bits; higher ones are cut.
pub type Descriptor = shape::Descriptor<PaperSend, PaperWait, u32, Infallible>;

/// A send on paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperSend {
    /// The queue pair.
    pub queue_pair: u32,
    /// Index of the send in the queue pair's order, from 0 on.
    pub index: u32,
    /// The trigger that releases it, and its ticket, from 1 on; none for a doorbell.
    pub trigger: Option<(u32, u64)>,
}

/// A wait for a completion on paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperWait {
    /// The completion queue.
    pub queue: u32,
    /// Index of the completion in the queue's order, from 0 on.
    pub index: u32,
    /// True if it is for its own status word, not for the queue's entry.
    pub checked: bool,
}

/// The target of an address on paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    Record(u32),
    Register(u32),
    /// The entry of a completion: completion queue and index.
    Entry(u32, u32),
    /// The status word of a completion: completion queue and index.
    Status(u32, u32),
    Word(u32),
    Trigger(u32),
    Arrival,
    Progress,
}

impl Target {
    /// Returns the target of an operation of a [`Program`]; `None` for barriers and flushes.
    pub fn of(op: &MemOp) -> Option<Target> {
        let (MemOp::Write32 { addr, .. }
        | MemOp::Write64 { addr, .. }
        | MemOp::Wait32 { addr, .. }
        | MemOp::Wait64 { addr, .. }) = *op
        else {
            return None;
        };
        let number = (addr.get() >> NUMBER_AT) as u32 & MAX_NUMBER;
        let index = (addr.get() / ENTRY) as u32;
        Some(match addr.get() >> KIND_AT {
            0 => Target::Progress,
            1 => Target::Record(number),
            2 => Target::Register(number),
            3 => Target::Entry(number, index),
            4 => Target::Status(number, index),
            5 => Target::Word(number),
            6 => Target::Trigger(number),
            _ => Target::Arrival,
        })
    }

    fn addr(self) -> HostAddr {
        let place = |kind: u64, number: u32, offset: u64| {
            HostAddr(kind << KIND_AT | u64::from(number & MAX_NUMBER) << NUMBER_AT | offset)
        };
        match self {
            Target::Progress => place(0, 0, ENTRY),
            Target::Record(number) => place(1, number, 0),
            Target::Register(number) => place(2, number, 0),
            Target::Entry(number, index) => place(3, number, u64::from(index) * ENTRY + ENTRY_DWORD),
            Target::Status(number, index) => place(4, number, u64::from(index) * ENTRY),
            Target::Word(number) => place(5, number, 0),
            Target::Trigger(number) => place(6, number, 0),
            Target::Arrival => place(7, 0, 0),
        }
    }
}

impl PaperSend {
    fn release(self) -> Release {
        match self.trigger {
            None => Release::Ring(self.doorbell()),
            Some((_, ticket)) => Release::Ticket(ticket),
        }
    }

    /// Returns the doorbell of a send of one block: the record as the card reads it, and in the register, instead
    /// of the work request's first 8 bytes, the index and the queue pair.
    fn doorbell(self) -> Doorbell {
        Doorbell {
            record_at: Target::Record(self.queue_pair).addr(),
            record: doorbell::record(self.index.wrapping_add(1)),
            register: Target::Register(self.queue_pair).addr(),
            value: u64::from(self.index) << 32 | u64::from(self.queue_pair),
        }
    }
}

impl PaperWait {
    fn poll(self) -> PeerOp {
        if self.checked {
            let addr = Target::Status(self.queue, self.index).addr();
            return PeerOp::PollAnd { addr, value: Status::OK | Status::FAILED };
        }
        // In the first lap of a queue of 2^32 entries, the owner bit becomes 0.
        PeerOp::PollNor { addr: Target::Entry(self.queue, self.index).addr(), value: !OWNER_MASK_DWORD }
    }
}

impl Keyed<SendKey> for PaperSend {
    fn key(&self, _caps: &MemOpCaps) -> SendKey {
        match self.trigger {
            None => SendKey::Doorbell(Target::Record(self.queue_pair).addr().get()),
            Some((trigger, _)) => SendKey::Trigger(Target::Trigger(trigger).addr().get()),
        }
    }
}

impl Keyed<Option<WaitKey>> for PaperWait {
    fn key(&self, _caps: &MemOpCaps) -> Option<WaitKey> {
        let queue = Target::Entry(self.queue, 0).addr().get();
        (!self.checked).then_some(WaitKey { queue, index: self.index, device: 0 })
    }
}

impl Keyed<Option<usize>> for Infallible {
    fn key(&self, _caps: &MemOpCaps) -> Option<usize> {
        match *self {}
    }
}

impl Descriptor {
    /// Returns the names of the operations that the card's protocol needs for it; none for words, barriers and flushes.
    pub fn peer_operations(&self) -> Vec<&'static str> {
        let ops = match self {
            Descriptor::Send(PaperSend { trigger: Some(_), .. }) => return vec!["Fence", "StoreQword"],
            Descriptor::Send(send) => send.doorbell().peer_ops().to_vec(),
            Descriptor::WaitCq(wait) => vec![wait.poll()],
            _ => Vec::new(),
        };
        let name = |op| match op {
            PeerOp::Fence => "Fence",
            PeerOp::StoreDword { .. } => "StoreDword",
            PeerOp::StoreQword { .. } => "StoreQword",
            PeerOp::PollAnd { .. } => "PollAnd",
            PeerOp::PollNor { .. } => "PollNor",
        };
        ops.into_iter().map(name).collect()
    }
}

#[derive(Debug, Default)]
struct PaperCollector {
    newest: u64,
    run: Vec<PaperWait>,
    /// See [`Program::collected`].
    collected: Vec<(u64, Vec<PaperWait>)>,
}

struct Paper<'a>(&'a RefCell<PaperCollector>);

impl Driver for Paper<'_> {
    type Send = PaperSend;
    type Wait = PaperWait;
    type ProgramWord = u32;
    type Bytes = Infallible;
    type Receives = Infallible;
    type Ticket = Infallible;
    type Error = StreamError;

    fn translate(&self, addr: HostAddr, _len: usize) -> Result<StreamAddr, StreamError> {
        Ok(StreamAddr::new(addr.get()))
    }

    fn address(&self, word: &u32, len: usize) -> Result<StreamAddr, StreamError> {
        self.translate(Target::Word(*word).addr(), len)
    }

    fn commit_send(&self, send: &mut PaperSend) -> Result<Option<Release>, StreamError> {
        Ok(Some(send.release()))
    }

    fn trigger(&self, send: &PaperSend) -> Result<StreamAddr, StreamError> {
        let trigger = send.trigger.map_or(0, |(trigger, _)| trigger);
        self.translate(Target::Trigger(trigger).addr(), size_of::<u64>())
    }

    fn commit_wait(&self, wait: &mut PaperWait, fate: Fate, _point: TimelinePoint) -> Option<PeerOp> {
        if fate == Fate::Collected {
            self.0.borrow_mut().run.push(*wait);
        }
        Some(wait.poll())
    }

    fn collect(&self) -> Result<(StreamAddr, u64), StreamError> {
        let PaperCollector { newest, run, collected } = &mut *self.0.borrow_mut();
        *newest += 1;
        collected.push((*newest, std::mem::take(run)));
        Ok((self.translate(Target::Arrival.addr(), size_of::<u64>())?, *newest))
    }
}

/// The program that a batch on paper compiles to. It reuses its memory.
#[derive(Debug, Default)]
pub struct Program {
    planner: Planner,
    operations: Vec<MemOp>,
    /// The index of each operation's descriptor.
    descriptors: Vec<u32>,
    covered: Vec<bool>,
    arrivals: Vec<Option<u64>>,
    collector: RefCell<PaperCollector>,
    /// The end of each submission, in operations.
    ends: Vec<usize>,
    point: TimelinePoint,
    /// True if nothing has written `point`.
    is_open: bool,
}

impl Program {
    /// Makes an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a collector wait for runs of waits for at least `queues` completion queues.
    #[must_use]
    pub fn collect_from(mut self, queues: u32) -> Self {
        self.planner.collecting = Some(Collecting { device: 0, from: queues });
        self
    }

    /// Compiles a batch for a backend, and replaces the previous program. A submission without waits for
    /// completions always writes the point of the previous one, unless it is written, as every 64th one of a stream
    /// does. Points continue from one batch to the next.
    ///
    /// # Errors
    /// [`StreamError::Unsupported`] if the backend lacks an operation.
    pub fn compile(
        &mut self,
        batch: &[Descriptor],
        caps: &MemOpCaps,
        merged: bool,
    ) -> Result<(), StreamError> {
        self.operations.clear();
        self.descriptors.clear();
        self.covered.clear();
        self.arrivals.clear();
        self.ends.clear();
        let collector = self.collector.get_mut();
        collector.run.clear();
        collector.collected.clear();
        let mut first = 0;
        while first < batch.len() {
            let rest = &batch[first..];
            let plan = self.planner.plan(rest, caps, merged);
            let points = Points::planned(self.point, &plan);
            let (timeline, ops) = (Target::Progress.addr(), &mut self.operations);
            let paper = Paper(&self.collector);
            let mut lowering = Lowering::new(paper, caps, timeline, merged, points.before, ops);
            if points.open && !points.has_own && self.is_open {
                lowering.progress(points.before)?;
                self.descriptors.resize(lowering.ops.len(), first as u32);
            }
            for (i, (descriptor, fate)) in (first..).zip(rest.iter().zip(&self.planner.fates)) {
                let at = self.descriptors.len();
                if i + 1 == first + plan.count {
                    lowering.before_last(descriptor)?;
                }
                lowering.lower(&mut { *descriptor }, *fate)?;
                self.descriptors.resize(lowering.ops.len(), i as u32);
                // The descriptor after a run makes the stream wait for the collector; the operation counts as the
                // run's last wait's.
                if lowering.ops.get(at).and_then(Target::of) == Some(Target::Arrival) {
                    self.descriptors[at] = (i as u32).saturating_sub(1);
                }
                let newest = self.collector.borrow().newest;
                self.arrivals.push((*fate == Fate::Collected).then_some(newest + 1));
            }
            self.covered.extend(self.planner.fates.iter().map(|fate| *fate == Fate::Covered));
            lowering.catch_up()?;
            (self.point, self.is_open) = (points.end, points.open);
            first += plan.count;
            self.descriptors.resize(self.operations.len(), first as u32 - 1);
            self.ends.push(self.operations.len());
        }
        Ok(())
    }

    /// Returns the memory operations in order.
    pub fn operations(&self) -> &[MemOp] {
        &self.operations
    }

    /// Returns the index of each operation's descriptor: for a point, the one before or after it; for a wait for
    /// the collector's word, the last of its run.
    pub fn descriptors(&self) -> &[u32] {
        &self.descriptors
    }

    /// Returns the collector's numbers, each with the latest wait of each queue. Numbers are from 1 on, and
    /// continue from one batch to the next.
    pub fn collected(&self) -> Vec<(u64, Vec<PaperWait>)> {
        self.collector.borrow().collected.clone()
    }

    /// Returns the collector's number for each descriptor that the collector waits for.
    pub fn arrivals(&self) -> &[Option<u64>] {
        &self.arrivals
    }

    /// Returns whether another descriptor covers each descriptor, which then has no operations.
    pub fn covered(&self) -> &[bool] {
        &self.covered
    }

    /// Returns the operations of each submission.
    pub fn submissions(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter().copied()).map(|(start, end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_for_what_is_at_them() {
        let targets = [
            Target::Progress,
            Target::Record(7),
            Target::Register(MAX_NUMBER),
            Target::Entry(3, u32::MAX),
            Target::Status(0, 9),
            Target::Word(5),
            Target::Trigger(6),
            Target::Arrival,
        ];
        for target in targets {
            let addr = StreamAddr::new(target.addr().get());
            assert_eq!(Target::of(&MemOp::Write32 { addr, value: 0 }), Some(target));
        }
        assert_eq!(Target::of(&MemOp::Barrier), None);
    }

    #[test]
    fn a_send_and_its_wait_on_paper() {
        let batch = [
            Descriptor::Send(PaperSend { queue_pair: 2, index: 0, trigger: None }),
            Descriptor::WaitCq(PaperWait { queue: 4, index: 0, checked: false }),
        ];
        let mut program = Program::new();
        program.compile(&batch, &MemOpCaps::FULL, true).unwrap();
        let targets: Vec<_> = program.operations().iter().filter_map(Target::of).collect();
        let expected = [Target::Record(2), Target::Register(2), Target::Entry(4, 0), Target::Progress];
        assert_eq!(targets, expected);
        assert_eq!(program.descriptors(), [0, 0, 1, 1]);
        assert_eq!(program.submissions().next(), Some(0..4));
        assert_eq!(batch[0].peer_operations(), ["Fence", "StoreDword", "Fence", "StoreQword"]);
    }

    #[test]
    fn a_step_of_the_card_on_paper() {
        let send = |ticket| PaperSend { queue_pair: 0, index: ticket as u32 - 1, trigger: Some((3, ticket)) };
        let wait = |queue, index| PaperWait { queue, index, checked: false };
        let waits = [wait(0, 0), wait(1, 0), wait(0, 1)];
        let mut batch = vec![Descriptor::Send(send(1)), Descriptor::Send(send(2))];
        batch.extend(waits.map(Descriptor::WaitCq));
        batch.push(Descriptor::Barrier);
        let mut program = Program::new().collect_from(2);
        for number in [1, 2] {
            program.compile(&batch, &MemOpCaps::FULL, true).unwrap();
            let targets: Vec<_> = program.operations().iter().map(Target::of).collect();
            let expected = [Some(Target::Trigger(3)), Some(Target::Arrival), None, Some(Target::Progress)];
            assert_eq!(targets, expected);
            assert_eq!(program.descriptors(), [1, 4, 5, 5]);
            assert_eq!(program.collected(), [(number, vec![waits[1], waits[2]])]);
            let expected = [None, None, None, Some(number), Some(number), None];
            assert_eq!((program.arrivals(), program.covered()[2]), (&expected[..], true));
        }
        assert_eq!(batch[1].peer_operations(), ["Fence", "StoreQword"]);
    }

    #[test]
    fn what_a_backend_lacks_is_an_error() {
        let caps = MemOpCaps { flush_remote: false, ..MemOpCaps::FULL };
        assert!(Program::new().compile(&[Descriptor::Flush], &caps, true).is_err());
    }
}
