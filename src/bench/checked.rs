//! `gdsync bench checked`: a wait that tells success from failure, beside a plain one, on a software stream, and on a GPU's where
//! there is one.

use super::gpu::Gpu;
use super::{Comparison, print, print_json};
use crate::cli::BenchOptions;
use crate::failure::Failure;
use gdsync::memop::MemOpStream;
use gdsync::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig,
    SoftStream, Stream, WorkRequest,
};
use std::time::Instant;

/// Rounds; in each, both waits are measured one after the other.
const ROUNDS: u32 = 4000;
/// Rounds before those that count.
const WARM_UP: u32 = 200;

/// Two connected queue pairs of one process, one of which writes to the other's memory.
struct Bench {
    left: QueuePair,
    _right: QueuePair,
    target: MemoryRegion,
}

pub(super) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let bench = Bench::new()?;
    let mut results = vec![bench.compare("a software stream", &Stream::new(SoftStream::new()?)?)?];
    // Without a GPU there is half of it to measure.
    if let Ok(gpu) = Gpu::new(options.gpu) {
        results.push(bench.compare(&gpu.name()?, &gpu.stream)?);
    }
    if options.json {
        return print_json(&results);
    }
    let rows: Vec<_> = results.iter().map(Comparison::row).collect();
    print(
        &["8 B WRITTEN, FROM POST UNTIL THE STREAM IS PAST THE WAIT", "CHECKED µs", "PLAIN µs", "RATIO"],
        &rows,
    )
}

impl Bench {
    fn new() -> Result<Self, Failure> {
        let device = Device::software()?;
        let pd = ProtectionDomain::new(&device)?;
        let config = QueuePairConfig::default();
        let (left, right) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, config)?);
        left.connect(&right.endpoint()?, ConnectOptions::default())?;
        right.connect(&left.endpoint()?, ConnectOptions::default())?;
        let target = MemoryRegion::allocate(&pd, 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Bench { left, _right: right, target })
    }

    fn compare<B: MemOpStream>(&self, what: &str, stream: &Stream<B>) -> Result<Comparison, Failure> {
        let mut pairs = Vec::new();
        for round in 0..WARM_UP + ROUNDS {
            // They take turns at being first.
            let pair = if round % 2 == 0 {
                let checked = self.turn(stream, true)?;
                (checked, self.turn(stream, false)?)
            } else {
                let plain = self.turn(stream, false)?;
                (self.turn(stream, true)?, plain)
            };
            if round >= WARM_UP {
                pairs.push(pair);
            }
        }
        Ok(Comparison::new(what, pairs))
    }

    /// How long a stream takes for a write and the wait for it, in µs.
    fn turn<B: MemOpStream>(&self, stream: &Stream<B>, checked: bool) -> Result<f64, Failure> {
        let queue = self.left.send_cq();
        let send = self.left.prepare(WorkRequest::write_inline(&[7; 8], self.target.remote()))?;
        let wait = queue.prepare_wait()?;
        let batch = Batch::new().send(send);
        let batch = if checked { batch.wait_checked(wait.checked()?) } else { batch.wait(wait) };
        let start = Instant::now();
        stream.post(batch).map_err(|error| error.to_string())?;
        stream.synchronize()?;
        let time = start.elapsed().as_secs_f64() * 1e6;
        queue.poll()?.ok_or("the stream is past a completion that is not there")?.status?;
        Ok(time)
    }
}
