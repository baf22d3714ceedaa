//! A stream that waits for sends of several ends at once: the card collects their completions.

use super::end::End;
use super::plan::Random;
use super::tally::Tally;
use crate::failure::Failure;
use gdsync::stream::{Event, StreamOptions};
use gdsync::{Batch, PreparedWait, SoftStream, Stream};
use std::collections::VecDeque;
use std::time::Duration;

/// Batches that are posted at a time.
const BATCHES: usize = 4;
/// How long the last of them may take once all ends are closed.
const LAST: Duration = Duration::from_secs(20);

/// It only waits, for work that was handed over: so it stands in the way of nothing.
pub(super) struct Gather {
    stream: Stream<SoftStream>,
    posted: VecDeque<Event>,
    random: Random,
}

impl Gather {
    pub(super) fn new(random: Random) -> Result<Self, Failure> {
        let stream =
            Stream::with_options(SoftStream::new()?, StreamOptions::default().collect_from(Some(2)))?;
        Ok(Gather { stream, posted: VecDeque::new(), random })
    }

    /// Sometimes waits for the next send of some of the ends.
    pub(super) fn wait(&mut self, ends: &[End], tally: &mut Tally) -> Result<(), Failure> {
        while self.posted.front().is_some_and(|event| event.completed_at().is_some()) {
            self.posted.pop_front();
        }
        if self.posted.len() >= BATCHES || self.random.below(8) != 0 {
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
        let posted = self.stream.post(batch).map_err(|error| error.to_string())?;
        // By itself the stream has an operation for each queue, and one more.
        if posted.operations < count {
            tally.collected += count as u64;
        }
        self.posted.push_back(self.stream.record()?);
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
