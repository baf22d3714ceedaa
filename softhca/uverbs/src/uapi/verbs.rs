//! The core's structures: `ib_user_verbs.h`, `ib_user_ioctl_verbs.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

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

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueryDeviceResp {
    pub(crate) fw_ver: u64,
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_sge_rd: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_pd: u32,
    pub(crate) max_qp_rd_atom: u32,
    pub(crate) max_ee_rd_atom: u32,
    pub(crate) max_res_rd_atom: u32,
    pub(crate) max_qp_init_rd_atom: u32,
    pub(crate) max_ee_init_rd_atom: u32,
    pub(crate) atomic_cap: u32,
    pub(crate) max_ee: u32,
    pub(crate) max_rdd: u32,
    pub(crate) max_mw: u32,
    pub(crate) max_raw_ipv6_qp: u32,
    pub(crate) max_raw_ethy_qp: u32,
    pub(crate) max_mcast_grp: u32,
    pub(crate) max_mcast_qp_attach: u32,
    pub(crate) max_total_mcast_qp_attach: u32,
    pub(crate) max_ah: u32,
    pub(crate) max_fmr: u32,
    pub(crate) max_map_per_fmr: u32,
    pub(crate) max_srq: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) max_srq_sge: u32,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
    pub(crate) reserved: [u8; 4],
}

/// The fields of `struct ib_uverbs_ex_query_device_resp` that follow [`QueryDeviceResp`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueryDeviceMore {
    pub(crate) comp_mask: u32,
    pub(crate) response_length: u32,
    pub(crate) odp_caps: u64,
    pub(crate) rc_odp_caps: u32,
    pub(crate) uc_odp_caps: u32,
    pub(crate) ud_odp_caps: u32,
    pub(crate) odp_reserved: u32,
    pub(crate) timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) rss_caps: [u32; 4],
    pub(crate) max_wq_type_rq: u32,
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: [u32; 6],
    pub(crate) cq_moderation_caps: [u16; 4],
    pub(crate) max_dm_size: u64,
    pub(crate) xrc_odp_caps: u32,
    pub(crate) reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueryPortResp {
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) gid_tbl_len: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) state: u8,
    pub(crate) max_mtu: u8,
    pub(crate) active_mtu: u8,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: u8,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct RegMr {
    pub(crate) response: u64,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) hca_va: u64,
    pub(crate) pd_handle: u32,
    pub(crate) access_flags: u32,
}

/// `IB_MR_REREG_*`: the attributes that `REREG_MR` changes.
pub(crate) mod rereg {
    pub(crate) const TRANSLATION: u32 = 1 << 0;
    pub(crate) const PD: u32 = 1 << 1;
    pub(crate) const ACCESS: u32 = 1 << 2;
    pub(crate) const ALL: u32 = TRANSLATION | PD | ACCESS;
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ReregMr {
    pub(crate) response: u64,
    pub(crate) mr_handle: u32,
    pub(crate) flags: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) hca_va: u64,
    pub(crate) pd_handle: u32,
    pub(crate) access_flags: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ReregMrResp {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AllocMw {
    pub(crate) response: u64,
    pub(crate) pd_handle: u32,
    pub(crate) mw_type: u8,
    pub(crate) reserved: [u8; 3],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AllocMwResp {
    pub(crate) mw_handle: u32,
    pub(crate) rkey: u32,
}

/// `enum ib_uverbs_advise_mr_advice`, `enum ib_uverbs_advise_mr_flag`.
pub(crate) mod advice {
    pub(crate) const PREFETCH: u64 = 0;
    pub(crate) const PREFETCH_WRITE: u64 = 1;
    pub(crate) const PREFETCH_NO_FAULT: u64 = 2;
    /// The pages are present before the answer.
    pub(crate) const FLUSH: u32 = 1 << 0;
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct RegMrResp {
    pub(crate) mr_handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reserved: u8,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
    pub(crate) reserved: u8,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateAh {
    pub(crate) response: u64,
    pub(crate) user_handle: u64,
    pub(crate) pd_handle: u32,
    pub(crate) reserved: u32,
    pub(crate) attr: AhAttr,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct GidEntry {
    pub(crate) gid: [u64; 2],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) netdev_ifindex: u32,
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
