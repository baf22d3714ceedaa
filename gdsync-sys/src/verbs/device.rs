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

/// An entry of a port's GID table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid_entry {
    /// The identifier.
    pub gid: ibv_gid,
    /// Its index in the port's table.
    pub gid_index: u32,
    /// The port, from 1 on.
    pub port_num: u32,
    /// `IBV_GID_TYPE_*`.
    pub gid_type: u32,
    /// Index of its network interface, 0 for none.
    pub ndev_ifindex: u32,
}

/// A device found by `ibv_get_device_list`.
#[repr(C)]
pub struct ibv_device {
    /// Private to libibverbs.
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
    /// The device this context was opened on.
    pub device: *mut ibv_device,
    /// `struct ibv_context_ops`: 32 function pointers (`OPS_*` are those that gdsync calls).
    pub ops: [*mut c_void; 32],
    /// File descriptor of the uverbs device.
    pub cmd_fd: c_int,
    /// File descriptor that becomes readable when an asynchronous event is there.
    pub async_fd: c_int,
    /// Number of completion vectors.
    pub num_comp_vectors: c_int,
    /// Private to libibverbs.
    pub mutex: pthread_mutex_t,
    /// All ones where the context is embedded in a `struct verbs_context`.
    pub abi_compat: *mut c_void,
}

/// Attributes of a device.
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
    /// PCI vendor.
    pub vendor_id: u32,
    /// PCI device.
    pub vendor_part_id: u32,
    /// Hardware version.
    pub hw_ver: u32,
    /// Queue pairs.
    pub max_qp: c_int,
    /// Work requests of one queue.
    pub max_qp_wr: c_int,
    /// Capability flags.
    pub device_cap_flags: c_uint,
    /// Scatter/gather elements of a work request.
    pub max_sge: c_int,
    /// Scatter/gather elements of a read.
    pub max_sge_rd: c_int,
    /// Completion queues.
    pub max_cq: c_int,
    /// Entries of one completion queue.
    pub max_cqe: c_int,
    /// Memory regions.
    pub max_mr: c_int,
    /// Protection domains.
    pub max_pd: c_int,
    /// Incoming reads and atomics of one queue pair.
    pub max_qp_rd_atom: c_int,
    /// Unused here.
    pub max_ee_rd_atom: c_int,
    /// Incoming reads and atomics of the device.
    pub max_res_rd_atom: c_int,
    /// Outgoing reads and atomics of one queue pair.
    pub max_qp_init_rd_atom: c_int,
    /// Unused here.
    pub max_ee_init_rd_atom: c_int,
    /// `enum ibv_atomic_cap`.
    pub atomic_cap: c_int,
    /// Unused here.
    pub max_ee: c_int,
    /// Unused here.
    pub max_rdd: c_int,
    /// Memory windows.
    pub max_mw: c_int,
    /// Unused here.
    pub max_raw_ipv6_qp: c_int,
    /// Unused here.
    pub max_raw_ethy_qp: c_int,
    /// Multicast groups.
    pub max_mcast_grp: c_int,
    /// Queue pairs of one multicast group.
    pub max_mcast_qp_attach: c_int,
    /// Queue pairs in multicast groups.
    pub max_total_mcast_qp_attach: c_int,
    /// Address handles.
    pub max_ah: c_int,
    /// Unused here.
    pub max_fmr: c_int,
    /// Unused here.
    pub max_map_per_fmr: c_int,
    /// Shared receive queues.
    pub max_srq: c_int,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: c_int,
    /// Scatter/gather elements of a shared receive.
    pub max_srq_sge: c_int,
    /// Partitions.
    pub max_pkeys: u16,
    /// Local CA ACK delay.
    pub local_ca_ack_delay: u8,
    /// Physical ports.
    pub phys_port_cnt: u8,
}

/// Attributes of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_port_attr {
    /// `IBV_PORT_*`.
    pub state: c_int,
    /// Largest MTU, `IBV_MTU_*`.
    pub max_mtu: c_int,
    /// MTU in use, `IBV_MTU_*`.
    pub active_mtu: c_int,
    /// Entries of the GID table.
    pub gid_tbl_len: c_int,
    /// Capability flags.
    pub port_cap_flags: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Bad P_Key counter.
    pub bad_pkey_cntr: u32,
    /// Q_Key violation counter.
    pub qkey_viol_cntr: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Base LID.
    pub lid: u16,
    /// Subnet manager's LID.
    pub sm_lid: u16,
    /// LID mask count.
    pub lmc: u8,
    /// Virtual lanes.
    pub max_vl_num: u8,
    /// Subnet manager's service level.
    pub sm_sl: u8,
    /// Subnet time-out code.
    pub subnet_timeout: u8,
    /// Initialisation type.
    pub init_type_reply: u8,
    /// Link width code.
    pub active_width: u8,
    /// Link speed code.
    pub active_speed: u8,
    /// Physical state code: 5 is link up.
    pub phys_state: u8,
    /// `IBV_LINK_LAYER_*`.
    pub link_layer: u8,
    /// Flags.
    pub flags: u8,
    /// More capability flags (not written by the exported `ibv_query_port`).
    pub port_cap_flags2: u16,
    /// Link speed code, extended (not written by the exported `ibv_query_port`).
    pub active_speed_ex: u32,
}
