//! The structs and numbers of the headers in `include/`. `tests/it/headers.rs` compares their layouts with the C compiler's.

#![allow(non_camel_case_types, reason = "the names are those of the C headers")]

use gdsync_sys::verbs::{ibv_ah, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_sge, ibv_srq};
use libc::{c_int, c_void, size_t};

mod ext;

pub use ext::*;

/// `GDS_API_VERSION`: 2.2.
pub const GDS_API_VERSION: c_int = 2 << 16 | 2;
/// `GDS_PARAM_VERSION`.
pub const GDS_PARAM_VERSION: c_int = 0;

/// `GDS_CREATE_QP_WQ_ON_GPU`.
pub const GDS_CREATE_QP_WQ_ON_GPU: c_int = 1 << 0;
/// `GDS_CREATE_QP_TX_CQ_ON_GPU`.
pub const GDS_CREATE_QP_TX_CQ_ON_GPU: c_int = 1 << 1;
/// `GDS_CREATE_QP_RX_CQ_ON_GPU`.
pub const GDS_CREATE_QP_RX_CQ_ON_GPU: c_int = 1 << 2;
/// `GDS_CREATE_QP_WQ_DBREC_ON_GPU`.
pub const GDS_CREATE_QP_WQ_DBREC_ON_GPU: c_int = 1 << 5;
/// The flags that are only wishes.
pub const GDS_CREATE_QP_WISHES: c_int =
    GDS_CREATE_QP_TX_CQ_ON_GPU | GDS_CREATE_QP_RX_CQ_ON_GPU | GDS_CREATE_QP_WQ_DBREC_ON_GPU;

/// `GDS_MEMORY_GPU`.
pub const GDS_MEMORY_GPU: c_int = 1;
/// `GDS_MEMORY_HOST`.
pub const GDS_MEMORY_HOST: c_int = 2;
/// `GDS_MEMORY_IO`.
pub const GDS_MEMORY_IO: c_int = 4;
/// `GDS_MEMORY_MASK`.
pub const GDS_MEMORY_MASK: c_int = 7;
/// `GDS_WAIT_POST_FLUSH_REMOTE`.
pub const GDS_WAIT_POST_FLUSH_REMOTE: c_int = 1 << 3;
/// `GDS_WRITE_PRE_BARRIER_SYS`.
pub const GDS_WRITE_PRE_BARRIER_SYS: c_int = 1 << 4;
/// `GDS_WRITE_MEMORY_POST_BARRIER_SYS`.
pub const GDS_WRITE_MEMORY_POST_BARRIER_SYS: c_int = 1 << 4;
/// `GDS_WRITE_MEMORY_PRE_BARRIER_SYS`.
pub const GDS_WRITE_MEMORY_PRE_BARRIER_SYS: c_int = 1 << 5;
/// `GDS_WAIT_COND_GEQ` to `GDS_WAIT_COND_NOR`.
pub const GDS_WAIT_COND_GEQ: c_int = 0;
/// `GDS_WAIT_COND_EQ`.
pub const GDS_WAIT_COND_EQ: c_int = 1;
/// `GDS_WAIT_COND_AND`.
pub const GDS_WAIT_COND_AND: c_int = 2;
/// `GDS_WAIT_COND_NOR`.
pub const GDS_WAIT_COND_NOR: c_int = 3;
/// `GDS_TAG_SEND`.
pub const GDS_TAG_SEND: c_int = 0;
/// `GDS_TAG_WAIT`.
pub const GDS_TAG_WAIT: c_int = 1;
/// `GDS_TAG_WAIT_VALUE32`.
pub const GDS_TAG_WAIT_VALUE32: c_int = 2;
/// `GDS_TAG_WRITE_VALUE32`.
pub const GDS_TAG_WRITE_VALUE32: c_int = 3;
/// `GDS_TAG_WRITE_MEMORY`.
pub const GDS_TAG_WRITE_MEMORY: c_int = 4;
/// `GDSYNC_STREAM_NEVER_CAPTURED`.
pub const GDSYNC_STREAM_NEVER_CAPTURED: u32 = 1 << 0;
/// `GDSYNC_STATUS_PENDING`.
pub const GDSYNC_STATUS_PENDING: u32 = gdsync::queue::Status::PENDING;
/// `GDSYNC_STATUS_OK`.
pub const GDSYNC_STATUS_OK: u32 = gdsync::queue::Status::OK;
/// `GDSYNC_STATUS_FAILED`.
pub const GDSYNC_STATUS_FAILED: u32 = gdsync::queue::Status::FAILED;
/// `GDS_WAIT_INFO_MAX_OPS`, and `GDS_SEND_INFO_MAX_OPS`.
pub const GDS_INFO_MAX_OPS: usize = 32;

/// `CUstream`: a CUDA stream, or a software stream's handle.
pub type CUstream = *mut c_void;

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_recv_wr {
    /// The program's id of the request.
    pub wr_id: u64,
    /// The next request of the list, or null.
    pub next: *mut ibv_recv_wr,
    /// The elements.
    pub sg_list: *mut ibv_sge,
    /// The number of elements.
    pub num_sge: c_int,
}

/// `struct ibv_exp_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gds_send_wr {
    /// The program's id of the request.
    pub wr_id: u64,
    /// The next request of the list, or null.
    pub next: *mut gds_send_wr,
    /// The elements.
    pub sg_list: *mut ibv_sge,
    /// The number of elements.
    pub num_sge: c_int,
    /// `IBV_EXP_WR_*`.
    pub exp_opcode: c_int,
    /// Unused.
    pub reserved: c_int,
    /// Immediate data, big endian; in C a union.
    pub imm_data: u32,
    /// Operands that depend on the operation.
    pub wr: gds_send_operands,
    /// `IBV_EXP_SEND_*`.
    pub exp_send_flags: u64,
    /// Unused.
    pub comp_mask: u32,
}

/// The union `wr` of [`gds_send_wr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union gds_send_operands {
    /// For RDMA operations.
    pub rdma: gds_rdma,
    /// For atomic operations.
    pub atomic: gds_atomic,
    /// For datagrams.
    pub ud: gds_ud,
}

/// Remote memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gds_rdma {
    /// The first address.
    pub remote_addr: u64,
    /// The key.
    pub rkey: u32,
}

/// Operands of an atomic operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gds_atomic {
    /// The address.
    pub remote_addr: u64,
    /// The value to compare with, or to add.
    pub compare_add: u64,
    /// The value to swap in.
    pub swap: u64,
    /// The key.
    pub rkey: u32,
}

/// Destination of a datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gds_ud {
    /// The address handle.
    pub ah: *mut ibv_ah,
    /// The number of the queue pair there.
    pub remote_qpn: u32,
    /// Its Q_Key.
    pub remote_qkey: u32,
}

/// `struct ibv_exp_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gds_qp_init_attr_t {
    /// The program's value.
    pub qp_context: *mut c_void,
    /// Set by gdsync.
    pub send_cq: *mut ibv_cq,
    /// Set by gdsync.
    pub recv_cq: *mut ibv_cq,
    /// Null.
    pub srq: *mut ibv_srq,
    /// Sizes.
    pub cap: ibv_qp_cap,
    /// `IBV_QPT_*`.
    pub qp_type: c_int,
    /// Non-zero: every send is signaled.
    pub sq_sig_all: c_int,
    /// Set by gdsync.
    pub comp_mask: u32,
    /// Set by gdsync.
    pub pd: *mut ibv_pd,
    /// Unused.
    pub xrcd: *mut c_void,
    /// Unused.
    pub exp_create_flags: u32,
    /// Unused.
    pub res_domain: *mut c_void,
    /// Unused.
    pub peer_direct_attrs: *mut c_void,
}

/// `struct gds_cq`.
#[repr(C)]
#[derive(Debug)]
pub struct gds_cq {
    /// The provider's object.
    pub cq: *mut ibv_cq,
    /// The index of the completion for which the last wait was prepared, plus 1.
    pub curr_offset: u32,
}

/// `struct gds_qp`.
#[repr(C)]
#[derive(Debug)]
pub struct gds_qp {
    /// The provider's object.
    pub qp: *mut ibv_qp,
    /// The completion queue of sends.
    pub send_cq: gds_cq,
    /// The completion queue of receives.
    pub recv_cq: gds_cq,
    /// The library's own object.
    pub res_domain: *mut c_void,
    /// The program's context.
    pub dev_context: *mut ibv_context,
    /// `send_cq` of the upstream dialect: the address of the above.
    pub send_cq_at: *mut gds_cq,
    /// Its `recv_cq`.
    pub recv_cq_at: *mut gds_cq,
}

/// `struct peer_op_wr`, which is never looked at.
pub type peer_op_wr = [u64; 7];

/// `struct gds_send_request`.
#[repr(C)]
pub struct gds_send_request_t {
    /// Null.
    pub storage: *mut c_void,
    /// 0.
    pub entries: u32,
    /// The library's number of the request: `commit.rollback_id`.
    pub rollback_id: u64,
    /// 0.
    pub comp_mask: u32,
    /// Unused.
    pub wr: [peer_op_wr; GDS_INFO_MAX_OPS],
    /// Unused; makes the structs of both dialects equally long.
    pub own: [u64; 4],
}

/// `struct gds_wait_request`.
#[repr(C)]
pub struct gds_wait_request_t {
    /// Null.
    pub storage: *mut c_void,
    /// The number of appended words.
    pub entries: u32,
    /// 0.
    pub whence: u32,
    /// The index of the completion.
    pub offset: u32,
    /// The library's number of the request: `peek.peek_id`.
    pub peek_id: u64,
    /// 0.
    pub comp_mask: u32,
    /// Unused.
    pub wr: [peer_op_wr; GDS_INFO_MAX_OPS],
    /// Unused, as above.
    pub own: [u64; 3],
}

/// `struct gds_wait_value32`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gds_wait_value32_t {
    /// The word.
    pub ptr: *mut u32,
    /// The value to compare with.
    pub value: u32,
    /// `GDS_WAIT_COND_*`.
    pub cond_flags: c_int,
    /// `GDS_MEMORY_*`, `GDS_WAIT_*`.
    pub flags: c_int,
}

/// `struct gds_write_value32`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gds_write_value32_t {
    /// The word.
    pub ptr: *mut u32,
    /// The value to write.
    pub value: u32,
    /// `GDS_MEMORY_*`, `GDS_WRITE_*`.
    pub flags: c_int,
}

/// `struct gds_write_memory`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gds_write_memory_t {
    /// The destination.
    pub dest: *mut u8,
    /// The source.
    pub src: *const u8,
    /// Bytes.
    pub count: size_t,
    /// `GDS_MEMORY_*`, `GDS_WRITE_MEMORY_*`.
    pub flags: c_int,
}

/// The union of [`gds_descriptor_t`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union gds_descriptor_body {
    /// `GDS_TAG_SEND`.
    pub send: *mut gds_send_request_t,
    /// `GDS_TAG_WAIT`.
    pub wait: *mut gds_wait_request_t,
    /// `GDS_TAG_WAIT_VALUE32`.
    pub wait32: gds_wait_value32_t,
    /// `GDS_TAG_WRITE_VALUE32`.
    pub write32: gds_write_value32_t,
    /// `GDS_TAG_WRITE_MEMORY`.
    pub writemem: gds_write_memory_t,
}

/// `struct gds_descriptor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gds_descriptor_t {
    /// `GDS_TAG_*`.
    pub tag: c_int,
    /// The member that the tag selects.
    pub body: gds_descriptor_body,
}

/// `struct gds_mem_desc`.
#[repr(C)]
#[derive(Debug)]
pub struct gds_mem_desc_t {
    /// The GPU's address.
    pub d_ptr: u64,
    /// The CPU's address.
    pub h_ptr: *mut c_void,
    /// Null.
    pub bar_ptr: *mut c_void,
    /// The flags of the call.
    pub flags: c_int,
    /// Bytes.
    pub alloc_size: size_t,
    /// The library's number of the memory: `mh.h`.
    pub mh: libc::c_ulong,
}

/// `struct gds_mlx5_dword_wait_info`.
#[repr(C)]
#[derive(Debug)]
pub struct gds_mlx5_dword_wait_info_t {
    /// The word.
    pub ptr: *mut u32,
    /// The value.
    pub value: u32,
}

/// `struct gds_mlx5_send_info`.
#[repr(C)]
#[derive(Debug)]
pub struct gds_mlx5_send_info_t {
    /// Bit 0 `membar`, bit 1 `membar_full`.
    pub membars: u32,
    /// The doorbell record.
    pub dbrec_ptr: *mut u32,
    /// The value to write there.
    pub dbrec_value: u32,
    /// The doorbell register.
    pub db_ptr: *mut u64,
    /// The value to write there.
    pub db_value: u64,
}

/// `struct gds_mlx5_wait_info`.
#[repr(C)]
#[derive(Debug)]
pub struct gds_mlx5_wait_info_t {
    /// `GDS_WAIT_COND_*`.
    pub cond: c_int,
    /// The word of the completion.
    pub cqe_ptr: *mut u32,
    /// The value to compare with.
    pub cqe_value: u32,
    /// The word in which the kernel records that it has passed.
    pub flag_ptr: *mut u32,
    /// The value to store there.
    pub flag_value: u32,
}
