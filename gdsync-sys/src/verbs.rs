//! Types and constants of libibverbs that gdsync uses.
//!
//! Source of every layout: `libibverbs/verbs.h` of rdma-core, versions 39 to 65. The structs are part of the
//! library's stable ABI and did not change in that range, except for fields added at the end of [`ibv_port_attr`].
//! A test compares them with the installed header, if any, and with a recorded result.
//!
//! C enums are plain integers here: a library may return values that are newer than the header.
//!
//! Comments add what names and manual pages do not say. Kernel handles, mutexes, conditions and counts of completed
//! events are private to libibverbs.

#![allow(
    non_camel_case_types,
    missing_docs,
    reason = "the names are those of the C header and of its manual pages"
)]

mod constants;
mod device;
mod post;

pub use constants::*;
pub use device::*;
pub use post::*;

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t, size_t};

/// Longest device name, with its terminating zero.
pub const IBV_SYSFS_NAME_MAX: usize = 64;
/// Longest sysfs path, with its terminating zero.
pub const IBV_SYSFS_PATH_MAX: usize = 256;

/// A protection domain, or a parent domain that represents one.
#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// A thread domain: a promise that its objects are used by one thread at a time.
#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_td_init_attr {
    /// Must be 0.
    pub comp_mask: u32,
}

/// Allocator of queue memory of a parent domain. Returns memory, null on failure, or [`IBV_ALLOCATOR_USE_DEFAULT`].
pub type ParentDomainAlloc = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: size_t,
    alignment: size_t,
    resource_type: u64,
) -> *mut c_void;
/// Frees memory from [`ParentDomainAlloc`].
pub type ParentDomainFree =
    unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut c_void, ptr: *mut c_void, resource_type: u64);

/// Result of an allocator that leaves the allocation to the library.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;
/// `alloc` and `free` of [`ibv_parent_domain_init_attr`] are set.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1 << 0;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_parent_domain_init_attr {
    /// The protection domain that it represents; not null.
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<ParentDomainAlloc>,
    pub free: Option<ParentDomainFree>,
    /// First argument of both functions after the domain.
    pub pd_context: *mut c_void,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: size_t,
    pub handle: u32,
    /// Key for local access.
    pub lkey: u32,
    /// Key for remote access.
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    /// Number of completion queues on it.
    pub refcnt: c_int,
}

/// A completion queue. `struct ibv_cq_ex` begins with the same fields.
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    /// Number of entries, without those that the library reserves.
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_srq_attr {
    /// Capacity in receives.
    pub max_wr: u32,
    pub max_sge: u32,
    /// Number of receives below which an event is raised; 0 for none.
    pub srq_limit: u32,
}

/// Attributes of a new shared receive queue; the library writes the granted values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_init_attr_ex {
    /// Least number of entries.
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    /// Completion vector, less than `num_comp_vectors`.
    pub comp_vector: u32,
    /// Fields that `read_*` of the extended queue may read; the mlx5 provider accepts known bits only.
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    /// Parent domain whose allocators supply the ring's memory.
    pub parent_domain: *mut ibv_pd,
}

pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1 << 0;
/// `parent_domain` of [`ibv_cq_init_attr_ex`] is set.
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    /// Queue pair number, 24 bits.
    pub qp_num: u32,
    /// State, as the library last saw it.
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Largest inline payload of a send, in bytes.
    pub max_inline_data: u32,
}

/// Receive-side hashing (raw packet queue pairs only).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}

/// Attributes of a new queue pair, extended form.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    /// Sizes; the library writes the granted values.
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    /// Non-zero: every send completes with an entry.
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    /// Protection or parent domain.
    pub pd: *mut ibv_pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    /// Requested `ibv_wr_*` operations; unused here.
    pub send_ops_flags: u64,
}

pub const IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;

/// Global route of an address vector.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    /// Global route, used if `is_global` is 1.
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    /// 1: the global route is used.
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

/// Attributes of a queue pair, for `ibv_modify_qp` and `ibv_query_qp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_attr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    /// First packet sequence number expected.
    pub rq_psn: u32,
    /// First packet sequence number sent.
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    /// `IBV_ACCESS_*` granted to the remote side.
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    /// Requests an event when the send queue has drained.
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    /// Outstanding reads and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding reads and atomics as target.
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    /// Local ACK timeout code: 4.096 µs * 2^timeout, 0 for never.
    pub timeout: u8,
    /// Transport retries, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries, 0 to 6; 7 means without limit.
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    /// Rate limit in kbit/s.
    pub rate_limit: u32,
}

/// Attributes of a queue pair at its creation, for `ibv_query_qp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    /// Non-zero: every send completes with an entry.
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    pub element: ibv_async_element,
    pub event_type: c_int,
}

/// The object of an [`ibv_async_event`]; the event type determines the valid field.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_element {
    pub cq: *mut ibv_cq,
    /// For the `IBV_EVENT_QP_*` events.
    pub qp: *mut ibv_qp,
    /// For the `IBV_EVENT_SRQ_*` events.
    pub srq: *mut ibv_srq,
    /// For port events.
    pub port_num: c_int,
}
