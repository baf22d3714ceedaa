//! Where points and flushes stand among the operations of a batch.

use super::plan::{Lowering, Owner, Step};
use crate::memop::{MemOp, StreamError};
use crate::memory::timeline::TimelinePoint;
use crate::memory::{HostAddr, StreamAddr};
use crate::queue::doorbell::PeerOp;

/// How far the lowering of a batch has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    merged: bool,
    /// The last point that was taken.
    point: TimelinePoint,
    /// The last descriptor was a wait for a completion (merged batches only).
    in_run: bool,
    /// The last point is not written yet (merged batches only).
    unwritten: bool,
}

impl Cursor {
    /// Before the first descriptor; `before` is the last point of the batch before.
    pub(crate) fn new(merged: bool, before: TimelinePoint) -> Self {
        Cursor { merged, point: before, in_run: false, unwritten: false }
    }

    /// The last point that was taken.
    pub(crate) fn point(&self) -> TimelinePoint {
        self.point
    }
}

impl<T: Fn(HostAddr, usize, Owner) -> Result<StreamAddr, StreamError>> Lowering<'_, T> {
    /// Before a wait for a completion. Returns its point, which all waits of a run share.
    #[inline]
    pub(crate) fn before_completion(
        &self,
        cursor: &mut Cursor,
        ops: &mut Vec<MemOp>,
    ) -> Result<TimelinePoint, StreamError> {
        if !cursor.in_run {
            // A wait may depend on what the CPU does once it has seen an earlier point.
            self.catch_up(cursor, ops)?;
            cursor.point = cursor.point.next();
            cursor.in_run = cursor.merged;
            cursor.unwritten = cursor.merged;
        }
        Ok(cursor.point)
    }

    /// A wait for a completion; none where another does for it, or the completion has come.
    #[inline]
    pub(crate) fn completion(
        &self,
        cursor: &Cursor,
        op: Option<PeerOp>,
        ops: &mut Vec<MemOp>,
    ) -> Result<(), StreamError> {
        match op {
            Some(op) if !cursor.merged => self.lower(Step::WaitCq(op, cursor.point), ops),
            Some(op) => self.peer_op(op, ops),
            None if !cursor.merged => self.lower(Step::Progress(cursor.point), ops),
            None => Ok(()),
        }
    }

    /// Before anything else than a wait.
    #[inline]
    pub(crate) fn before_other(&self, cursor: &mut Cursor, ops: &mut Vec<MemOp>) {
        if cursor.in_run {
            cursor.in_run = false;
            self.flush(ops);
        }
    }

    /// Before a wait for a word, and at the end.
    #[inline]
    pub(crate) fn catch_up(&self, cursor: &mut Cursor, ops: &mut Vec<MemOp>) -> Result<(), StreamError> {
        self.before_other(cursor, ops);
        if cursor.unwritten {
            cursor.unwritten = false;
            self.lower(Step::Progress(cursor.point), ops)?;
        }
        Ok(())
    }
}
