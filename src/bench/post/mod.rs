//! `gdsync bench post`: what a CPU pays for a post (work request, doorbell record, doorbell),
//! gdsync's against libmlx5's own, in one process, on queue pairs of the same kind: reliable, each
//! with a doorbell page of its own.

mod reference;

use super::pair::{collect, connected};
use super::{median, print};
use crate::cli::BenchOptions;
use crate::failure::Failure;
use gdsync::{Access, MemoryRegion, QueuePair, QueuePairConfig, RemoteMemory, Slice, WorkRequest};
use reference::{Opened, Reference, Shape};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Posts between two looks at the completions: the queues never fill.
const BURST: u64 = 64;
/// Bytes of an element.
const ELEMENT: usize = 64;

/// Nanoseconds of a post, medians over the bursts.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    posts: u64,
    gdsync_ns: f64,
    ibv_post_send_ns: f64,
    ibv_wr_ns: f64,
}

pub(super) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let opened = Opened::new(options.hca.as_ref())?;
    let rows = Bench::new(&opened)?.measure(options.posts.div_ceil(BURST))?;
    let cells = |row: &Row| {
        let ns = [row.gdsync_ns, row.ibv_post_send_ns, row.ibv_wr_ns].map(|ns| format!("{ns:.0}"));
        [vec![row.what.to_owned()], ns.to_vec()].concat()
    };
    let header = ["RDMA WRITE", "gdsync ns", "ibv_post_send ns", "ibv_wr_* ns"];
    print(options, &rows, &header, &rows.iter().map(cells).collect::<Vec<_>>())
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
        let ((ours, ours_to), theirs_to) = (connected(&pd, config)?, QueuePair::new(&pd, config)?);
        let source = MemoryRegion::allocate(&pd, 4 * ELEMENT, Access::empty())?;
        let target = MemoryRegion::allocate(&pd, 4 * ELEMENT, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let reference = Reference::new(opened, &theirs_to, &source, ELEMENT)?;
        Ok(Bench { ours, _targets: [ours_to, theirs_to], reference, source, target })
    }

    fn measure(&self, bursts: u64) -> Result<Vec<Row>, Failure> {
        let remote = self.target.remote();
        let slices: Vec<Slice> =
            (0..4).map(|i| self.source.slice(i * ELEMENT..(i + 1) * ELEMENT)).collect::<Result<_, _>>()?;
        let shapes = [("inline, 8 B", Shape::Inline), ("1 element", Shape::One), ("4 elements", Shape::Four)];
        let mut rows = Vec::new();
        for (what, shape) in shapes {
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..bursts {
                let start = Instant::now();
                match shape {
                    Shape::Inline => gdsync_inline(&self.ours, remote)?,
                    Shape::One => gdsync_one(&self.ours, &slices[..1], remote)?,
                    Shape::Four => gdsync_four(&self.ours, &slices, remote)?,
                }
                times[0].push(per_post(start.elapsed()));
                collect(&self.ours.send_cq(), BURST)?;
                times[1].push(per_post(self.reference.post_send(shape, &remote, BURST)?));
                times[2].push(per_post(self.reference.wr(shape, &remote, BURST)?));
            }
            let [ours, post_send, wr] = times.map(median);
            rows.push(Row {
                what,
                posts: bursts * BURST,
                gdsync_ns: ours,
                ibv_post_send_ns: post_send,
                ibv_wr_ns: wr,
            });
        }
        Ok(rows)
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
