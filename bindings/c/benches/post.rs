//! The cost of the C layer over the Rust calls under it, for each posted send and each exchange: `cargo bench -p gdsync-c`.
//!
//! Both use the same queue pair of a software card, connected to itself, and post 64 messages of 8 bytes at a time; only the posts are timed.
//! An exchange is a send, a wait of the stream for its completion, and a wait for its arrival. A gate holds the streams back meanwhile, so that
//! their threads do not disturb. Rounds alternate.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use gdsync::{Access, Batch, QueuePair, RemoteMemory, Slice, SoftStream, Stream, WorkRequest};
use gdsync_c::api::upstream::{self, upstream_send_wr};
use gdsync_c::api::{descriptors, ext, queue_pair as c_qp, send, verbs as c_verbs, wait};
use gdsync_c::inside;
use gdsync_c::types::{
    CUstream, GDS_MEMORY_HOST, GDS_TAG_SEND, GDS_TAG_WAIT, GDS_TAG_WAIT_VALUE32, GDS_WAIT_COND_EQ, gds_cq,
    gds_descriptor_body, gds_descriptor_t, gds_qp, gds_qp_init_attr_t, gds_rdma, gds_send_operands,
    gds_send_request_t, gds_wait_request_t, gds_wait_value32_t, ibv_recv_wr,
};
use gdsync_sys::verbs::{self, ibv_mr, ibv_port_attr, ibv_qp_attr, ibv_sge, ibv_wc};
use std::cell::UnsafeCell;
use std::io::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const POSTS: u32 = 64;
const ROUNDS: usize = 4000;
/// `IBV_WR_RDMA_WRITE`, `IBV_WR_SEND`.
const WRITE: i32 = 0;
const SEND: i32 = 2;

/// How an exchange is posted to the stream.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// By three calls that also prepare.
    Calls,
    /// Prepared before, by three calls.
    Prepared,
    /// Prepared before, by one call.
    Batch,
}

/// A queue pair that is connected to itself, and a stream.
struct Pair {
    qp: *mut gds_qp,
    mr: *mut ibv_mr,
    stream: CUstream,
}

fn modify(qp: *mut gds_qp, attr: &mut ibv_qp_attr, mask: u32) {
    // SAFETY: the queue pair is alive, and the attributes are valid.
    assert_eq!(unsafe { c_qp::gds_modify_qp(qp, attr, mask as i32) }, 0);
}

impl Pair {
    fn new() -> Self {
        // SAFETY: every pointer is the result of an earlier call or valid for a write; nothing is destroyed before the end.
        let (qp, mr, port) = unsafe {
            let context = ext::gdsync_soft_open(null_mut());
            let pd = c_verbs::gdsync_alloc_pd(context);
            let mut attr: gds_qp_init_attr_t = std::mem::zeroed();
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (128, 128);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge, attr.cap.max_inline_data) = (4, 4, 44);
            attr.qp_type = 2;
            let qp = c_qp::gds_create_qp(pd, context, &mut attr, -1, 0);
            assert!(!qp.is_null());
            let memory = Box::leak(Box::new([0u64; 512]));
            let access = (Access::LOCAL_WRITE | Access::REMOTE_WRITE).bits() as i32;
            let mr = c_verbs::gdsync_reg_mr(pd, memory.as_mut_ptr().cast(), 4096, access);
            assert!(!mr.is_null());
            let mut port: ibv_port_attr = std::mem::zeroed();
            assert_eq!(c_verbs::gdsync_query_port(context, 1, &mut port), 0);
            (qp, mr, port)
        };
        let access = verbs::IBV_ACCESS_REMOTE_WRITE;
        let mut attr = ibv_qp_attr {
            qp_state: verbs::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: access,
            ..Default::default()
        };
        let start = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT;
        modify(qp, &mut attr, start | verbs::IBV_QP_ACCESS_FLAGS);
        attr.qp_state = verbs::IBV_QPS_RTR;
        (attr.path_mtu, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (port.active_mtu, 1, 12);
        // SAFETY: the provider's queue pair is alive.
        attr.dest_qp_num = unsafe { (*(*qp).qp).qp_num };
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (port.lid, 1);
        let path = verbs::IBV_QP_AV | verbs::IBV_QP_PATH_MTU | verbs::IBV_QP_DEST_QPN | verbs::IBV_QP_RQ_PSN;
        modify(
            qp,
            &mut attr,
            verbs::IBV_QP_STATE | path | verbs::IBV_QP_MAX_DEST_RD_ATOMIC | verbs::IBV_QP_MIN_RNR_TIMER,
        );
        attr.qp_state = verbs::IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (14, 7, 7, 1);
        let times = verbs::IBV_QP_TIMEOUT | verbs::IBV_QP_RETRY_CNT | verbs::IBV_QP_RNR_RETRY;
        modify(
            qp,
            &mut attr,
            verbs::IBV_QP_STATE | times | verbs::IBV_QP_SQ_PSN | verbs::IBV_QP_MAX_QP_RD_ATOMIC,
        );
        Pair { qp, mr, stream: ext::gdsync_soft_stream_create() }
    }

    fn queues(&self) -> [*mut gds_cq; 2] {
        // SAFETY: the queue pair is alive.
        unsafe { [&raw mut (*self.qp).send_cq, &raw mut (*self.qp).recv_cq] }
    }

    fn poll(&self, queue: *mut gds_cq) {
        let (mut left, mut wc) = (POSTS as i32, [ibv_wc::default(); 16]);
        while left > 0 {
            // SAFETY: the queue is alive, and there is room for 16.
            let polled = unsafe { c_qp::gds_poll_cq(queue, 16, wc.as_mut_ptr()) };
            assert!(polled >= 0 && wc[..polled as usize].iter().all(|one| one.status == 0));
            left -= polled;
            if polled == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn posts(
        &self,
        opcode: i32,
        mut post: impl FnMut(*mut upstream_send_wr, *mut *mut upstream_send_wr) -> i32,
    ) -> Duration {
        // SAFETY: the region is alive.
        let (addr, lkey, rkey) = unsafe { ((*self.mr).addr as u64, (*self.mr).lkey, (*self.mr).rkey) };
        let mut sge = ibv_sge { addr, length: 8, lkey };
        let mut wr = upstream_send_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode,
            send_flags: 1 << 1,
            imm_data: 0,
            wr: gds_send_operands { rdma: gds_rdma { remote_addr: addr, rkey } },
            rest: [0; 7],
        };
        let mut bad = null_mut();
        let start = Instant::now();
        for i in 0..POSTS {
            wr.wr_id = i.into();
            assert_eq!(post(&mut wr, &mut bad), 0);
        }
        start.elapsed()
    }

    /// As [`Self::posts`], by Rust calls.
    fn rust_posts(&self, post: impl Fn(&QueuePair, WorkRequest<'_>)) -> Duration {
        let (queue_pair, slices, remote) = self.inside();
        let start = Instant::now();
        for i in 0..POSTS {
            post(queue_pair, WorkRequest::write(&slices, remote).wr_id(i.into()));
        }
        start.elapsed()
    }

    /// The queue pair, the bytes to send or write, and their destination.
    fn inside(&self) -> (&QueuePair, [Slice; 1], RemoteMemory) {
        // SAFETY: queue pair and region are alive.
        unsafe {
            let (queue_pair, memory) = inside::queue_pair(self.qp).unwrap();
            let (addr, lkey, rkey) = ((*self.mr).addr as u64, (*self.mr).lkey, (*self.mr).rkey);
            (queue_pair, [memory.slice(addr, 8, lkey)], RemoteMemory { addr, len: 4096, rkey })
        }
    }

    fn cpu(&self, in_c: bool) -> Duration {
        let took = if in_c {
            // SAFETY: the queue pair and the request are valid, the memory registered.
            self.posts(WRITE, |wr, bad| unsafe { upstream::gdsync_upstream_post_send(self.qp, wr, bad) })
        } else {
            self.rust_posts(|queue_pair, request| queue_pair.post_send(request).unwrap())
        };
        self.poll(self.queues()[0]);
        took
    }

    /// Posts on a stream that a gate holds back meanwhile.
    fn held(&self, posts: impl FnOnce() -> Duration) -> Duration {
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
        let took = posts();
        gate.store(1, Ordering::Release);
        self.poll(self.queues()[0]);
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { ext::gdsync_stream_synchronize(self.stream, 60_000) }, 0);
        took
    }

    /// Prepares and posts in one call.
    fn queued(&self, in_c: bool) -> Duration {
        self.held(|| {
            if in_c {
                // SAFETY: as in `cpu`, and the stream is alive.
                self.posts(WRITE, |wr, bad| unsafe {
                    upstream::gdsync_upstream_stream_queue_send(self.stream, self.qp, wr, bad)
                })
            } else {
                self.on_stream(|stream, queue_pair, request| {
                    stream.queue_send(queue_pair, request).unwrap();
                })
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
                self.posts(WRITE, |wr, bad| unsafe {
                    upstream::gdsync_upstream_prepare_send(self.qp, wr, bad, request)
                        | send::gds_stream_post_send(self.stream, request)
                })
            } else {
                self.on_stream(|stream, queue_pair, request| {
                    stream.post_send(queue_pair.prepare(request).unwrap()).unwrap();
                })
            }
        })
    }

    /// Sends, and waits for the completion.
    fn waited(&self, in_c: bool) -> Duration {
        self.held(|| {
            if in_c {
                // SAFETY: as in `queued`.
                self.posts(WRITE, |wr, bad| unsafe {
                    upstream::gdsync_upstream_stream_queue_send(self.stream, self.qp, wr, bad)
                        | wait::gds_stream_wait_cq(self.stream, &raw mut (*self.qp).send_cq, 0)
                })
            } else {
                self.on_stream(|stream, queue_pair, request| {
                    stream.queue_send(queue_pair, request).unwrap();
                    let wait = queue_pair.send_cq().prepare_wait().unwrap();
                    stream.post(Batch::new().wait(wait)).unwrap();
                })
            }
        })
    }

    /// Sends to itself, and waits for both completions.
    fn exchanged(&self, in_c: bool, shape: Shape) -> Duration {
        // SAFETY: the region is alive.
        let (addr, lkey) = unsafe { ((*self.mr).addr as u64 + 8, (*self.mr).lkey) };
        for _ in 0..POSTS {
            let mut sge = ibv_sge { addr, length: 8, lkey };
            let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
            // SAFETY: queue pair and memory are alive.
            assert_eq!(unsafe { c_qp::gds_post_recv(self.qp, &mut wr, &mut null_mut()) }, 0);
        }
        let took = match (in_c, shape) {
            (true, Shape::Calls) => self.held(|| {
                let [sent, arrived] = self.queues();
                // SAFETY: queue pair, stream and memory are alive.
                self.posts(SEND, |wr, bad| unsafe {
                    upstream::gdsync_upstream_stream_queue_send(self.stream, self.qp, wr, bad)
                        | wait::gds_stream_wait_cq(self.stream, sent, 0)
                        | wait::gds_stream_wait_cq(self.stream, arrived, 0)
                })
            }),
            (true, _) => self.exchanged_in_c(shape == Shape::Batch),
            (false, _) => self.exchanged_in_rust(shape),
        };
        self.poll(self.queues()[1]);
        took
    }

    /// Prepares all, and then posts each exchange in one call or in three.
    fn exchanged_in_c(&self, in_one_call: bool) -> Duration {
        // SAFETY: plain data, for which zero is a value.
        let place = || unsafe { std::mem::zeroed::<(gds_send_request_t, [gds_wait_request_t; 2])>() };
        let mut prepared: Vec<_> = (0..POSTS).map(|_| place()).collect();
        let mut places = prepared.iter_mut();
        self.posts(SEND, |wr, bad| {
            let (send, [sent, arrived]) = places.next().unwrap();
            let [on_sent, on_arrived] = self.queues();
            // SAFETY: queue pair and memory are alive, and the requests are valid places.
            unsafe {
                upstream::gdsync_upstream_prepare_send(self.qp, wr, bad, send)
                    | wait::gds_prepare_wait_cq(on_sent, sent, 0)
                    | wait::gds_prepare_wait_cq(on_arrived, arrived, 0)
            }
        });
        self.held(|| {
            let start = Instant::now();
            for (send, [sent, arrived]) in &mut prepared {
                // SAFETY: the requests were prepared; queue pair and stream are alive.
                let status = unsafe {
                    if in_one_call {
                        let wait =
                            |wait| gds_descriptor_t { tag: GDS_TAG_WAIT, body: gds_descriptor_body { wait } };
                        let send = gds_descriptor_t { tag: GDS_TAG_SEND, body: gds_descriptor_body { send } };
                        let mut all = [send, wait(sent), wait(arrived)];
                        descriptors::gds_stream_post_descriptors(self.stream, 3, all.as_mut_ptr(), 0)
                    } else {
                        send::gds_stream_post_send(self.stream, send)
                            | wait::gds_stream_post_wait_cq(self.stream, sent)
                            | wait::gds_stream_post_wait_cq(self.stream, arrived)
                    }
                };
                assert_eq!(status, 0);
            }
            start.elapsed()
        })
    }

    fn exchanged_in_rust(&self, shape: Shape) -> Duration {
        // SAFETY: the stream is alive.
        let soft = unsafe { inside::Soft::find(self.stream) }.unwrap();
        let (stream, (queue_pair, slices, _)) = (soft.stream().unwrap(), self.inside());
        let wait = |wait| {
            stream.post(Batch::new().wait(wait)).unwrap();
        };
        let waits =
            || [queue_pair.send_cq(), queue_pair.recv_cq()].map(|queue| queue.prepare_wait().unwrap());
        let prepare = || (queue_pair.prepare(WorkRequest::send(&slices)).unwrap(), waits());
        let count = if shape == Shape::Calls { 0 } else { POSTS };
        let prepared: Vec<_> = (0..count).map(|_| prepare()).collect();
        self.held(|| {
            let start = Instant::now();
            if shape == Shape::Calls {
                for _ in 0..POSTS {
                    stream.queue_send(queue_pair, WorkRequest::send(&slices)).unwrap();
                    wait(queue_pair.send_cq().prepare_wait().unwrap());
                    wait(queue_pair.recv_cq().prepare_wait().unwrap());
                }
            }
            for (send, [sent, arrived]) in prepared {
                if shape == Shape::Batch {
                    stream.post(Batch::new().send(send).wait(sent).wait(arrived)).unwrap();
                } else {
                    stream.post_send(send).unwrap();
                    wait(sent);
                    wait(arrived);
                }
            }
            start.elapsed()
        })
    }

    fn on_stream(&self, post: impl Fn(&Stream<SoftStream>, &QueuePair, WorkRequest<'_>)) -> Duration {
        // SAFETY: the stream is alive.
        let soft = unsafe { inside::Soft::find(self.stream) }.unwrap();
        let stream = soft.stream().unwrap();
        self.rust_posts(|queue_pair, request| post(stream, queue_pair, request))
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
    let pair = Pair::new();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<34} {:>9} {:>9} {:>9} {:>7}",
        "a post of 8 bytes, by", "Rust ns", "C ns", "C more", "ratio"
    )
    .unwrap();
    let rows = [
        ("the CPU (gds_post_send)", measure(|in_c| pair.cpu(in_c))),
        ("a stream (gds_stream_queue_send)", measure(|in_c| pair.queued(in_c))),
        ("a stream, in two calls", measure(|in_c| pair.prepared(in_c))),
        ("a stream, and a wait for it", measure(|in_c| pair.waited(in_c))),
        ("exchange, three calls that prepare", measure(|in_c| pair.exchanged(in_c, Shape::Calls))),
        ("exchange, three calls, prepared", measure(|in_c| pair.exchanged(in_c, Shape::Prepared))),
        ("exchange, one call, prepared", measure(|in_c| pair.exchanged(in_c, Shape::Batch))),
    ];
    for (name, [rust, c]) in rows {
        writeln!(out, "{name:<34} {rust:>9.1} {c:>9.1} {:>9.1} {:>7.2}", c - rust, c / rust).unwrap();
    }
}

/// The number of rounds on the command line, after cargo's own arguments.
fn rounds() -> usize {
    std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS)
}
