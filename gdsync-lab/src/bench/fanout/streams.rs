//! The two streams that are compared.

use super::clock::Clocked;
use gdsync::cuda::Placement;
use gdsync::memop::{Condition, Word32};
use gdsync::stream::StreamOptions;
use gdsync::{Batch, PinnedMemory, Stream};
use gdsync_cli::failure::Failure;
use std::time::Duration;

/// How a batch is handed over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The card waits: one word releases the sends, and one tells of all completions.
    Word,
    /// The stream rings and waits for each queue pair.
    Doorbells,
}

pub(super) struct Streams<B: Clocked> {
    collecting: Stream<B>,
    pub(super) plain: Stream<B>,
    /// Where they stand until everything is enqueued, and its value.
    gate: Word32,
    value: u32,
    marks: [B::Mark; 2],
}

impl<B: Clocked> Streams<B> {
    pub(super) fn new([collecting, plain]: [B; 2], arrivals: Placement) -> Result<Self, Failure> {
        let options = StreamOptions::default().collect_from(Some(1)).collect_in(arrivals);
        let plain = Stream::new(plain)?;
        Ok(Streams {
            collecting: Stream::with_options(collecting, options)?,
            marks: [B::mark(&plain)?, B::mark(&plain)?],
            plain,
            gate: Word32::new(&PinnedMemory::allocate(size_of::<u32>())?, 0)?,
            value: 0,
        })
    }

    /// Enqueues a batch behind the gate, and opens it after a rest. Returns the time of the batch in
    /// µs, and its memory operations.
    pub(super) fn time(&mut self, way: Way, batch: Batch, rest: Duration) -> Result<(f64, usize), Failure> {
        let stream = if way == Way::Word { &self.collecting } else { &self.plain };
        self.value += 1;
        let [start, end] = &mut self.marks;
        stream.post(Batch::new().wait_value32(&self.gate, Condition::Geq, self.value))?;
        B::record(stream, start)?;
        let posted = stream.post(batch).map_err(|error| error.to_string())?;
        B::record(stream, end)?;
        std::thread::sleep(rest);
        self.gate.store(self.value);
        stream.synchronize()?;
        Ok((B::between(start, end)?, posted.operations))
    }
}
