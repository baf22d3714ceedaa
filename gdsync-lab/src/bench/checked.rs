//! `gdsync bench checked`: a wait that tells success from failure, beside a plain one, on a
//! software stream, and on a GPU's where there is one.

use super::gpu::Gpu;
use super::pair::Pair;
use super::table::{Outcome, Row};
use super::{in_turns, micros_since};
use gdsync::memop::MemOpStream;
use gdsync::{Access, Batch, MemoryRegion, QueuePairConfig, SoftStream, Stream, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::time::Instant;

/// Rounds, unless the user ends them; in each, both waits are measured one after the other.
const ROUNDS: u32 = 4000;
/// Rounds before those that count.
const WARM_UP: u32 = 200;

/// Two connected queue pairs of one process, one of which writes to the other's memory.
struct Bench {
    pair: Pair,
    target: MemoryRegion,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let bench = Bench::new()?;
    let mut rows = vec![bench.compare("a software stream", &Stream::new(SoftStream::new()?)?)?];
    // Without a GPU only the software stream is measured, and after an interrupt.
    if let (false, Ok(gpu)) = (interrupt::requested(), Gpu::new(options.gpu())) {
        rows.push(bench.compare(&gpu.name()?, &gpu.stream)?);
    }
    let what = "8 B WRITTEN, FROM POST UNTIL THE STREAM IS PAST THE WAIT";
    let titles = [what, "CHECKED µs", "PLAIN µs"];
    Ok(Outcome::compared(Row::default(), titles, "A wait that tells success from failure", &rows))
}

impl Bench {
    fn new() -> Result<Self, Failure> {
        let pair = Pair::with(None, QueuePairConfig::default())?;
        let target = MemoryRegion::allocate(&pair.pd, 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Bench { pair, target })
    }

    fn compare<B: MemOpStream>(&self, what: &str, stream: &Stream<B>) -> Result<Row, Failure> {
        (0..2 * WARM_UP).try_for_each(|turn| self.turn(stream, turn % 2 == 0).map(drop))?;
        let pairs = in_turns(interrupt::rounds(0..ROUNDS), |way, _| self.turn(stream, way == 0))?;
        Ok(Row::named(what).compared(&pairs))
    }

    /// How long a stream takes for a write and the wait for it, in µs.
    fn turn<B: MemOpStream>(&self, stream: &Stream<B>, checked: bool) -> Result<f64, Failure> {
        let queue = self.pair.left.send_cq();
        let send = self.pair.left.prepare(WorkRequest::write_inline(&[7; 8], self.target.remote()))?;
        let wait = queue.prepare_wait()?;
        let batch = Batch::new().send(send);
        let batch = if checked { batch.wait_checked(wait.checked()?) } else { batch.wait(wait) };
        let start = Instant::now();
        stream.post(batch).map_err(|error| error.to_string())?;
        stream.synchronize()?;
        let time = micros_since(start);
        queue.poll()?.ok_or("the stream is past a completion that is not there")?.status?;
        Ok(time)
    }
}
