//! Receives: posted by the CPU, or prepared for a stream, which announces them to the card when it reaches them.
//!
//! A card learns of receives only by their queue's record. So the CPU writes the work requests, and the stream
//! stores the record.

use crate::memory::Timeline;
use crate::qp::QueuePairInner;
use crate::queue::request::{Rules, data_segments};
use crate::queue::{Claim, PeerOp, QueueError, StateError};
use crate::verbs::{Slice, Transport};
use gdsync_sys::prm::wqe::DataSeg;
use gdsync_trace::{EventKind, event};
use std::fmt;
use std::sync::Arc;

/// Receives at the end of a receive queue that the card does not know yet. Posting them on a stream announces them;
/// dropping them takes them back.
#[derive(Debug)]
#[must_use = "prepared receives do nothing until they are posted; dropping them takes them back"]
pub(crate) struct PreparedReceives {
    pub(crate) queue_pair: Arc<QueuePairInner>,
    count: u32,
    is_posted: bool,
}

impl PreparedReceives {
    /// Prepares receives, with each completion stored in its claim.
    ///
    /// # Errors
    /// The position of the refused receive, and why; nothing is prepared then. The errors of
    /// [`post`], and receives that another stream, or another thread for it, has not announced yet;
    /// any stream, if the CPU announces these.
    pub(crate) fn new(
        queue_pair: &Arc<QueuePairInner>,
        receives: &[(&[Slice], Arc<Claim>)],
        timeline: Option<&Arc<Timeline>>,
    ) -> Result<Self, (usize, QueueError)> {
        queue_pair.life.check_not_failed().map_err(|error| (0, error))?;
        let segments = receives.iter().enumerate().map(|(position, (slices, _))| {
            self::segments(queue_pair, slices).map_err(|error| (position, error))
        });
        let segments = segments.collect::<Result<Vec<_>, _>>()?;
        let mut completions = queue_pair.recv_cq.lock();
        let mut recv = queue_pair.recv.lock();
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

    /// Marks them as posted. Returns the operation that announces them.
    ///
    /// # Errors
    /// The queue pair has failed.
    pub(crate) fn commit(&mut self, timeline: &Arc<Timeline>) -> Result<PeerOp, QueueError> {
        let mut recv = self.queue_pair.recv.lock();
        // Under the lock: a later failure finds them.
        self.queue_pair.life.check_not_failed()?;
        self.is_posted = true;
        Ok(recv.give_to_stream(timeline))
    }

    pub(crate) fn undo(&mut self) {
        if std::mem::take(&mut self.is_posted) {
            self.queue_pair.recv.lock().take_from_stream(self.count);
        }
    }

    /// Announces them now.
    ///
    /// # Errors
    /// The queue pair has failed; they are taken back then.
    pub(crate) fn announce(mut self) -> Result<(), QueueError> {
        let mut recv = self.queue_pair.recv.lock();
        self.queue_pair.life.check_not_failed()?;
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
            self.queue_pair.recv.lock().take_back();
            (0..self.count).for_each(|_| completions.unreserve(true));
        }
    }
}

impl fmt::Display for PreparedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "announce {} receives of queue pair {:#x}", self.count, self.queue_pair.number)
    }
}

/// Implements [`QueuePair::post_recv`](crate::QueuePair::post_recv).
#[inline]
pub(crate) fn post(queue_pair: &QueuePairInner, slices: &[Slice], wr_id: u64) -> Result<(), QueueError> {
    queue_pair.life.check_not_failed()?;
    let segments = segments(queue_pair, slices)?;
    let regions = slices.iter().map(|slice| slice.region().clone()).collect();
    let mut completions = queue_pair.recv_cq.lock();
    let mut recv = queue_pair.recv.lock();
    recv.check_turn(queue_pair.number, None)?;
    recv.check_room()?;
    completions.reserve(true)?;
    recv.post(&segments, wr_id, regions);
    event(EventKind::PostedReceive, || [queue_pair.number.into(), wr_id, 0]);
    Ok(())
}

/// Checks the slices of a receive, and returns their segments.
pub(crate) fn segments(queue_pair: &QueuePairInner, slices: &[Slice]) -> Result<Vec<DataSeg>, QueueError> {
    if queue_pair.config.transport == Transport::Dc {
        return Err(QueueError::State(StateError::DcInitiatorCannotReceive { qpn: queue_pair.number }));
    }
    if queue_pair.shared.is_some() {
        return Err(QueueError::State(StateError::SharedReceives { qpn: queue_pair.number }));
    }
    slices.iter().try_for_each(|slice| queue_pair.check(slice, true))?;
    data_segments(slices, queue_pair.recv_segments)
}
