//! A team's queues: operations on ranks' memory by the CPU and for streams.

use crate::connections::Connections;
use crate::error::NotifyError;
use crate::initiator::{Initiator, Posting};
use crate::requests::Request;
use crate::segment::Segment;
use gdsync::memop::explain;
use gdsync::{PreparedSend, PreparedWait, QueuePair, Slice};
use std::sync::Arc;
use std::time::Duration;

/// An operation on a rank's memory, for [`Queue::post`] by the CPU or [`Queue::prepare`] for a batch of a stream. The
/// method of [`Queue`] with the same name documents each.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// [`Queue::write`](crate::Queue::write).
    Write {
        /// The source.
        from: &'a Slice,
        /// The rank.
        rank: u32,
        /// The segment.
        to: &'a Segment,
        /// The byte offset in the rank's data.
        offset: u64,
    },
    /// [`Queue::notify`](crate::Queue::notify).
    Notify {
        /// The rank.
        rank: u32,
        /// The segment.
        to: &'a Segment,
        /// The notification.
        id: u32,
        /// Its value, not 0.
        value: u32,
    },
    /// [`Queue::write_notify`](crate::Queue::write_notify).
    WriteNotify {
        /// The source.
        from: &'a Slice,
        /// The rank.
        rank: u32,
        /// The segment.
        to: &'a Segment,
        /// The byte offset in the rank's data.
        offset: u64,
        /// The notification.
        id: u32,
        /// Its value, not 0.
        value: u32,
    },
    /// [`Queue::read`](crate::Queue::read).
    Read {
        /// The destination.
        into: &'a Slice,
        /// The rank.
        rank: u32,
        /// The segment.
        of: &'a Segment,
        /// The byte offset in the rank's data.
        offset: u64,
    },
    /// [`Queue::fetch_add`](crate::Queue::fetch_add).
    FetchAdd {
        /// The destination of the old value.
        into: &'a Slice,
        /// The rank.
        rank: u32,
        /// The segment.
        of: &'a Segment,
        /// The byte offset in the rank's data.
        offset: u64,
        /// The addend.
        add: u64,
    },
    /// [`Queue::compare_swap`](crate::Queue::compare_swap).
    CompareSwap {
        /// The destination of the old value.
        into: &'a Slice,
        /// The rank.
        rank: u32,
        /// The segment.
        of: &'a Segment,
        /// The byte offset in the rank's data.
        offset: u64,
        /// The expected value.
        compare: u64,
        /// The new value.
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

    /// Returns the write of a [`Self::WriteNotify`], which precedes its notification.
    pub(crate) fn front(&self) -> Option<Operation<'a>> {
        let Operation::WriteNotify { from, rank, to, offset, .. } = *self else { return None };
        Some(Operation::Write { from, rank, to, offset })
    }

    /// Returns the request, or the last of two ([`Self::front`]). `max_reads` is that of the connections.
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

/// Submits a request to a locked queue: [`Posting::post`] or [`Posting::prepare`].
type Submit<'a, T> = fn(&mut Posting<'a>, Request, bool) -> Result<T, NotifyError>;

/// A queue of a [`Team`](crate::Team): a queue pair to every rank, this one included, or a few that reach all
/// ([`ConnectionKind`](crate::ConnectionKind)). It is a cheap handle. The [crate's page](crate) has an example.
///
/// Requests to one rank through one queue are performed in order: a write or notification behind a read or an atomic
/// starts when that has finished. Where cards place messages out of order, that holds for notifications, and for requests of
/// the same memory. There is no order between queues or between ranks. Several threads may use a queue.
/// The CPU and streams take turns: until a stream has reached the sends that it was given, posts by the CPU or another
/// stream are refused ([`OrderError::OtherStream`](gdsync::queue::OrderError::OtherStream)). Give each stream that
/// sends its own queue.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) team: Arc<Connections>,
    index: usize,
    /// How long a post waits for room, if not the team's time-out.
    timeout: Option<Duration>,
}

impl Queue {
    pub(crate) fn new(team: Arc<Connections>, index: usize) -> Self {
        Queue { team, index, timeout: None }
    }

    /// Returns a handle whose posts and preparations wait for room for up to `timeout` instead of
    /// [`TeamConfig::timeout`](crate::TeamConfig::timeout). A caller that must also handle signals, for example, waits
    /// for a short time and retries: a call refused for want of room ([`NotifyError::TimedOut`]) has posted nothing.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Queue { timeout: Some(timeout), ..self.clone() }
    }

    fn initiator(&self, rank: u32) -> Result<&Initiator, NotifyError> {
        let size = self.team.size;
        let initiator = (rank < size).then(|| self.team.initiator(self.index, rank));
        initiator.ok_or(NotifyError::Rank { rank, size })
    }

    fn lock(&self, rank: u32) -> Result<Posting<'_>, NotifyError> {
        Ok(self.initiator(rank)?.lock(rank, self.timeout.unwrap_or(self.team.timeout)))
    }

    /// Submits an operation's request, the one in front of it if there is one, and what orders them on a card that places
    /// messages out of order. The completion of the last covers
    /// both. A later signaled request completes an unsignaled one.
    pub(crate) fn submit<'a, T>(
        &'a self,
        operation: Operation<'_>,
        signaled: bool,
        submit: Submit<'a, T>,
    ) -> Result<impl Iterator<Item = T> + use<T>, NotifyError> {
        let max_reads = self.team.options.max_reads;
        let request = |operation: &Operation<'_>| operation.request(max_reads);
        let (front, last) = (operation.front().as_ref().map(request).transpose()?, request(&operation)?);
        let mut posting = self.lock(operation.rank())?;
        let mut ordered = |request: Option<Request>, signaled| -> Result<[Option<T>; 2], NotifyError> {
            let Some(request) = request else { return Ok([None, None]) };
            let order = match posting.needs_order(&request)? {
                true if max_reads == 0 => return Err(NotifyError::NoReads),
                true => Some(submit(&mut posting, Request::Order, false)?),
                false => None,
            };
            Ok([order, Some(submit(&mut posting, request, signaled)?)])
        };
        let (front, last) = (ordered(front, false)?, ordered(Some(last), signaled)?);
        Ok([front, last].into_iter().flatten().flatten())
    }

    /// Performs the operation by the CPU. If the queue is full, this waits for room for up to
    /// [`TeamConfig::timeout`](crate::TeamConfig::timeout), as do all calls that post or prepare.
    ///
    /// # Errors
    /// As for the method with the operation's name.
    pub fn post(&self, operation: Operation<'_>) -> Result<(), NotifyError> {
        self.submit(operation, true, Posting::post).map(drop)
    }

    /// Prepares the operation for a batch of a stream: one send, or several to be posted in this order. Sends of one batch
    /// share a doorbell. Data that is read is visible behind the waits of [`Self::prepare_waits`].
    ///
    /// # Errors
    /// As [`Self::post`]; [`NotifyError::PeerDead`] while any rank is dead and not dropped
    /// ([`Team::shrink`](crate::Team::shrink)), because a stream does not notice that its waits were released.
    pub fn prepare(
        &self,
        operation: Operation<'_>,
    ) -> Result<impl Iterator<Item = PreparedSend> + use<>, NotifyError> {
        self.submit(operation, true, Posting::prepare)
    }

    /// Returns the connected queue pair to a rank, for programs and kernels that drive it themselves. A program that
    /// posts there does not poll its send completion queue, because [`Self::flush`] does. It gives its requests no
    /// `wr_id` from 2^52 to 2^53: these are the library's. Its failed request fails the connection, as one of the library does.
    ///
    /// # Errors
    /// [`NotifyError::Rank`] if there is no such rank; [`NotifyError::NoQueuePair`] where connections are dynamic
    /// ([`ConnectionKind`](crate::ConnectionKind)).
    pub fn queue_pair(&self, rank: u32) -> Result<&QueuePair, NotifyError> {
        self.initiator(rank)?.queue_pair(rank)
    }

    /// Writes the slice into a rank's part of the segment, from a byte offset on, without a notification. The slice
    /// must not change before [`Self::flush`] has returned.
    ///
    /// # Errors
    /// [`NotifyError::Rank`] if there is no such rank, [`NotifyError::OutOfSegment`] if the range leaves its data,
    /// [`NotifyError::TimedOut`] if the queue stays full; [`NotifyError::PeerDead`] and [`NotifyError::Failed`], of
    /// this or an earlier write to that rank; [`NotifyError::Post`] if the queue pair refuses the request.
    pub fn write(&self, from: &Slice, rank: u32, to: &Segment, offset: u64) -> Result<(), NotifyError> {
        self.post(Operation::Write { from, rank, to, offset })
    }

    /// Sets a notification of a rank, after all earlier writes of this queue to that rank.
    ///
    /// # Errors
    /// As [`Self::write`]; [`NotifyError::Notification`] if there is no such notification, [`NotifyError::ZeroValue`]
    /// for the value 0.
    pub fn notify(&self, rank: u32, to: &Segment, id: u32, value: u32) -> Result<(), NotifyError> {
        self.post(Operation::Notify { rank, to, id, value })
    }

    /// Writes as [`Self::write`] does, then notifies as [`Self::notify`] does: a reader that sees the notification sees
    /// the data.
    ///
    /// # Errors
    /// As [`Self::write`] and [`Self::notify`].
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

    /// Reads from a rank's part of the segment, from a byte offset on, into the slice, whose memory the local card may
    /// write to, such as that of a [`Segment`]. The bytes are there when [`Self::flush`] has returned. The other rank is
    /// not notified. In GPU memory a real card's writes are visible behind a stream's waits ([`Self::prepare_waits`]), and
    /// behind a flush only if the GPU shows them in order ([`gdsync::cuda::Consistency`]).
    ///
    /// A read sees earlier writes of this queue to that rank; later writes are performed after it.
    ///
    /// # Errors
    /// As [`Self::write`]; [`NotifyError::NoReads`] if the team's connections carry none.
    pub fn read(&self, into: &Slice, rank: u32, of: &Segment, offset: u64) -> Result<(), NotifyError> {
        self.post(Operation::Read { into, rank, of, offset })
    }

    /// Adds to the 64-bit number at a byte offset of a rank's part, modulo 2^64, and fetches its old value into the
    /// slice, as [`Self::read`] does. The slice has 8 bytes; the number's address is a multiple of 8, and so is the
    /// offset, unless the rank has registered unaligned memory. Numbers are in the byte order of the hosts.
    ///
    /// The rank's card makes the operation atomic with respect to the atomics of all ranks. Atomicity with respect to
    /// writes, the CPU and GPUs is not promised; they leave such numbers alone while atomics are in flight.
    ///
    /// An atomic is executed once, or, if a call reports that the rank is dead or its connection has failed, perhaps
    /// not at all; never twice. The [guide](crate::guide) has an example.
    ///
    /// # Errors
    /// As [`Self::read`]; [`NotifyError::Post`] for a slice of another length, a misaligned address, or a card without
    /// atomics.
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

    /// Replaces the 64-bit number at a byte offset of a rank's part by `swap` if it equals `compare`, and fetches its
    /// old value into the slice. All else is as for [`Self::fetch_add`].
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

    /// Prepares waits for a batch of a stream: after the waits, all earlier requests to that rank have arrived, data read
    /// from it is there, and the program may change the sources of writes. Waits of one batch share an operation.
    /// Returns none if streams already wait for all of it.
    ///
    /// # Errors
    /// [`NotifyError::Rank`] if there is no such rank, [`NotifyError::Post`] if a wait cannot be prepared.
    pub fn prepare_waits(&self, rank: u32) -> Result<Vec<PreparedWait>, NotifyError> {
        self.initiator(rank)?.prepare_waits(rank)
    }

    /// Returns when all earlier requests to all ranks of the team have arrived there, and data read from them is here,
    /// so that the program may change the sources of writes. This includes sends that streams were given, so the
    /// streams must reach them in time.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`], [`NotifyError::Failed`] for the first rank that cannot be reached;
    /// [`NotifyError::TimedOut`] after `timeout`; [`NotifyError::Post`], after that time, if a send is prepared and not
    /// posted, or a stream has not reached it.
    pub fn flush(&self, timeout: Duration) -> Result<(), NotifyError> {
        self.team.flush(self.index, timeout)
    }

    /// Flushes as [`Self::flush`] does, for the requests to one rank.
    ///
    /// # Errors
    /// As [`Self::flush`]; [`NotifyError::Rank`] if there is no such rank.
    pub fn flush_rank(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        self.initiator(rank)?.flush(rank, timeout)
    }

    /// Says why a flush takes long, as [`gdsync::Stream::explain_wait`] does: the ranks whose requests have not completed, and
    /// what the processes of this host know about the queue pairs and their peers. `None` if all have completed. It asks these
    /// processes, which takes up to 250 ms if one of them does not answer.
    pub fn explain_flush(&self) -> Option<String> {
        explain(&self.team.uncompleted(self.index))
    }

    /// Checks whether a rank's card answers on this queue, by an empty write and a flush. The team probes each rank
    /// anyway, so finding dead ranks needs no pings.
    ///
    /// # Errors
    /// As [`Self::flush_rank`].
    pub fn ping(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        let initiator = self.initiator(rank)?;
        initiator.lock(rank, timeout).post(Request::Probe, true)?;
        initiator.flush(rank, timeout)
    }
}
