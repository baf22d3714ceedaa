//! What the C layer costs over the Rust calls under it, for each posted send: `cargo bench -p gdsync-c`.
//!
//! Both write 8 bytes on a queue pair of a software card, 64 at a time; the posts are timed, the completions are not. Streams
//! are held back meanwhile, so that their threads are not in the way. Rounds alternate, and the least of many counts, as other threads of the card and of the machine are in the way of the rest.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use gdsync::{
    Access, Batch, Condition, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairConfig, SoftStream, Stream, WorkRequest,
};
use gdsync_c::api::{descriptors, ext, queue_pair as c_qp, send, verbs as c_verbs};
use gdsync_c::types::{
    CUstream, GDS_MEMORY_HOST, GDS_TAG_WAIT_VALUE32, GDS_WAIT_COND_EQ, gds_descriptor_body, gds_descriptor_t,
    gds_qp, gds_qp_init_attr_t, gds_rdma, gds_send_operands, gds_send_wr, gds_wait_value32_t,
};
use gdsync_sys::verbs::{self, ibv_mr, ibv_port_attr, ibv_qp_attr, ibv_sge, ibv_wc};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const POSTS: u32 = 64;
const ROUNDS: usize = 8000;
/// Queue pairs and streams of either kind. Where they happen to lie in memory makes one 35 ns faster than another of its kind, which is
/// what the layer itself costs: the fastest are compared.
const PLACES: usize = 8;

/// The Rust side: a queue pair connected to itself.
struct Rust {
    queue_pair: QueuePair,
    region: MemoryRegion,
    stream: Stream<SoftStream>,
}

impl Rust {
    fn new() -> Self {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let queue_pair = QueuePair::new(&pd, QueuePairConfig::default()).unwrap();
        queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = MemoryRegion::allocate(&pd, 4096, access).unwrap();
        Rust { queue_pair, region, stream: Stream::new(SoftStream::new().unwrap()).unwrap() }
    }

    fn poll(&self) {
        let mut left = POSTS;
        while left > 0 {
            match self.queue_pair.send_cq().poll().unwrap() {
                Some(_) => left -= 1,
                None => std::thread::yield_now(),
            }
        }
    }

    fn cpu(&self) -> Duration {
        let (slices, remote) = ([self.region.slice(..8).unwrap()], self.region.remote());
        let start = Instant::now();
        for i in 0..POSTS {
            self.queue_pair.post_send(WorkRequest::write(&slices, remote).wr_id(i.into())).unwrap();
        }
        let took = start.elapsed();
        self.poll();
        took
    }

    fn stream(&self) -> Duration {
        let (slices, remote) = ([self.region.slice(..8).unwrap()], self.region.remote());
        let gate = self.region.word32(1024).unwrap();
        gate.store(0);
        self.stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
        let start = Instant::now();
        for i in 0..POSTS {
            let request = WorkRequest::write(&slices, remote).wr_id(i.into());
            self.stream.post_send(self.queue_pair.prepare(request).unwrap()).unwrap();
        }
        let took = start.elapsed();
        gate.store(1);
        self.poll();
        self.stream.synchronize().unwrap();
        took
    }
}

/// The same through the C functions.
struct C {
    qp: *mut gds_qp,
    mr: *mut ibv_mr,
    stream: CUstream,
}

fn modify(qp: *mut gds_qp, attr: &mut ibv_qp_attr, mask: u32) {
    // SAFETY: a queue pair that is alive, and valid attributes.
    assert_eq!(unsafe { c_qp::gds_modify_qp(qp, attr, mask as i32) }, 0);
}

impl C {
    fn new() -> Self {
        // SAFETY: every pointer is what the call before returned, or a valid place; nothing is destroyed before the end.
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
        C { qp, mr, stream: ext::gdsync_soft_stream_create() }
    }

    fn poll(&self) {
        let (mut left, mut wc) = (POSTS as i32, [ibv_wc::default(); 16]);
        while left > 0 {
            // SAFETY: a queue that is alive, and room for 16.
            let polled = unsafe { c_qp::gds_poll_cq(&raw mut (*self.qp).send_cq, 16, wc.as_mut_ptr()) };
            assert!(polled >= 0);
            left -= polled;
            if polled == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn posts(&self, post: impl Fn(*mut gds_send_wr, *mut *mut gds_send_wr) -> i32) -> Duration {
        // SAFETY: the region is alive.
        let (addr, lkey, rkey) = unsafe { ((*self.mr).addr as u64, (*self.mr).lkey, (*self.mr).rkey) };
        let mut sge = ibv_sge { addr, length: 8, lkey };
        let start = Instant::now();
        for i in 0..POSTS {
            let mut wr = gds_send_wr {
                wr_id: i.into(),
                next: null_mut(),
                sg_list: &mut sge,
                num_sge: 1,
                exp_opcode: 0,
                reserved: 0,
                imm_data: 0,
                wr: gds_send_operands { rdma: gds_rdma { remote_addr: addr, rkey } },
                exp_send_flags: 1 << 1,
                comp_mask: 0,
            };
            let mut bad = null_mut();
            assert_eq!(post(&mut wr, &mut bad), 0);
        }
        start.elapsed()
    }

    fn cpu(&self) -> Duration {
        // SAFETY: the queue pair and the request are valid, the memory registered.
        let took = self.posts(|wr, bad| unsafe { send::gds_post_send(self.qp, wr, bad) });
        self.poll();
        took
    }

    fn stream(&self) -> Duration {
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
        // SAFETY: as above, and the stream is alive.
        let took =
            self.posts(|wr, bad| unsafe { send::gds_stream_queue_send(self.stream, self.qp, wr, bad) });
        gate.store(1, Ordering::Release);
        self.poll();
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { ext::gdsync_stream_synchronize(self.stream, 60_000) }, 0);
        took
    }
}

/// The least time of a post, in nanoseconds, of either way, in rounds that alternate, on all places by turns.
fn least(one: impl Fn(usize) -> Duration, other: impl Fn(usize) -> Duration) -> (f64, f64) {
    let (mut least_one, mut least_other) = (Duration::MAX, Duration::MAX);
    for round in 0..rounds() {
        least_one = least_one.min(one(round % PLACES));
        least_other = least_other.min(other(round % PLACES));
    }
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(POSTS);
    (each(least_one), each(least_other))
}

fn main() {
    let (rust, c): (Vec<_>, Vec<_>) = (0..PLACES).map(|_| (Rust::new(), C::new())).unzip();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<34} {:>9} {:>9} {:>9} {:>7}",
        "a post of 8 bytes, by", "Rust ns", "C ns", "C more", "ratio"
    )
    .unwrap();
    let rows = [
        ("the CPU (gds_post_send)", least(|i| rust[i].cpu(), |i| c[i].cpu())),
        ("a stream (gds_stream_queue_send)", least(|i| rust[i].stream(), |i| c[i].stream())),
    ];
    for (name, (rust, c)) in rows {
        writeln!(out, "{name:<34} {rust:>9.1} {c:>9.1} {:>9.1} {:>7.2}", c - rust, c / rust).unwrap();
    }
}

/// As many as the command line says, after what cargo says there.
fn rounds() -> usize {
    std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS)
}
