//! A prepared wait: the right to have a stream wait for one completion.

use crate::cq::CompletionQueueInner;
use crate::error::QueueError;
use crate::lane::{Lane, Ticket};
use crate::peer::PeerOp;
use std::sync::Arc;

/// A wait for the next completion of a completion queue that nobody waits for yet.
///
/// Put it into a [`crate::Batch`] and post that. Dropping it instead gives the completion back: where it was the newest
/// wait, the next one prepared takes its place; otherwise no stream waits for that completion.
#[derive(Debug)]
#[must_use = "a prepared wait does nothing until it is posted in a batch"]
pub struct PreparedWait {
    cq: Arc<CompletionQueueInner>,
    index: u32,
    posted: bool,
}

impl PreparedWait {
    pub(crate) fn new(cq: Arc<CompletionQueueInner>) -> Result<Self, QueueError> {
        let index = cq.lock().prepare_wait()?;
        Ok(PreparedWait { cq, index, posted: false })
    }

    /// Which completion it waits for: the how-manieth of the queue, from 0 on, modulo 2^32.
    pub fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn peer_op(&self) -> PeerOp {
        self.cq.lock().wait_op(self.index)
    }

    pub(crate) fn commit(&mut self, lane: &Arc<Lane>, ticket: Ticket) {
        self.cq.lock().post_wait(self.index, lane, ticket);
        self.posted = true;
    }

    pub(crate) fn undo(&mut self) {
        self.cq.lock().unpost_wait(self.index);
        self.posted = false;
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueueInner> {
        &self.cq
    }
}

impl Drop for PreparedWait {
    fn drop(&mut self) {
        if !self.posted {
            self.cq.lock().cancel_wait(self.index);
        }
    }
}
