//! Which descriptors of a batch need operations of their own, and how many fit one submission. Pure: no I/O, no locks, no FFI.
//!
//! `docs/merging.md` argues for each merge. Linear in the number of descriptors; what it needs is kept from batch to batch.

use super::table::Table;
use crate::memop::MemOpCaps;

/// What is to be known of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Rings a queue pair, which the number identifies.
    Send(u64),
    /// Waits for a completion: of which queue, which the number identifies, and the how-manieth of it.
    WaitCq(u64, u32),
    /// Waits for a completion by a word of its own.
    WaitChecked,
    /// Waits for a word that is not the library's.
    WaitWord,
    /// So many writes of the program's words.
    Writes(usize),
    /// A barrier or a flush.
    Fence,
    /// A submission of its own.
    Copy,
}

/// What becomes of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has operations.
    Kept,
    /// Those of another descriptor do for it: of a later send, or of a wait for a later completion.
    Covered,
}

/// Descriptors from the first on that become one submission.
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

/// What descriptors may share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Nothing,
    /// Doorbells: nothing but sends and writes since.
    Sends,
    /// Waits for completions: nothing else since.
    Waits,
}

/// Operations of each kind of thing, for one backend.
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

/// Plans batches.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    fates: Vec<Fate>,
    /// The descriptor of each queue in the scope that is kept so far, and its index.
    table: Table,
}

impl Planner {
    /// What becomes of the descriptors of the last plan.
    pub(crate) fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// Plans as many descriptors as fit one submission, the closing point included. One always does.
    pub(crate) fn plan(
        &mut self,
        items: impl ExactSizeIterator<Item = Item>,
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
            if item == Item::Copy {
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
            // What is covered, or covers another, costs nothing: a descriptor that does not fit has changed no other's fate.
            if chunk.count > 0 && next.operations.saturating_add(closing) > caps.max_ops {
                self.fates.truncate(chunk.count);
                break;
            }
            chunk = Chunk { count: chunk.count + 1, ..next };
        }
        chunk
    }

    #[inline]
    fn merge(&mut self, item: Item, chunk: Chunk, scope: &mut Scope, costs: &Costs) -> Chunk {
        let position = self.fates.len() as u32;
        let mut fate = Fate::Kept;
        let Chunk { mut operations, mut points, mut closed, .. } = chunk;
        match item {
            Item::Send(queue) => {
                self.enter(scope, Scope::Sends);
                match self.table.replace(queue, position, 0) {
                    Some((earlier, _)) => self.fates[earlier as usize] = Fate::Covered,
                    None => operations += costs.send,
                }
            }
            Item::WaitCq(..) | Item::WaitChecked => {
                if self.enter(scope, Scope::Waits) {
                    // What is not written yet is written before the run.
                    operations += costs.flush + costs.point;
                    (points, closed) = (points + 1, true);
                }
                match item {
                    Item::WaitCq(queue, index) => match self.table.replace(queue, position, index) {
                        Some((other, place)) if place.wrapping_sub(index) as i32 > 0 => {
                            self.table.replace(queue, other, place);
                            fate = Fate::Covered;
                        }
                        Some((other, _)) => self.fates[other as usize] = Fate::Covered,
                        None => operations += 1,
                    },
                    _ => operations += 1,
                }
            }
            Item::WaitWord => {
                *scope = Scope::Nothing;
                operations += 1 + costs.flush;
                closed = false;
            }
            Item::Writes(count) => {
                if *scope == Scope::Waits {
                    *scope = Scope::Nothing;
                }
                operations = operations.saturating_add(count);
            }
            Item::Fence | Item::Copy => {
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

/// Nothing is merged: a point after each wait for a completion.
fn separate(item: Item, chunk: Chunk, costs: &Costs) -> Chunk {
    let (cost, waits) = match item {
        Item::Send(_) => (costs.send, false),
        Item::WaitCq(..) | Item::WaitChecked => (2 + costs.flush, true),
        Item::WaitWord => (1 + costs.flush, false),
        Item::Writes(count) => (count, false),
        Item::Fence | Item::Copy => (1, false),
    };
    let operations = chunk.operations.saturating_add(cost);
    Chunk { operations, points: chunk.points + u32::from(waits), closed: waits, ..chunk }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
