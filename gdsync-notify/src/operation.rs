//! What a queue does at a rank, as a value that the entries for the CPU and for streams take alike.

use crate::action::Action;
use crate::error::NotifyError;
use crate::segment::Segment;
use gdsync::Slice;

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
    pub(crate) fn action(&self, max_reads: u8) -> Result<Action, NotifyError> {
        let fetched = |of: &Segment, rank, offset, len| match max_reads {
            0 => Err(NotifyError::NoReads),
            _ => of.part_of(rank, offset, len),
        };
        const NUMBER: u64 = size_of::<u64>() as u64;
        Ok(match *self {
            Operation::Write { from, rank, to, offset } => {
                Action::Write(from.clone(), to.part_of(rank, offset, from.len() as u64)?)
            }
            Operation::Notify { rank, to, id, value }
            | Operation::WriteNotify { rank, to, id, value, .. } => {
                Action::Set(value.to_ne_bytes(), to.notification_of(rank, id, value)?)
            }
            Operation::Read { into, rank, of, offset } => {
                Action::Read(into.clone(), fetched(of, rank, offset, into.len() as u64)?)
            }
            Operation::FetchAdd { into, rank, of, offset, add } => {
                Action::FetchAdd(into.clone(), fetched(of, rank, offset, NUMBER)?, add)
            }
            Operation::CompareSwap { into, rank, of, offset, compare, swap } => {
                Action::CompareSwap(into.clone(), fetched(of, rank, offset, NUMBER)?, [compare, swap])
            }
        })
    }
}
