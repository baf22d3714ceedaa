//! Receives of persistent requests, which a stream announces to the card when it reaches them.
//!
//! A card learns of receives by the record of their queue alone. So the CPU writes the work requests, and
//! the stream stores the record.

use crate::memory::Timeline;
use crate::qp::QueuePairInner;
use crate::queue::{Claim, PeerOp, QueueError};
use crate::verbs::Slice;
use std::fmt;
use std::sync::Arc;

/// Receives that stand at the end of a receive queue, unknown to the card: posting them on a stream
/// announces them. Dropping them instead takes them back.
#[derive(Debug)]
#[must_use = "prepared receives do nothing until they are posted; dropping them takes them back"]
pub(crate) struct PreparedReceives {
    pub(crate) queue_pair: Arc<QueuePairInner>,
    count: u32,
    is_posted: bool,
}

impl PreparedReceives {
    /// With the completion of each stored in its claim.
    ///
    /// # Errors
    /// What is wrong with which of them; nothing is prepared then. What [`QueuePairInner::post_recv`]
    /// says, and receives that another stream, or another thread for it, has still to announce: any stream where
    /// the CPU announces these.
    pub(crate) fn new(
        queue_pair: &Arc<QueuePairInner>,
        receives: &[(&[Slice], Arc<Claim>)],
        timeline: Option<&Arc<Timeline>>,
    ) -> Result<Self, (usize, QueueError)> {
        queue_pair.check_not_failed().map_err(|error| (0, error))?;
        let segments = receives.iter().enumerate().map(|(position, (slices, _))| {
            queue_pair.recv_segments(slices).map_err(|error| (position, error))
        });
        let segments = segments.collect::<Result<Vec<_>, _>>()?;
        let mut completions = queue_pair.recv_cq.lock();
        let mut recv = queue_pair.recv();
        recv.check_turn(queue_pair.number, timeline).map_err(|error| (0, error))?;
        for (position, ((slices, claim), segments)) in receives.iter().zip(&segments).enumerate() {
            if let Err(error) = recv.check_room().and_then(|()| completions.reserve(true)) {
                recv.take_back();
                (0..position).for_each(|_| completions.unreserve(true));
                return Err((position, error));
            }
            let regions = slices.iter().map(|slice| slice.region().clone()).collect();
            let _ = claim.entry.set(completions.newest_booked());
            recv.prepare(segments, regions, claim.clone());
        }
        let count = receives.len() as u32;
        Ok(PreparedReceives { queue_pair: queue_pair.clone(), count, is_posted: false })
    }

    /// Marks them as posted. Returns what announces them.
    ///
    /// # Errors
    /// The queue pair has failed.
    pub(crate) fn commit(&mut self, timeline: &Arc<Timeline>) -> Result<PeerOp, QueueError> {
        let mut recv = self.queue_pair.recv();
        // Under the lock: a failure that comes later finds them.
        self.queue_pair.check_not_failed()?;
        self.is_posted = true;
        Ok(recv.give(timeline))
    }

    /// The stream was not given them.
    pub(crate) fn undo(&mut self) {
        if std::mem::take(&mut self.is_posted) {
            self.queue_pair.recv().take(self.count);
        }
    }

    /// Announces them now.
    ///
    /// # Errors
    /// The queue pair has failed; they are taken back then.
    pub(crate) fn announce(mut self) -> Result<(), QueueError> {
        let mut recv = self.queue_pair.recv();
        self.queue_pair.check_not_failed()?;
        recv.announce();
        drop(recv);
        self.is_posted = true;
        Ok(())
    }
}

impl Drop for PreparedReceives {
    fn drop(&mut self) {
        if !self.is_posted {
            let mut completions = self.queue_pair.recv_cq.lock();
            self.queue_pair.recv().take_back();
            (0..self.count).for_each(|_| completions.unreserve(true));
        }
    }
}

impl fmt::Display for PreparedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "announce {} receives of queue pair {:#x}", self.count, self.queue_pair.number)
    }
}
