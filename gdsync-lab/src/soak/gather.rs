//! A stream that waits for sends of several ends at once: the card collects their completions.

use super::end::End;
use super::gpu::{AnyStream, Gpu};
use super::plan::Random;
use super::tally::Tally;
use gdsync::memop::Word64;
use gdsync::{Batch, PinnedMemory, PreparedWait};
use gdsync_cli::failure::Failure;
use std::time::Duration;

/// Batches that are posted at a time.
const BATCHES: u64 = 4;
/// How long the last of them may take once all ends are closed.
const LAST: Duration = Duration::from_secs(20);

/// It only waits, for work that was handed over: so it stands in the way of nothing.
pub(super) struct Gather {
    stream: AnyStream,
    /// The stream writes here how many batches it has performed.
    done: Word64,
    posted: u64,
    random: Random,
}

impl Gather {
    /// On a GPU, the word that the card writes lies in its memory or in the host's.
    pub(super) fn new(mut random: Random, gpu: &Gpu) -> Result<Self, Failure> {
        let stream = gpu.collecting(random.below(2) == 0)?;
        let done = Word64::new(&PinnedMemory::allocate(size_of::<u64>())?, 0)?;
        Ok(Gather { stream, done, posted: 0, random })
    }

    /// Sometimes waits for the next send of some of the ends.
    pub(super) fn wait(&mut self, ends: &[End], tally: &mut Tally) -> Result<(), Failure> {
        if self.posted - self.done.load() >= BATCHES || self.random.below(8) != 0 {
            return Ok(());
        }
        let mut waits: Vec<PreparedWait> = Vec::new();
        for end in ends {
            if self.random.below(2) == 0 {
                waits.extend(end.next_send()?);
            }
        }
        let count = waits.len();
        let batch = waits.into_iter().fold(Batch::new(), Batch::wait);
        let batch = batch.write_value64(&self.done, self.posted + 1);
        let posted = self.stream.post(batch).map_err(|error| error.to_string())?;
        self.posted += 1;
        // By itself the stream has an operation for each queue, and two more.
        if posted.operations <= count {
            tally.collected += count as u64;
        }
        Ok(())
    }

    /// All ends are closed, so that nothing is left to wait for.
    pub(super) fn finish(&self, tally: &mut Tally) -> Result<(), Failure> {
        if self.stream.synchronize_timeout(LAST)? {
            return Ok(());
        }
        tally.hung += 1;
        Err("a stream still waits for completions that are collected, and all have come".into())
    }
}
