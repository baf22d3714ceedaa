//! Devices, their ports, and the attributes of both.

use super::{IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX};
use libc::{c_char, c_int, c_uint, c_void, pthread_mutex_t};

/// A 128-bit global identifier, in network byte order.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    /// The 16 bytes, subnet prefix first.
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    /// The port, from 1 on.
    pub port_num: u32,
    pub gid_type: u32,
    /// Index of its network interface, 0 for none.
    pub ndev_ifindex: u32,
}

/// A device found by `ibv_get_device_list`.
#[repr(C)]
pub struct ibv_device {
    pub _ops: [*mut c_void; 2],
    /// `enum ibv_node_type`: 1 for a channel adapter.
    pub node_type: c_int,
    /// `enum ibv_transport_type`: 0 for InfiniBand (and RoCE).
    pub transport_type: c_int,
    /// Kernel name of the device, such as `mlx5_0`.
    pub name: [c_char; IBV_SYSFS_NAME_MAX],
    /// Name of the uverbs device, such as `uverbs0`.
    pub dev_name: [c_char; IBV_SYSFS_NAME_MAX],
    /// Path of the `infiniband_verbs` class device in sysfs.
    pub dev_path: [c_char; IBV_SYSFS_PATH_MAX],
    /// Path of the `infiniband` class device in sysfs.
    pub ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
}

/// An open device.
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    /// `struct ibv_context_ops`: 32 function pointers (`OPS_*` are the indices of those that gdsync calls).
    pub ops: [*mut c_void; 32],
    /// File descriptor of the uverbs device.
    pub cmd_fd: c_int,
    /// File descriptor that becomes readable on an asynchronous event.
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    /// All ones if the context is embedded in a `struct verbs_context`.
    pub abi_compat: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_device_attr {
    /// Firmware version, zero terminated.
    pub fw_ver: [c_char; 64],
    /// Node GUID, big endian.
    pub node_guid: u64,
    /// System image GUID, big endian.
    pub sys_image_guid: u64,
    /// Largest memory region in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes, one bit each.
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    /// Incoming reads and atomics of one queue pair.
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    /// Incoming reads and atomics of the device.
    pub max_res_rd_atom: c_int,
    /// Outgoing reads and atomics of one queue pair.
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    /// `enum ibv_atomic_cap`.
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_port_attr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    /// Physical state code: 5 is link up.
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    /// More capability flags (not written by the exported `ibv_query_port`).
    pub port_cap_flags2: u16,
    /// Link speed code, extended (not written by the exported `ibv_query_port`).
    pub active_speed_ex: u32,
}
