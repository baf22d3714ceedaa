//! The queues of a team: operations at ranks, by the CPU and for streams.

use crate::connections::Connections;
use crate::error::NotifyError;
use crate::initiator::{Initiator, Posting};
use crate::requests::Request;
use crate::segment::Segment;
use gdsync::{PreparedSend, PreparedWait, QueuePair, Slice};
use std::sync::Arc;
use std::time::Duration;

/// What a [`Queue`](crate::Queue) does at a rank: [`Queue::post`](crate::Queue::post) has the CPU do it now,
/// [`Queue::prepare`](crate::Queue::prepare) prepares it for a batch of a stream. Each has a call of its name in
/// [`Queue`](crate::Queue), which says what it does.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// [`Queue::write`](crate::Queue::write).
    Write {
        /// What is written.
        from: &'a Slice,
        /// The rank.
        rank: u32,
        /// Where.
        to: &'a Segment,
        /// The first byte there.
        offset: u64,
    },
    /// [`Queue::notify`](crate::Queue::notify).
    Notify {
        /// The rank.
        rank: u32,
        /// The segment that has the notification.
        to: &'a Segment,
        /// The notification.
        id: u32,
        /// Its value, which is not 0.
        value: u32,
    },
    /// [`Queue::write_notify`](crate::Queue::write_notify).
    WriteNotify {
        /// What is written.
        from: &'a Slice,
        /// The rank.
        rank: u32,
        /// Where.
        to: &'a Segment,
        /// The first byte there.
        offset: u64,
        /// The notification.
        id: u32,
        /// Its value, which is not 0.
        value: u32,
    },
    /// [`Queue::read`](crate::Queue::read).
    Read {
        /// What is read into.
        into: &'a Slice,
        /// The rank.
        rank: u32,
        /// From where.
        of: &'a Segment,
        /// The first byte there.
        offset: u64,
    },
    /// [`Queue::fetch_add`](crate::Queue::fetch_add).
    FetchAdd {
        /// What the old number is fetched into.
        into: &'a Slice,
        /// The rank.
        rank: u32,
        /// The segment that has the number.
        of: &'a Segment,
        /// Its first byte there.
        offset: u64,
        /// What is added.
        add: u64,
    },
    /// [`Queue::compare_swap`](crate::Queue::compare_swap).
    CompareSwap {
        /// What the old number is fetched into.
        into: &'a Slice,
        /// The rank.
        rank: u32,
        /// The segment that has the number.
        of: &'a Segment,
        /// Its first byte there.
        offset: u64,
        /// The number that is replaced.
        compare: u64,
        /// The number that replaces it.
        swap: u64,
    },
}

impl<'a> Operation<'a> {
    pub(crate) fn rank(&self) -> u32 {
        match *self {
            Operation::Write { rank, .. }
            | Operation::Notify { rank, .. }
            | Operation::WriteNotify { rank, .. }
            | Operation::Read { rank, .. }
            | Operation::FetchAdd { rank, .. }
            | Operation::CompareSwap { rank, .. } => rank,
        }
    }

    /// The write of a [`Self::WriteNotify`], in front of its notification.
    pub(crate) fn front(&self) -> Option<Operation<'a>> {
        let Operation::WriteNotify { from, rank, to, offset, .. } = *self else { return None };
        Some(Operation::Write { from, rank, to, offset })
    }

    /// Its request: its last one, where there is one in front ([`Self::front`]). `max_reads` are the reads and atomics
    /// that the connections carry at a time.
    pub(crate) fn request(&self, max_reads: u8) -> Result<Request, NotifyError> {
        let fetched = |of: &Segment, rank, offset, len| match max_reads {
            0 => Err(NotifyError::NoReads),
            _ => of.shared().data_at(rank, offset, len),
        };
        const NUMBER: u64 = size_of::<u64>() as u64;
        Ok(match *self {
            Operation::Write { from, rank, to, offset } => {
                Request::Write(from.clone(), to.shared().data_at(rank, offset, from.len() as u64)?)
            }
            Operation::Notify { rank, to, id, value }
            | Operation::WriteNotify { rank, to, id, value, .. } => {
                Request::Set(value.to_ne_bytes(), to.shared().notification_at(rank, id, value)?)
            }
            Operation::Read { into, rank, of, offset } => {
                Request::Read(into.clone(), fetched(of, rank, offset, into.len() as u64)?)
            }
            Operation::FetchAdd { into, rank, of, offset, add } => {
                Request::FetchAdd(into.clone(), fetched(of, rank, offset, NUMBER)?, add)
            }
            Operation::CompareSwap { into, rank, of, offset, compare, swap } => {
                Request::CompareSwap(into.clone(), fetched(of, rank, offset, NUMBER)?, [compare, swap])
            }
        })
    }
}

/// How a locked queue takes a request: [`Posting::post`] or [`Posting::prepare`].
type Submit<'a, T> = fn(&mut Posting<'a>, Request, bool) -> Result<T, NotifyError>;

/// One of the queues of a [`Team`](crate::Team): a queue pair to every rank, this one included, or a few
/// that reach all ([`ConnectionKind`](crate::ConnectionKind)). A cheap handle.
///
/// Requests to one rank through one queue are performed in order: a write or notification behind a read or an atomic
/// starts when that has finished. Between queues, and between ranks, there is no order. Several threads may use a
/// queue. The CPU and streams take turns: while a stream still has to reach sends that it was given, a post by the CPU
/// or by another stream is refused ([`OrderError::OtherStream`](gdsync::queue::OrderError::OtherStream)). Give a stream
/// that sends a queue of its own.
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

    /// What leads to a rank.
    fn initiator(&self, rank: u32) -> Result<&Initiator, NotifyError> {
        let size = self.team.size;
        if rank < size {
            Ok(self.team.initiator(self.index, rank))
        } else {
            Err(NotifyError::Rank { rank, size })
        }
    }

    fn lock(&self, rank: u32) -> Result<Posting<'_>, NotifyError> {
        Ok(self.initiator(rank)?.lock(rank, self.timeout.unwrap_or(self.team.timeout)))
    }

    /// Gives an operation to the queue: a request, and that in front of it, where there is one. The completion of the
    /// last is that of both. A later one completes one that is not signaled.
    fn submit<'a, T>(
        &'a self,
        operation: Operation<'_>,
        signaled: bool,
        submit: Submit<'a, T>,
    ) -> Result<(Option<T>, T), NotifyError> {
        let request = |operation: &Operation<'_>| operation.request(self.team.options.max_reads);
        let (front, last) = (operation.front().as_ref().map(request).transpose()?, request(&operation)?);
        let mut posting = self.lock(operation.rank())?;
        let front = front.map(|front| submit(&mut posting, front, false)).transpose()?;
        Ok((front, submit(&mut posting, last, signaled)?))
    }

    /// Does it now, by the CPU. If the queue is full, this waits for room, for up to
    /// [`TeamConfig::timeout`](crate::TeamConfig::timeout); so do all calls that post or prepare.
    ///
    /// # Errors
    /// As the call of the operation's name.
    pub fn post(&self, operation: Operation<'_>) -> Result<(), NotifyError> {
        self.submit(operation, true, Posting::post).map(drop)
    }

    /// Prepares it for a batch of a stream: one send, or two, to be posted in this order. In one batch they share a
    /// doorbell. What is read is seen behind the waits of [`Self::prepare_waits`].
    ///
    /// # Errors
    /// As [`Self::post`]; [`NotifyError::PeerDead`] while any rank is dead and not dropped
    /// ([`Team::shrink`](crate::Team::shrink)). A stream does not see that its waits are released, so
    /// it gets nothing new to do.
    pub fn prepare(
        &self,
        operation: Operation<'_>,
    ) -> Result<impl Iterator<Item = PreparedSend> + use<>, NotifyError> {
        let (front, last) = self.submit(operation, true, Posting::prepare)?;
        Ok(front.into_iter().chain([last]))
    }

    /// Prepares an operation of a single request.
    pub(crate) fn prepare_one(
        &self,
        operation: Operation<'_>,
        signaled: bool,
    ) -> Result<PreparedSend, NotifyError> {
        Ok(self.submit(operation, signaled, Posting::prepare)?.1)
    }

    /// The connected queue pair to a rank, for programs and kernels that drive it themselves. A
    /// program that posts there does not poll its send completion queue: [`Self::flush`] does.
    ///
    /// # Errors
    /// [`NotifyError::Rank`]; [`NotifyError::NoQueuePair`] where connections are dynamic
    /// ([`ConnectionKind`](crate::ConnectionKind)).
    pub fn queue_pair(&self, rank: u32) -> Result<&QueuePair, NotifyError> {
        self.initiator(rank)?.queue_pair(rank)
    }

    /// Writes the slice into the segment of a rank, from a byte offset on, without a notification.
    /// The slice must not change before [`Self::flush`] has returned.
    ///
    /// # Errors
    /// [`NotifyError::Rank`], [`NotifyError::OutOfSegment`], [`NotifyError::TimedOut`]; [`NotifyError::PeerDead`] and
    /// [`NotifyError::Failed`], of this or an earlier write to that rank; [`NotifyError::Post`].
    pub fn write(&self, from: &Slice, rank: u32, to: &Segment, offset: u64) -> Result<(), NotifyError> {
        self.post(Operation::Write { from, rank, to, offset })
    }

    /// Sets a notification of the segment of a rank, after everything that this queue has written there before.
    ///
    /// # Errors
    /// As [`Self::write`]; [`NotifyError::Notification`], [`NotifyError::ZeroValue`].
    pub fn notify(&self, rank: u32, to: &Segment, id: u32, value: u32) -> Result<(), NotifyError> {
        self.post(Operation::Notify { rank, to, id, value })
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
        self.post(Operation::WriteNotify { from, rank, to, offset, id, value })
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
        self.post(Operation::Read { into, rank, of, offset })
    }

    /// Adds to the 64-bit number at a byte offset of the segment of a rank, modulo 2^64, and fetches what
    /// it was into the slice, as [`Self::read`] does. The slice has 8 bytes; the number's address is a
    /// multiple of 8, and with it the offset, unless the rank has registered memory that is not aligned
    /// itself. Numbers are in the byte order of the hosts.
    ///
    /// It is one step among the atomics of all ranks: that rank's card performs them. Whether it is for writes, for the
    /// CPU and for GPUs, too, is not promised; they leave such numbers alone while atomics are under way.
    ///
    /// An atomic is executed once, or, where a call says that the rank is dead or its connection has failed, perhaps
    /// not at all; it is never executed twice. The [guide](crate::guide) has an example.
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
        self.post(Operation::FetchAdd { into, rank, of, offset, add })
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
        self.post(Operation::CompareSwap { into, rank, of, offset, compare, swap })
    }

    /// Waits for a batch of a stream: after them, everything posted and prepared to that rank so
    /// far has arrived, what was read from it is there, and the program may change what was written.
    /// In one batch they share an operation. None, if streams wait for all of it already.
    ///
    /// # Errors
    /// [`NotifyError::Rank`], [`NotifyError::Post`].
    pub fn prepare_waits(&self, rank: u32) -> Result<Vec<PreparedWait>, NotifyError> {
        self.initiator(rank)?.prepare_waits(rank)
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
        self.initiator(rank)?.flush(rank, timeout)
    }

    /// Asks whether a rank's card answers on this queue: an empty write, flushed. The team probes
    /// each rank by itself, so no rank has to ping for the sake of finding a dead one.
    ///
    /// # Errors
    /// As [`Self::flush_rank`].
    pub fn ping(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        let initiator = self.initiator(rank)?;
        initiator.lock(rank, timeout).post(Request::Probe, true)?;
        initiator.flush(rank, timeout)
    }
}
