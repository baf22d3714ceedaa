//! Counts of this rank, for the line that `GDSYNC_MPI_STATS=1` prints.

use gdsync::stream::Posted;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts, as `struct gdsync_mpi_counts` of C.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Started requests.
    pub starts: u64,
    /// Requests for which a stream waits.
    pub waits: u64,
    /// Submissions to streams.
    pub batches: u64,
    /// Memory operations in the submissions.
    pub operations: u64,
    /// Reductions that the CPU performs in the order of a stream.
    pub cpu: u64,
    /// Partitions that the card has written.
    pub partitions: u64,
    /// Messages of links that streams have posted.
    pub by_stream: u64,
    /// Messages of links that the thread has posted.
    pub by_thread: u64,
}

struct Counters {
    starts: AtomicU64,
    waits: AtomicU64,
    batches: AtomicU64,
    operations: AtomicU64,
    cpu: AtomicU64,
    partitions: AtomicU64,
    by_stream: AtomicU64,
    by_thread: AtomicU64,
}

static COUNTERS: Counters = Counters {
    starts: AtomicU64::new(0),
    waits: AtomicU64::new(0),
    batches: AtomicU64::new(0),
    operations: AtomicU64::new(0),
    cpu: AtomicU64::new(0),
    partitions: AtomicU64::new(0),
    by_stream: AtomicU64::new(0),
    by_thread: AtomicU64::new(0),
};

fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Ordering::Relaxed);
}

pub(crate) fn started(requests: usize) {
    add(&COUNTERS.starts, requests);
}

pub(crate) fn awaited(requests: usize) {
    add(&COUNTERS.waits, requests);
}

pub(crate) fn posted(posted: Posted) {
    add(&COUNTERS.batches, posted.submissions);
    add(&COUNTERS.operations, posted.operations);
}

pub(crate) fn used_cpu() {
    add(&COUNTERS.cpu, 1);
}

pub(crate) fn wrote_partition() {
    add(&COUNTERS.partitions, 1);
}

pub(crate) fn linked(by_stream: usize, by_thread: usize) {
    add(&COUNTERS.by_stream, by_stream);
    add(&COUNTERS.by_thread, by_thread);
}

pub(crate) fn counts() -> Counts {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Counts {
        starts: of(&COUNTERS.starts),
        waits: of(&COUNTERS.waits),
        batches: of(&COUNTERS.batches),
        operations: of(&COUNTERS.operations),
        cpu: of(&COUNTERS.cpu),
        partitions: of(&COUNTERS.partitions),
        by_stream: of(&COUNTERS.by_stream),
        by_thread: of(&COUNTERS.by_thread),
    }
}
