//! The planner: which descriptors of a batch share operations, and how many fit one submission. Pure: no I/O, no
//! locks, no FFI.
//!
//! `docs/merging.md` argues for each merge. The time is linear in the number of descriptors, and memory is reused
//! from batch to batch.

use crate::batch::shape::Descriptor;
use crate::memop::MemOpCaps;

/// The planner's view of a descriptor's part: what hands a send to the card; the completion queue and index of a
/// wait, unless it has its own word; the number of words of bytes, unless they are copied.
pub(crate) trait Keyed<K> {
    fn key(&self, caps: &MemOpCaps) -> K;
}

/// Key of a send: its doorbell or trigger. Sends with the same key share operations. Keys are addresses of live objects,
/// so keys of different kinds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendKey {
    /// The doorbell of a queue pair.
    Doorbell(u64),
    /// The doorbell of a queue pair, for a send that announces receives, which needs one more operation if the
    /// proxy rings.
    Announcing(u64),
    Trigger(u64),
}

/// The outcome of a descriptor's planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has operations.
    Kept,
    /// It has none: the operations of a later send, or of a wait for a later completion, have the same effect.
    Covered,
    /// A collector waits for the completion, and the stream for the collector's word, at the end of the run of waits.
    Collected,
}

/// A wait for a completion that may share its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitKey {
    pub(crate) queue: u64,
    pub(crate) index: u32,
    /// The device, whose collector can wait for it.
    pub(crate) device: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collecting {
    pub(crate) device: u64,
    /// The fewest queues of a run of waits.
    pub(crate) from: u32,
}

/// The next descriptors of a batch, which become one submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) count: usize,
    /// Timeline points of their waits for completions.
    pub(crate) points: u32,
    /// Position of the last of these points.
    pub(crate) last_point: LastPoint,
    /// Upper bound of the memory operations, without the point of earlier submissions, which one without points may
    /// write.
    pub(crate) operations: usize,
}

/// The position of a submission's last point for its waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastPoint {
    /// Nowhere, or in the middle.
    Earlier,
    /// Before the last descriptor, a write of the program, which no operation follows.
    BeforeWrite,
    /// By its last operation.
    AtEnd,
}

/// The operations that the next descriptor may share with earlier ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Nothing,
    Sends,
    /// A wait: only waits for completions since the earlier wait.
    Waits,
}

impl Scope {
    fn end_run(&mut self) {
        if *self == Scope::Waits {
            *self = Scope::Nothing;
        }
    }
}

#[derive(Default)]
struct Run {
    start: u32,
    /// Number of queues that a collector can wait for.
    queues: u32,
    is_collected: bool,
}

/// Numbers of operations for one backend.
struct Costs {
    doorbell: usize,
    trigger: usize,
    record: usize,
    flush: usize,
    point: usize,
}

impl Costs {
    fn of(caps: &MemOpCaps) -> Self {
        let fences = usize::from(!caps.writes_are_fenced);
        Costs {
            doorbell: 2 + 2 * fences,
            trigger: 1 + fences,
            record: 1 + fences,
            flush: usize::from(caps.flush_after_wait),
            point: 1 + fences,
        }
    }
}

/// Plans batches, and reuses its memory.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    pub(crate) fates: Vec<Fate>,
    /// None if the stream waits for each queue itself.
    pub(crate) collecting: Option<Collecting>,
    /// For each queue in the scope: the descriptor kept so far, and its index.
    table: Table,
}

impl Planner {
    /// Plans as many descriptors as fit one submission with a point, at least one.
    pub(crate) fn plan<S, W, P, B, R, T>(
        &mut self,
        descriptors: &[Descriptor<S, W, P, B, R, T>],
        caps: &MemOpCaps,
        merged: bool,
    ) -> Chunk
    where
        S: Keyed<SendKey>,
        W: Keyed<Option<WaitKey>>,
        B: Keyed<Option<usize>>,
    {
        let costs = Costs::of(caps);
        self.fates.clear();
        self.fates.reserve(descriptors.len());
        self.table.reserve(descriptors.len());
        let mut chunk = Chunk { count: 0, points: 0, last_point: LastPoint::Earlier, operations: 0 };
        let mut scope = Scope::Nothing;
        let mut run = Run::default();
        for (position, descriptor) in (0..).zip(descriptors) {
            let mut fate = Fate::Kept;
            let Chunk { mut operations, mut points, .. } = chunk;
            // Unmerged, its point follows each wait for a completion; merged, the point of a run may be written later.
            let mut is_due = merged && chunk.last_point != LastPoint::Earlier;
            match descriptor {
                Descriptor::Send(send) => {
                    let (key, cost) = match send.key(caps) {
                        SendKey::Doorbell(key) => (key, costs.doorbell),
                        SendKey::Announcing(key) => (key, costs.doorbell + costs.record),
                        SendKey::Trigger(key) => (key, costs.trigger),
                    };
                    let earlier = if merged {
                        self.enter(&mut scope, Scope::Sends);
                        self.table.replace(key, position, 0)
                    } else {
                        None
                    };
                    match earlier {
                        Some((earlier, _)) => self.fates[earlier as usize] = Fate::Covered,
                        None => operations += cost,
                    }
                }
                Descriptor::WaitCq(wait) => {
                    if !merged || self.enter(&mut scope, Scope::Waits) {
                        run = Run { start: position, ..Run::default() };
                        // The previous run's point is written first, unless it is written already.
                        operations += costs.flush + if merged { costs.point } else { 1 };
                        (points, is_due) = (points + 1, true);
                    }
                    match wait.key(caps) {
                        Some(WaitKey { queue, index, device }) if merged => {
                            match self.table.replace(queue, position, index) {
                                Some((other, kept)) if kept.wrapping_sub(index) as i32 > 0 => {
                                    self.table.replace(queue, other, kept);
                                    fate = Fate::Covered;
                                }
                                Some((other, _)) => {
                                    fate = std::mem::replace(&mut self.fates[other as usize], Fate::Covered);
                                }
                                None if self.collecting.is_some_and(|by| by.device == device) => {
                                    fate = self.collect(&mut run, descriptors, caps, &mut operations);
                                }
                                None => operations += 1,
                            }
                        }
                        _ => operations += 1,
                    }
                }
                Descriptor::Wait32(..) | Descriptor::Wait64(..) => {
                    scope = Scope::Nothing;
                    operations += 1 + costs.flush;
                    is_due = false;
                }
                Descriptor::Write32(..) | Descriptor::Write64(..) => {
                    scope.end_run();
                    operations += 1;
                }
                Descriptor::Receives(_) => {
                    scope.end_run();
                    operations += costs.record;
                }
                Descriptor::Ticket(_) => {
                    scope.end_run();
                    operations += costs.trigger;
                }
                Descriptor::Bytes(bytes) => match bytes.key(caps) {
                    Some(words) => {
                        scope.end_run();
                        operations = operations.saturating_add(words);
                    }
                    // A copy is a separate submission.
                    None if chunk.count > 0 => break,
                    None => {
                        self.fates.push(Fate::Kept);
                        return Chunk { count: 1, ..chunk };
                    }
                },
                Descriptor::Barrier | Descriptor::Flush => {
                    scope = Scope::Nothing;
                    operations += 1;
                }
            }
            let last_point = match is_due {
                false => LastPoint::Earlier,
                true if descriptor.is_write() => LastPoint::BeforeWrite,
                true => LastPoint::AtEnd,
            };
            let earlier = if points > 0 { 0 } else { costs.point };
            // A descriptor that is covered, or covers another, costs nothing. So one that does not fit has changed
            // no other's fate.
            if chunk.count > 0 && operations.saturating_add(earlier) > caps.max_ops {
                break;
            }
            self.fates.push(fate);
            chunk = Chunk { count: chunk.count + 1, points, last_point, operations };
        }
        chunk
    }

    /// Adds a queue to a run, whose waits a collector takes over once there are enough. Returns the fate of the
    /// queue's wait.
    fn collect<S, W, P, B, R, T>(
        &mut self,
        run: &mut Run,
        descriptors: &[Descriptor<S, W, P, B, R, T>],
        caps: &MemOpCaps,
        operations: &mut usize,
    ) -> Fate
    where
        W: Keyed<Option<WaitKey>>,
    {
        let Some(Collecting { device, from }) = self.collecting else { return Fate::Kept };
        run.queues += 1;
        if run.queues < from || !caps.ops_64_bit {
            *operations += 1;
            return Fate::Kept;
        }
        if !run.is_collected {
            run.is_collected = true;
            // One operation instead of the others'.
            *operations = *operations + 1 - (run.queues as usize - 1);
            let start = run.start as usize;
            for (fate, descriptor) in self.fates.iter_mut().zip(descriptors).skip(start) {
                let is_of = |key: Option<WaitKey>| key.is_some_and(|key| key.device == device);
                if let (Fate::Kept, Descriptor::WaitCq(wait)) = (&*fate, descriptor)
                    && is_of(wait.key(caps))
                {
                    *fate = Fate::Collected;
                }
            }
        }
        Fate::Collected
    }

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

/// A slot of the table: in use if its stamp is the table's.
#[derive(Clone, Copy, Debug, Default)]
struct TableSlot {
    key: u64,
    stamp: u32,
    position: u32,
    index: u32,
}

/// A small map from queues to descriptors. Clearing it is one addition, and it allocates only to grow. Open
/// addressing; at most half of the slots are in use.
#[derive(Debug, Default)]
struct Table {
    slots: Vec<TableSlot>,
    stamp: u32,
}

impl Table {
    /// Makes room for that many keys, and clears the table.
    fn reserve(&mut self, keys: usize) {
        // At least two slots: with one, `replace` would shift by 64 bits.
        let wanted = keys.saturating_mul(2).next_power_of_two().max(2);
        if self.slots.len() < wanted {
            self.slots.clear();
            self.slots.resize(wanted, TableSlot::default());
            self.stamp = 0;
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            // The stamps wrapped around: no slot may look used.
            self.slots.iter_mut().for_each(|slot| *slot = TableSlot::default());
            self.stamp = 1;
        }
    }

    /// Sets a key's position and index. Returns the previous ones.
    #[inline]
    fn replace(&mut self, key: u64, position: u32, index: u32) -> Option<(u32, u32)> {
        let mask = self.slots.len() - 1;
        // Fibonacci hashing: every bit of the key affects the highest bits of the product.
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> mask.leading_zeros()) as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            let before = (slot.stamp == self.stamp).then_some((slot.position, slot.index));
            if before.is_none() || slot.key == key {
                *slot = TableSlot { key, stamp: self.stamp, position, index };
                return before;
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod table_tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(keys in proptest::collection::vec((0u64..40, any::<bool>()), 1..40), stamp in prop::sample::select(vec![0, u32::MAX - 2])) {
            let mut table = Table { slots: Vec::new(), stamp: 0 };
            table.reserve(keys.len());
            table.stamp = stamp;
            table.clear();
            let mut model = HashMap::new();
            for (position, (key, clear)) in keys.into_iter().enumerate() {
                if clear {
                    table.clear();
                    model.clear();
                }
                let value = (position as u32, position as u32 + 7);
                prop_assert_eq!(table.replace(key << 6, value.0, value.1), model.insert(key, value));
            }
        }
    }
}
