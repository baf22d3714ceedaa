//! `gdsync bench card --gpu`: RDMA writes of a card between GPU memory, by size and by the card's way to that memory, beside
//! the driver's copies between the same GPUs.

use super::in_turns;
use super::pair::{Pair, collect};
use super::table::{Outcome, Row, Table, median};
use gdsync::advanced::mapped::MappedMemory;
use gdsync::cuda::{self, GpuList, GpuMemory};
use gdsync::cudarc::driver::{CudaContext, CudaStream, sys};
use gdsync::stream::Cpu;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, Batch, QueuePairConfig, Stream, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::{interrupt, size, text};
use std::sync::Arc;
use std::time::Instant;

/// Rounds of each size. Each measures all ways one after the other.
const ROUNDS: u32 = 5;
/// Most writes under way, and most bytes of them.
const MOST: usize = 1000;
const MOST_BYTES: usize = 64 << 20;
/// Sends in a batch.
const BATCH: usize = 100;

/// The ways: the CPU's mapping of the memory, copies by the driver, and the reference.
const MAPPED: usize = 0;
const DRIVER: usize = 1;
const COPIES: usize = 2;

/// The memory of a way: the source on the first GPU, the target on the second.
type Regions = [GpuMemoryRegion; 2];

/// Allocates memory on a GPU.
type Allocate<'a> = &'a dyn Fn(&Arc<CudaContext>, Access) -> Result<GpuMemoryRegion, Failure>;

struct Writes {
    pair: Pair,
    stream: Stream<Cpu>,
    contexts: [Arc<CudaContext>; 2],
    copies: Arc<CudaStream>,
    /// The memory of both ways; none if no backend can map it.
    ways: [Option<Regions>; 2],
}

pub(super) fn run(options: &BenchOptions, list: &GpuList) -> Result<Outcome, Failure> {
    let gpus = list.resolve()?;
    let (mut rows, mut charts) = (Vec::new(), Vec::new());
    for between in gpus.pairs() {
        let name = format!("GPU {} to {}", between[0], between[1]);
        let sizes = options.card_sizes();
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let writes = Writes::new(options, between, usize::try_from(largest)?)?;
        for size in interrupt::rounds(sizes) {
            let row = writes.measure(&name, usize::try_from(size)?)?.key("gpus", between);
            charts.push(row.clone().renamed(format!("{name}, {}", size::text(size))));
            rows.push(row);
        }
    }
    let header = [
        "WRITES IN GPU MEMORY",
        "SIZE",
        "UNDER WAY",
        "MAPPED µs",
        "BY THE DRIVER µs",
        "cuMemcpyPeer µs",
        "MAPPED",
        "BY THE DRIVER",
    ];
    let table = Table::new(&header, &rows);
    Ok(Outcome::new(rows, [table]).bars(
        "Writes of the card between GPUs",
        "Median time of a write, µs",
        &charts,
        &[("mapped", "mapped_us"), ("by the driver", "driver_us"), ("cuMemcpyPeer", "reference_us")],
    ))
}

impl Writes {
    fn new(options: &BenchOptions, between: [u32; 2], len: usize) -> Result<Self, Failure> {
        let pair = Pair::with(options.hca.as_ref(), QueuePairConfig::default().send_depth(MOST as u32))?;
        let contexts = [cuda::context(between[0])?, cuda::context(between[1])?];
        let access = [Access::empty(), Access::LOCAL_WRITE | Access::REMOTE_WRITE];
        let regions = |allocate: Allocate<'_>| {
            Ok::<Regions, Failure>([allocate(&contexts[0], access[0])?, allocate(&contexts[1], access[1])?])
        };
        let can_map = contexts.iter().all(|context| MappedMemory::allocate(context, 8).is_ok());
        let mapped =
            regions(&|context, access| Ok(GpuMemoryRegion::allocate(&pair.pd, context, len, access)?))?;
        let plain = regions(&|context, access| {
            Ok(GpuMemoryRegion::register(&pair.pd, GpuMemory::allocate(context, len)?, access)?)
        })?;
        let copies = contexts[1].new_stream()?;
        let ways = [can_map.then_some(mapped), Some(plain)];
        Ok(Writes { pair, stream: Stream::new(Cpu::new())?, contexts, copies, ways })
    }

    /// Returns the µs of a write of this size by a way, with as many under way as the queue and the limits allow.
    fn time(&self, way: usize, size: usize, count: usize) -> Result<f64, Failure> {
        let Some([source, target]) = self.ways.get(way).map_or(self.ways[DRIVER].as_ref(), Option::as_ref)
        else {
            return Ok(f64::NAN);
        };
        let begun = Instant::now();
        if way == COPIES {
            self.copy(source, target, size, count)?;
        } else {
            let slices = [source.slice(..size)?];
            let remote = target.remote().slice(..size)?;
            for first in (0..count).step_by(BATCH) {
                let sends = first..count.min(first + BATCH);
                let prepare = |batch: Batch, _| {
                    Ok::<_, Failure>(batch.send(self.pair.left.prepare(WorkRequest::write(&slices, remote))?))
                };
                let batch = sends.into_iter().try_fold(Batch::new(), prepare)?;
                self.stream.post(batch).map_err(|error| error.to_string())?;
            }
            collect(&self.pair.left.send_cq(), count as u64)?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / count as f64)
    }

    fn copy(
        &self,
        source: &GpuMemoryRegion,
        target: &GpuMemoryRegion,
        size: usize,
        count: usize,
    ) -> Result<(), Failure> {
        self.contexts[1].bind_to_thread()?;
        let [from, to] = [source, target].map(|region| region.memory().address());
        let [of, on] = [0, 1].map(|gpu| self.contexts[gpu].cu_ctx());
        for _ in 0..count {
            // SAFETY: `size` bytes of memory that `self` keeps; the stream and the contexts live as long.
            unsafe { sys::cuMemcpyPeerAsync(to, on, from, of, size, self.copies.cu_stream()) }.result()?;
        }
        Ok(self.copies.synchronize()?)
    }

    fn measure(&self, name: &str, size: usize) -> Result<Row, Failure> {
        let count = (MOST_BYTES / size.max(1)).clamp(4, MOST);
        for way in 0..=COPIES {
            self.time(way, size, count)?;
        }
        let rounds: Vec<[f64; 3]> =
            in_turns(interrupt::rounds(0..ROUNDS), |way, _| self.time(way, size, count))?;
        let of = |way: usize| Some(median(rounds.iter().map(|all| all[way]))).filter(|time| time.is_finite());
        let rate = |way| of(way).map(|time| size as f64 / time * 1e6);
        let cell = |row: Row, key, way| match rate(way) {
            Some(rate) => row.cell(key, rate, text::rate(rate, "B")),
            None => row.text("-"),
        };
        let row = Row::named(name).cell("size", size as u64, size::text(size as u64)).cell(
            "under_way",
            count as u64,
            count.to_string(),
        );
        let row = row.number("mapped_us", of(MAPPED), 2).number("driver_us", of(DRIVER), 2).number(
            "reference_us",
            of(COPIES),
            2,
        );
        Ok(cell(cell(row, "mapped_bytes_per_s", MAPPED), "driver_bytes_per_s", DRIVER))
    }
}
