//! The ioctl and its attributes: `rdma_user_ioctl_cmds.h`, `ib_user_ioctl_cmds.h`, `mlx5_user_ioctl_cmds.h`.

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub(crate) const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;
/// `UVERBS_ATTR_F_MANDATORY`: a kernel that does not know the attribute must refuse the command.
pub(crate) const ATTR_MANDATORY: u16 = 1 << 0;
/// `UVERBS_ATTR_F_VALID_OUTPUT`: the kernel has filled the attribute.
pub(crate) const ATTR_VALID_OUTPUT: u16 = 1 << 1;

structures! {
    struct Attr {
        attr_id: u16,
        len: u16,
        flags: u16,
        attr_data: u16,
        data: u64,
    }

    /// `struct ib_uverbs_ioctl_hdr`, without the attributes that follow it.
    struct Header {
        length: u16,
        object_id: u16,
        method_id: u16,
        num_attrs: u16,
        reserved1: u64,
        driver_id: u32,
        reserved2: u32,
    }
}

pub(crate) const DRIVER_MLX5: u32 = 1;
/// The first of a driver's own numbers (`UVERBS_ID_DRIVER_NS`).
pub(crate) const DRIVER: u16 = 1 << 12;

/// Kinds of objects (`enum uverbs_default_objects`, `enum mlx5_ib_objects`).
pub(crate) mod object {
    use super::DRIVER;
    pub(crate) const DEVICE: u16 = 0;
    pub(crate) const PD: u16 = 1;
    pub(crate) const CQ: u16 = 3;
    pub(crate) const QP: u16 = 4;
    pub(crate) const SRQ: u16 = 5;
    pub(crate) const AH: u16 = 6;
    pub(crate) const MR: u16 = 7;
    pub(crate) const MW: u16 = 8;
    pub(crate) const XRCD: u16 = 10;
    pub(crate) const DM: u16 = 14;
    pub(crate) const ASYNC_EVENT: u16 = 16;
    pub(crate) const UAR: u16 = DRIVER + 8;
}

pub(crate) mod method {
    use super::DRIVER;
    pub(crate) const INVOKE_WRITE: u16 = 0;
    pub(crate) const QUERY_PORT: u16 = 2;
    pub(crate) const GET_CONTEXT: u16 = 3;
    pub(crate) const QUERY_CONTEXT: u16 = 4;
    pub(crate) const QUERY_GID_TABLE: u16 = 5;
    pub(crate) const QUERY_GID_ENTRY: u16 = 6;
    /// The only method of PD, AH, MW and XRCD.
    pub(crate) const ONLY_DESTROY: u16 = 0;
    /// `CREATE` and `DESTROY` of CQ, QP and SRQ.
    pub(crate) const CREATE: u16 = 0;
    pub(crate) const DESTROY: u16 = 1;
    pub(crate) const MR_DM_REG: u16 = 0;
    pub(crate) const MR_DESTROY: u16 = 1;
    pub(crate) const MR_ADVISE: u16 = 2;
    pub(crate) const MR_QUERY: u16 = 3;
    pub(crate) const MR_REG_DMABUF: u16 = 4;
    /// In the headers since July 2025; rdma-core uses it since version 61.
    pub(crate) const MR_REG: u16 = 5;
    pub(crate) const DM_ALLOC: u16 = 0;
    pub(crate) const DM_FREE: u16 = 1;
    /// `enum mlx5_ib_dm_methods`.
    pub(crate) const DM_MAP_OP_ADDR: u16 = DRIVER;
    pub(crate) const DM_QUERY: u16 = DRIVER + 1;
    pub(crate) const ASYNC_EVENT_ALLOC: u16 = 0;
    pub(crate) const UAR_ALLOC: u16 = DRIVER;
    pub(crate) const UAR_DESTROY: u16 = DRIVER + 1;
    pub(crate) const PD_QUERY: u16 = DRIVER;
}

pub(crate) mod attr {
    use super::DRIVER;
    pub(crate) const UHW_IN: u16 = DRIVER;
    pub(crate) const UHW_OUT: u16 = DRIVER + 1;

    pub(crate) const CORE_IN: u16 = 0;
    pub(crate) const CORE_OUT: u16 = 1;
    pub(crate) const WRITE_CMD: u16 = 2;

    pub(crate) const QUERY_PORT_NUM: u16 = 0;
    pub(crate) const QUERY_PORT_RESP: u16 = 1;

    /// The same in GET_CONTEXT and QUERY_CONTEXT.
    pub(crate) const NUM_COMP_VECTORS: u16 = 0;
    pub(crate) const CORE_SUPPORT: u16 = 1;
    /// `MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX`.
    pub(crate) const QUERY_CONTEXT_UCTX: u16 = DRIVER;

    pub(crate) const GID_TABLE_ENTRY_SIZE: u16 = 0;
    pub(crate) const GID_TABLE_FLAGS: u16 = 1;
    pub(crate) const GID_TABLE_ENTRIES: u16 = 2;
    pub(crate) const GID_TABLE_NUM_ENTRIES: u16 = 3;
    pub(crate) const GID_ENTRY_PORT: u16 = 0;
    pub(crate) const GID_ENTRY_INDEX: u16 = 1;
    pub(crate) const GID_ENTRY_FLAGS: u16 = 2;
    pub(crate) const GID_ENTRY_RESP: u16 = 3;

    pub(crate) const ASYNC_EVENT_FD: u16 = 0;

    /// The handle of the object, in every DESTROY and QUERY of the core.
    pub(crate) const HANDLE: u16 = 0;
    /// The answer of those DESTROY methods of the core that have one.
    pub(crate) const DESTROY_RESP: u16 = 1;

    pub(crate) const CQ_CQE: u16 = 1;
    pub(crate) const CQ_USER_HANDLE: u16 = 2;
    pub(crate) const CQ_COMP_CHANNEL: u16 = 3;
    pub(crate) const CQ_COMP_VECTOR: u16 = 4;
    pub(crate) const CQ_FLAGS: u16 = 5;
    pub(crate) const CQ_RESP_CQE: u16 = 6;
    pub(crate) const CQ_EVENT_FD: u16 = 7;

    pub(crate) const QP_XRCD: u16 = 1;
    pub(crate) const QP_PD: u16 = 2;
    pub(crate) const QP_SRQ: u16 = 3;
    pub(crate) const QP_SEND_CQ: u16 = 4;
    pub(crate) const QP_RECV_CQ: u16 = 5;
    pub(crate) const QP_IND_TABLE: u16 = 6;
    pub(crate) const QP_USER_HANDLE: u16 = 7;
    pub(crate) const QP_CAP: u16 = 8;
    pub(crate) const QP_TYPE: u16 = 9;
    pub(crate) const QP_FLAGS: u16 = 10;
    pub(crate) const QP_SOURCE_QPN: u16 = 11;
    pub(crate) const QP_EVENT_FD: u16 = 12;
    pub(crate) const QP_RESP_CAP: u16 = 13;
    pub(crate) const QP_RESP_NUM: u16 = 14;

    pub(crate) const SRQ_PD: u16 = 1;
    pub(crate) const SRQ_XRCD: u16 = 2;
    pub(crate) const SRQ_CQ: u16 = 3;
    pub(crate) const SRQ_USER_HANDLE: u16 = 4;
    pub(crate) const SRQ_MAX_WR: u16 = 5;
    pub(crate) const SRQ_MAX_SGE: u16 = 6;
    pub(crate) const SRQ_LIMIT: u16 = 7;
    pub(crate) const SRQ_MAX_NUM_TAGS: u16 = 8;
    pub(crate) const SRQ_TYPE: u16 = 9;
    pub(crate) const SRQ_EVENT_FD: u16 = 10;
    pub(crate) const SRQ_RESP_MAX_WR: u16 = 11;
    pub(crate) const SRQ_RESP_MAX_SGE: u16 = 12;
    pub(crate) const SRQ_RESP_NUM: u16 = 13;

    pub(crate) const MR_QUERY_LKEY: u16 = 1;
    pub(crate) const MR_QUERY_RKEY: u16 = 2;
    pub(crate) const MR_QUERY_LENGTH: u16 = 3;
    pub(crate) const MR_QUERY_IOVA: u16 = 4;
    pub(crate) const DMABUF_PD: u16 = 1;
    pub(crate) const DMABUF_OFFSET: u16 = 2;
    pub(crate) const DMABUF_LENGTH: u16 = 3;
    pub(crate) const DMABUF_IOVA: u16 = 4;
    pub(crate) const DMABUF_FD: u16 = 5;
    pub(crate) const DMABUF_ACCESS: u16 = 6;
    pub(crate) const DMABUF_LKEY: u16 = 7;
    pub(crate) const DMABUF_RKEY: u16 = 8;
    // `uverbs_attrs_reg_mr_cmd_attr_ids`.
    pub(crate) const REG_MR_PD: u16 = 1;
    pub(crate) const REG_MR_IOVA: u16 = 3;
    pub(crate) const REG_MR_ADDR: u16 = 4;
    pub(crate) const REG_MR_LENGTH: u16 = 5;
    pub(crate) const REG_MR_ACCESS: u16 = 6;
    pub(crate) const REG_MR_FD: u16 = 7;
    pub(crate) const REG_MR_FD_OFFSET: u16 = 8;
    pub(crate) const REG_MR_LKEY: u16 = 9;
    pub(crate) const REG_MR_RKEY: u16 = 10;

    // `uverbs_attrs_advise_mr_cmd_attr_ids`.
    pub(crate) const ADVISE_PD: u16 = 0;
    pub(crate) const ADVISE_ADVICE: u16 = 1;
    pub(crate) const ADVISE_FLAGS: u16 = 2;
    pub(crate) const ADVISE_SGES: u16 = 3;

    // `uverbs_attrs_alloc_dm_cmd_attr_ids`, `mlx5_ib_alloc_dm_attrs`.
    pub(crate) const DM_LENGTH: u16 = 1;
    pub(crate) const DM_ALIGNMENT: u16 = 2;
    pub(crate) const DM_START_OFFSET: u16 = DRIVER;
    pub(crate) const DM_PAGE_INDEX: u16 = DRIVER + 1;
    pub(crate) const DM_TYPE: u16 = DRIVER + 2;
    // `mlx5_ib_query_dm_attrs`.
    pub(crate) const DM_QUERY_HANDLE: u16 = DRIVER;
    pub(crate) const DM_QUERY_START_OFFSET: u16 = DRIVER + 1;
    pub(crate) const DM_QUERY_PAGE_INDEX: u16 = DRIVER + 2;
    pub(crate) const DM_QUERY_LENGTH: u16 = DRIVER + 3;
    // `uverbs_attrs_reg_dm_mr_cmd_attr_ids`.
    pub(crate) const DM_MR_OFFSET: u16 = 1;
    pub(crate) const DM_MR_LENGTH: u16 = 2;
    pub(crate) const DM_MR_PD: u16 = 3;
    pub(crate) const DM_MR_ACCESS: u16 = 4;
    pub(crate) const DM_MR_DM: u16 = 5;
    pub(crate) const DM_MR_LKEY: u16 = 6;
    pub(crate) const DM_MR_RKEY: u16 = 7;

    pub(crate) const UAR_HANDLE: u16 = DRIVER;
    pub(crate) const UAR_TYPE: u16 = DRIVER + 1;
    pub(crate) const UAR_MMAP_OFFSET: u16 = DRIVER + 2;
    pub(crate) const UAR_MMAP_LENGTH: u16 = DRIVER + 3;
    pub(crate) const UAR_PAGE_ID: u16 = DRIVER + 4;

    pub(crate) const PD_QUERY_HANDLE: u16 = DRIVER;
    pub(crate) const PD_QUERY_PDN: u16 = DRIVER + 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!((size_of::<Attr>(), offset_of!(Attr, data)), (16, 8));
        assert_eq!((size_of::<Header>(), offset_of!(Header, driver_id)), (24, 16));
        let number = 3u64 << 30 | (size_of::<Header>() as u64) << 16 | 0x1b << 8 | 1;
        assert_eq!(RDMA_VERBS_IOCTL, number, "the size of the header is part of the number");
    }
}
