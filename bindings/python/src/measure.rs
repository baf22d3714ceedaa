//! The cost of batches without Python, for comparison by `scripts/gpu/python`.

use crate::backend::on;
use crate::errors::Failure;
use crate::region::{AnyWord, Word};
use crate::segment::Segment;
use crate::stream::Stream;
use gdsync::Batch;
use gdsync::memop::MemOpStream;
use gdsync_notify::{Operation, WaitNotification};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// Operations of a batch.
const OPERATIONS: usize = 8;
const LONG: Duration = Duration::from_secs(30);

/// Returns the CPU's median seconds to create and post a batch of 8 writes of a 32-bit word in host memory, and one of
/// 2 notified writes to this rank itself (2 sends each) and 2 waits for notifications (a wait and a write each).
#[pyfunction]
pub(crate) fn _time_batches(
    py: Python<'_>,
    stream: &Stream,
    word: &Word,
    segment: &Segment,
    rounds: usize,
) -> Result<(f64, f64), Failure> {
    py.detach(|| on!(stream.backend, stream => time(stream, word, segment, rounds)))
}

fn time<B: MemOpStream>(
    stream: &gdsync::Stream<B>,
    word: &Word,
    segment: &Segment,
    rounds: usize,
) -> Result<(f64, f64), Failure> {
    let AnyWord::Host32(word) = &word.inner else {
        return Err(Failure::invalid("the word has 32 bits and is in host memory"));
    };
    let segment = &segment.handle;
    let (queue, rank) = (segment.team.queue(0)?, segment.team.rank());
    let (mut words, mut notified) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let began = Instant::now();
        let batch =
            (0..OPERATIONS as u32).fold(Batch::new(), |batch, value| batch.write_value32(word, value));
        stream.post(batch).map_err(|error| Failure::from(error.source))?;
        words.push(began.elapsed());
        stream.synchronize()?;

        let began = Instant::now();
        let mut batch = Batch::new();
        for id in 0..2 {
            let (from, to) = (&segment.segment.slice(..8)?, &segment.segment);
            let write = Operation::WriteNotify { from, rank, to, offset: 8, id, value: 1 };
            batch = queue.prepare(write)?.fold(batch, Batch::send);
        }
        for id in 0..2 {
            batch = batch.wait_notification(&segment.segment.notification(id)?);
        }
        stream.post(batch).map_err(|error| Failure::from(error.source))?;
        notified.push(began.elapsed());
        stream.synchronize()?;
        queue.flush(LONG)?;
    }
    Ok((median(words), median(notified)))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64)
}
