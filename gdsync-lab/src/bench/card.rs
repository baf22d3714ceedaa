//! `gdsync bench card`: a card, by default the software card, beside a reference measured in the same run.

use super::pair::Pair;
use super::table::{Outcome, Row, Table};
use super::{in_turns, median};
use gdsync::stream::Cpu;
use gdsync::{Access, Batch, MemoryRegion, QueuePairConfig, Stream, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::Hca;
use gdsync_cli::{interrupt, text};
use std::time::{Duration, Instant};

const LARGE: usize = 1 << 20;
/// Rounds. Each measures card and reference one after the other, so that both see the same machine.
const ROUNDS: u32 = 15;
const SMALL_WRITES: usize = 2000;
const LARGE_WRITES: usize = 32;

/// Two connected queue pairs of one process; the left one writes to the memory of the right one.
struct CardSpeed {
    pair: Pair,
    stream: Stream<Cpu>,
    source: MemoryRegion,
    target: MemoryRegion,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let hca = options.hca.as_ref();
    let [small, least, write, copy, ratio] = CardSpeed::new(hca)?.measure()?;
    let card = hca.map_or_else(|| "SOFTWARE CARD".to_owned(), Hca::to_string);
    let row = |what: &str| Row::default().text(what);
    let rows = [
        row("RDMA write, 8 B, post to completion").key("write_8b_min_us", least).cell(
            "write_8b_us",
            small,
            format!("{small:.2} µs (min {least:.2})"),
        ),
        row("RDMA write, 1 MiB").cell("write_1mib_bytes_per_s", write, text::rate(write, "B")),
        row("memcpy, 1 MiB").cell("memcpy_1mib_bytes_per_s", copy, text::rate(copy, "B")),
        row("RDMA write : memcpy").number("ratio", ratio, 2),
    ];
    let table = Table::new(&[&format!("{card}, ONE PROCESS"), "MEDIAN"], &rows);
    let rates = [("RDMA write", write), ("memcpy", copy)]
        .map(|(what, rate)| Row::named(what).key("gigabytes_per_s", rate / 1e9));
    let all = rows.into_iter().fold(Row::default(), Row::and);
    Ok(Outcome::new(all, [table]).bars(
        "1 MiB within a process",
        "Bandwidth, GB/s",
        &rates,
        &[("median", "gigabytes_per_s")],
    ))
}

impl CardSpeed {
    fn new(hca: Option<&Hca>) -> Result<Self, Failure> {
        let pair = Pair::with(hca, QueuePairConfig::default())?;
        let source = MemoryRegion::allocate(&pair.pd, LARGE, Access::empty())?;
        let target = MemoryRegion::allocate(&pair.pd, LARGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        source.write(0, &vec![7; LARGE]);
        Ok(CardSpeed { pair, stream: Stream::new(Cpu::new())?, source, target })
    }

    /// Times one write, from preparation until its completion is polled.
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

    /// Returns medians: of a small write in µs, with the minimum; of bytes per second by large writes and by `memcpy`
    /// of the same buffers, and of their ratio.
    fn measure(&self) -> Result<[f64; 5], Failure> {
        (0..SMALL_WRITES).try_for_each(|_| self.write(8).map(drop))?;
        let mut small = Vec::new();
        let (from, mut to) = (vec![7u8; LARGE], vec![0u8; LARGE]);
        let rates: Vec<[f64; 2]> = in_turns(interrupt::rounds(0..ROUNDS), |variant, _| {
            if variant == 0 {
                for _ in 0..SMALL_WRITES {
                    small.push(self.write(8)?.as_secs_f64() * 1e6);
                }
            }
            let start = Instant::now();
            for _ in 0..LARGE_WRITES {
                match variant {
                    0 => drop(self.write(LARGE)?),
                    _ => std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from)),
                }
            }
            Ok((LARGE * LARGE_WRITES) as f64 / start.elapsed().as_secs_f64())
        })?;
        let least = small.iter().copied().fold(f64::INFINITY, f64::min);
        let rate = |variant: usize| median(rates.iter().map(|both| both[variant]));
        let ratio = median(rates.iter().map(|[write, copy]| write / copy));
        Ok([median(small), least, rate(0), rate(1), ratio])
    }
}
