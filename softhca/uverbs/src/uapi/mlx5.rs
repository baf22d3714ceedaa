//! The parts of commands between libmlx5 and the mlx5 driver: `mlx5-abi.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH`.
pub(crate) const SUPPORTED_UHW: u8 = 3;
pub(crate) const INLINE_MODE_NONE: u8 = 1;
/// `MLX5_QP_FLAG_SCATTER_CQE`: small data inside completion entries.
pub(crate) const QP_SCATTER_CQE: u32 = 1 << 1;
/// `MLX5_QP_FLAG_ALLOW_SCATTER_CQE`: also results, although not every send writes an entry.
pub(crate) const QP_ALLOW_SCATTER_CQE: u32 = 1 << 8;
/// The flags that the card supports: those, and two without a request, `MLX5_QP_FLAG_UAR_PAGE_INDEX` and the
/// older `_BFREG_INDEX`.
pub(crate) const QP_SUPPORTED: u32 = QP_SCATTER_CQE | QP_ALLOW_SCATTER_CQE | 1 << 3 | 1 << 10;
/// Fields of [`AllocUcontextResp`] that are valid: `MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET`,
/// `_DUMP_FILL_MKEY`, and work requests that change the tag of a key (`_MKEY_UPDATE_TAG`).
pub(crate) const CONTEXT_CLOCK_OFFSET: u32 = 1 << 0;
pub(crate) const CONTEXT_DUMP_FILL_MKEY: u32 = 1 << 1;
pub(crate) const CONTEXT_MKEY_UPDATE_TAG: u32 = 1 << 5;
/// `MLX5_IB_ALLOC_UCTX_DEVX`: the only flag of a program's request.
pub(crate) const CONTEXT_DEVX: u32 = 1 << 0;
/// `_MASK_ECE`: [`ModifyQpUhw::ece_options`] have a meaning.
pub(crate) const CONTEXT_ECE: u32 = 1 << 2;
/// `MLX5_QP_FLAG_TYPE_DCT` and `_DCI`: the side of a queue pair of the driver's own type.
pub(crate) const QP_DC_TARGET: u32 = 1 << 4;
pub(crate) const QP_DC_INITIATOR: u32 = 1 << 5;
/// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`.
pub(crate) const CQ_UAR_PAGE_INDEX: u16 = 1 << 1;
/// The other flags that a driver knows: `_CQE_128B_PAD` and `_REAL_TIME_TS`.
pub(crate) const CQ_KNOWN: u16 = 1 << 0 | 1 << 2;

pub(crate) const CLOCK_INFO_V1: u8 = 1 << 0;

/// `struct mlx5_ib_alloc_ucontext_req_v2`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AllocUcontext {
    pub(crate) total_num_bfregs: u32,
    pub(crate) num_low_latency_bfregs: u32,
    pub(crate) flags: u32,
    pub(crate) comp_mask: u32,
    pub(crate) max_cqe_version: u8,
    pub(crate) reserved0: u8,
    pub(crate) reserved1: u16,
    pub(crate) reserved2: u32,
    pub(crate) lib_caps: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AllocUcontextResp {
    pub(crate) qp_tab_size: u32,
    pub(crate) bf_reg_size: u32,
    pub(crate) tot_bfregs: u32,
    pub(crate) cache_line_size: u32,
    pub(crate) max_sq_desc_sz: u16,
    pub(crate) max_rq_desc_sz: u16,
    pub(crate) max_send_wqebb: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_srq_recv_wr: u32,
    pub(crate) num_ports: u16,
    pub(crate) flow_action_flags: u16,
    pub(crate) comp_mask: u32,
    pub(crate) response_length: u32,
    pub(crate) cqe_version: u8,
    pub(crate) cmds_supp_uhw: u8,
    pub(crate) eth_min_inline: u8,
    pub(crate) clock_info_versions: u8,
    pub(crate) hca_core_clock_offset: u64,
    pub(crate) log_uar_size: u32,
    pub(crate) num_uars_per_page: u32,
    pub(crate) num_dyn_bfregs: u32,
    pub(crate) dump_fill_mkey: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateCq {
    pub(crate) buf_addr: u64,
    pub(crate) db_addr: u64,
    pub(crate) cqe_size: u32,
    pub(crate) cqe_comp_en: u8,
    pub(crate) cqe_comp_res_format: u8,
    pub(crate) flags: u16,
    pub(crate) uar_page_index: u16,
    pub(crate) reserved0: u16,
    pub(crate) reserved1: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ResizeCq {
    pub(crate) buf_addr: u64,
    pub(crate) cqe_size: u16,
    pub(crate) reserved0: u16,
    pub(crate) reserved1: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateSrq {
    pub(crate) buf_addr: u64,
    pub(crate) db_addr: u64,
    pub(crate) flags: u32,
    pub(crate) reserved0: u32,
    pub(crate) uidx: u32,
    pub(crate) reserved1: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateSrqResp {
    pub(crate) srqn: u32,
    pub(crate) reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateQp {
    pub(crate) buf_addr: u64,
    pub(crate) db_addr: u64,
    pub(crate) sq_wqe_count: u32,
    pub(crate) rq_wqe_count: u32,
    pub(crate) rq_wqe_shift: u32,
    pub(crate) flags: u32,
    pub(crate) uidx: u32,
    pub(crate) bfreg_index: u32,
    /// For a DC target, its access key.
    pub(crate) sq_buf_addr: u64,
    pub(crate) ece_options: u32,
    pub(crate) dci_streams: u16,
    pub(crate) reserved: u16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateQpResp {
    pub(crate) bfreg_index: u32,
    pub(crate) ece_options: u32,
    pub(crate) comp_mask: u32,
    pub(crate) tirn: u32,
    pub(crate) tisn: u32,
    pub(crate) rqn: u32,
    pub(crate) sqn: u32,
    pub(crate) reserved1: u32,
    pub(crate) tir_icm_addr: u64,
}

/// `struct mlx5_ib_modify_qp`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ModifyQpUhw {
    pub(crate) comp_mask: u32,
    pub(crate) max_burst_sz: u32,
    pub(crate) typical_pkt_sz: u16,
    pub(crate) reserved: u16,
    pub(crate) ece_options: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ModifyQpResp {
    pub(crate) response_length: u32,
    pub(crate) dctn: u32,
    pub(crate) ece_options: u32,
    pub(crate) reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateAhResp {
    pub(crate) response_length: u32,
    pub(crate) dmac: [u8; 6],
    pub(crate) reserved: [u8; 6],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!((size_of::<AllocUcontext>(), offset_of!(AllocUcontext, lib_caps)), (32, 24));
        assert_eq!(size_of::<AllocUcontextResp>(), 72);
        assert_eq!(offset_of!(AllocUcontextResp, cqe_version), 44);
        assert_eq!(offset_of!(AllocUcontextResp, hca_core_clock_offset), 48);
        assert_eq!((size_of::<CreateCq>(), offset_of!(CreateCq, uar_page_index)), (32, 24));
        assert_eq!(size_of::<ResizeCq>(), 16);
        assert_eq!((size_of::<CreateSrq>(), offset_of!(CreateSrq, uidx)), (32, 24));
        assert_eq!(size_of::<CreateSrqResp>(), 8);
        assert_eq!((size_of::<CreateQp>(), offset_of!(CreateQp, sq_buf_addr)), (56, 40));
        assert_eq!((size_of::<CreateQpResp>(), offset_of!(CreateQpResp, tir_icm_addr)), (40, 32));
        assert_eq!((size_of::<ModifyQpUhw>(), offset_of!(ModifyQpUhw, ece_options)), (16, 12));
        assert_eq!((size_of::<CreateAhResp>(), offset_of!(CreateAhResp, dmac)), (16, 4));
    }
}
