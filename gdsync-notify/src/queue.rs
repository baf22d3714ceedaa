//! Writes, notifications, reads and atomics, by the CPU and for streams.

use crate::action::Action;
use crate::connections::Connections;
use crate::error::NotifyError;
use crate::routes::{Posting, Routes};
use crate::segment::Segment;
use gdsync::{PreparedSend, PreparedWait, QueuePair, RemoteMemory, Slice};
use std::sync::Arc;
use std::time::Duration;

/// One of the queues of a [`Team`](crate::Team): a queue pair to every rank, this one included, or a few
/// that reach all ([`ConnectionKind`](crate::ConnectionKind)). A cheap handle.
///
/// Requests to one rank through one queue are performed in order: a write or notification behind a read or an
/// atomic starts when that has finished. Between queues, and between ranks, there is no order. Several threads
/// may use a queue. The CPU and streams take turns: while a stream
/// still has to reach sends that it was given, a post by the CPU or by another stream is refused
/// ([`OrderError::OtherStream`](gdsync::queue::OrderError::OtherStream)). Give a stream that sends
/// a queue of its own.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) team: Arc<Connections>,
    index: usize,
    /// How long a post waits for room, where that is not what the team says.
    timeout: Option<Duration>,
}

impl Queue {
    pub(crate) fn new(team: Arc<Connections>, index: usize) -> Self {
        Queue { team, index, timeout: None }
    }

    /// The same queue; posts and preparations by this handle wait for room for up to `timeout`, and not for
    /// [`TeamConfig::timeout`](crate::TeamConfig::timeout). A caller that has other things to look after
    /// meanwhile, such as signals, waits for a short time and tries again: a call that was refused for want
    /// of room ([`NotifyError::TimedOut`]) has posted nothing.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Queue { timeout: Some(timeout), ..self.clone() }
    }

    /// The ways to the ranks, of which this is one.
    fn routes(&self, rank: u32) -> Result<&Routes, NotifyError> {
        let size = self.team.size;
        if rank < size { Ok(&self.team.queues[self.index]) } else { Err(NotifyError::Rank { rank, size }) }
    }

    fn lock(&self, rank: u32) -> Result<Posting<'_>, NotifyError> {
        Ok(self.routes(rank)?.lock(rank, self.timeout.unwrap_or(self.team.timeout)))
    }

    /// The connected queue pair to a rank, for programs and kernels that drive it themselves. A
    /// program that posts there does not poll its send completion queue: [`Self::flush`] does.
    ///
    /// # Errors
    /// [`NotifyError::Rank`]; [`NotifyError::NoQueuePair`] where connections are dynamic
    /// ([`ConnectionKind`](crate::ConnectionKind)).
    pub fn queue_pair(&self, rank: u32) -> Result<&QueuePair, NotifyError> {
        self.routes(rank)?.queue_pair(rank)
    }

    /// Writes the slice into the segment of a rank, from a byte offset on, without a notification.
    /// The slice must not change before [`Self::flush`] has returned.
    ///
    /// If the queue is full, this waits for room, for up to
    /// [`TeamConfig::timeout`](crate::TeamConfig::timeout); so do all calls that post or prepare.
    ///
    /// # Errors
    /// [`NotifyError::Rank`], [`NotifyError::OutOfSegment`], [`NotifyError::TimedOut`];
    /// [`NotifyError::PeerDead`] and [`NotifyError::Failed`], of this or an earlier write to that
    /// rank; [`NotifyError::Post`].
    pub fn write(&self, from: &Slice, rank: u32, to: &Segment, offset: u64) -> Result<(), NotifyError> {
        let write = write_request(from, rank, to, offset)?;
        self.lock(rank)?.post(write)
    }

    /// Sets a notification of the segment of a rank, after everything that this queue has written
    /// there before.
    ///
    /// # Errors
    /// As [`Self::write`]; [`NotifyError::Notification`], [`NotifyError::ZeroValue`].
    pub fn notify(&self, rank: u32, to: &Segment, id: u32, value: u32) -> Result<(), NotifyError> {
        let word = to.notification_of(rank, id, value)?;
        self.lock(rank)?.post(Action::Set(value.to_ne_bytes(), word))
    }

    /// [`Self::write`], then [`Self::notify`]: a reader that sees the notification sees the data.
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
        let write = write_request(from, rank, to, offset)?;
        let word = to.notification_of(rank, id, value)?;
        let mut queue = self.lock(rank)?;
        queue.post_unsignaled(write)?;
        queue.post(Action::Set(value.to_ne_bytes(), word))
    }

    /// [`Self::write`], for a batch of a stream.
    ///
    /// # Errors
    /// As there; [`NotifyError::PeerDead`] while any rank is dead and not dropped
    /// ([`Team::shrink`](crate::Team::shrink)). A stream does not see that its waits are released, so
    /// it gets nothing new to do; so for all calls that prepare.
    pub fn prepare_write(
        &self,
        from: &Slice,
        rank: u32,
        to: &Segment,
        offset: u64,
    ) -> Result<PreparedSend, NotifyError> {
        let write = write_request(from, rank, to, offset)?;
        self.lock(rank)?.prepare(write)
    }

    /// [`Self::prepare_write`] of a request that a later one completes.
    pub(crate) fn prepare_write_unsignaled(
        &self,
        from: &Slice,
        rank: u32,
        to: &Segment,
        offset: u64,
    ) -> Result<PreparedSend, NotifyError> {
        let write = write_request(from, rank, to, offset)?;
        self.lock(rank)?.prepare_unsignaled(write)
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
        self.lock(rank)?.prepare(Action::Set(value.to_ne_bytes(), word))
    }

    /// [`Self::write_notify`], for a batch of a stream, to be posted in this order. In one batch
    /// they share a doorbell.
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
        let write = write_request(from, rank, to, offset)?;
        let word = to.notification_of(rank, id, value)?;
        let mut queue = self.lock(rank)?;
        let write = queue.prepare_unsignaled(write)?;
        Ok([write, queue.prepare(Action::Set(value.to_ne_bytes(), word))?])
    }

    /// Reads from the segment of a rank, from a byte offset on, into the slice, which is of memory that the
    /// local card may write to, as that of a [`Segment`]. The bytes are there when [`Self::flush`] has
    /// returned. No notification tells the other rank. In GPU memory a real card's writes are seen behind the
    /// waits of a stream ([`Self::prepare_waits`]), and behind a flush only where the GPU shows them in order
    /// ([`gdsync::cuda::Consistency`]).
    ///
    /// A read sees what this queue has written there before; a write behind it is performed after it.
    ///
    /// # Errors
    /// As [`Self::write`]; [`NotifyError::NoReads`].
    pub fn read(&self, into: &Slice, rank: u32, of: &Segment, offset: u64) -> Result<(), NotifyError> {
        let read = self.read_request(into, rank, of, offset)?;
        self.lock(rank)?.post(read)
    }

    /// [`Self::read`], for a batch of a stream, which sees the bytes behind the waits of
    /// [`Self::prepare_waits`].
    ///
    /// # Errors
    /// As there, and as [`Self::prepare_write`].
    pub fn prepare_read(
        &self,
        into: &Slice,
        rank: u32,
        of: &Segment,
        offset: u64,
    ) -> Result<PreparedSend, NotifyError> {
        let read = self.read_request(into, rank, of, offset)?;
        self.lock(rank)?.prepare(read)
    }

    /// Adds to the 64-bit number at a byte offset of the segment of a rank, modulo 2^64, and fetches what
    /// it was into the slice, as [`Self::read`] does. The slice has 8 bytes; the number's address is a
    /// multiple of 8, and with it the offset, unless the rank has registered memory that is not aligned
    /// itself. Numbers are in the byte order of the hosts.
    ///
    /// It is one step among the atomics of all ranks: that rank's card performs them. Whether it is for
    /// writes, for the CPU and for GPUs, too, is not promised; they leave such numbers alone while
    /// atomics are under way.
    ///
    /// An atomic is executed once, or, where a call says that the rank is dead or its connection has
    /// failed, perhaps not at all; it is never executed twice.
    ///
    /// ```
    /// use gdsync::{Device, ProtectionDomain};
    /// use gdsync_notify::bootstrap::Bootstrap;
    /// use gdsync_notify::{Team, TeamConfig};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # const LONG: Duration = Duration::from_secs(30);
    /// # let (pd, bootstrap) = (ProtectionDomain::new(&Device::software()?)?, Bootstrap::threads(1, LONG)?.remove(0));
    /// let team = Team::new(&pd, bootstrap, TeamConfig::default())?;
    /// // Numbers at byte 0 of each rank; old ones come to byte 8.
    /// let (segment, queue) = (team.allocate(16, 0)?, team.queue(0)?);
    /// let old = segment.slice(8..16)?;
    /// queue.fetch_add(&old, 0, &segment, 0, 5)?;
    /// queue.fetch_add(&old, 0, &segment, 0, 7)?;
    /// queue.flush(LONG)?;
    /// let mut numbers = [0; 16];
    /// segment.read(0, &mut numbers)?;
    /// assert_eq!(numbers[..8], 12u64.to_ne_bytes());
    /// assert_eq!(numbers[8..], 5u64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::read`]; [`NotifyError::Post`] for a slice of another length, an address that is no
    /// multiple of 8, or a card that has no atomics.
    pub fn fetch_add(
        &self,
        into: &Slice,
        rank: u32,
        of: &Segment,
        offset: u64,
        add: u64,
    ) -> Result<(), NotifyError> {
        let at = self.number_of(rank, of, offset)?;
        self.lock(rank)?.post(Action::FetchAdd(into.clone(), at, add))
    }

    /// [`Self::fetch_add`], for a batch of a stream, as [`Self::prepare_read`].
    ///
    /// # Errors
    /// As of both.
    pub fn prepare_fetch_add(
        &self,
        into: &Slice,
        rank: u32,
        of: &Segment,
        offset: u64,
        add: u64,
    ) -> Result<PreparedSend, NotifyError> {
        let at = self.number_of(rank, of, offset)?;
        self.lock(rank)?.prepare(Action::FetchAdd(into.clone(), at, add))
    }

    /// Replaces the 64-bit number at a byte offset of the segment of a rank by `swap`, if it is `compare`,
    /// and fetches what it was into the slice. All else is as with [`Self::fetch_add`].
    ///
    /// # Errors
    /// As [`Self::fetch_add`].
    pub fn compare_swap(
        &self,
        into: &Slice,
        rank: u32,
        of: &Segment,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<(), NotifyError> {
        let at = self.number_of(rank, of, offset)?;
        self.lock(rank)?.post(Action::CompareSwap(into.clone(), at, [compare, swap]))
    }

    /// [`Self::compare_swap`], for a batch of a stream, as [`Self::prepare_read`].
    ///
    /// # Errors
    /// As of both.
    pub fn prepare_compare_swap(
        &self,
        into: &Slice,
        rank: u32,
        of: &Segment,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<PreparedSend, NotifyError> {
        let at = self.number_of(rank, of, offset)?;
        self.lock(rank)?.prepare(Action::CompareSwap(into.clone(), at, [compare, swap]))
    }

    /// The connections carry reads and atomics.
    fn check_reads(&self) -> Result<(), NotifyError> {
        if self.team.options.max_reads == 0 { Err(NotifyError::NoReads) } else { Ok(()) }
    }

    fn read_request(
        &self,
        into: &Slice,
        rank: u32,
        of: &Segment,
        offset: u64,
    ) -> Result<Action, NotifyError> {
        self.check_reads()?;
        Ok(Action::Read(into.clone(), of.part_of(rank, offset, into.len() as u64)?))
    }

    /// The target of an atomic.
    fn number_of(&self, rank: u32, of: &Segment, offset: u64) -> Result<RemoteMemory, NotifyError> {
        self.check_reads()?;
        of.part_of(rank, offset, size_of::<u64>() as u64)
    }

    /// Waits for a batch of a stream: after them, everything posted and prepared to that rank so
    /// far has arrived, what was read from it is there, and the program may change what was written.
    /// In one batch they share an operation. None, if streams wait for all of it already.
    ///
    /// # Errors
    /// [`NotifyError::Rank`], [`NotifyError::Post`].
    pub fn prepare_waits(&self, rank: u32) -> Result<Vec<PreparedWait>, NotifyError> {
        self.routes(rank)?.prepare_waits(rank)
    }

    /// Returns when everything posted before, to all ranks of the team, has arrived there, and what was read
    /// from them is here: the program may change what was written. This includes the sends that streams were given, so the
    /// streams must reach them within the time.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`], [`NotifyError::Failed`] for the first rank that cannot be
    /// reached; [`NotifyError::TimedOut`]. [`NotifyError::Post`], after that time, if a send is
    /// prepared and not posted, or a stream has not reached it.
    pub fn flush(&self, timeout: Duration) -> Result<(), NotifyError> {
        self.team.flush(self.index, timeout)
    }

    /// As [`Self::flush`], for the requests to one rank.
    ///
    /// # Errors
    /// As [`Self::flush`]; [`NotifyError::Rank`].
    pub fn flush_rank(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        self.routes(rank)?.flush(rank, timeout)
    }

    /// Asks whether a rank's card answers on this queue: an empty write, flushed. The team probes
    /// each rank by itself, so no rank has to ping for the sake of finding a dead one.
    ///
    /// # Errors
    /// As [`Self::flush_rank`].
    pub fn ping(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        let routes = self.routes(rank)?;
        routes.lock(rank, timeout).post(Action::Probe)?;
        routes.flush(rank, timeout)
    }
}

fn write_request(from: &Slice, rank: u32, to: &Segment, offset: u64) -> Result<Action, NotifyError> {
    Ok(Action::Write(from.clone(), to.part_of(rank, offset, from.len() as u64)?))
}
