//! The core's structures of queues: `ib_user_verbs.h`, `ib_user_ioctl_verbs.h`.

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

structures! {
    struct QpDest {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    struct QueryQp {
        response: u64,
        qp_handle: u32,
        attr_mask: u32,
    }

    struct QueryQpResp {
        dest: QpDest,
        alt_dest: QpDest,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        sq_sig_all: u8,
        reserved: [u8; 5],
    }

    struct ModifyQp {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }

    struct ResizeCq {
        response: u64,
        cq_handle: u32,
        cqe: u32,
    }

    /// `struct ib_uverbs_ex_modify_cq`.
    struct ModifyCq {
        cq_handle: u32,
        attr_mask: u32,
        cq_count: u16,
        cq_period: u16,
        reserved: u32,
    }

    struct OpenXrcd {
        response: u64,
        fd: u32,
        oflags: u32,
    }

    struct CloseXrcd {
        xrcd_handle: u32,
    }

    struct OpenQp {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        qpn: u32,
        qp_type: u8,
        reserved: [u8; 7],
    }

    /// `struct ib_uverbs_create_qp_resp`, which also answers the opening of a queue pair.
    struct OpenQpResp {
        qp_handle: u32,
        qpn: u32,
        cap: QpCap,
        reserved: u32,
    }

    /// `struct ib_uverbs_attach_mcast`, and `_detach_mcast`.
    struct AttachMcast {
        gid: [u8; 16],
        qp_handle: u32,
        mlid: u16,
        reserved: u16,
    }

    struct ModifySrq {
        srq_handle: u32,
        attr_mask: u32,
        max_wr: u32,
        srq_limit: u32,
    }

    struct QuerySrq {
        response: u64,
        srq_handle: u32,
        reserved: u32,
    }

    struct QuerySrqResp {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        reserved: u32,
    }

    struct QpCap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
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
