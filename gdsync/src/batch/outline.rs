//! Batches on paper: what the batch compiler makes of descriptors, with no queue or stream behind them.
//!
//! Queue pairs, completion queues and words are numbers here, and addresses stand for what is at them ([`Target::of`]). The
//! compiler is the one that [`crate::Stream::post`] uses. `gdsync explain` prints what it says; benches and the proof of the merges
//! use it, too.

use crate::batch::{Chunk, Cursor, Fate, Item, Lowering, Owner, Planner, Step};
use crate::memop::{Condition, MemOp, MemOpCaps, Site, StreamError};
use crate::memory::timeline::TimelinePoint;
use crate::memory::{HostAddr, StreamAddr};
use crate::queue::doorbell::{Doorbell, PeerOp};
use gdsync_sys::prm::cqe::OWNER_MASK_DWORD;
use gdsync_sys::prm::doorbell;
use std::fmt;
use std::ops::Range;

/// Largest number of a queue pair, a completion queue or a word.
pub const MAX_NUMBER: u32 = (1 << NUMBER_BITS) - 1;

const NUMBER_BITS: u32 = 20;
const NUMBER_AT: u32 = 40;
const KIND_AT: u32 = 60;
/// Bytes of a completion entry, and where a stream looks.
const ENTRY: u64 = 64;
const ENTRY_DWORD: u64 = 60;

/// A descriptor on paper. Numbers are at most [`MAX_NUMBER`]; higher ones are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sketch {
    /// Rings the card for a send.
    Send {
        /// The queue pair.
        queue_pair: u32,
        /// The how-manieth send of the queue pair, from 0 on.
        index: u32,
    },
    /// Waits for a completion.
    Wait {
        /// The completion queue.
        queue: u32,
        /// The how-manieth completion of the queue, from 0 on.
        index: u32,
    },
    /// The same, checked: by a word of its own.
    WaitChecked {
        /// The completion queue.
        queue: u32,
        /// The how-manieth completion of the queue, from 0 on.
        index: u32,
    },
    /// Waits for a 32-bit word of the program.
    WaitValue32 {
        /// Which.
        word: u32,
        /// When it is satisfied.
        condition: Condition,
        /// The value compared with.
        value: u32,
    },
    /// Waits for a 64-bit word of the program.
    WaitValue64 {
        /// Which.
        word: u32,
        /// When it is satisfied.
        condition: Condition,
        /// The value compared with.
        value: u64,
    },
    /// Writes a 32-bit word of the program.
    WriteValue32 {
        /// Which.
        word: u32,
        /// What.
        value: u32,
    },
    /// Writes a 64-bit word of the program.
    WriteValue64 {
        /// Which.
        word: u32,
        /// What.
        value: u64,
    },
    /// As [`crate::Batch::barrier`].
    Barrier,
    /// As [`crate::Batch::flush`].
    Flush,
}

/// What is at an address on paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// The doorbell record of a queue pair.
    Record(u32),
    /// The doorbell register of a queue pair.
    Register(u32),
    /// Of a completion queue: the entry of a completion.
    Entry(u32, u32),
    /// Of a completion queue: the status word that is written for a completion.
    Status(u32, u32),
    /// A word of the program.
    Word(u32),
    /// The word that says how far the stream has come.
    Progress,
}

impl Target {
    /// What an operation of a [`Program`] names; none for barriers and flushes.
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
            _ => Target::Word(number),
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
        }
    }
}

impl Sketch {
    fn item(&self) -> Item {
        match *self {
            Sketch::Send { queue_pair, .. } => Item::Send(Target::Record(queue_pair).addr().get()),
            Sketch::Wait { queue, index } => Item::WaitCq(Target::Entry(queue, 0).addr().get(), index),
            Sketch::WaitChecked { .. } => Item::WaitChecked,
            Sketch::WaitValue32 { .. } | Sketch::WaitValue64 { .. } => Item::WaitWord,
            Sketch::WriteValue32 { .. } | Sketch::WriteValue64 { .. } => Item::Writes(1),
            Sketch::Barrier | Sketch::Flush => Item::Fence,
        }
    }

    /// The doorbell of a send of one block: the record as the card reads it; in the register, in the place of the work request's
    /// first 8 bytes, its index and its queue pair.
    fn doorbell(queue_pair: u32, index: u32) -> Doorbell {
        Doorbell {
            record_at: Target::Record(queue_pair).addr(),
            record: doorbell::record(index.wrapping_add(1)),
            register: Target::Register(queue_pair).addr(),
            value: u64::from(index) << 32 | u64::from(queue_pair),
        }
    }

    /// What the card's protocol needs for it, as `name(target, value)`; nothing where it is none of the card's.
    pub fn peer_operations(&self) -> Vec<PeerOperation> {
        let ops = match *self {
            Sketch::Send { queue_pair, index } => Sketch::doorbell(queue_pair, index).peer_ops().to_vec(),
            Sketch::Wait { .. } | Sketch::WaitChecked { .. } => self.poll().into_iter().collect(),
            _ => Vec::new(),
        };
        ops.into_iter().map(PeerOperation).collect()
    }

    fn poll(&self) -> Option<PeerOp> {
        match *self {
            // Of the first lap of a queue of 2^32 entries: the owner bit becomes 0.
            Sketch::Wait { queue, index } => {
                Some(PeerOp::PollNor { addr: Target::Entry(queue, index).addr(), value: !OWNER_MASK_DWORD })
            }
            Sketch::WaitChecked { queue, index } => {
                let value = crate::queue::Status::OK | crate::queue::Status::FAILED;
                Some(PeerOp::PollAnd { addr: Target::Status(queue, index).addr(), value })
            }
            _ => None,
        }
    }
}

/// A peer operation: a step of the card's protocol, before a stream's operations are chosen for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerOperation(PeerOp);

impl PeerOperation {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self.0 {
            PeerOp::Fence => "Fence",
            PeerOp::StoreDword { .. } => "StoreDword",
            PeerOp::StoreQword { .. } => "StoreQword",
            PeerOp::PollAnd { .. } => "PollAnd",
            PeerOp::PollNor { .. } => "PollNor",
        }
    }
}

impl fmt::Display for PeerOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What becomes of sketches; room for it is used again.
#[derive(Debug, Default)]
pub struct Program {
    planner: Planner,
    operations: Vec<MemOp>,
    /// The descriptor of each operation.
    descriptors: Vec<u32>,
    covered: Vec<bool>,
    /// Where each submission ends, in operations.
    ends: Vec<usize>,
    point: TimelinePoint,
}

impl Program {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compiles sketches for a backend, in the place of what was compiled before. The last point of the batch is always written, as
    /// in every 64th batch. Points go on from one batch to the next.
    ///
    /// # Errors
    /// [`StreamError::Unsupported`] where the backend lacks what is needed.
    pub fn compile(
        &mut self,
        sketches: &[Sketch],
        caps: &MemOpCaps,
        merged: bool,
    ) -> Result<(), StreamError> {
        self.operations.clear();
        self.descriptors.clear();
        self.covered.clear();
        self.ends.clear();
        let mut first = 0;
        while first < sketches.len() {
            let rest = &sketches[first..];
            let plan = self.planner.plan(rest.iter().map(Sketch::item), caps, merged);
            self.lower(first, &rest[..plan.count], caps, merged, plan)?;
            first += plan.count;
        }
        Ok(())
    }

    fn lower(
        &mut self,
        first: usize,
        sketches: &[Sketch],
        caps: &MemOpCaps,
        merged: bool,
        plan: Chunk,
    ) -> Result<(), StreamError> {
        let translate = |addr: HostAddr, _: usize, _: Owner| Ok(StreamAddr::new(addr.get()));
        let lowering = Lowering { caps, timeline: Target::Progress.addr(), translate };
        let mut cursor = Cursor::new(merged, self.point);
        let ops = &mut self.operations;
        for (i, (sketch, fate)) in sketches.iter().zip(self.planner.fates()).enumerate() {
            let kept = *fate == Fate::Kept;
            let site = |word| Site::Host(Target::Word(word).addr());
            let step = match *sketch {
                Sketch::Send { queue_pair, index } => {
                    lowering.before_other(&mut cursor, ops);
                    if kept {
                        lowering.send(Sketch::doorbell(queue_pair, index), ops)?;
                    }
                    None
                }
                Sketch::Wait { .. } | Sketch::WaitChecked { .. } => {
                    lowering.before_completion(&mut cursor, ops)?;
                    if kept {
                        lowering.completion(&cursor, sketch.poll(), ops)?;
                    }
                    None
                }
                Sketch::WaitValue32 { word, condition, value } => {
                    lowering.catch_up(&mut cursor, ops)?;
                    Some(Step::Wait32(site(word), condition, value))
                }
                Sketch::WaitValue64 { word, condition, value } => {
                    lowering.catch_up(&mut cursor, ops)?;
                    Some(Step::Wait64(site(word), condition, value))
                }
                Sketch::WriteValue32 { word, value } => Some(Step::Write32(site(word), value)),
                Sketch::WriteValue64 { word, value } => Some(Step::Write64(site(word), value)),
                Sketch::Barrier => Some(Step::Barrier),
                Sketch::Flush => Some(Step::Flush),
            };
            if let Some(step) = step {
                lowering.before_other(&mut cursor, ops);
                lowering.lower(step, ops)?;
            }
            self.descriptors.resize(ops.len(), (first + i) as u32);
            self.covered.push(!kept);
        }
        lowering.catch_up(&mut cursor, ops)?;
        self.point = cursor.point();
        if !plan.closed {
            self.point = self.point.next();
            lowering.lower(Step::Progress(self.point), ops)?;
        }
        self.descriptors.resize(ops.len(), (first + sketches.len()).saturating_sub(1) as u32);
        self.ends.push(ops.len());
        Ok(())
    }

    /// The memory operations, in order.
    pub fn operations(&self) -> &[MemOp] {
        &self.operations
    }

    /// Which descriptor each operation belongs to; a point, to the one before it or after it.
    pub fn descriptors(&self) -> &[u32] {
        &self.descriptors
    }

    /// Of each descriptor: whether those of another do for it, so that it has no operations.
    pub fn covered(&self) -> &[bool] {
        &self.covered
    }

    /// The operations of each submission.
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
        ];
        for target in targets {
            let addr = StreamAddr::new(target.addr().get());
            assert_eq!(Target::of(&MemOp::Write32 { addr, value: 0 }), Some(target));
        }
        assert_eq!(Target::of(&MemOp::Barrier), None);
    }

    #[test]
    fn a_send_and_its_wait_on_paper() {
        let sketches = [Sketch::Send { queue_pair: 2, index: 0 }, Sketch::Wait { queue: 4, index: 0 }];
        let mut program = Program::new();
        program.compile(&sketches, &MemOpCaps::FULL, true).unwrap();
        let targets: Vec<_> = program.operations().iter().filter_map(Target::of).collect();
        let expected = [Target::Record(2), Target::Register(2), Target::Entry(4, 0), Target::Progress];
        assert_eq!(targets, expected);
        assert_eq!(program.descriptors(), [0, 0, 1, 1]);
        assert_eq!(program.submissions().next(), Some(0..4));
        let names: Vec<_> = sketches[0].peer_operations().iter().map(PeerOperation::name).collect();
        assert_eq!(names, ["Fence", "StoreDword", "Fence", "StoreQword"]);
    }

    #[test]
    fn what_a_backend_lacks_is_an_error() {
        let caps = MemOpCaps { flush_remote: false, ..MemOpCaps::FULL };
        assert!(Program::new().compile(&[Sketch::Flush], &caps, true).is_err());
    }
}
