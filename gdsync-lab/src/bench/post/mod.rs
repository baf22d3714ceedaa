//! `gdsync bench post`: what a CPU pays for a post (work request, doorbell record, doorbell),
//! gdsync's against libmlx5's own, in one process, on queue pairs of the same kind: reliable, each
//! with a doorbell page of its own. libmlx5's queue pair is of a thread domain, so that it takes no
//! lock.

mod reference;

use super::outcome::Outcome;
use super::pair::{collect, connected};
use super::{Spread, median, outcome};
use gdsync::{Access, MemoryRegion, QueuePair, QueuePairConfig, RemoteMemory, Slice, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Values};
use reference::{Opened, Reference, Shape};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Posts between two looks at the completions: the queues never fill.
const BURST: u64 = 64;
/// Bytes of an element.
const ELEMENT: usize = 64;
/// Runs of each shape, for the spread.
const RUNS: u64 = 10;

/// Nanoseconds of a post: the median over the runs of their medians over the bursts.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    posts: u64,
    gdsync_ns: f64,
    ibv_post_send_ns: f64,
    ibv_wr_ns: f64,
    /// gdsync's, divided by `ibv_wr_*` in the same run.
    gdsync_ratio: Spread,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let opened = Opened::new(options.hca.as_ref())?;
    let rows = Bench::new(&opened)?.measure(options.posts.div_ceil(BURST * RUNS))?;
    let cells = |row: &Row| {
        let ns = [row.gdsync_ns, row.ibv_post_send_ns, row.ibv_wr_ns];
        [vec![row.what.to_owned()], ns.map(|ns| format!("{ns:.0}")).to_vec(), vec![row.gdsync_ratio.text()]]
            .concat()
    };
    let header = ["RDMA WRITE", "gdsync ns", "ibv_post_send ns", "ibv_wr_* ns", "gdsync : ibv_wr_*"];
    let column = |name: &str, pick: fn(&Row) -> f64| Values::new(name, rows.iter().map(pick));
    let content = Content::Categories {
        x: Axis::new("Median time of a post, ns", Scale::Linear),
        names: rows.iter().map(|row| row.what.to_owned()).collect(),
        series: vec![
            column("gdsync", |row| row.gdsync_ns),
            column("ibv_post_send", |row| row.ibv_post_send_ns),
            column("ibv_wr_*", |row| row.ibv_wr_ns),
        ],
    };
    let chart = Chart { title: "Posting an RDMA write".to_owned(), content };
    Ok(outcome(&rows, &header, rows.iter().map(cells).collect())?.chart(chart))
}

struct Bench<'a> {
    ours: QueuePair,
    /// Where our writes go to, and the reference's.
    _targets: [QueuePair; 2],
    reference: Reference<'a>,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl<'a> Bench<'a> {
    fn new(opened: &'a Opened) -> Result<Self, Failure> {
        let pd = opened.domain()?;
        let config = QueuePairConfig::default().port(opened.port);
        let (ours, ours_to) = connected(&pd, config)?;
        let theirs_to = QueuePair::new(&pd, config)?;
        let source = MemoryRegion::allocate(&pd, 4 * ELEMENT, Access::empty())?;
        let target = MemoryRegion::allocate(&pd, 4 * ELEMENT, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let reference = Reference::new(opened, &theirs_to, &source, ELEMENT)?;
        Ok(Bench { ours, _targets: [ours_to, theirs_to], reference, source, target })
    }

    fn measure(&mut self, bursts: u64) -> Result<Vec<Row>, Failure> {
        let slices: Vec<Slice> =
            (0..4).map(|i| self.source.slice(i * ELEMENT..(i + 1) * ELEMENT)).collect::<Result<_, _>>()?;
        let shapes = [("inline, 8 B", Shape::Inline), ("1 element", Shape::One), ("4 elements", Shape::Four)];
        let mut rows = Vec::new();
        for (what, shape) in shapes {
            let runs: Vec<[f64; 3]> = interrupt::rounds(0..RUNS)
                .map(|_| self.measure_run(shape, &slices, bursts))
                .collect::<Result<_, _>>()?;
            let ns = |way: usize| median(runs.iter().map(|run| run[way]).collect());
            rows.push(Row {
                what,
                posts: bursts * BURST * runs.len() as u64,
                gdsync_ns: ns(0),
                ibv_post_send_ns: ns(1),
                ibv_wr_ns: ns(2),
                gdsync_ratio: Spread::of(runs.iter().map(|run| run[0] / run[2]).collect()),
            });
        }
        Ok(rows)
    }

    /// Nanoseconds of a post by gdsync, by `ibv_post_send` and by `ibv_wr_*`, in turns.
    fn measure_run(&mut self, shape: Shape, slices: &[Slice], bursts: u64) -> Result<[f64; 3], Failure> {
        let remote = self.target.remote();
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..bursts {
            let start = Instant::now();
            match shape {
                Shape::Inline => gdsync_inline(&self.ours, remote)?,
                Shape::One => gdsync_one(&self.ours, &slices[..1], remote)?,
                Shape::Four => gdsync_four(&self.ours, slices, remote)?,
            }
            times[0].push(per_post(start.elapsed()));
            collect(&self.ours.send_cq(), BURST)?;
            times[1].push(per_post(self.reference.post_send(shape, &remote, BURST)?));
            times[2].push(per_post(self.reference.wr(shape, &remote, BURST)?));
        }
        Ok(times.map(median))
    }
}

fn per_post(burst: Duration) -> f64 {
    burst.as_secs_f64() * 1e9 / BURST as f64
}

// Not inlined, so that `scripts/bench/post-instructions` finds them by name.

#[inline(never)]
fn gdsync_inline(queue_pair: &QueuePair, remote: RemoteMemory) -> Result<(), Failure> {
    for wr_id in 0..BURST {
        queue_pair.post_send(WorkRequest::write_inline(&wr_id.to_ne_bytes(), remote).wr_id(wr_id))?;
    }
    Ok(())
}

#[inline(never)]
fn gdsync_one(queue_pair: &QueuePair, slices: &[Slice], remote: RemoteMemory) -> Result<(), Failure> {
    for wr_id in 0..BURST {
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
