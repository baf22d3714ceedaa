//! Objects of the software card made through its table of entry points, as a C program makes them.

use gdsync_sys::VerbsApi;
use gdsync_sys::mlx5dv::{self, mlx5dv_cq, mlx5dv_obj, mlx5dv_qp};
use gdsync_sys::prm::cqe::{CQE_SIZE, Cqe64};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::{BASIC_BLOCK, CtrlSeg};
use gdsync_sys::verbs::*;
use libc::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Time limit of any wait. Only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn api() -> &'static VerbsApi {
    softhca::verbs_api()
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Sets `errno` to 0, so that a later value is a new one.
pub(crate) fn clear_errno() {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = 0 };
}

/// An all-zero C struct of the verbs headers: integers, pointers and options of functions only.
pub(crate) fn zeroed<T: Copy>() -> T {
    // SAFETY: such structs have no invalid all-zero fields.
    unsafe { std::mem::zeroed() }
}

/// Opens device number `index`.
pub(crate) fn open(index: usize) -> *mut ibv_context {
    // SAFETY: the list is freed after its last use.
    unsafe {
        let mut count = 0;
        let list = (api().get_device_list)(&mut count);
        assert!(!list.is_null() && index < count as usize);
        let context = (api().open_device)(*list.add(index));
        (api().free_device_list)(list);
        assert!(!context.is_null(), "errno {}", errno());
        context
    }
}

/// An open device with a protection domain.
pub(crate) struct Bed {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

impl Bed {
    /// Opens the first device.
    pub(crate) fn new() -> Self {
        let context = open(0);
        // SAFETY: the context is open.
        let pd = unsafe { (api().alloc_pd)(context) };
        assert!(!pd.is_null());
        Bed { context, pd }
    }

    /// Closes the device. Everything made in it must have been destroyed.
    pub(crate) fn close(self) {
        // SAFETY: made in `new`, used no more.
        unsafe {
            assert_eq!((api().dealloc_pd)(self.pd), 0);
            assert_eq!((api().close_device)(self.context), 0);
        }
    }

    pub(crate) fn lid(&self) -> u16 {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { (api().query_port)(self.context, 1, &mut attr) }, 0);
        attr.lid
    }

    pub(crate) fn cq_attr(entries: u32) -> ibv_cq_init_attr_ex {
        ibv_cq_init_attr_ex { cqe: entries, ..zeroed() }
    }

    pub(crate) fn cq(&self, entries: u32) -> *mut ibv_cq {
        let mut attr = Self::cq_attr(entries);
        // SAFETY: the context is open; mlx5's attributes may be null.
        let cq = unsafe { (api().mlx5dv_create_cq)(self.context, &mut attr, ptr::null_mut()) };
        assert!(!cq.is_null(), "errno {}", errno());
        cq
    }

    /// Attributes of a reliable queue pair with 16 sends and 16 receives.
    pub(crate) fn qp_attr(&self, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq) -> ibv_qp_init_attr_ex {
        ibv_qp_init_attr_ex {
            send_cq,
            recv_cq,
            cap: ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: self.pd,
            ..zeroed()
        }
    }

    pub(crate) fn qp(&self, cq: *mut ibv_cq) -> *mut ibv_qp {
        let mut attr = self.qp_attr(cq, cq);
        // SAFETY: all that the attributes name is alive.
        let qp = unsafe { (api().mlx5dv_create_qp)(self.context, &mut attr, ptr::null_mut()) };
        assert!(!qp.is_null(), "errno {}", errno());
        qp
    }

    /// Registers memory, which the caller keeps until it is deregistered.
    pub(crate) fn register(&self, memory: &mut [u8], access: u32) -> *mut ibv_mr {
        // SAFETY: the caller keeps the memory until the region is deregistered.
        let mr =
            unsafe { (api().reg_mr)(self.pd, memory.as_mut_ptr().cast(), memory.len(), access as c_int) };
        assert!(!mr.is_null(), "errno {}", errno());
        mr
    }
}

pub(crate) fn describe_cq(cq: *mut ibv_cq) -> mlx5dv_cq {
    let mut out: mlx5dv_cq = zeroed();
    let mut obj = mlx5dv_obj::default();
    (obj.cq.r#in, obj.cq.out) = (cq, &mut out);
    // SAFETY: the queue is alive.
    assert_eq!(unsafe { (api().mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_CQ) }, 0);
    out
}

pub(crate) fn describe_qp(qp: *mut ibv_qp) -> mlx5dv_qp {
    let mut out: mlx5dv_qp = zeroed();
    let mut obj = mlx5dv_obj::default();
    (obj.qp.r#in, obj.qp.out) = (qp, &mut out);
    // SAFETY: the queue pair is alive.
    assert_eq!(unsafe { (api().mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_QP) }, 0);
    out
}

pub(crate) fn qpn(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the queue pair is alive.
    unsafe { (*qp).qp_num }
}

pub(crate) fn modify(qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: u32) -> c_int {
    let mut attr = *attr;
    // SAFETY: the queue pair is alive, or null.
    unsafe { (api().modify_qp)(qp, &mut attr, mask as c_int) }
}

pub(crate) fn query(qp: *mut ibv_qp) -> (ibv_qp_attr, ibv_qp_init_attr) {
    let (mut attr, mut init) = (ibv_qp_attr::default(), zeroed());
    // SAFETY: the queue pair is alive.
    assert_eq!(unsafe { (api().query_qp)(qp, &mut attr, IBV_QP_STATE as c_int, &mut init) }, 0);
    (attr, init)
}

/// The attributes for RESET to INIT.
pub(crate) const INIT_MASK: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
/// The attributes for INIT to RTR.
pub(crate) const RTR_MASK: u32 = IBV_QP_STATE
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
/// The attributes for RTR to RTS.
pub(crate) const RTS_MASK: u32 = IBV_QP_STATE
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC;

/// Attributes for each step from RESET to RTS.
pub(crate) fn attributes(state: c_int, dest_qpn: u32, dlid: u16) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: state,
        path_mtu: IBV_MTU_4096,
        rq_psn: 0x123,
        sq_psn: 0x123,
        dest_qp_num: dest_qpn,
        qp_access_flags: IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
        ah_attr: ibv_ah_attr { dlid, port_num: 1, ..Default::default() },
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..Default::default()
    }
}

/// Takes a queue pair from RESET to RTS.
pub(crate) fn connect(qp: *mut ibv_qp, dest_qpn: u32, dlid: u16) {
    for (state, mask) in [(IBV_QPS_INIT, INIT_MASK), (IBV_QPS_RTR, RTR_MASK), (IBV_QPS_RTS, RTS_MASK)] {
        assert_eq!(modify(qp, &attributes(state, dest_qpn, dlid), mask), 0, "to state {state}");
    }
}

/// Writes a WQE of one block at block `index` of the send queue, which has room, and rings the
/// doorbell. `segments` follow the control segment.
pub(crate) fn send(qp: &mlx5dv_qp, index: u32, ctrl: CtrlSeg, segments: &[u8]) {
    use zerocopy::IntoBytes;
    let mut block = [0; BASIC_BLOCK];
    block[..16].copy_from_slice(ctrl.as_bytes());
    block[16..16 + segments.len()].copy_from_slice(segments);
    let slot = (index & (qp.sq.wqe_cnt - 1)) as usize * BASIC_BLOCK;
    // SAFETY: inside the queue's ring, its record and its register, which live as long as the queue pair.
    unsafe {
        qp.sq.buf.cast::<u8>().add(slot).copy_from_nonoverlapping(block.as_ptr(), BASIC_BLOCK);
        let record = AtomicU32::from_ptr(qp.dbrec.add(doorbell::DBR_SEND));
        record.store(doorbell::record(index + 1), Ordering::Release);
        AtomicU64::from_ptr(qp.bf.reg.cast()).store(ctrl.doorbell(), Ordering::Release);
    }
}

/// Posts receive number `index`.
pub(crate) fn receive(qp: &mlx5dv_qp, index: u32, segments: &[u8]) {
    let slot = (index & (qp.rq.wqe_cnt - 1)) as usize * qp.rq.stride as usize;
    assert!(segments.len() <= qp.rq.stride as usize);
    // SAFETY: inside the queue's ring and its record, which live as long as the queue pair.
    unsafe {
        qp.rq.buf.cast::<u8>().add(slot).copy_from_nonoverlapping(segments.as_ptr(), segments.len());
        let record = AtomicU32::from_ptr(qp.dbrec.add(doorbell::DBR_RECV));
        record.store(doorbell::record(index + 1), Ordering::Release);
    }
}

/// Waits for entry `index` of a completion queue.
pub(crate) fn completion(cq: &mlx5dv_cq, index: u32) -> Cqe64 {
    let slot = (index & (cq.cqe_cnt - 1)) as usize * CQE_SIZE;
    let lap = u8::from(index & cq.cqe_cnt != 0);
    let start = Instant::now();
    loop {
        // SAFETY: inside the ring; the last byte is written last.
        let last = unsafe { AtomicU32::from_ptr(cq.buf.cast::<u8>().add(slot + 60).cast()) };
        let op_own = last.load(Ordering::Acquire).to_ne_bytes()[3];
        if op_own >> 4 != 0xf && op_own & 1 == lap {
            // SAFETY: the card has written the whole entry and does not write it again before it is consumed.
            let bytes = unsafe { cq.buf.cast::<[u8; CQE_SIZE]>().byte_add(slot).read_volatile() };
            return Cqe64::read_from_bytes(&bytes).expect("64 bytes are an entry");
        }
        assert!(start.elapsed() < PATIENCE, "no completion {index}");
        std::thread::yield_now();
    }
}

pub(crate) fn readable(fd: c_int, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as c_int) == 1 }
}

pub(crate) fn set_nonblocking(context: *mut ibv_context) {
    // SAFETY: the context is open.
    assert_eq!(unsafe { libc::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

pub(crate) fn destroy_qp(qp: *mut ibv_qp) {
    // SAFETY: created, used no more.
    assert_eq!(unsafe { (api().destroy_qp)(qp) }, 0);
}

pub(crate) fn destroy_cq(cq: *mut ibv_cq) {
    // SAFETY: created, used no more.
    assert_eq!(unsafe { (api().destroy_cq)(cq) }, 0);
}

pub(crate) fn deregister(mr: *mut ibv_mr) {
    // SAFETY: registered, used no more.
    assert_eq!(unsafe { (api().dereg_mr)(mr) }, 0);
}

pub(crate) const NULL: *mut c_void = ptr::null_mut();
