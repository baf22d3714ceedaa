//! Device commands: opcodes, statuses, and fields with their bit offsets from the beginning.
//!
//! Sources, and origin of the names: `mlx5_ifc.h` of rdma-core's mlx5 provider and of Linux
//! (`include/linux/mlx5/mlx5_ifc.h`); for completion queues, `cqc_bits` and `create_cq_in_bits` of the latter.
//!
//! [`encode`] uses them to write commands, the software card to read them.

#![allow(missing_docs, reason = "names of fields and codes are those of `mlx5_ifc.h`")]

pub mod encode;
mod query;

pub use query::{cap, roce_address, vport};

use super::field::Field;

/// Opcodes (`MLX5_CMD_OP_*`).
pub mod opcode {
    pub const QUERY_HCA_CAP: u16 = 0x100;
    pub const CREATE_MKEY: u16 = 0x200;
    pub const QUERY_MKEY: u16 = 0x201;
    pub const CREATE_CQ: u16 = 0x400;
    pub const QUERY_CQ: u16 = 0x402;
    pub const MODIFY_CQ: u16 = 0x403;
    pub const CREATE_QP: u16 = 0x500;
    pub const RST2INIT_QP: u16 = 0x502;
    pub const INIT2RTR_QP: u16 = 0x503;
    pub const RTR2RTS_QP: u16 = 0x504;
    pub const RTS2RTS_QP: u16 = 0x505;
    pub const SQERR2RTS_QP: u16 = 0x506;
    pub const TO_ERR_QP: u16 = 0x507;
    pub const TO_RST_QP: u16 = 0x50a;
    pub const QUERY_QP: u16 = 0x50b;
    pub const INIT2INIT_QP: u16 = 0x50e;
    pub const CREATE_PSV: u16 = 0x600;
    pub const QUERY_XRC_SRQ: u16 = 0x707;
    pub const ARM_XRC_SRQ: u16 = 0x708;
    pub const CREATE_DCT: u16 = 0x710;
    pub const QUERY_DCT: u16 = 0x713;
    pub const ARM_DCT_FOR_KEY_VIOLATION: u16 = 0x714;
    pub const QUERY_ESW_VPORT_CONTEXT: u16 = 0x752;
    pub const QUERY_ROCE_ADDRESS: u16 = 0x760;
    pub const QUERY_HCA_VPORT_CONTEXT: u16 = 0x762;
    pub const ALLOC_PD: u16 = 0x800;
    pub const NOP: u16 = 0x80d;
    pub const QUERY_LAG: u16 = 0x842;
    pub const CREATE_RMP: u16 = 0x90c;
    pub const MODIFY_RMP: u16 = 0x90d;
    pub const QUERY_RMP: u16 = 0x90f;
    pub const SET_FLOW_TABLE_ENTRY: u16 = 0x936;

    /// General commands that the kernel allows, besides [`GENERAL_RANGE`]: QUERY_HCA_CAP, _ADAPTER, _ISSI,
    /// _ESW_FUNCTIONS, _VPORT_STATE, _ESW_VPORT_CONTEXT, _NIC_VPORT_CONTEXT, _ROCE_ADDRESS, _HCA_VPORT_CONTEXT,
    /// _VNIC_ENV, _VPORT_COUNTER, GET_DROPPED_PACKET_LOG, NOP, QUERY_CONG_STATUS, _CONG_PARAMS, _CONG_STATISTICS,
    /// _LAG (the kernel's `devx_is_general_cmd`).
    pub const GENERAL: &[u16] = &[
        0x100, 0x101, 0x10a, 0x740, 0x750, 0x752, 0x754, 0x760, 0x762, 0x76f, 0x770, 0x80a, 0x80d, 0x822,
        0x824, 0x826, 0x842,
    ];
    /// `MLX5_CMD_OP_GENERAL_START` to `_END`.
    pub const GENERAL_RANGE: std::ops::Range<u16> = 0xb00..0xd00;

    /// Creations of objects that the kernel allows (`devx_is_obj_create_cmd`) and the software card lacks: SRQ,
    /// XRC_SRQ, XRQ, Q_COUNTER, SCHEDULING_ELEMENT, MCG, XRCD, TRANSPORT_DOMAIN, VXLAN_UDP_DPORT, L2_TABLE_ENTRY,
    /// TIR, SQ, RQ, TIS, RQT, FLOW_TABLE, _GROUP, _TABLE_ENTRY, _COUNTER, PACKET_REFORMAT_CONTEXT,
    /// MODIFY_HEADER_CONTEXT, GENERAL_OBJECT.
    pub const CREATE_OTHERS: &[u16] = &[
        0x700, 0x705, 0x717, 0x771, 0x782, 0x806, 0x80e, 0x816, 0x827, 0x829, 0x900, 0x904, 0x908, 0x912,
        0x916, 0x930, 0x933, 0x936, 0x939, 0x93d, 0x940, 0xa00,
    ];
}

/// The header of all inputs and outputs, 16 bytes.
pub mod header {
    use super::Field;
    pub const BYTES: usize = 16;
    pub const OPCODE: Field = Field::new(0, 16);
    pub const VHCA_TUNNEL_ID: Field = Field::new(0x20, 16);
    pub const OP_MOD: Field = Field::new(0x30, 16);
    pub const STATUS: Field = Field::new(0, 8);
    pub const SYNDROME: Field = Field::new(0x20, 32);
    /// Number of the object: `cqn`, `qpn`, `pd`, `mkey_index`, `rmpn`, `dctn`.
    pub const NUMBER: Field = Field::new(0x48, 24);
    /// `num_psv` of CREATE_PSV.
    pub const NUM_PSV: Field = Field::new(0x40, 4);
}

/// `create_cq_in`, and its common part with `query_cq_out`.
pub mod cq {
    use super::Field;
    /// Bytes of `create_cq_in` without a list of pages, and of `query_cq_out`.
    pub const BYTES: usize = 0x110;
    /// The context's first byte, and its bytes.
    pub const CONTEXT: usize = 16;
    pub const UMEM_OFFSET: Field = Field::new(0x280, 64);
    pub const UMEM_ID: Field = Field::new(0x2c0, 32);
    /// Set by the kernel, too.
    pub(crate) const UMEM_VALID: Field = Field::new(0x2e0, 1);
}

pub mod cqc {
    use super::Field;
    pub const BYTES: usize = 64;
    pub const STATUS: Field = Field::new(0, 4);
    pub const DBR_UMEM_VALID: Field = Field::new(6, 1);
    pub const CQE_SZ: Field = Field::new(8, 3);
    pub const CC: Field = Field::new(0xb, 1);
    pub const OI: Field = Field::new(0xe, 1);
    pub const CQE_COMPRESSION_EN: Field = Field::new(0x11, 1);
    pub const ST: Field = Field::new(0x14, 4);
    pub const DBR_UMEM_ID: Field = Field::new(0x20, 32);
    pub const PAGE_OFFSET: Field = Field::new(0x54, 6);
    pub const LOG_CQ_SIZE: Field = Field::new(0x63, 5);
    pub const UAR_PAGE: Field = Field::new(0x68, 24);
    pub const C_EQN: Field = Field::new(0xb8, 8);
    pub const LOG_PAGE_SIZE: Field = Field::new(0xc3, 5);
    pub const CONSUMER_COUNTER: Field = Field::new(0x148, 24);
    pub const PRODUCER_COUNTER: Field = Field::new(0x168, 24);
    pub const DBR_ADDR: Field = Field::new(0x1c0, 64);

    /// `status`: the queue has overrun.
    pub const STATUS_OVERFLOW: u8 = 9;
    /// `st`: the armed events, or fired (`MLX5_CQC_ST_*`).
    pub const ST_SOLICITED_ARMED: u8 = 6;
    pub const ST_ARMED: u8 = 9;
    pub const ST_FIRED: u8 = 0xa;
}

/// `create_qp_in`, the transitions' `*_qp_in`, and `query_qp_out`.
pub mod qp {
    use super::Field;
    /// Bytes of each without a list of pages.
    pub const BYTES: usize = 0x110;
    pub const CONTEXT: usize = 24;
    /// `qpc_ext` of INIT2INIT and RTS2RTS: an extended context follows.
    pub const QPC_EXT: Field = Field::new(0x40, 1);
    pub const OPT_PARAM_MASK: Field = Field::new(0x80, 32);
    pub const UMEM_OFFSET: Field = Field::new(0x800, 64);
    pub const UMEM_ID: Field = Field::new(0x840, 32);
    /// Further optional parameters of INIT2INIT and RTS2RTS.
    pub const OPT_PARAM_MASK_95_32: Field = Field::new(0x840, 64);
    /// Its bit of the UDP source port (`MLX5_QPC_OPT_MASK_32_UDP_SPORT`).
    pub const OPT_32_UDP_SPORT: u64 = 1 << 2;
    /// Set by the kernel, too.
    pub(crate) const UMEM_VALID: Field = Field::new(0x860, 1);

    /// Bits of `opt_param_mask` (`MLX5_QP_OPTPAR_*` of Linux' `include/linux/mlx5/qp.h`).
    pub const OPT_ALT_ADDR_PATH: u32 = 1 << 0;
    pub const OPT_RRE: u32 = 1 << 1;
    pub const OPT_RAE: u32 = 1 << 2;
    pub const OPT_RWE: u32 = 1 << 3;
    pub const OPT_PKEY_INDEX: u32 = 1 << 4;
    pub const OPT_Q_KEY: u32 = 1 << 5;
    pub const OPT_RNR_TIMEOUT: u32 = 1 << 6;
    pub const OPT_PRIMARY_ADDR_PATH: u32 = 1 << 7;
    pub const OPT_SRA_MAX: u32 = 1 << 8;
    pub const OPT_RRA_MAX: u32 = 1 << 9;
    pub const OPT_PM_STATE: u32 = 1 << 10;
    pub const OPT_RETRY_COUNT: u32 = 1 << 12;
    pub const OPT_RNR_RETRY: u32 = 1 << 13;
    pub const OPT_ACK_TIMEOUT: u32 = 1 << 14;
    pub const OPT_PRI_PORT: u32 = 1 << 16;
    /// These two are of DOCA's open verbs (`doca_verbs_qp.cpp` in NCCL 2.30).
    pub const OPT_DSCP: u32 = 1 << 17;
    pub const OPT_SGID_INDEX: u32 = 1 << 23;
}

/// `dp_ordering_1` and `dp_ordering_0`: the order in which messages of a queue pair reach memory (UCX'
/// `uct_ib_mlx5_dp_ordering_t`).
pub mod data_ordering {
    /// The InfiniBand specification's.
    pub const IBTA: u8 = 0;
    /// Reads and writes in any order.
    pub const OOO_RW: u8 = 1;
    /// Sends, too.
    pub const OOO_ALL: u8 = 2;
}

pub mod qpc {
    use super::Field;
    pub const BYTES: usize = 232;
    pub const STATE: Field = Field::new(0, 4);
    pub const ST: Field = Field::new(8, 8);
    pub const PM_STATE: Field = Field::new(0x13, 2);
    pub const WQ_SIGNATURE: Field = Field::new(0x20, 1);
    /// Data ordering ([`super::data_ordering`]), its low and its high bit, and whether it replaces what the network sets
    /// (`mlx5_ifc.h` of Linux 6.13; the low bit: UCX' `ib_mlx5_ifc.h`).
    pub const DP_ORDERING_0: Field = Field::new(0x26, 1);
    pub const DP_ORDERING_FORCE: Field = Field::new(0x27, 1);
    pub const PD: Field = Field::new(0x28, 24);
    pub const MTU: Field = Field::new(0x40, 3);
    pub const LOG_MSG_MAX: Field = Field::new(0x43, 5);
    pub const LOG_RQ_SIZE: Field = Field::new(0x49, 4);
    /// Bytes of a receive entry are 16 << this.
    pub const LOG_RQ_STRIDE: Field = Field::new(0x4d, 3);
    pub const NO_SQ: Field = Field::new(0x50, 1);
    pub const LOG_SQ_SIZE: Field = Field::new(0x51, 4);
    pub(crate) const TS_FORMAT: Field = Field::new(0x58, 2);
    pub const UAR_PAGE: Field = Field::new(0x68, 24);
    /// Doorbells without a record (`DBR_*`); reserved bits in older headers.
    pub const SEND_DBR_MODE: Field = Field::new(0x80, 2);
    pub const USER_INDEX: Field = Field::new(0x88, 24);
    pub const LOG_PAGE_SIZE: Field = Field::new(0xa3, 5);
    pub const REMOTE_QPN: Field = Field::new(0xa8, 24);
    /// First bit of `primary_address_path`.
    pub const PRIMARY: usize = 0xc0;
    pub const LOG_SRA_MAX: Field = Field::new(0x388, 3);
    pub const RETRY_COUNT: Field = Field::new(0x38d, 3);
    pub const RNR_RETRY: Field = Field::new(0x390, 3);
    pub const NEXT_SEND_PSN: Field = Field::new(0x3c8, 24);
    /// Streams of a DC initiator, and how many may fail while others continue.
    pub const LOG_NUM_DCI_STREAM_CHANNELS: Field = Field::new(0x3e3, 5);
    pub const CQN_SND: Field = Field::new(0x3e8, 24);
    pub const LOG_NUM_DCI_ERRORED_STREAMS: Field = Field::new(0x403, 5);
    pub const LOG_RRA_MAX: Field = Field::new(0x488, 3);
    pub const ATOMIC_MODE: Field = Field::new(0x48c, 4);
    pub const RRE: Field = Field::new(0x490, 1);
    pub const RWE: Field = Field::new(0x491, 1);
    pub const RAE: Field = Field::new(0x492, 1);
    pub const PAGE_OFFSET: Field = Field::new(0x494, 6);
    pub const DP_ORDERING_1: Field = Field::new(0x49c, 1);
    /// Another queue releases its receives.
    pub const CD_SLAVE_RECEIVE: Field = Field::new(0x49d, 1);
    /// Another queue's SEND_EN may release its sends.
    pub const CD_SLAVE_SEND: Field = Field::new(0x49e, 1);
    /// It may release the work requests of other queues.
    pub const CD_MASTER: Field = Field::new(0x49f, 1);
    pub const MIN_RNR_NAK: Field = Field::new(0x4a3, 5);
    pub const NEXT_RCV_PSN: Field = Field::new(0x4a8, 24);
    pub const CQN_RCV: Field = Field::new(0x4e8, 24);
    pub const DBR_ADDR: Field = Field::new(0x500, 64);
    pub const Q_KEY: Field = Field::new(0x540, 32);
    pub const RQ_TYPE: Field = Field::new(0x565, 3);
    pub const SRQN: Field = Field::new(0x568, 24);
    /// Scatter-to-CQE of reads and atomics, and of receives (`CS_*`).
    pub const CS_REQ: Field = Field::new(0x630, 8);
    pub const CS_RES: Field = Field::new(0x638, 8);
    pub const DBR_UMEM_VALID: Field = Field::new(0x683, 1);
    pub const DBR_UMEM_ID: Field = Field::new(0x720, 32);

    /// `cs_req` and `cs_res`: at most 32 bytes in 64-byte entries (`MLX5_REQ_SCAT_DATA32_CQE`,
    /// `MLX5_RES_SCAT_DATA32_CQE` of the kernel's `qp.h`).
    pub const CS_REQ_32: u8 = 0x11;
    pub const CS_RES_32: u8 = 0x1;
    /// At most 64 bytes, in 128-byte entries.
    pub const CS_REQ_64: u8 = 0x22;
    /// As [`CS_REQ_64`], for receives.
    pub const CS_RES_64: u8 = 0x2;
    /// `mtu`: the smallest, 256 bytes (`enum ibv_mtu`).
    pub const MTU_256: u64 = 1;
    /// `send_dbr_mode`: doorbells with a record, or without one
    /// ([`UAR_NO_RECORD`](crate::prm::doorbell::UAR_NO_RECORD); `enum doca_verbs_qp_send_dbr_mode` of DOCA's
    /// `doca_verbs.h`).
    pub const DBR_RECORD: u8 = 0;
    pub const DBR_NONE: u8 = 1;
    /// `rq_type`: a private receive queue.
    pub const RQ_OWN: u8 = 0;
    /// `rq_type`: a shared receive queue or a receive memory pool.
    pub const RQ_SHARED: u8 = 1;
    pub const RQ_NONE: u8 = 3;
    pub const PM_MIGRATED: u8 = 3;
    /// `st`: transports (`MLX5_QP_ST_*`).
    pub(crate) const ST_RC: u8 = 0;
    pub(crate) const ST_UC: u8 = 1;
    pub(crate) const ST_UD: u8 = 2;
    /// `atomic_mode`: none are performed (`MLX5_ATOMIC_MODE_NONE`).
    pub const ATOMIC_NONE: u8 = 0;
    /// `atomic_mode`: the InfiniBand specification's semantics (`MLX5_ATOMIC_MODE_IB_COMP`).
    pub(crate) const ATOMIC_IB_COMP: u8 = 1;
    /// `ts_format`: a free-running counter, and the device's default.
    pub const TS_FREE_RUNNING: u8 = 0;
    pub const TS_DEFAULT: u8 = 1;
}

/// `ads`, the primary address path in a queue pair's context.
pub mod ads {
    use super::{Field, qpc};
    const fn field(at: usize, width: usize) -> Field {
        Field::new(at, width).within(qpc::PRIMARY)
    }
    pub const PKEY_INDEX: Field = field(0x10, 16);
    pub const GRH: Field = field(0x28, 1);
    pub(crate) const MLID: Field = field(0x29, 7);
    pub const RLID: Field = field(0x30, 16);
    pub const ACK_TIMEOUT: Field = field(0x40, 5);
    pub const SRC_ADDR_INDEX: Field = field(0x48, 8);
    pub(crate) const STAT_RATE: Field = field(0x54, 4);
    pub(crate) const HOP_LIMIT: Field = field(0x58, 8);
    pub(crate) const TCLASS: Field = field(0x64, 8);
    pub(crate) const FLOW_LABEL: Field = field(0x6c, 20);
    pub const RGID: [Field; 2] = [field(0x80, 64), field(0xc0, 64)];
    pub(crate) const DSCP: Field = field(0x10a, 6);
    pub const UDP_SPORT: Field = field(0x110, 16);
    pub(crate) const ETH_PRIO: Field = field(0x121, 3);
    pub(crate) const SL: Field = field(0x124, 4);
    pub const VHCA_PORT_NUM: Field = field(0x128, 8);
    /// `rmac_47_32` and `rmac_31_0`.
    pub(crate) const RMAC: [Field; 2] = [field(0x130, 16), field(0x140, 32)];
}

/// `create_rmp_in` with its `rmpc`.
pub mod rmp {
    use super::Field;
    pub const BYTES: usize = WQ + super::wq::BYTES;
    /// First byte of `wq`, which ends the context.
    pub const WQ: usize = 80;
    pub const BASIC_CYCLIC_RCV_WQE: Field = Field::new(0x120, 1);
}

pub mod wq {
    use super::Field;
    pub const BYTES: usize = 192;
    pub const TYPE: Field = Field::new(0, 4);
    pub const SIGNATURE: Field = Field::new(4, 1);
    pub const CD_SLAVE: Field = Field::new(7, 1);
    pub const PAGE_OFFSET: Field = Field::new(0x2b, 5);
    pub const LWM: Field = Field::new(0x30, 16);
    pub const PD: Field = Field::new(0x48, 24);
    pub const DBR_ADDR: Field = Field::new(0x80, 64);
    pub const LOG_STRIDE: Field = Field::new(0x10c, 4);
    pub const LOG_PAGE_SIZE: Field = Field::new(0x113, 5);
    pub const LOG_SIZE: Field = Field::new(0x11b, 5);
    pub const DBR_UMEM_ID: Field = Field::new(0x140, 32);
    pub const UMEM_ID: Field = Field::new(0x160, 32);
    pub const UMEM_OFFSET: Field = Field::new(0x180, 64);
    /// `MLX5_WQ_TYPE_LINKED_LIST`, `_CYCLIC`.
    pub const LINKED_LIST: u8 = 0;
    pub const CYCLIC: u8 = 1;
}

pub mod dct {
    /// Bytes of the command up to the end of its context.
    pub const BYTES: usize = CONTEXT + super::dctc::BYTES;
    pub const CONTEXT: usize = 16;
}

pub mod dctc {
    use super::Field;
    pub const BYTES: usize = 64;
    pub const OFFLOAD_TYPE: Field = Field::new(0x18, 4);
    pub const DP_ORDERING_FORCE: Field = Field::new(0x27, 1);
    pub const USER_INDEX: Field = Field::new(0x28, 24);
    pub const CQN: Field = Field::new(0x48, 24);
    pub const RRE: Field = Field::new(0x6c, 1);
    pub const RWE: Field = Field::new(0x6d, 1);
    pub const RAE: Field = Field::new(0x6e, 1);
    pub const DP_ORDERING_0: Field = Field::new(0x73, 1);
    pub const DP_ORDERING_1: Field = Field::new(0x74, 1);
    pub const MIN_RNR_NAK: Field = Field::new(0x93, 5);
    pub const SRQN: Field = Field::new(0xa8, 24);
    pub const PD: Field = Field::new(0xc8, 24);
    pub const DC_ACCESS_KEY: Field = Field::new(0x100, 64);
    pub const MTU: Field = Field::new(0x145, 3);
    pub const PORT: Field = Field::new(0x148, 8);
    pub const PKEY_INDEX: Field = Field::new(0x150, 16);
    pub const MY_ADDR_INDEX: Field = Field::new(0x168, 8);
}

/// `create_mkey_in` with its `mkc`.
pub mod mkey {
    use super::Field;
    pub const BYTES: usize = 0x110;
    const CONTEXT: usize = 0x80;
    const fn field(at: usize, width: usize) -> Field {
        Field::new(at, width).within(CONTEXT)
    }
    /// The requested key.
    pub const INPUT_MKEY_INDEX: Field = Field::new(0x28, 24);
    pub const FREE: Field = field(1, 1);
    pub const ACCESS_MODE_4_2: Field = field(3, 3);
    pub const UMR_EN: Field = field(0x10, 1);
    pub const A: Field = field(0x11, 1);
    pub const RW: Field = field(0x12, 1);
    pub const RR: Field = field(0x13, 1);
    pub const LW: Field = field(0x14, 1);
    pub const ACCESS_MODE_1_0: Field = field(0x16, 2);
    pub const MKEY_7_0: Field = field(0x38, 8);
    /// The length is 2^64, whatever `LEN` contains.
    pub const LENGTH64: Field = field(0x60, 1);
    pub const BSF_EN: Field = field(0x61, 1);
    /// A send with invalidation of the peer may invalidate the key.
    pub const EN_RINVAL: Field = field(0x67, 1);
    pub const PD: Field = field(0x68, 24);
    pub const START_ADDR: Field = field(0x80, 64);
    pub const LEN: Field = field(0xc0, 64);
    /// Capacity of the translation in entries of 16 bytes.
    pub const TRANSLATIONS_OCTWORD_SIZE: Field = field(0x1a0, 32);
    /// Log2 of the bytes of each range of a fixed-size key.
    pub const LOG_ENTITY_SIZE: Field = field(0x1db, 5);
    pub const CRYPTO_EN: Field = field(0x1e3, 2);
    /// Entries of 16 bytes after the fixed part.
    pub const TRANSLATIONS_OCTWORD_ACTUAL_SIZE: Field = Field::new(0x300, 32);
    pub const UMEM_ID: Field = Field::new(0x320, 32);
    pub const UMEM_OFFSET: Field = Field::new(0x340, 64);
    /// `MLX5_MKC_ACCESS_MODE_MTT`.
    pub const MODE_MTT: u8 = 1;
    /// `MLX5_MKC_ACCESS_MODE_KLMS`: ranges of other keys.
    pub const MODE_KLM: u8 = 2;
    /// `MLX5_MKC_ACCESS_MODE_KSM`: ranges of other keys, all of the same length.
    pub const MODE_KSM: u8 = 3;
}
