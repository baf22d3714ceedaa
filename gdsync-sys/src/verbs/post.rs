//! Posting and polling through libibverbs, and memory windows: the structs of `ibv_post_send`, `ibv_poll_cq`, `ibv_wr_*` and
//! `ibv_bind_mw`.
//!
//! gdsync posts and polls without them; they serve comparisons with libmlx5. The functions are inline in C: they call
//! the provider through [`ibv_context::ops`] and [`ibv_qp_ex`].

use super::{ibv_ah, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp};
use libc::{c_int, c_uint, c_void, size_t};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A send work request, with the fields of RDMA operations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    /// The next request of the list, or null.
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// Immediate data, big endian; or the key that a request invalidates.
    pub imm_data: u32,
    /// First remote address; in C within the union `wr`.
    pub remote_addr: u64,
    pub rkey: u32,
    /// The rest of the unions `wr` and `qp_type`, for other operations.
    pub _rest: [u64; 3],
    pub bind_mw: ibv_send_wr_bind_mw,
}

/// What [`IBV_WR_BIND_MW`] binds; within an unnamed union of `struct ibv_send_wr`, without a name in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_bind_mw {
    pub mw: *mut ibv_mw,
    /// The window's new key.
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

impl ibv_send_wr_bind_mw {
    /// Of requests that bind nothing.
    pub const NONE: Self = ibv_send_wr_bind_mw {
        mw: std::ptr::null_mut(),
        rkey: 0,
        bind_info: ibv_mw_bind_info { mr: std::ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 },
    };
}

/// A memory window.
#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    /// `IBV_MW_TYPE_*`.
    pub r#type: c_int,
}

/// The range of a region that a window opens; of no bytes to close it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// Argument of `ibv_bind_mw`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    /// 0 for success.
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data, big endian.
    pub imm_data: u32,
    pub qp_num: u32,
    /// The remote queue pair (UD).
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// A queue pair with the operations of `ibv_wr_*`; `ibv_qp_to_qp_ex` returns it.
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    /// `wr_id` of the next request.
    pub wr_id: u64,
    /// `IBV_SEND_*` of the next request.
    pub wr_flags: c_uint,
    /// Operations from `wr_atomic_cmp_swp` to `wr_rdma_read`, unused here.
    pub _before: [*mut c_void; 5],
    pub wr_rdma_write: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
    /// Operations from `wr_rdma_write_imm` to `wr_send_tso`, unused here.
    pub _sends: [*mut c_void; 5],
    /// Sets the destination of the current request (UD).
    pub wr_set_ud_addr:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32)>,
    pub _wr_set_xrc_srqn: *mut c_void,
    pub wr_set_inline_data:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t)>,
    pub _wr_set_inline_data_list: *mut c_void,
    pub wr_set_sge: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)>,
    pub wr_set_sge_list:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: size_t, sg_list: *const ibv_sge)>,
    pub wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
}

pub type PostSend =
    unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int;
pub type AllocMw = unsafe extern "C" fn(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw;
pub type BindMw = unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int;
pub type DeallocMw = unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int;
pub type PollCq = unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int;

/// Index in [`ibv_context::ops`].
pub const OPS_ALLOC_MW: usize = 7;
/// Index in [`ibv_context::ops`].
pub const OPS_BIND_MW: usize = 8;
/// Index in [`ibv_context::ops`].
pub const OPS_DEALLOC_MW: usize = 9;
/// Index in [`ibv_context::ops`].
pub const OPS_POLL_CQ: usize = 11;
/// Index in [`ibv_context::ops`].
pub const OPS_POST_SEND: usize = 25;

/// Returns the provider's `ibv_post_send` and `ibv_poll_cq`, if it has them.
///
/// # Safety
/// The context is open, and was opened by the system's library.
pub unsafe fn inline_functions(context: *mut ibv_context) -> Option<(PostSend, PollCq)> {
    // SAFETY: the caller guarantees an open context; libibverbs fills these two entries with functions of these types.
    unsafe {
        let ops = (*context).ops;
        Some((
            std::mem::transmute::<*mut c_void, Option<PostSend>>(ops[OPS_POST_SEND])?,
            std::mem::transmute::<*mut c_void, Option<PollCq>>(ops[OPS_POLL_CQ])?,
        ))
    }
}

/// Returns the provider's `ibv_alloc_mw`, `ibv_bind_mw` (for windows of type 1) and `ibv_dealloc_mw`, if it has them.
///
/// # Safety
/// As [`inline_functions`].
pub unsafe fn window_functions(context: *mut ibv_context) -> Option<(AllocMw, BindMw, DeallocMw)> {
    // SAFETY: the caller guarantees an open context; libibverbs fills these three entries with functions of these types.
    unsafe {
        let ops = (*context).ops;
        Some((
            std::mem::transmute::<*mut c_void, Option<AllocMw>>(ops[OPS_ALLOC_MW])?,
            std::mem::transmute::<*mut c_void, Option<BindMw>>(ops[OPS_BIND_MW])?,
            std::mem::transmute::<*mut c_void, Option<DeallocMw>>(ops[OPS_DEALLOC_MW])?,
        ))
    }
}

pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
/// The queue pair supports RDMA writes by `ibv_wr_*`.
pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1 << 0;
pub const IBV_WR_RDMA_WRITE: c_int = 0;
/// Closes a window of type 2 by its key.
pub const IBV_WR_LOCAL_INV: c_int = 7;
/// Binds a window of type 2.
pub const IBV_WR_BIND_MW: c_int = 8;
pub const IBV_MW_TYPE_1: c_int = 1;
pub const IBV_MW_TYPE_2: c_int = 2;
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// The data is copied into the request.
pub const IBV_SEND_INLINE: c_uint = 1 << 3;
