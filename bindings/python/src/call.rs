//! The calls of a batch as Python writes them, for `print(batch)`.

use crate::queue_pair::WorkRequest;
use crate::region::Word;
use gdsync::memop::Condition;
use gdsync_notify::Operation;
use std::fmt;

/// A call that has added operations to a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Write { nbytes: usize, rank: u32, offset: u64 },
    WriteNotify { nbytes: usize, rank: u32, offset: u64, id: u32, value: u32 },
    Notify { rank: u32, id: u32, value: u32 },
    Read { nbytes: usize, rank: u32, offset: u64 },
    FetchAdd { rank: u32, offset: u64, add: u64 },
    CompareSwap { rank: u32, offset: u64, compare: u64, swap: u64 },
    WaitNotification { id: u32 },
    WaitWrites { rank: u32 },
    Send { queue_pair: u32, request: &'static str, nbytes: u64 },
    Wait { entries: u32 },
    WaitValue { word: Place, value: u64, condition: Condition },
    WriteValue { word: Place, value: u64 },
    Barrier,
    Other,
}

/// A word's width and address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    bits: u32,
    address: u64,
}

impl From<&Word> for Place {
    fn from(word: &Word) -> Self {
        Place { bits: word.bits(), address: word.address }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "word{} at {:#x}", self.bits, self.address)
    }
}

impl From<Operation<'_>> for Call {
    fn from(operation: Operation<'_>) -> Self {
        match operation {
            Operation::Write { from, rank, offset, .. } => Call::Write { nbytes: from.len(), rank, offset },
            Operation::WriteNotify { from, rank, offset, id, value, .. } => {
                Call::WriteNotify { nbytes: from.len(), rank, offset, id, value }
            }
            Operation::Notify { rank, id, value, .. } => Call::Notify { rank, id, value },
            Operation::Read { into, rank, offset, .. } => Call::Read { nbytes: into.len(), rank, offset },
            Operation::FetchAdd { rank, offset, add, .. } => Call::FetchAdd { rank, offset, add },
            Operation::CompareSwap { rank, offset, compare, swap, .. } => {
                Call::CompareSwap { rank, offset, compare, swap }
            }
            _ => Call::Other,
        }
    }
}

impl Call {
    pub(crate) fn send(queue_pair: &gdsync::QueuePair, request: &WorkRequest) -> Self {
        Call::Send { queue_pair: queue_pair.number(), request: request.name(), nbytes: request.nbytes() }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Write { nbytes, rank, offset } => {
                write!(f, "write({nbytes} bytes, rank={rank}, offset={offset})")
            }
            Call::WriteNotify { nbytes, rank, offset, id, value } => {
                write!(
                    f,
                    "write_notify({nbytes} bytes, rank={rank}, offset={offset}, id={id}, value={value})"
                )
            }
            Call::Notify { rank, id, value } => write!(f, "notify(rank={rank}, id={id}, value={value})"),
            Call::Read { nbytes, rank, offset } => {
                write!(f, "read({nbytes} bytes, rank={rank}, offset={offset})")
            }
            Call::FetchAdd { rank, offset, add } => {
                write!(f, "fetch_add(rank={rank}, offset={offset}, add={add})")
            }
            Call::CompareSwap { rank, offset, compare, swap } => {
                write!(f, "compare_swap(rank={rank}, offset={offset}, compare={compare}, swap={swap})")
            }
            Call::WaitNotification { id } => write!(f, "wait_notification(id={id})"),
            Call::WaitWrites { rank } => write!(f, "wait_writes(rank={rank})"),
            Call::Send { queue_pair, request, nbytes } => {
                write!(f, "send(queue pair {queue_pair:#x}, {request} of {nbytes} bytes)")
            }
            Call::Wait { entries } => write!(f, "wait(queue of {entries} entries)"),
            Call::WaitValue { word, value, condition } => {
                write!(f, "wait_value({word}, {value}, \"{condition}\")")
            }
            Call::WriteValue { word, value } => write!(f, "write_value({word}, {value})"),
            Call::Barrier => f.write_str("barrier()"),
            Call::Other => f.write_str("an operation"),
        }
    }
}
