//! The core's structures: `ib_user_verbs.h`, `ib_user_ioctl_verbs.h`.

/// Set in the number of an extended write command.
pub(crate) const EXTENDED: u32 = 0x8000_0000;
/// Numbers of write commands (`enum ib_uverbs_write_cmds`).
pub(crate) mod command {
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const REREG_MR: u32 = 11;
    pub(crate) const ALLOC_MW: u32 = 14;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const RESIZE_CQ: u32 = 19;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
    pub(crate) const ATTACH_MCAST: u32 = 30;
    pub(crate) const DETACH_MCAST: u32 = 31;
    pub(crate) const MODIFY_SRQ: u32 = 33;
    pub(crate) const QUERY_SRQ: u32 = 34;
    pub(crate) const OPEN_XRCD: u32 = 37;
    pub(crate) const CLOSE_XRCD: u32 = 38;
    pub(crate) const OPEN_QP: u32 = 40;
    /// Extended only.
    pub(crate) const MODIFY_CQ: u32 = 57;
}
pub(crate) const DEVICE_XRC: u32 = 1 << 20;
pub(crate) const CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1;
/// `IB_UVERBS_ACCESS_OPTIONAL_RANGE`: access flags that a device may ignore.
pub(crate) const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;

/// `IB_UVERBS_ACCESS_FLUSH_GLOBAL` and `_FLUSH_PERSISTENT`.
pub(crate) const ACCESS_FLUSH: u32 = 1 << 8 | 1 << 9;

structures! {
    struct QueryDeviceResp {
        fw_ver: u64,
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        reserved: [u8; 4],
    }

    /// The fields of `struct ib_uverbs_ex_query_device_resp` that follow [`QueryDeviceResp`].
    struct QueryDeviceMore {
        comp_mask: u32,
        response_length: u32,
        odp_caps: u64,
        rc_odp_caps: u32,
        uc_odp_caps: u32,
        ud_odp_caps: u32,
        odp_reserved: u32,
        timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        rss_caps: [u32; 4],
        max_wq_type_rq: u32,
        raw_packet_caps: u32,
        tm_caps: [u32; 6],
        cq_moderation_caps: [u16; 4],
        max_dm_size: u64,
        xrc_odp_caps: u32,
        reserved: u32,
    }

    struct QueryPortResp {
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        state: u8,
        max_mtu: u8,
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        reserved: u8,
    }

    struct RegMr {
        response: u64,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }
}

/// `IB_MR_REREG_*`: the attributes that `REREG_MR` changes.
pub(crate) mod rereg {
    pub(crate) const TRANSLATION: u32 = 1 << 0;
    pub(crate) const PD: u32 = 1 << 1;
    pub(crate) const ACCESS: u32 = 1 << 2;
    pub(crate) const ALL: u32 = TRANSLATION | PD | ACCESS;
}

structures! {
    struct ReregMr {
        response: u64,
        mr_handle: u32,
        flags: u32,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }

    struct ReregMrResp {
        lkey: u32,
        rkey: u32,
    }

    struct AllocMw {
        response: u64,
        pd_handle: u32,
        mw_type: u8,
        reserved: [u8; 3],
    }

    struct AllocMwResp {
        mw_handle: u32,
        rkey: u32,
    }
}

/// `enum ib_uverbs_advise_mr_advice`, `enum ib_uverbs_advise_mr_flag`.
pub(crate) mod advice {
    pub(crate) const PREFETCH: u64 = 0;
    pub(crate) const PREFETCH_WRITE: u64 = 1;
    pub(crate) const PREFETCH_NO_FAULT: u64 = 2;
    /// The pages are present before the answer.
    pub(crate) const FLUSH: u32 = 1 << 0;
}

structures! {
    struct Sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    struct RegMrResp {
        mr_handle: u32,
        lkey: u32,
        rkey: u32,
    }

    struct GlobalRoute {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }

    struct AhAttr {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }

    struct CreateAh {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        reserved: u32,
        attr: AhAttr,
    }

    struct GidEntry {
        gid: [u64; 2],
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        netdev_ifindex: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!((size_of::<QueryDeviceResp>(), offset_of!(QueryDeviceResp, phys_port_cnt)), (176, 171));
        assert_eq!((size_of::<QueryPortResp>(), offset_of!(QueryPortResp, link_layer)), (40, 37));
        assert_eq!((size_of::<RegMr>(), size_of::<RegMrResp>()), (40, 12));
        assert_eq!((size_of::<ReregMr>(), offset_of!(ReregMr, pd_handle)), (48, 40));
        assert_eq!((size_of::<ReregMrResp>(), size_of::<AllocMw>(), size_of::<AllocMwResp>()), (8, 16, 8));
        assert_eq!((size_of::<Sge>(), offset_of!(Sge, lkey)), (16, 12));
        let more = size_of::<QueryDeviceResp>();
        assert_eq!(more + size_of::<QueryDeviceMore>(), 304);
        assert_eq!(more + offset_of!(QueryDeviceMore, odp_caps), 184);
        assert_eq!(more + offset_of!(QueryDeviceMore, max_dm_size), 288);
        assert_eq!((size_of::<AhAttr>(), size_of::<CreateAh>()), (32, 56));
        assert_eq!(size_of::<GidEntry>(), 32);
    }
}
