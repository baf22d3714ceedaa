//! The core's structures of queues: `ib_user_verbs.h`, `ib_user_ioctl_verbs.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `IB_UVERBS_QPT_*`.
pub(crate) const QPT_RC: u64 = 2;
pub(crate) const QPT_UC: u64 = 3;
pub(crate) const QPT_UD: u64 = 4;
pub(crate) const QPT_RAW_PACKET: u64 = 8;
/// The driver's own type.
pub(crate) const QPT_DRIVER: u64 = 0xff;
pub(crate) const QPT_XRC_INI: u64 = 9;
pub(crate) const QPT_XRC_TGT: u64 = 10;
/// `IB_SRQ_MAX_WR` and `IB_SRQ_LIMIT`: the attributes that a change of a shared receive queue changes.
pub(crate) const SRQ_MAX_WR: u32 = 1 << 0;
pub(crate) const SRQ_LIMIT: u32 = 1 << 1;
/// `IB_UVERBS_SRQT_*`.
pub(crate) const SRQT_BASIC: u64 = 0;
pub(crate) const SRQT_XRC: u64 = 1;
pub(crate) const CQ_MODERATE: u32 = 1 << 0;
/// `IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION`.
pub(crate) const CQ_TIMESTAMP: u64 = 1 << 0;
/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
pub(crate) const CQ_IGNORE_OVERRUN: u64 = 1 << 1;
pub(crate) const QP_CREATE_SQ_SIG_ALL: u64 = 1 << 12;
pub(crate) const QP_CREATE_BLOCK_MULTICAST_LOOPBACK: u64 = 1 << 1;
/// The other flags that the core passes on to a driver: `_SCATTER_FCS`, `_CVLAN_STRIPPING` and
/// `_PCI_WRITE_END_PADDING`.
pub(crate) const QP_CREATE_KNOWN: u64 = QP_CREATE_OF_RAW_PACKETS | 1 << 11;
/// The first two of them are for raw packets only.
pub(crate) const QP_CREATE_OF_RAW_PACKETS: u64 = 1 << 8 | 1 << 9;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QpDest {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) dlid: u16,
    pub(crate) reserved: u16,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueryQp {
    pub(crate) response: u64,
    pub(crate) qp_handle: u32,
    pub(crate) attr_mask: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueryQpResp {
    pub(crate) dest: QpDest,
    pub(crate) alt_dest: QpDest,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) qp_state: u8,
    pub(crate) cur_qp_state: u8,
    pub(crate) path_mtu: u8,
    pub(crate) path_mig_state: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) sq_sig_all: u8,
    pub(crate) reserved: [u8; 5],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ModifyQp {
    pub(crate) dest: QpDest,
    pub(crate) alt_dest: QpDest,
    pub(crate) qp_handle: u32,
    pub(crate) attr_mask: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) qp_state: u8,
    pub(crate) cur_qp_state: u8,
    pub(crate) path_mtu: u8,
    pub(crate) path_mig_state: u8,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) reserved: [u8; 2],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ResizeCq {
    pub(crate) response: u64,
    pub(crate) cq_handle: u32,
    pub(crate) cqe: u32,
}

/// `struct ib_uverbs_ex_modify_cq`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ModifyCq {
    pub(crate) cq_handle: u32,
    pub(crate) attr_mask: u32,
    pub(crate) cq_count: u16,
    pub(crate) cq_period: u16,
    pub(crate) reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenXrcd {
    pub(crate) response: u64,
    pub(crate) fd: u32,
    pub(crate) oflags: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CloseXrcd {
    pub(crate) xrcd_handle: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenQp {
    pub(crate) response: u64,
    pub(crate) user_handle: u64,
    pub(crate) pd_handle: u32,
    pub(crate) qpn: u32,
    pub(crate) qp_type: u8,
    pub(crate) reserved: [u8; 7],
}

/// `struct ib_uverbs_create_qp_resp`, which also answers the opening of a queue pair.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenQpResp {
    pub(crate) qp_handle: u32,
    pub(crate) qpn: u32,
    pub(crate) cap: QpCap,
    pub(crate) reserved: u32,
}

/// `struct ib_uverbs_attach_mcast`, and `_detach_mcast`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AttachMcast {
    pub(crate) gid: [u8; 16],
    pub(crate) qp_handle: u32,
    pub(crate) mlid: u16,
    pub(crate) reserved: u16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ModifySrq {
    pub(crate) srq_handle: u32,
    pub(crate) attr_mask: u32,
    pub(crate) max_wr: u32,
    pub(crate) srq_limit: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QuerySrq {
    pub(crate) response: u64,
    pub(crate) srq_handle: u32,
    pub(crate) reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QuerySrqResp {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
    pub(crate) reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!((size_of::<QpDest>(), size_of::<QpCap>()), (32, 20));
        assert_eq!((size_of::<QueryQp>(), size_of::<QueryQpResp>()), (16, 128));
        assert_eq!((size_of::<ModifyQp>(), offset_of!(ModifyQp, qp_state)), (112, 96));
        assert_eq!(offset_of!(QueryQpResp, qp_state), 108);
        assert_eq!((size_of::<ResizeCq>(), size_of::<ModifyCq>()), (16, 16));
        assert_eq!((size_of::<OpenXrcd>(), size_of::<OpenQp>(), size_of::<OpenQpResp>()), (16, 32, 32));
        assert_eq!((size_of::<ModifySrq>(), size_of::<QuerySrq>(), size_of::<QuerySrqResp>()), (16, 16, 16));
        assert_eq!(size_of::<AttachMcast>(), 24);
    }
}
