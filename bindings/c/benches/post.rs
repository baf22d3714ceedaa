//! The cost of the C layer over the Rust calls under it, for each posted send and each exchange: `cargo bench -p gdsync-c --bench post`.
//!
//! Both use the same queue pair of a software card, connected to itself, and post 64 messages of 8 bytes at a time; only the posts are timed.
//! A gate holds the streams back meanwhile, so that their threads do not disturb. Rounds alternate.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod pair;

use gdsync::{Batch, QueuePair, RemoteMemory, Slice, SoftStream, Stream, WorkRequest};
use gdsync_c::api::upstream;
use gdsync_c::api::{descriptors, ext, send, wait};
use gdsync_c::inside;
use gdsync_c::types::{
    CUstream, GDS_MEMORY_HOST, GDS_TAG_WAIT_VALUE32, GDS_WAIT_COND_EQ, gds_descriptor_body, gds_descriptor_t,
    gds_send_request_t, gds_wait_value32_t,
};
use pair::{POSTS, Pair, Shape, post_in_rust, prepare_in_rust};
use std::cell::UnsafeCell;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 4000;
/// `IBV_WR_RDMA_WRITE`.
const WRITE: i32 = 0;

/// A queue pair that is connected to itself, and a stream.
struct Loop {
    pair: Pair,
    stream: CUstream,
}

fn time(post: impl FnOnce()) -> Duration {
    let start = Instant::now();
    post();
    start.elapsed()
}

impl Loop {
    fn new() -> Self {
        let pair = Pair::new(None);
        pair.connect(&pair);
        Loop { pair, stream: ext::gdsync_soft_stream_create() }
    }

    /// The queue pair, the bytes to send or write, and their destination.
    fn inside(&self) -> (&QueuePair, [Slice; 1], RemoteMemory) {
        // SAFETY: queue pair and region are alive.
        unsafe {
            let (queue_pair, memory) = inside::queue_pair(self.pair.qp).unwrap();
            let (addr, lkey, rkey) =
                ((*self.pair.mr).addr as u64, (*self.pair.mr).lkey, (*self.pair.mr).rkey);
            (queue_pair, [memory.slice(addr, 8, lkey)], RemoteMemory { addr, len: 4096, rkey })
        }
    }

    fn rust_posts(&self, post: impl Fn(&QueuePair, WorkRequest<'_>)) {
        let (queue_pair, slices, remote) = self.inside();
        for i in 0..POSTS {
            post(queue_pair, WorkRequest::write(&slices, remote).wr_id(i.into()));
        }
    }

    fn cpu(&self, in_c: bool) -> Duration {
        let qp = self.pair.qp;
        let took = time(|| {
            if in_c {
                // SAFETY: the queue pair and the request are valid, the memory registered.
                self.pair.posts(WRITE, |wr, bad| unsafe { upstream::gdsync_upstream_post_send(qp, wr, bad) });
            } else {
                self.rust_posts(|queue_pair, request| queue_pair.post_send(request).unwrap());
            }
        });
        self.pair.poll(self.pair.queues()[0]);
        took
    }

    /// Posts on a stream that a gate holds back meanwhile.
    fn held(&self, posts: impl FnOnce()) -> Duration {
        let gate = AtomicU32::new(0);
        let wait = gds_wait_value32_t {
            ptr: gate.as_ptr(),
            value: 1,
            cond_flags: GDS_WAIT_COND_EQ,
            flags: GDS_MEMORY_HOST,
        };
        let body = gds_descriptor_body { wait32: wait };
        let mut wait = gds_descriptor_t { tag: GDS_TAG_WAIT_VALUE32, body };
        // SAFETY: the gate outlives the wait, as the stream is synchronized below.
        assert_eq!(unsafe { descriptors::gds_stream_post_descriptors(self.stream, 1, &mut wait, 0) }, 0);
        let took = time(posts);
        gate.store(1, Ordering::Release);
        self.pair.poll(self.pair.queues()[0]);
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { ext::gdsync_stream_synchronize(self.stream, 60_000) }, 0);
        took
    }

    /// Prepares and posts in one call.
    fn queued(&self, in_c: bool) -> Duration {
        self.held(|| {
            if in_c {
                // SAFETY: as in `cpu`, and the stream is alive.
                self.pair.posts(WRITE, |wr, bad| unsafe {
                    upstream::gdsync_upstream_stream_queue_send(self.stream, self.pair.qp, wr, bad)
                });
            } else {
                self.on_stream(|stream, queue_pair, request| {
                    stream.queue_send(queue_pair, request).unwrap();
                });
            }
        })
    }

    /// Prepares by one call and posts by another.
    fn prepared(&self, in_c: bool) -> Duration {
        self.held(|| {
            if in_c {
                // SAFETY: plain data.
                let request = UnsafeCell::new(unsafe { std::mem::zeroed::<gds_send_request_t>() });
                let request = request.get();
                // SAFETY: as in `queued`, and a valid place for the request.
                self.pair.posts(WRITE, |wr, bad| unsafe {
                    upstream::gdsync_upstream_prepare_send(self.pair.qp, wr, bad, request)
                        | send::gds_stream_post_send(self.stream, request)
                });
            } else {
                self.on_stream(|stream, queue_pair, request| {
                    stream.post_send(queue_pair.prepare(request).unwrap()).unwrap();
                });
            }
        })
    }

    /// Sends, and waits for the completion.
    fn waited(&self, in_c: bool) -> Duration {
        self.held(|| {
            if in_c {
                let [sent, _] = self.pair.queues();
                // SAFETY: as in `queued`.
                self.pair.posts(WRITE, |wr, bad| unsafe {
                    upstream::gdsync_upstream_stream_queue_send(self.stream, self.pair.qp, wr, bad)
                        | wait::gds_stream_wait_cq(self.stream, sent, 0)
                });
            } else {
                self.on_stream(|stream, queue_pair, request| {
                    stream.queue_send(queue_pair, request).unwrap();
                    let wait = queue_pair.send_cq().prepare_wait().unwrap();
                    stream.post(Batch::new().wait(wait)).unwrap();
                });
            }
        })
    }

    /// Sends to itself, and waits for both completions.
    fn exchanged(&self, in_c: bool, shape: Shape) -> Duration {
        self.pair.receive();
        let took = if in_c {
            let mut prepared = self.pair.prepare_in_c(shape);
            self.held(|| self.pair.post_in_c(self.stream, shape, &mut prepared))
        } else {
            // SAFETY: the stream is alive.
            let soft = unsafe { inside::Soft::find(self.stream) }.unwrap();
            let (stream, (queue_pair, slices, _)) = (soft.stream().unwrap(), self.inside());
            let prepared = prepare_in_rust(queue_pair, &slices, shape);
            self.held(|| post_in_rust(stream, queue_pair, &slices, shape, prepared))
        };
        self.pair.poll(self.pair.queues()[1]);
        took
    }

    fn on_stream(&self, post: impl Fn(&Stream<SoftStream>, &QueuePair, WorkRequest<'_>)) {
        // SAFETY: the stream is alive.
        let soft = unsafe { inside::Soft::find(self.stream) }.unwrap();
        let stream = soft.stream().unwrap();
        self.rust_posts(|queue_pair, request| post(stream, queue_pair, request));
    }
}

/// Returns the time of a post in Rust and in C, in nanoseconds, over alternating rounds: the 10th percentile, as the other rounds are
/// disturbed by the threads of the card and the stream, or by other processes.
fn measure(took: impl Fn(bool) -> Duration) -> [f64; 2] {
    let mut times = [const { Vec::new() }; 2];
    for round in 0..2 * rounds() {
        // The second of a round has warmer caches, so they take turns.
        let in_c = (round / 2 + round) % 2 == 0;
        times[usize::from(in_c)].push(took(in_c).as_nanos() as f64 / f64::from(POSTS));
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 10]
    })
}

fn main() {
    let own = Loop::new();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<34} {:>9} {:>9} {:>9} {:>7}",
        "a post of 8 bytes, by", "Rust ns", "C ns", "C more", "ratio"
    )
    .unwrap();
    let rows = [
        ("the CPU (gds_post_send)", measure(|in_c| own.cpu(in_c))),
        ("a stream (gds_stream_queue_send)", measure(|in_c| own.queued(in_c))),
        ("a stream, in two calls", measure(|in_c| own.prepared(in_c))),
        ("a stream, and a wait for it", measure(|in_c| own.waited(in_c))),
        ("exchange, three calls that prepare", measure(|in_c| own.exchanged(in_c, Shape::Calls))),
        ("exchange, three calls, prepared", measure(|in_c| own.exchanged(in_c, Shape::Prepared))),
        ("exchange, one call, prepared", measure(|in_c| own.exchanged(in_c, Shape::Batch))),
    ];
    for (name, [rust, c]) in rows {
        writeln!(out, "{name:<34} {rust:>9.1} {c:>9.1} {:>9.1} {:>7.2}", c - rust, c / rust).unwrap();
    }
}

/// The number of rounds on the command line, after cargo's own arguments.
fn rounds() -> usize {
    std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS)
}
