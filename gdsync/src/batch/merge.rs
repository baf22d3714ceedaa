//! Which descriptors of a batch need operations of their own, and how many fit one submission. Pure: no I/O, no locks, no FFI.
//!
//! `docs/merging.md` argues for each merge. The time is linear in the number of descriptors, and memory is reused from batch to
//! batch.

use super::descriptor::{Descriptor, Key};
use super::table::Table;
use crate::memop::MemOpCaps;

/// What becomes of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has operations.
    Kept,
    /// It has none: those of a later send, or of a wait for a later completion, have the same effect.
    Covered,
}

/// The next descriptors of a batch, which become one submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// How many: at least one.
    pub(crate) count: usize,
    /// Points that their waits for completions take.
    pub(crate) points: u32,
    /// The last operation writes the last of these points.
    pub(crate) closed: bool,
    /// Memory operations, without the closing point where it is not closed.
    pub(crate) operations: usize,
}

/// What the next descriptor may share with earlier ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Nothing,
    /// A doorbell: since the earlier send there were only sends and writes.
    Sends,
    /// A wait: since the earlier wait there were only waits for completions.
    Waits,
}

/// Numbers of operations, for one backend.
struct Costs {
    send: usize,
    flush: usize,
    point: usize,
}

impl Costs {
    fn of(caps: &MemOpCaps) -> Self {
        let fences = usize::from(!caps.writes_are_fenced);
        Costs { send: 2 + 2 * fences, flush: usize::from(caps.flush_after_wait), point: 1 + fences }
    }
}

/// Plans batches. The memory that it needs is reused.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    pub(crate) fates: Vec<Fate>,
    /// Of each queue in the scope: the descriptor that is kept so far, and its index.
    table: Table,
}

impl Planner {
    /// Plans as many descriptors as fit one submission, the closing point included. One always does.
    pub(crate) fn plan(
        &mut self,
        items: impl ExactSizeIterator<Item = Key>,
        caps: &MemOpCaps,
        merged: bool,
    ) -> Chunk {
        let costs = Costs::of(caps);
        self.fates.clear();
        self.fates.reserve(items.len());
        self.table.reserve(items.len());
        let mut chunk = Chunk { count: 0, points: 0, closed: false, operations: 0 };
        let mut scope = Scope::Nothing;
        for item in items {
            if let Descriptor::Bytes(None) = item {
                // A copy is a submission of its own.
                if chunk.count == 0 {
                    self.fates.push(Fate::Kept);
                    chunk.count = 1;
                }
                break;
            }
            let next = if merged {
                self.merge(item, chunk, &mut scope, &costs)
            } else {
                self.fates.push(Fate::Kept);
                separate(item, chunk, &costs)
            };
            let closing = if next.closed { 0 } else { costs.point };
            // A descriptor that is covered, or covers another, costs nothing. So one that does not fit has changed no other's
            // fate.
            if chunk.count > 0 && next.operations.saturating_add(closing) > caps.max_ops {
                self.fates.truncate(chunk.count);
                break;
            }
            chunk = Chunk { count: chunk.count + 1, ..next };
        }
        chunk
    }

    #[inline]
    fn merge(&mut self, item: Key, chunk: Chunk, scope: &mut Scope, costs: &Costs) -> Chunk {
        let position = self.fates.len() as u32;
        let mut fate = Fate::Kept;
        let Chunk { mut operations, mut points, mut closed, .. } = chunk;
        match item {
            Descriptor::Send(queue) => {
                self.enter(scope, Scope::Sends);
                match self.table.replace(queue, position, 0) {
                    Some((earlier, _)) => self.fates[earlier as usize] = Fate::Covered,
                    None => operations += costs.send,
                }
            }
            Descriptor::WaitCq(completion) => {
                if self.enter(scope, Scope::Waits) {
                    // The point of the run before is written first, if it is not written yet.
                    operations += costs.flush + costs.point;
                    (points, closed) = (points + 1, true);
                }
                let before = completion.and_then(|(queue, index)| self.table.replace(queue, position, index));
                match (completion, before) {
                    (Some((queue, index)), Some((other, kept))) if kept.wrapping_sub(index) as i32 > 0 => {
                        self.table.replace(queue, other, kept);
                        fate = Fate::Covered;
                    }
                    (_, Some((other, _))) => self.fates[other as usize] = Fate::Covered,
                    (_, None) => operations += 1,
                }
            }
            Descriptor::Wait32(..) | Descriptor::Wait64(..) => {
                *scope = Scope::Nothing;
                operations += 1 + costs.flush;
                closed = false;
            }
            Descriptor::Write32(..) | Descriptor::Write64(..) | Descriptor::Bytes(_) => {
                if *scope == Scope::Waits {
                    *scope = Scope::Nothing;
                }
                operations = operations.saturating_add(writes(item));
            }
            Descriptor::Barrier | Descriptor::Flush => {
                *scope = Scope::Nothing;
                operations += 1;
            }
        }
        self.fates.push(fate);
        Chunk { operations, points, closed, ..chunk }
    }

    /// True where that is another scope than before.
    #[inline]
    fn enter(&mut self, scope: &mut Scope, wanted: Scope) -> bool {
        let new = *scope != wanted;
        if new {
            *scope = wanted;
            self.table.clear();
        }
        new
    }
}

/// Adds a descriptor that shares nothing: each wait for a completion has a point of its own.
#[inline]
fn separate(item: Key, chunk: Chunk, costs: &Costs) -> Chunk {
    let (cost, closed) = match item {
        Descriptor::Send(_) => (costs.send, false),
        Descriptor::WaitCq(_) => (2 + costs.flush, true),
        Descriptor::Wait32(..) | Descriptor::Wait64(..) => (1 + costs.flush, false),
        Descriptor::Write32(..) | Descriptor::Write64(..) | Descriptor::Bytes(_) => (writes(item), false),
        Descriptor::Barrier | Descriptor::Flush => (1, false),
    };
    let operations = chunk.operations.saturating_add(cost);
    Chunk { operations, points: chunk.points + u32::from(closed), closed, ..chunk }
}

/// Operations of a write.
#[inline]
fn writes(item: Key) -> usize {
    if let Descriptor::Bytes(Some(words)) = item { words } else { 1 }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
