//! `gdsync bench card`: a card, the software card where none is named, beside a reference measured in the same run.

use super::median;
use super::outcome::{Outcome, Table};
use super::pair::Pair;
use gdsync::stream::Cpu;
use gdsync::{Access, Batch, MemoryRegion, QueuePairConfig, Stream, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::Hca;
use gdsync_cli::interrupt;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Values};
use gdsync_cli::text;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Bytes of a large message.
const LARGE: usize = 1 << 20;
/// Rounds; in each, card and reference are measured one after the other, so that both see the same
/// machine.
const ROUNDS: usize = 15;
/// Small writes of a round, and large ones.
const SMALL_WRITES: usize = 2000;
const LARGE_WRITES: usize = 32;

#[derive(Debug, Serialize)]
struct Results {
    /// From post to polled completion of an RDMA write of 8 bytes within the process: median over
    /// all writes.
    write_8b_us: f64,
    /// The least of them.
    write_8b_min_us: f64,
    /// RDMA writes of 1 MiB within the process: median over the rounds.
    write_1mib_bytes_per_s: f64,
    /// `memcpy` of the same buffers: median over the rounds.
    memcpy_1mib_bytes_per_s: f64,
    /// Median over the rounds of the first divided by the second.
    ratio: f64,
}

/// Two connected queue pairs of one process, one of which writes to the other's memory.
struct Bench {
    pair: Pair,
    stream: Stream<Cpu>,
    source: MemoryRegion,
    target: MemoryRegion,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let hca = options.hca.as_ref();
    let results = Bench::new(hca)?.measure()?;
    let card = hca.map_or_else(|| "SOFTWARE CARD".to_owned(), Hca::to_string);
    let rows = vec![
        vec![
            "RDMA write, 8 B, post to completion".to_owned(),
            format!("{:.2} µs (min {:.2})", results.write_8b_us, results.write_8b_min_us),
        ],
        vec!["RDMA write, 1 MiB".to_owned(), text::rate(results.write_1mib_bytes_per_s, "B")],
        vec!["memcpy, 1 MiB".to_owned(), text::rate(results.memcpy_1mib_bytes_per_s, "B")],
        vec!["RDMA write : memcpy".to_owned(), format!("{:.2}", results.ratio)],
    ];
    let table = Table::new(&[&format!("{card}, ONE PROCESS"), "MEDIAN"], rows);
    let rates = [results.write_1mib_bytes_per_s, results.memcpy_1mib_bytes_per_s].map(|rate| rate / 1e9);
    Ok(Outcome::new(&results, [table])?.chart(Chart {
        title: "1 MiB within a process".to_owned(),
        content: Content::Categories {
            x: Axis::new("Bandwidth, GB/s", Scale::Linear),
            names: vec!["RDMA write".to_owned(), "memcpy".to_owned()],
            series: vec![Values::new("median", rates)],
        },
    }))
}

impl Bench {
    fn new(hca: Option<&Hca>) -> Result<Self, Failure> {
        let pair = Pair::with(hca, QueuePairConfig::default())?;
        let source = MemoryRegion::allocate(&pair.pd, LARGE, Access::empty())?;
        let target = MemoryRegion::allocate(&pair.pd, LARGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        source.write(0, &vec![7; LARGE]);
        Ok(Bench { pair, stream: Stream::new(Cpu::new())?, source, target })
    }

    /// One write, from preparation until its completion is polled.
    fn write(&self, bytes: usize) -> Result<Duration, Failure> {
        let slices = [self.source.slice(..bytes)?];
        let remote = self.target.remote().slice(..bytes)?;
        let send = self.pair.left.prepare(WorkRequest::write(&slices, remote))?;
        let batch = Batch::new().send(send);
        let queue = self.pair.left.send_cq();
        let start = Instant::now();
        self.stream.post(batch).map_err(|error| error.to_string())?;
        let completion = loop {
            if let Some(completion) = queue.poll()? {
                break completion;
            }
            std::hint::spin_loop();
        };
        completion.status?;
        Ok(start.elapsed())
    }

    fn measure(&self) -> Result<Results, Failure> {
        (0..SMALL_WRITES).try_for_each(|_| self.write(8).map(drop))?;
        let (mut small, mut large, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        let (from, mut to) = (vec![7u8; LARGE], vec![0u8; LARGE]);
        for _ in interrupt::rounds(0..ROUNDS) {
            for _ in 0..SMALL_WRITES {
                small.push(self.write(8)?.as_secs_f64() * 1e6);
            }
            let start = Instant::now();
            (0..LARGE_WRITES).try_for_each(|_| self.write(LARGE).map(drop))?;
            large.push((LARGE * LARGE_WRITES) as f64 / start.elapsed().as_secs_f64());
            let start = Instant::now();
            for _ in 0..LARGE_WRITES {
                std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
            }
            copies.push((LARGE * LARGE_WRITES) as f64 / start.elapsed().as_secs_f64());
        }
        let ratios = large.iter().zip(&copies).map(|(write, copy)| write / copy).collect();
        Ok(Results {
            write_8b_min_us: small.iter().copied().fold(f64::INFINITY, f64::min),
            write_8b_us: median(small),
            write_1mib_bytes_per_s: median(large),
            memcpy_1mib_bytes_per_s: median(copies),
            ratio: median(ratios),
        })
    }
}
