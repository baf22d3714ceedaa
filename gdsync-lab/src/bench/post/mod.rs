//! `gdsync bench post`: the CPU's cost of a post (work request, doorbell record, doorbell) by gdsync and by libmlx5, in
//! one process, on queue pairs of the same kind: reliable, each with its own doorbell page. libmlx5's queue pair
//! belongs to a thread domain, so that it takes no lock.

mod reference;

use super::pair::{collect, connected};
use super::table::{Outcome, Row};
use super::{in_turns, median};
use crate::libmlx5::Opened;
use gdsync::{Access, MemoryRegion, QueuePair, QueuePairConfig, RemoteMemory, Slice, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use reference::{Reference, Shape};
use std::time::Instant;

/// Posts between two polls of completions: the queues never fill.
const BURST: u64 = 64;
const ELEMENT: usize = 64;
const RUNS: u64 = 10;
const ON_SOFTWARE: &str = "or measure on the software card: `gdsync soft -- gdsync bench post`";

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let opened = Opened::new(options.hca.as_ref()).map_err(|error| format!("{error}; {ON_SOFTWARE}"))?;
    let rows = PostCost::new(&opened)?.measure(options.posts().div_ceil(BURST * RUNS))?;
    let header = ["RDMA WRITE", "gdsync ns", "ibv_post_send ns", "ibv_wr_* ns", "gdsync : ibv_wr_*"];
    let series = [("gdsync", "gdsync_ns"), ("ibv_post_send", "ibv_post_send_ns"), ("ibv_wr_*", "ibv_wr_ns")];
    let outcome = Outcome::of(Row::default(), &header, &rows);
    Ok(outcome.bars("Posting an RDMA write", "Median time of a post, ns", &rows, &series))
}

struct PostCost<'a> {
    ours: QueuePair,
    /// Targets of gdsync's writes, and of the reference's.
    _targets: [QueuePair; 2],
    reference: Reference<'a>,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl<'a> PostCost<'a> {
    fn new(opened: &'a Opened) -> Result<Self, Failure> {
        let pd = opened.domain()?;
        let config = QueuePairConfig::default().port(opened.port);
        let (ours, ours_to) = connected(&pd, config)?;
        let theirs_to = QueuePair::new(&pd, config)?;
        let source = MemoryRegion::allocate(&pd, 4 * ELEMENT, Access::empty())?;
        let target = MemoryRegion::allocate(&pd, 4 * ELEMENT, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let reference = Reference::new(opened, &theirs_to, &source, ELEMENT)?;
        Ok(PostCost { ours, _targets: [ours_to, theirs_to], reference, source, target })
    }

    /// Returns medians over the runs of their medians over the bursts.
    fn measure(&mut self, bursts: u64) -> Result<Vec<Row>, Failure> {
        let slices: Vec<Slice> =
            (0..4).map(|i| self.source.slice(i * ELEMENT..(i + 1) * ELEMENT)).collect::<Result<_, _>>()?;
        let shapes = [("inline, 8 B", Shape::Inline), ("1 element", Shape::One), ("4 elements", Shape::Four)];
        let mut rows = Vec::new();
        for (what, shape) in shapes {
            let mut posts = 0;
            let mut runs: Vec<[f64; 3]> = Vec::new();
            for _ in interrupt::rounds(0..RUNS) {
                let (run, played) = self.measure_run(shape, &slices, bursts)?;
                posts += played * BURST;
                runs.push(run);
            }
            let ns = |variant: usize| median(runs.iter().map(|run| run[variant]));
            let ratios: Vec<f64> = runs.iter().map(|run| run[0] / run[2]).collect();
            let row = Row::named(what).key("posts", posts);
            let row = row.number("gdsync_ns", ns(0), 0).number("ibv_post_send_ns", ns(1), 0);
            rows.push(row.number("ibv_wr_ns", ns(2), 0).spread("gdsync_ratio", &ratios));
        }
        Ok(rows)
    }

    /// Returns nanoseconds of a post by gdsync, by `ibv_post_send` and by `ibv_wr_*`, and the bursts of each.
    fn measure_run(
        &mut self,
        shape: Shape,
        slices: &[Slice],
        bursts: u64,
    ) -> Result<([f64; 3], u64), Failure> {
        let remote = self.target.remote();
        let times: Vec<[f64; 3]> = in_turns(interrupt::rounds(0..bursts), |variant, _| {
            let time = match variant {
                0 => {
                    let start = Instant::now();
                    match shape {
                        Shape::Inline => gdsync_inline(&self.ours, remote)?,
                        Shape::One => gdsync_one(&self.ours, &slices[0], remote)?,
                        Shape::Four => gdsync_four(&self.ours, slices, remote)?,
                    }
                    let time = start.elapsed();
                    collect(&self.ours.send_cq(), BURST)?;
                    time
                }
                1 => self.reference.post_send(shape, &remote, BURST)?,
                _ => self.reference.wr(shape, &remote, BURST)?,
            };
            Ok(time.as_secs_f64() * 1e9 / BURST as f64)
        })?;
        let medians = [0, 1, 2].map(|variant| median(times.iter().map(|all| all[variant])));
        Ok((medians, times.len() as u64))
    }
}

// Not inlined, so that `scripts/bench/post-instructions` finds these by name; no two have the same code, which the
// compiler would merge.

#[inline(never)]
fn gdsync_inline(queue_pair: &QueuePair, remote: RemoteMemory) -> Result<(), Failure> {
    for wr_id in 0..BURST {
        queue_pair.post_send(WorkRequest::write_inline(&wr_id.to_ne_bytes(), remote).wr_id(wr_id))?;
    }
    Ok(())
}

#[inline(never)]
fn gdsync_one(queue_pair: &QueuePair, slice: &Slice, remote: RemoteMemory) -> Result<(), Failure> {
    for wr_id in 0..BURST {
        let slices = std::slice::from_ref(slice);
        queue_pair.post_send(WorkRequest::write(slices, remote).wr_id(wr_id))?;
    }
    Ok(())
}

#[inline(never)]
fn gdsync_four(queue_pair: &QueuePair, slices: &[Slice], remote: RemoteMemory) -> Result<(), Failure> {
    for wr_id in 0..BURST {
        queue_pair.post_send(WorkRequest::write(slices, remote).wr_id(wr_id))?;
    }
    Ok(())
}
