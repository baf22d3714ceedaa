//! An exchange by the C interface, as a C program does it.

use super::library::Library;
use super::way::{CHUNK, MESSAGE, PATIENCE, Shape, Way};
use gdsync_c::types::{
    CUstream, GDS_TAG_SEND, GDS_TAG_WAIT, GDSYNC_STREAM_NEVER_CAPTURED, gds_cq, gds_descriptor_body,
    gds_descriptor_t, gds_qp, gds_qp_init_attr_t, gds_send_request_t, gds_send_wr, gds_wait_request_t,
    ibv_recv_wr,
};
use gdsync_cli::failure::Failure;
use gdsync_sys::verbs::{
    self, ibv_context, ibv_gid, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp_attr, ibv_sge, ibv_wc,
};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// `IBV_EXP_SEND_SIGNALED` (`infiniband/verbs_exp.h`).
const SIGNALED: u64 = 1 << 1;
/// `IBV_EXP_WR_SEND`.
const SEND: i32 = 2;
/// `IBV_QPT_RC`.
const RELIABLE: i32 = 2;

/// A stream that the library is given the name of.
pub(super) enum Named {
    /// One of the library's own.
    Soft,
    /// One of CUDA, which something else keeps for as long as the side is there.
    Cuda(CUstream),
    /// The same, and the side says so to the library (`gdsync_stream_keep`).
    Kept(CUstream),
}

pub(super) struct C {
    library: Library,
    /// Null, where it was not made yet.
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    qp: *mut gds_qp,
    stream: CUstream,
    is_soft: bool,
    port: ibv_port_attr,
    gid: ibv_gid,
    /// What is sent, then what has come.
    messages: Box<[AtomicU64; 2 * CHUNK]>,
    sends: Vec<gds_send_request_t>,
    waits: Vec<[gds_wait_request_t; 2]>,
}

impl C {
    pub(super) fn new(library: Library, stream: Named) -> Result<Self, Failure> {
        // SAFETY: plain data, for which zero is a value.
        let (port, gid) = unsafe { std::mem::zeroed() };
        let mut new = C {
            library,
            context: null_mut(),
            pd: null_mut(),
            mr: null_mut(),
            qp: null_mut(),
            stream: null_mut(),
            is_soft: matches!(stream, Named::Soft),
            port,
            gid,
            messages: Box::new([const { AtomicU64::new(0) }; 2 * CHUNK]),
            sends: Vec::new(),
            waits: Vec::new(),
        };
        new.make(stream)?;
        Ok(new)
    }

    fn make(&mut self, stream: Named) -> Result<(), Failure> {
        let api = self.library;
        let is_kept = matches!(stream, Named::Kept(_));
        // SAFETY: every pointer is what the call before has returned, or a valid place; the messages stay
        // where they are until the region is gone. The requests are plain data. A stream lives until the
        // side is dropped, which has it forgotten, and nothing here captures streams.
        unsafe {
            self.context = api.made("gdsync_soft_open", (api.gdsync_soft_open)(null_mut()))?;
            self.pd = api.made("gdsync_alloc_pd", (api.gdsync_alloc_pd)(self.context))?;
            let at = self.messages.as_ptr().cast_mut().cast();
            let access = verbs::IBV_ACCESS_LOCAL_WRITE as i32;
            let mr = (api.gdsync_reg_mr)(self.pd, at, size_of_val(&*self.messages), access);
            self.mr = api.made("gdsync_reg_mr", mr)?;
            api.done("gdsync_query_port", (api.gdsync_query_port)(self.context, 1, &mut self.port))?;
            api.done("gdsync_query_gid", (api.gdsync_query_gid)(self.context, 1, 0, &mut self.gid))?;
            let mut attr: gds_qp_init_attr_t = std::mem::zeroed();
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (CHUNK as u32, CHUNK as u32);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
            attr.qp_type = RELIABLE;
            let qp = (api.gds_create_qp)(self.pd, self.context, &mut attr, -1, 0);
            self.qp = api.made("gds_create_qp", qp)?;
            self.stream = match stream {
                Named::Soft => api.made("gdsync_soft_stream_create", (api.gdsync_soft_stream_create)())?,
                Named::Cuda(stream) | Named::Kept(stream) => stream,
            };
            if is_kept {
                let kept = (api.gdsync_stream_keep)(self.stream, GDSYNC_STREAM_NEVER_CAPTURED);
                api.done("gdsync_stream_keep", kept)?;
            }
            self.sends.resize_with(CHUNK, || std::mem::zeroed());
            self.waits.resize_with(CHUNK, || std::mem::zeroed());
        }
        // The library makes what it keeps for a stream when it first hears of it: before anything waits.
        self.synchronize()
    }

    fn queues(&self) -> [*mut gds_cq; 2] {
        // SAFETY: the queue pair is alive.
        unsafe { [&raw mut (*self.qp).send_cq, &raw mut (*self.qp).recv_cq] }
    }

    fn element(&self, place: usize) -> ibv_sge {
        // SAFETY: the region is alive.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: std::ptr::from_ref(&self.messages[place]) as u64, length: MESSAGE as u32, lkey }
    }

    /// Calls with the request that sends a place.
    fn sending(&self, place: usize, call: impl FnOnce(*mut gds_send_wr) -> i32) -> i32 {
        let mut element = self.element(place);
        // SAFETY: plain data, for which zero is a value.
        let mut wr: gds_send_wr = unsafe { std::mem::zeroed() };
        (wr.sg_list, wr.num_sge) = (&mut element, 1);
        (wr.exp_opcode, wr.exp_send_flags) = (SEND, SIGNALED);
        call(&mut wr)
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> Result<(), Failure> {
        // SAFETY: the queue pair is alive, and the attributes are valid.
        let status = unsafe { (self.library.gds_modify_qp)(self.qp, attr, mask as i32) };
        self.library.done("gds_modify_qp", status)
    }

    /// Prepares, and hands over, in three calls for each.
    fn post_calls(&mut self, count: usize) -> Result<(), Failure> {
        let (api, stream, qp) = (self.library, self.stream, self.qp);
        for place in 0..count {
            let mut bad = null_mut();
            // SAFETY: queue pair, stream and memory are alive until everything has completed.
            let sent =
                self.sending(place, |wr| unsafe { (api.gds_stream_queue_send)(stream, qp, wr, &mut bad) });
            api.done("gds_stream_queue_send", sent)?;
            for queue in self.queues() {
                // SAFETY: as above.
                api.done("gds_stream_wait_cq", unsafe { (api.gds_stream_wait_cq)(stream, queue, 0) })?;
            }
        }
        Ok(())
    }

    /// Hands over what was prepared, in three calls for each.
    fn post_prepared(&mut self, count: usize) -> Result<(), Failure> {
        let (api, stream) = (self.library, self.stream);
        for (send, waits) in self.sends.iter_mut().zip(&mut self.waits).take(count) {
            // SAFETY: the requests were prepared; queue pair and stream are alive.
            api.done("gds_stream_post_send", unsafe { (api.gds_stream_post_send)(stream, send) })?;
            for wait in waits {
                // SAFETY: as above.
                api.done("gds_stream_post_wait_cq", unsafe { (api.gds_stream_post_wait_cq)(stream, wait) })?;
            }
        }
        Ok(())
    }

    /// Hands over what was prepared, in one call for each.
    fn post_descriptors(&mut self, count: usize) -> Result<(), Failure> {
        let (api, stream) = (self.library, self.stream);
        for (send, [sent, arrived]) in self.sends.iter_mut().zip(&mut self.waits).take(count) {
            let wait = |wait| gds_descriptor_t { tag: GDS_TAG_WAIT, body: gds_descriptor_body { wait } };
            let send = gds_descriptor_t { tag: GDS_TAG_SEND, body: gds_descriptor_body { send } };
            let mut all = [send, wait(sent), wait(arrived)];
            // SAFETY: as in `post_prepared`.
            let status = unsafe { (api.gds_stream_post_descriptors)(stream, all.len(), all.as_mut_ptr(), 0) };
            api.done("gds_stream_post_descriptors", status)?;
        }
        Ok(())
    }
}

impl Way for C {
    fn address(&self) -> Result<String, Failure> {
        // SAFETY: the queue pair is alive; a GID is 16 bytes, whatever they mean.
        let (number, gid) = unsafe { ((*(*self.qp).qp).qp_num, self.gid.raw) };
        Ok(format!("{number} {} {:x}", self.port.lid, u128::from_be_bytes(gid)))
    }

    fn connect(&mut self, other: &str) -> Result<(), Failure> {
        let parts: Vec<_> = other.split(' ').collect();
        let [number, lid, gid] = parts[..] else {
            return Err(format!("{other} is no queue pair's address").into());
        };
        let init = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT;
        let mut attr = ibv_qp_attr { qp_state: verbs::IBV_QPS_INIT, port_num: 1, ..Default::default() };
        self.modify(&mut attr, init | verbs::IBV_QP_ACCESS_FLAGS)?;
        attr.qp_state = verbs::IBV_QPS_RTR;
        (attr.path_mtu, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (self.port.active_mtu, 1, 12);
        attr.dest_qp_num = number.parse()?;
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (lid.parse()?, 1);
        // Without a LID, the path is one of Ethernet.
        attr.ah_attr.is_global = u8::from(attr.ah_attr.dlid == 0);
        attr.ah_attr.grh.dgid = ibv_gid { raw: u128::from_str_radix(gid, 16)?.to_be_bytes() };
        attr.ah_attr.grh.hop_limit = 1;
        let path = verbs::IBV_QP_AV | verbs::IBV_QP_PATH_MTU | verbs::IBV_QP_DEST_QPN | verbs::IBV_QP_RQ_PSN;
        let receiving = verbs::IBV_QP_MAX_DEST_RD_ATOMIC | verbs::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, verbs::IBV_QP_STATE | path | receiving)?;
        attr.qp_state = verbs::IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (14, 7, 7, 1);
        let sending = verbs::IBV_QP_TIMEOUT | verbs::IBV_QP_RETRY_CNT | verbs::IBV_QP_RNR_RETRY;
        let rest = verbs::IBV_QP_SQ_PSN | verbs::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, verbs::IBV_QP_STATE | sending | rest)
    }

    fn write(&mut self, place: usize, number: u64) {
        self.messages[place].store(number, Ordering::Relaxed);
    }

    fn read(&self, place: usize) -> u64 {
        self.messages[CHUNK + place].load(Ordering::Relaxed)
    }

    fn receive(&mut self, count: usize) -> Result<(), Failure> {
        for place in 0..count {
            let mut element = self.element(CHUNK + place);
            let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &mut element, num_sge: 1 };
            let mut bad = null_mut();
            // SAFETY: the queue pair and the memory are alive.
            let status = unsafe { (self.library.gds_post_recv)(self.qp, &mut wr, &mut bad) };
            self.library.done("gds_post_recv", status)?;
        }
        Ok(())
    }

    fn prepare(&mut self, shape: Shape, count: usize) -> Result<(), Failure> {
        let (api, qp) = (self.library, self.qp);
        for place in 0..if shape == Shape::Calls { 0 } else { count } {
            let (mut bad, request) = (null_mut(), &raw mut self.sends[place]);
            // SAFETY: the queue pair and the memory are alive, the request is a valid place.
            let sent = self.sending(place, |wr| unsafe { (api.gds_prepare_send)(qp, wr, &mut bad, request) });
            api.done("gds_prepare_send", sent)?;
            for (queue, request) in self.queues().into_iter().zip(&mut self.waits[place]) {
                // SAFETY: as above.
                api.done("gds_prepare_wait_cq", unsafe { (api.gds_prepare_wait_cq)(queue, request, 0) })?;
            }
        }
        Ok(())
    }

    fn post(&mut self, shape: Shape, count: usize) -> Result<(), Failure> {
        match shape {
            Shape::Calls => self.post_calls(count),
            Shape::Prepared => self.post_prepared(count),
            Shape::Batch => self.post_descriptors(count),
        }
    }

    fn synchronize(&mut self) -> Result<(), Failure> {
        let timeout = PATIENCE.as_millis() as u32;
        // SAFETY: the stream is alive.
        let status = unsafe { (self.library.gdsync_stream_synchronize)(self.stream, timeout) };
        self.library.done("gdsync_stream_synchronize", status)
    }

    fn collect(&mut self, count: usize) -> Result<(), Failure> {
        for queue in self.queues() {
            let (mut left, mut completions) = (count, [ibv_wc::default(); 16]);
            while left > 0 {
                let most = left.min(completions.len());
                // SAFETY: the queue is alive, and there is room for so many.
                let polled =
                    unsafe { (self.library.gds_poll_cq)(queue, most as i32, completions.as_mut_ptr()) };
                let polled = usize::try_from(polled).map_err(|_| self.library.failed("gds_poll_cq"))?;
                if let Some(bad) = completions[..polled].iter().find(|one| one.status != 0) {
                    return Err(format!("a work request completed with ibv_wc_status {}", bad.status).into());
                }
                left -= polled;
                if polled == 0 {
                    std::thread::yield_now();
                }
            }
        }
        Ok(())
    }

    fn operations(&self) -> Option<usize> {
        None
    }
}

impl Drop for C {
    fn drop(&mut self) {
        let api = self.library;
        // SAFETY: what is not null was made by `make`, and is destroyed once, last first. What fails stays
        // until the process ends.
        unsafe {
            if !self.qp.is_null() {
                (api.gdsync_abort_qp)(self.qp);
            }
            if !self.stream.is_null() {
                (api.gdsync_stream_synchronize)(self.stream, PATIENCE.as_millis() as u32);
                let gone =
                    if self.is_soft { api.gdsync_soft_stream_destroy } else { api.gdsync_stream_forget };
                gone(self.stream);
            }
            if !self.qp.is_null() {
                (api.gds_destroy_qp)(self.qp);
            }
            if !self.mr.is_null() {
                (api.gdsync_dereg_mr)(self.mr);
            }
            if !self.pd.is_null() {
                (api.gdsync_dealloc_pd)(self.pd);
            }
            if !self.context.is_null() {
                (api.gdsync_soft_close)(self.context);
            }
        }
    }
}
