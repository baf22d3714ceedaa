//! Writes and notifications, by the CPU and for streams.

use super::NotifyError;
use super::peer::Peer;
use super::segment::Segment;
use super::team::Inner;
use crate::qp::QueuePair;
use crate::qp::prepared::PreparedSend;
use crate::qp::wait::PreparedWait;
use crate::queue::request::WorkRequest;
use crate::verbs::mr::{RemoteMemory, Slice};
use std::sync::Arc;
use std::time::Duration;

/// One of the queues of a [`super::Team`]: a queue pair to every rank, itself among them. A cheap handle.
///
/// What goes to one rank through one queue arrives in order; between queues, and between ranks, there is no order. Several threads may use a
/// queue, but CPU and streams in turn only: while a stream has still to come to what it was given of a queue, posting there by the CPU or
/// another stream is refused ([`OrderError::OtherStream`](crate::queue::OrderError::OtherStream)), so a stream that sends best has a queue of its own.
#[derive(Clone, Debug)]
pub struct Queue {
    team: Arc<Inner>,
    index: usize,
}

impl Queue {
    pub(super) fn new(team: Arc<Inner>, index: usize) -> Self {
        Queue { team, index }
    }

    fn peer(&self, rank: u32) -> Result<&Peer, NotifyError> {
        let size = self.team.size;
        self.team.queues[self.index].get(rank as usize).ok_or(NotifyError::Rank { rank, size })
    }

    /// This rank, and how many there are.
    pub(super) fn place(&self) -> (u32, u32) {
        (self.team.rank, self.team.size)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.team.timeout
    }

    /// The queue pair to a rank, connected: for programs, and kernels, that drive it themselves. Who posts there does not poll its send
    /// completion queue, which [`Self::flush`] does.
    ///
    /// # Errors
    /// [`NotifyError::Rank`].
    pub fn queue_pair(&self, rank: u32) -> Result<&QueuePair, NotifyError> {
        Ok(self.peer(rank)?.queue_pair())
    }

    /// Writes the slice into the segment of a rank, from a byte offset on. Nobody is told. The slice must not change before
    /// [`Self::flush`] has returned.
    ///
    /// Where the queue is full, waits for room, as long as [`super::TeamConfig::timeout`] says; so do all that post or prepare.
    ///
    /// # Errors
    /// [`NotifyError::Rank`], [`NotifyError::OutOfSegment`], [`NotifyError::TimedOut`]; [`NotifyError::PeerDead`] and
    /// [`NotifyError::Failed`], of this or an earlier write to that rank; [`NotifyError::Post`].
    pub fn write(&self, from: &Slice, rank: u32, to: &Segment, offset: u64) -> Result<(), NotifyError> {
        let remote = to.part_of(rank, offset, from.len() as u64)?;
        self.peer(rank)?.post(&[WorkRequest::write(std::slice::from_ref(from), remote)], self.team.timeout)
    }

    /// Sets a notification of the segment of a rank, after everything that this queue has written there before.
    ///
    /// # Errors
    /// As [`Self::write`]; [`NotifyError::Notification`], [`NotifyError::ZeroValue`].
    pub fn notify(&self, rank: u32, to: &Segment, id: u32, value: u32) -> Result<(), NotifyError> {
        let word = to.notification_of(rank, id, value)?;
        self.peer(rank)?.post(&[inline(&value.to_ne_bytes(), word)], self.team.timeout)
    }

    /// [`Self::write`], then [`Self::notify`]: who sees the notification sees the data.
    ///
    /// # Errors
    /// As of both.
    pub fn write_notify(
        &self,
        from: &Slice,
        rank: u32,
        to: &Segment,
        offset: u64,
        id: u32,
        value: u32,
    ) -> Result<(), NotifyError> {
        let remote = to.part_of(rank, offset, from.len() as u64)?;
        let word = to.notification_of(rank, id, value)?;
        let (slices, bytes) = (std::slice::from_ref(from), value.to_ne_bytes());
        let requests = [WorkRequest::write(slices, remote), inline(&bytes, word)];
        self.peer(rank)?.post(&requests, self.team.timeout)
    }

    /// [`Self::write`], for a batch of a stream.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_write(
        &self,
        from: &Slice,
        rank: u32,
        to: &Segment,
        offset: u64,
    ) -> Result<PreparedSend, NotifyError> {
        let remote = to.part_of(rank, offset, from.len() as u64)?;
        let request = WorkRequest::write(std::slice::from_ref(from), remote);
        let [send] = self.peer(rank)?.prepare([request], self.team.timeout)?;
        Ok(send)
    }

    /// [`Self::notify`], for a batch of a stream.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_notify(
        &self,
        rank: u32,
        to: &Segment,
        id: u32,
        value: u32,
    ) -> Result<PreparedSend, NotifyError> {
        let word = to.notification_of(rank, id, value)?;
        let [send] = self.peer(rank)?.prepare([inline(&value.to_ne_bytes(), word)], self.team.timeout)?;
        Ok(send)
    }

    /// [`Self::write_notify`], for a batch of a stream, to be posted in this order. In one batch they share a doorbell.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_write_notify(
        &self,
        from: &Slice,
        rank: u32,
        to: &Segment,
        offset: u64,
        id: u32,
        value: u32,
    ) -> Result<[PreparedSend; 2], NotifyError> {
        let remote = to.part_of(rank, offset, from.len() as u64)?;
        let word = to.notification_of(rank, id, value)?;
        let (slices, bytes) = (std::slice::from_ref(from), value.to_ne_bytes());
        self.peer(rank)?
            .prepare([WorkRequest::write(slices, remote), inline(&bytes, word)], self.team.timeout)
    }

    /// Waits for a batch of a stream: when they are over, everything posted and prepared to that rank so far has arrived, and what it was
    /// written from may change. In one batch they share an operation. None, where streams wait for all of it already.
    ///
    /// # Errors
    /// [`NotifyError::Rank`], [`NotifyError::Post`].
    pub fn prepare_waits(&self, rank: u32) -> Result<Vec<PreparedWait>, NotifyError> {
        self.peer(rank)?.prepare_waits()
    }

    /// Returns when everything posted before, to all ranks, has arrived there: what it was written from may change. Includes what
    /// streams were given, so they must come to it within the time.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`], [`NotifyError::Failed`] for the first rank that cannot be reached; [`NotifyError::TimedOut`]. Where a
    /// send is still prepared and not posted, or a stream has not come to it, [`NotifyError::Post`] says so after that time.
    pub fn flush(&self, timeout: Duration) -> Result<(), NotifyError> {
        let started = std::time::Instant::now();
        let peers = &self.team.queues[self.index];
        peers.iter().try_for_each(|peer| peer.flush(timeout.saturating_sub(started.elapsed())))
    }

    /// As [`Self::flush`], of what goes to one rank.
    ///
    /// # Errors
    /// As [`Self::flush`]; [`NotifyError::Rank`].
    pub fn flush_rank(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        self.peer(rank)?.flush(timeout)
    }

    /// Asks a rank's card whether it is there: an empty write, flushed. A reliable connection has no other sign of life, so a rank that only
    /// waits asks now and then.
    ///
    /// # Errors
    /// As [`Self::flush_rank`].
    pub fn ping(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        let peer = self.peer(rank)?;
        let nothing = RemoteMemory { addr: 0, len: 0, rkey: 0 };
        peer.post(&[inline(&[], nothing)], timeout)?;
        peer.flush(timeout)
    }
}

fn inline(bytes: &[u8], remote: RemoteMemory) -> WorkRequest<'_> {
    WorkRequest::write_inline(bytes, remote)
}
