//! A queue pair of the C interface, and an exchange by it: a send, a wait for its completion, and a wait for a message.

use gdsync::memop::MemOpStream;
use gdsync::{Access, Batch, PreparedSend, PreparedWait, QueuePair, Slice, Stream, WorkRequest};
use gdsync_c::api::upstream::{self, upstream_send_wr};
use gdsync_c::api::{descriptors, ext, queue_pair as c_qp, send, verbs as c_verbs, wait};
use gdsync_c::types::{
    CUstream, GDS_TAG_SEND, GDS_TAG_WAIT, gds_cq, gds_descriptor_body, gds_descriptor_t, gds_qp,
    gds_qp_init_attr_t, gds_rdma, gds_send_operands, gds_send_request_t, gds_wait_request_t, ibv_recv_wr,
};
use gdsync_sys::verbs::{self, ibv_mr, ibv_port_attr, ibv_qp_attr, ibv_sge, ibv_wc};
use std::ptr::null_mut;

/// Posts at a time.
pub(crate) const POSTS: u32 = 64;
/// `IBV_WR_SEND`.
const SEND: i32 = 2;

/// How an exchange is posted to the stream.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Shape {
    /// By three calls that also prepare.
    Calls,
    /// Prepared before, by three calls.
    Prepared,
    /// Prepared before, by one call.
    Batch,
}

impl Shape {
    /// The exchanges that are prepared before they are posted.
    fn prepares(self) -> std::ops::Range<u32> {
        0..if self == Shape::Calls { 0 } else { POSTS }
    }
}

/// Prepared exchanges.
pub(crate) type InC = Vec<(gds_send_request_t, [gds_wait_request_t; 2])>;
pub(crate) type InRust = Vec<(PreparedSend, [PreparedWait; 2])>;

/// A queue pair, and registered memory of 4096 bytes.
pub(crate) struct Pair {
    pub(crate) qp: *mut gds_qp,
    pub(crate) mr: *mut ibv_mr,
    port: ibv_port_attr,
}

// SAFETY: every thread may call the functions of the C interface, and the benchmark destroys nothing.
unsafe impl Send for Pair {}

fn modify(qp: *mut gds_qp, attr: &mut ibv_qp_attr, mask: u32) {
    // SAFETY: the queue pair is alive, and the attributes are valid.
    assert_eq!(unsafe { c_qp::gds_modify_qp(qp, attr, mask as i32) }, 0);
}

impl Pair {
    /// Makes a queue pair, which streams of the GPU use if there is one.
    pub(crate) fn new(gpu: Option<u32>) -> Self {
        // SAFETY: every pointer is the result of an earlier call or valid for a write; nothing is destroyed before the end.
        unsafe {
            let context = ext::gdsync_soft_open(null_mut());
            let pd = c_verbs::gdsync_alloc_pd(context);
            let mut attr: gds_qp_init_attr_t = std::mem::zeroed();
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (128, 128);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge, attr.cap.max_inline_data) = (4, 4, 44);
            attr.qp_type = 2;
            let qp = c_qp::gds_create_qp(pd, context, &mut attr, gpu.map_or(-1, |gpu| gpu as i32), 0);
            assert!(!qp.is_null());
            let memory = Box::leak(Box::new([0u64; 512]));
            let access = (Access::LOCAL_WRITE | Access::REMOTE_WRITE).bits() as i32;
            let mr = c_verbs::gdsync_reg_mr(pd, memory.as_mut_ptr().cast(), 4096, access);
            assert!(!mr.is_null());
            let mut port: ibv_port_attr = std::mem::zeroed();
            assert_eq!(c_verbs::gdsync_query_port(context, 1, &mut port), 0);
            Pair { qp, mr, port }
        }
    }

    /// Connects to a peer, which may be the queue pair itself.
    pub(crate) fn connect(&self, to: &Pair) {
        let access = verbs::IBV_ACCESS_REMOTE_WRITE;
        let mut attr = ibv_qp_attr {
            qp_state: verbs::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: access,
            ..Default::default()
        };
        let start = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT;
        modify(self.qp, &mut attr, start | verbs::IBV_QP_ACCESS_FLAGS);
        attr.qp_state = verbs::IBV_QPS_RTR;
        (attr.path_mtu, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (self.port.active_mtu, 1, 12);
        // SAFETY: the provider's queue pair is alive.
        attr.dest_qp_num = unsafe { (*(*to.qp).qp).qp_num };
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (to.port.lid, 1);
        let path = verbs::IBV_QP_AV | verbs::IBV_QP_PATH_MTU | verbs::IBV_QP_DEST_QPN | verbs::IBV_QP_RQ_PSN;
        modify(
            self.qp,
            &mut attr,
            verbs::IBV_QP_STATE | path | verbs::IBV_QP_MAX_DEST_RD_ATOMIC | verbs::IBV_QP_MIN_RNR_TIMER,
        );
        attr.qp_state = verbs::IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (14, 7, 7, 1);
        let times = verbs::IBV_QP_TIMEOUT | verbs::IBV_QP_RETRY_CNT | verbs::IBV_QP_RNR_RETRY;
        modify(
            self.qp,
            &mut attr,
            verbs::IBV_QP_STATE | times | verbs::IBV_QP_SQ_PSN | verbs::IBV_QP_MAX_QP_RD_ATOMIC,
        );
    }

    pub(crate) fn queues(&self) -> [*mut gds_cq; 2] {
        // SAFETY: the queue pair is alive.
        unsafe { [&raw mut (*self.qp).send_cq, &raw mut (*self.qp).recv_cq] }
    }

    /// Posts receives.
    pub(crate) fn receive(&self) {
        // SAFETY: the region is alive.
        let (addr, lkey) = unsafe { ((*self.mr).addr as u64 + 8, (*self.mr).lkey) };
        for _ in 0..POSTS {
            let mut sge = ibv_sge { addr, length: 8, lkey };
            let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
            // SAFETY: queue pair and memory are alive.
            assert_eq!(unsafe { c_qp::gds_post_recv(self.qp, &mut wr, &mut null_mut()) }, 0);
        }
    }

    /// Takes the completions of all posts, which have succeeded.
    pub(crate) fn poll(&self, queue: *mut gds_cq) {
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

    /// Calls `post` with one request after the other.
    pub(crate) fn posts(
        &self,
        opcode: i32,
        mut post: impl FnMut(*mut upstream_send_wr, *mut *mut upstream_send_wr) -> i32,
    ) {
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
        for i in 0..POSTS {
            wr.wr_id = i.into();
            assert_eq!(post(&mut wr, &mut bad), 0);
        }
    }

    /// Prepares the exchanges that the shape prepares.
    pub(crate) fn prepare_in_c(&self, shape: Shape) -> InC {
        // SAFETY: plain data, for which zero is a value.
        let place = |_| unsafe { std::mem::zeroed::<(gds_send_request_t, [gds_wait_request_t; 2])>() };
        let mut prepared: InC = shape.prepares().map(place).collect();
        if shape == Shape::Calls {
            return prepared;
        }
        let (mut places, [on_sent, on_arrived]) = (prepared.iter_mut(), self.queues());
        self.posts(SEND, |wr, bad| {
            let (send, [sent, arrived]) = places.next().unwrap();
            // SAFETY: queue pair and memory are alive, and the requests are valid places.
            unsafe {
                upstream::gdsync_upstream_prepare_send(self.qp, wr, bad, send)
                    | wait::gds_prepare_wait_cq(on_sent, sent, 0)
                    | wait::gds_prepare_wait_cq(on_arrived, arrived, 0)
            }
        });
        prepared
    }

    /// Posts exchanges to a stream.
    pub(crate) fn post_in_c(&self, stream: CUstream, shape: Shape, prepared: &mut InC) {
        let [on_sent, on_arrived] = self.queues();
        if shape == Shape::Calls {
            // SAFETY: queue pair, stream and memory are alive.
            return self.posts(SEND, |wr, bad| unsafe {
                upstream::gdsync_upstream_stream_queue_send(stream, self.qp, wr, bad)
                    | wait::gds_stream_wait_cq(stream, on_sent, 0)
                    | wait::gds_stream_wait_cq(stream, on_arrived, 0)
            });
        }
        for (send, [sent, arrived]) in prepared {
            // SAFETY: the requests were prepared; queue pair and stream are alive.
            let status = unsafe {
                if shape == Shape::Batch {
                    let wait =
                        |wait| gds_descriptor_t { tag: GDS_TAG_WAIT, body: gds_descriptor_body { wait } };
                    let send = gds_descriptor_t { tag: GDS_TAG_SEND, body: gds_descriptor_body { send } };
                    let mut all = [send, wait(sent), wait(arrived)];
                    descriptors::gds_stream_post_descriptors(stream, 3, all.as_mut_ptr(), 0)
                } else {
                    send::gds_stream_post_send(stream, send)
                        | wait::gds_stream_post_wait_cq(stream, sent)
                        | wait::gds_stream_post_wait_cq(stream, arrived)
                }
            };
            assert_eq!(status, 0);
        }
    }
}

/// Prepares the exchanges that the shape prepares.
pub(crate) fn prepare_in_rust(queue_pair: &QueuePair, slices: &[Slice], shape: Shape) -> InRust {
    let waits = || [queue_pair.send_cq(), queue_pair.recv_cq()].map(|queue| queue.prepare_wait().unwrap());
    shape.prepares().map(|_| (queue_pair.prepare(WorkRequest::send(slices)).unwrap(), waits())).collect()
}

/// Posts exchanges to a stream.
pub(crate) fn post_in_rust<B: MemOpStream>(
    stream: &Stream<B>,
    queue_pair: &QueuePair,
    slices: &[Slice],
    shape: Shape,
    prepared: InRust,
) {
    let wait = |wait| {
        stream.post(Batch::new().wait(wait)).unwrap();
    };
    if shape == Shape::Calls {
        for _ in 0..POSTS {
            stream.queue_send(queue_pair, WorkRequest::send(slices)).unwrap();
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
}
