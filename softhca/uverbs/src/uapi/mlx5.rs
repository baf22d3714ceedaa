//! The parts of commands between libmlx5 and the mlx5 driver: `mlx5-abi.h`.

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

structures! {
    /// `struct mlx5_ib_alloc_ucontext_req_v2`.
    struct AllocUcontext {
        total_num_bfregs: u32,
        num_low_latency_bfregs: u32,
        flags: u32,
        comp_mask: u32,
        max_cqe_version: u8,
        reserved0: u8,
        reserved1: u16,
        reserved2: u32,
        lib_caps: u64,
    }

    struct AllocUcontextResp {
        qp_tab_size: u32,
        bf_reg_size: u32,
        tot_bfregs: u32,
        cache_line_size: u32,
        max_sq_desc_sz: u16,
        max_rq_desc_sz: u16,
        max_send_wqebb: u32,
        max_recv_wr: u32,
        max_srq_recv_wr: u32,
        num_ports: u16,
        flow_action_flags: u16,
        comp_mask: u32,
        response_length: u32,
        cqe_version: u8,
        cmds_supp_uhw: u8,
        eth_min_inline: u8,
        clock_info_versions: u8,
        hca_core_clock_offset: u64,
        log_uar_size: u32,
        num_uars_per_page: u32,
        num_dyn_bfregs: u32,
        dump_fill_mkey: u32,
    }

    struct CreateCq {
        buf_addr: u64,
        db_addr: u64,
        cqe_size: u32,
        cqe_comp_en: u8,
        cqe_comp_res_format: u8,
        flags: u16,
        uar_page_index: u16,
        reserved0: u16,
        reserved1: u32,
    }

    struct ResizeCq {
        buf_addr: u64,
        cqe_size: u16,
        reserved0: u16,
        reserved1: u32,
    }

    struct CreateSrq {
        buf_addr: u64,
        db_addr: u64,
        flags: u32,
        reserved0: u32,
        uidx: u32,
        reserved1: u32,
    }

    struct CreateSrqResp {
        srqn: u32,
        reserved: u32,
    }

    struct CreateQp {
        buf_addr: u64,
        db_addr: u64,
        sq_wqe_count: u32,
        rq_wqe_count: u32,
        rq_wqe_shift: u32,
        flags: u32,
        uidx: u32,
        bfreg_index: u32,
        /// For a DC target, its access key.
        sq_buf_addr: u64,
        ece_options: u32,
        dci_streams: u16,
        reserved: u16,
    }

    struct CreateQpResp {
        bfreg_index: u32,
        ece_options: u32,
        comp_mask: u32,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        reserved1: u32,
        tir_icm_addr: u64,
    }

    /// `struct mlx5_ib_modify_qp`.
    struct ModifyQpUhw {
        comp_mask: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        reserved: u16,
        ece_options: u32,
    }

    struct ModifyQpResp {
        response_length: u32,
        dctn: u32,
        ece_options: u32,
        reserved: u32,
    }

    struct CreateAhResp {
        response_length: u32,
        dmac: [u8; 6],
        reserved: [u8; 6],
    }
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
