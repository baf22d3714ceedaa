//! A ticket of a list that starts together: a stream writes it in the place of the list's doorbells.

use super::{Trigger, TriggerInner};
use crate::memop::Place;
use crate::memory::timeline::{Timeline, TimelinePoint};
use crate::qp::QueuePairInner;
use crate::queue::QueueError;
use crate::queue::send::{Before, CardWait, Hold};
use std::fmt;
use std::sync::Arc;

/// A trigger's next number, which no stream was given yet. Dropping it takes it back.
#[derive(Debug)]
#[must_use = "a ticket releases nothing until it is posted; dropping it takes it back"]
pub(crate) struct PreparedTicket {
    trigger: Arc<TriggerInner>,
    number: u64,
    /// The WAIT for it.
    wait: CardWait,
    posted: Option<Before>,
    /// Whose sends wait for it. They stay until the stream has passed it, and fail with the stream.
    pub(crate) queue_pairs: Vec<Arc<QueuePairInner>>,
}

impl PreparedTicket {
    /// The caller holds the trigger's turn: tickets are posted in the order of their numbers.
    pub(crate) fn new(trigger: &Trigger) -> Self {
        let trigger = trigger.inner.clone();
        let (number, wait) = trigger.take();
        PreparedTicket { trigger, number, wait, posted: None, queue_pairs: Vec::new() }
    }

    /// The WAIT for it, in front of a send of any queue pair of its domain.
    pub(crate) fn hold(&self) -> Hold {
        Hold { wait: self.wait, region: self.trigger.word.region() }
    }

    /// Marks it as posted. Returns the number that the stream writes.
    ///
    /// # Errors
    /// Earlier tickets that are not posted; another stream that has still to write one.
    pub(crate) fn commit(
        &mut self,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Result<u64, QueueError> {
        self.posted = Some(self.trigger.post(self.number, timeline, point)?);
        Ok(self.number)
    }

    /// The stream was not given it.
    pub(crate) fn undo(&mut self) {
        if let Some(before) = self.posted.take() {
            self.trigger.undo_post(self.number, before);
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.trigger.place()
    }
}

impl Drop for PreparedTicket {
    fn drop(&mut self) {
        if self.posted.is_none() {
            self.trigger.cancel(self.number);
        }
    }
}

impl fmt::Display for PreparedTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "release ticket {}", self.number)
    }
}
