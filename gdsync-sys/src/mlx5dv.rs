//! Types and constants of libmlx5's direct verbs that gdsync uses.
//!
//! Source of every layout: `providers/mlx5/mlx5dv.h` of rdma-core; verified and documented as those of
//! [`crate::verbs`]. `comp_mask` of a description holds the requested fields on input, the valid ones on output.

#![allow(
    non_camel_case_types,
    missing_docs,
    reason = "the names are those of the C header and of its manual pages"
)]

use crate::verbs::{ibv_ah, ibv_cq, ibv_pd, ibv_qp, ibv_srq};
use libc::{c_int, c_void, off_t, size_t};

/// One queue of an [`mlx5dv_qp`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_ring {
    pub buf: *mut c_void,
    /// Entries: 64-byte basic blocks of a send queue, WQEs of a receive queue. A power of two.
    pub wqe_cnt: u32,
    /// Bytes from one entry to the next.
    pub stride: u32,
}

/// The doorbell register of an [`mlx5dv_qp`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_bf {
    pub reg: *mut c_void,
    /// Size of its BlueFlame buffer in bytes; 0 if it has none.
    pub size: u32,
}

/// A queue pair's memory, as `mlx5dv_init_obj` reports it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_qp {
    /// Doorbell records: `[0]` receive, `[1]` send; big endian.
    pub dbrec: *mut u32,
    pub sq: mlx5dv_ring,
    pub rq: mlx5dv_ring,
    pub bf: mlx5dv_bf,
    pub comp_mask: u64,
    /// Offset of the register's page for `mmap` of the uverbs device.
    pub uar_mmap_offset: off_t,
    pub tirn: u32,
    pub tisn: u32,
    pub rqn: u32,
    pub sqn: u32,
    pub tir_icm_addr: u64,
}

pub const MLX5DV_QP_MASK_UAR_MMAP_OFFSET: u64 = 1 << 0;

/// A completion queue's memory, as `mlx5dv_init_obj` reports it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_cq {
    pub buf: *mut c_void,
    /// Doorbell records: `[0]` consumer index, `[1]` arm; big endian.
    pub dbrec: *mut u32,
    /// Entries, a power of two.
    pub cqe_cnt: u32,
    /// Bytes of one entry, 64 or 128.
    pub cqe_size: u32,
    pub cq_uar: *mut c_void,
    pub cqn: u32,
    pub comp_mask: u64,
}

/// Layout of a shared receive queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_srq {
    pub buf: *mut c_void,
    /// Doorbell record: number of posted receives; big endian.
    pub dbrec: *mut u32,
    /// Bytes from one entry to the next.
    pub stride: u32,
    /// First entry of the list of free ones.
    pub head: u32,
    /// Its last entry.
    pub tail: u32,
    pub comp_mask: u64,
    pub srqn: u32,
}

/// `srqn` of [`mlx5dv_srq`] is requested, or valid.
pub const MLX5DV_SRQ_MASK_SRQN: u64 = 1 << 0;

/// Address vector of an address handle.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_ah {
    /// The address vector in the card's format, 48 bytes.
    pub av: *mut c_void,
    pub comp_mask: u64,
}

/// A protection domain's number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_pd {
    pub pdn: u32,
    pub comp_mask: u64,
}

/// One entry of [`mlx5dv_obj`]: the verbs object, and its description.
#[repr(C)]
pub struct mlx5dv_obj_entry<I, O> {
    pub r#in: *mut I,
    /// The caller's struct to fill.
    pub out: *mut O,
}

// Not derived: a derive would require the traits of the pointees as well.
impl<I, O> Clone for mlx5dv_obj_entry<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for mlx5dv_obj_entry<I, O> {}

impl<I, O> Default for mlx5dv_obj_entry<I, O> {
    fn default() -> Self {
        mlx5dv_obj_entry { r#in: std::ptr::null_mut(), out: std::ptr::null_mut() }
    }
}

/// Argument of `mlx5dv_init_obj`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mlx5dv_obj {
    pub qp: mlx5dv_obj_entry<ibv_qp, mlx5dv_qp>,
    pub cq: mlx5dv_obj_entry<ibv_cq, mlx5dv_cq>,
    pub srq: mlx5dv_obj_entry<ibv_srq, mlx5dv_srq>,
    pub rwq: mlx5dv_obj_entry<c_void, c_void>,
    pub dm: mlx5dv_obj_entry<c_void, c_void>,
    pub ah: mlx5dv_obj_entry<ibv_ah, mlx5dv_ah>,
    pub pd: mlx5dv_obj_entry<ibv_pd, mlx5dv_pd>,
    /// Unused here (newest versions of the header only; older libraries do not read it).
    pub devx: mlx5dv_obj_entry<c_void, c_void>,
}

pub const MLX5DV_OBJ_QP: u64 = 1 << 0;
pub const MLX5DV_OBJ_CQ: u64 = 1 << 1;
pub const MLX5DV_OBJ_SRQ: u64 = 1 << 2;
pub const MLX5DV_OBJ_AH: u64 = 1 << 5;
pub const MLX5DV_OBJ_PD: u64 = 1 << 6;

/// mlx5-specific attributes of a completion queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mlx5dv_cq_init_attr {
    /// Valid fields of those below. Without the compression bit, entries are never compressed.
    pub comp_mask: u64,
    pub cqe_comp_res_format: u8,
    pub flags: u32,
    pub cqe_size: u16,
}

pub const MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE: u64 = 1 << 2;

/// Attributes of a queue pair of dynamically connected transport.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mlx5dv_dc_init_attr {
    /// `MLX5DV_DCTYPE_*`.
    pub dc_type: u32,
    /// Access key of a target; stream counts of an initiator, which are unused here.
    pub dct_access_key: u64,
}

/// mlx5-specific attributes of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mlx5dv_qp_init_attr {
    pub comp_mask: u64,
    /// `MLX5DV_QP_CREATE_*`.
    pub create_flags: u32,
    pub dc_init_attr: mlx5dv_dc_init_attr,
    pub send_ops_flags: u64,
}

pub const MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS: u64 = 1 << 0;
pub const MLX5DV_QP_INIT_ATTR_MASK_DC: u64 = 1 << 1;
pub const MLX5DV_DCTYPE_DCT: u32 = 1;
pub const MLX5DV_DCTYPE_DCI: u32 = 2;
/// Payloads are never placed in a completion entry ([`scatter`](crate::prm::scatter)).
pub const MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
/// Results of reads and atomics are placed there, too, even if not every send writes an entry.
pub const MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE: u32 = 1 << 4;
/// Messages reach memory in any order (rdma-core 55).
pub const MLX5DV_QP_CREATE_OOO_DP: u32 = 1 << 7;
/// A flag of the in-process software card, which libmlx5 rejects: creates a queue pair that may release the sends of
/// others ([`CreateQp::master`](crate::prm::command::encode::CreateQp)). A real card needs a command for that.
pub const SOFTWARE_QP_CREATE_MASTER: u32 = 1 << 30;
/// As [`SOFTWARE_QP_CREATE_MASTER`], for a queue pair whose sends a master may release
/// ([`CreateQp::slave_send`](crate::prm::command::encode::CreateQp)).
pub const SOFTWARE_QP_CREATE_SLAVE_SEND: u32 = 1 << 31;

/// `RDMA_DRIVER_MLX5 << 32`, the upper half of the resource types (`rdma/ib_user_ioctl_verbs.h`: driver 1).
const RES_TYPE_MLX5: u64 = 1 << 32;
/// Allocation of a queue pair's rings.
pub const MLX5DV_RES_TYPE_QP: u64 = RES_TYPE_MLX5 | 1;
/// Allocation of a doorbell record.
pub const MLX5DV_RES_TYPE_DBR: u64 = RES_TYPE_MLX5 | 3;
/// Allocation of the ring of a shared receive queue.
pub const MLX5DV_RES_TYPE_SRQ: u64 = RES_TYPE_MLX5 | 4;
/// Allocation of a completion ring.
pub const MLX5DV_RES_TYPE_CQ: u64 = RES_TYPE_MLX5 | 5;

/// An object created by a device command: opaque.
#[repr(C)]
pub struct mlx5dv_devx_obj {
    _opaque: [u8; 0],
}

/// User memory that is registered for the device's queues.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_devx_umem {
    /// Its number in commands.
    pub umem_id: u32,
}

/// Attributes of [`mlx5dv_devx_umem`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_devx_umem_in {
    /// Its address, or its offset in a dma-buf.
    pub addr: *mut c_void,
    pub size: size_t,
    pub access: u32,
    /// Allowed page sizes, one bit each.
    pub pgsz_bitmap: u64,
    pub comp_mask: u64,
    /// A dma-buf that replaces the address.
    pub dmabuf_fd: c_int,
}

/// `dmabuf_fd` of [`mlx5dv_devx_umem_in`] is set.
pub const MLX5DV_UMEM_MASK_DMABUF: u64 = 1 << 0;

/// A page of doorbell registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mlx5dv_devx_uar {
    pub reg_addr: *mut c_void,
    pub base_addr: *mut c_void,
    /// Number of the page in commands.
    pub page_id: u32,
    /// Offset of the page for `mmap` of the uverbs device.
    pub mmap_off: off_t,
    pub comp_mask: u64,
}

/// A page with BlueFlame registers (`enum mlx5dv_uar_alloc_type`).
pub const MLX5DV_UAR_ALLOC_TYPE_BF: u32 = 0;
/// A non-cached page of this process alone (since rdma-core 50).
pub const MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED: u32 = 1 << 31;
