//! Outputs of queries: capabilities and ports.

use super::Field;

/// `query_hca_cap_out`: `cmd_hca_cap` and `atomic_caps` in the output.
pub mod cap {
    use super::Field;
    /// Bytes of the output.
    pub const BYTES: usize = 16 + 4096;
    const fn field(at: usize, width: usize) -> Field {
        Field::new(at, width).within(0x80)
    }
    /// Types of capabilities (`enum mlx5_cap_type`), `op_mod` without its last bit.
    pub const TYPE_GENERAL: u64 = 0;
    pub const TYPE_ODP: u64 = 2;
    pub const TYPE_ATOMIC: u64 = 3;
    pub const TYPE_ROCE: u64 = 4;
    pub const TYPE_QOS: u64 = 0xc;
    pub const TYPE_GENERAL_2: u64 = 0x20;
    /// Types of optional features: offloads of Ethernet (1) and IPoIB (5, 6), steering (7, 8, 9), debugging (0xd),
    /// device memory (0xf), TLS (0x11), vDPA (0x13), events (0x14), IPsec (0x15), cryptography (0x1a), header splitting
    /// (0x1d), PSP (0x1e), MACsec (0x1f), port selection (0x25), virtualization (0x26), advanced RDMA (0x28).
    pub const TYPES_OF_OPTIONS: [u64; 19] =
        [1, 5, 6, 7, 8, 9, 0xd, 0xf, 0x11, 0x13, 0x14, 0x15, 0x1a, 0x1d, 0x1e, 0x1f, 0x25, 0x26, 0x28];

    /// The second part of the general capabilities is there.
    pub const HCA_CAP_2: Field = field(0x20, 1);
    pub const VHCA_ID: Field = field(0x30, 16);
    pub const LOG_MAX_QP_SZ: Field = field(0x88, 8);
    pub const LOG_MAX_QP: Field = field(0x9b, 5);
    pub const LOG_MAX_CQ_SZ: Field = field(0xc8, 8);
    pub const LOG_MAX_CQ: Field = field(0xdb, 5);
    pub const LOG_MAX_MKEY: Field = field(0xea, 6);
    /// A key that reads as zeros and discards writes (libmlx5's null region).
    pub const DUMP_FILL_MKEY: Field = field(0xf8, 1);
    /// Depth of keys that refer to other keys.
    pub const MAX_INDIRECTION: Field = field(0x100, 8);
    /// Keys of ranges of the same length.
    pub const FIXED_BUFFER_SIZE: Field = field(0x108, 1);
    pub const LOG_MAX_MRW_SZ: Field = field(0x109, 7);
    /// Most entries of a key's translation.
    pub const LOG_MAX_KLM_LIST_SIZE: Field = field(0x11a, 6);
    pub const LOG_MAX_RA_REQ_QP: Field = field(0x14a, 6);
    /// RTS2RTS_QP may change the UDP source port.
    pub const RTS2RTS_QP_UDP_SPORT: Field = field(0x151, 1);
    pub const LOG_MAX_RA_RES_QP: Field = field(0x15a, 6);
    /// RTS2RTS_QP may change the traffic class.
    pub const RTS2RTS_QP_DSCP: Field = field(0x16a, 1);
    pub const LOCAL_CA_ACK_DELAY: Field = field(0x1ab, 5);
    pub const PORT_TYPE: Field = field(0x1b6, 2);
    pub const NUM_PORTS: Field = field(0x1b8, 8);
    pub const LOG_MAX_MSG: Field = field(0x1c3, 5);
    /// Transports whose reads and writes may reach memory in any order (UCX' `ib_mlx5_ifc.h`).
    pub const DP_ORDERING_OOO_RW_XRC: Field = field(0x1c8, 1);
    pub const DP_ORDERING_OOO_RW_DC: Field = field(0x1c9, 1);
    pub const DP_ORDERING_OOO_RW_RC: Field = field(0x1ca, 1);
    pub const CQE_VERSION: Field = field(0x1fc, 4);
    /// DC targets.
    pub const DCT: Field = field(0x21a, 1);
    pub const ROCE: Field = field(0x21d, 1);
    pub const ATOMIC: Field = field(0x21e, 1);
    /// Completion queues that ignore overruns (`oi`).
    pub const CQ_OI: Field = field(0x220, 1);
    /// On-demand paging.
    pub const PG: Field = field(0x227, 1);
    /// Cross-channel work requests: they release those of other queues, and wait for completion queues.
    pub const CD: Field = field(0x22c, 1);
    pub const UD: Field = field(0x23d, 1);
    pub const UC: Field = field(0x23e, 1);
    pub const RC: Field = field(0x23f, 1);
    pub const UAR_4K: Field = field(0x240, 1);
    pub const LOG_PG_SZ: Field = field(0x258, 8);
    pub const BF: Field = field(0x260, 1);
    pub const LOG_BF_REG_SIZE: Field = field(0x26b, 5);
    pub const MAX_WQE_SZ_SQ: Field = field(0x290, 16);
    pub const MAX_WQE_SZ_RQ: Field = field(0x2b0, 16);
    pub const LOG_MAX_PD: Field = field(0x32b, 5);
    /// Transports all of whose messages may reach memory in any order (Linux' and rdma-core's `mlx5_ifc.h`).
    pub const DP_ORDERING_OOO_ALL_UD: Field = field(0x330, 1);
    pub const DP_ORDERING_OOO_ALL_UC: Field = field(0x331, 1);
    pub const DP_ORDERING_OOO_ALL_XRC: Field = field(0x332, 1);
    pub const DP_ORDERING_OOO_ALL_DC: Field = field(0x333, 1);
    pub const DP_ORDERING_OOO_ALL_RC: Field = field(0x334, 1);
    pub const LOG_MAX_RMP: Field = field(0x383, 5);
    pub const SQ_TS_FORMAT: Field = field(0x440, 2);
    /// Ticks of the card's clock in a millisecond.
    pub const DEVICE_FREQUENCY_KHZ: Field = field(0x4e0, 32);
    pub const NUM_OF_UARS_PER_PAGE: Field = field(0x520, 32);
    /// Work requests that wait for a word of memory, and for a time (in `cmd_hca_cap` of Linux and of DPDK's
    /// `mlx5_prm.h`).
    pub const WAIT_ON_DATA: Field = field(0x68b, 1);
    pub const WAIT_ON_TIME: Field = field(0x68c, 1);

    /// General capabilities, second part (`cmd_hca_cap_2`; `CmdHcaCap2` of rdma-core's `tests/mlx5_prm_structs.py`):
    /// queue pairs without a send doorbell record that programs ring, and how many.
    pub const SEND_DBR_MODE_NO_DBR_EXT: Field = field(0x2e1, 1);
    pub const LOG_MAX_SEND_DBR_LESS_QP_SQ: Field = field(0x2e3, 5);

    /// Contexts may state their data ordering, whatever the network's is.
    pub const DP_ORDERING_FORCE: Field = field(0x88, 1);

    /// RoCE capabilities.
    pub const QP_TS_FORMAT: Field = field(0x1e, 2);
    /// Network headers (`MLX5_ROCE_L3_TYPE_*_CAP`), and one bit for each version of [`roce_address`](super::roce_address).
    pub const L3_TYPE: Field = field(0x8c, 4);
    pub const L3_IPV4: u8 = 1 << 1;
    pub const L3_IPV6: u8 = 1 << 2;
    pub const ROCE_VERSION: Field = field(0x98, 8);
    pub const R_ROCE_DEST_UDP_PORT: Field = field(0xb0, 16);
    pub const R_ROCE_MAX_SRC_UDP_PORT: Field = field(0xc0, 16);
    pub const R_ROCE_MIN_SRC_UDP_PORT: Field = field(0xd0, 16);
    pub const ROCE_ADDRESS_TABLE_SIZE: Field = field(0xf0, 16);

    /// Atomic capabilities. The response mode of requests of 8 bytes, 1 for host order, and whether that mode is
    /// supported.
    pub const ATOMIC_8B_ENDIANNESS_MODE: Field = field(0x40, 2);
    pub const SUPPORTED_ATOMIC_8B_ENDIANNESS_MODE_1: Field = field(0x46, 1);
    pub const ATOMIC_OPERATIONS: Field = field(0x90, 16);
    /// One bit for each size in bytes.
    pub const ATOMIC_SIZE_QP: Field = field(0xb0, 16);
    pub const ATOMIC_SIZE_DC: Field = field(0xd0, 16);
    /// Operations that are also atomic towards CPUs: one bit for each of 4, 8 and 16 bytes.
    pub const FETCH_ADD_PCI_ATOMIC: Field = field(0x280, 16);
    pub const SWAP_PCI_ATOMIC: Field = field(0x290, 16);
    pub const COMPARE_SWAP_PCI_ATOMIC: Field = field(0x2a0, 16);

    /// ODP capabilities: access to on-demand memory, by transport service. The first bits are send, receive, write,
    /// read, atomic, and receive of a shared queue.
    pub const ODP_RC: Field = field(0x80, 6);
    pub const ODP_UC: Field = field(0xa0, 6);
    pub const ODP_UD: Field = field(0xc0, 6);
    pub const ODP_XRC: Field = field(0xe0, 6);
    pub const ODP_DC: Field = field(0x100, 6);
}

/// `query_hca_vport_context_out`.
pub mod vport {
    use super::Field;
    pub const BYTES: usize = 16 + 512;
    const fn field(at: usize, width: usize) -> Field {
        Field::new(at, width).within(0x80)
    }
    pub const PORT_PHYSICAL_STATE: Field = field(0x110, 4);
    pub const PORT_STATE: Field = field(0x118, 4);
    pub const VPORT_STATE: Field = field(0x11c, 4);
    pub const SYSTEM_IMAGE_GUID: Field = field(0x140, 64);
    pub const PORT_GUID: Field = field(0x180, 64);
    pub const NODE_GUID: Field = field(0x1c0, 64);
    pub const LID: Field = field(0x300, 16);
    pub const PKEY_VIOLATION_COUNTER: Field = field(0x350, 16);
}

/// `query_roce_address_in`, and `query_roce_address_out` with one `roce_addr_layout`.
pub mod roce_address {
    use super::Field;
    /// Bytes of the output.
    pub const BYTES: usize = 16 + 32;
    const fn field(at: usize, width: usize) -> Field {
        Field::new(at, width).within(0x80)
    }
    /// In the input: an index of the GID table.
    pub const INDEX: Field = Field::new(0x40, 16);
    pub const NUM: Field = Field::new(0x60, 16);
    pub const SOURCE_L3_ADDRESS: [Field; 2] = [field(0, 64), field(0x40, 64)];
    /// `source_mac_47_32` and `source_mac_31_0`.
    pub const SOURCE_MAC: [Field; 2] = [field(0x90, 16), field(0xa0, 32)];
    /// The network header of its packets: IPv4 or IPv6.
    pub const L3_TYPE: Field = field(0xd4, 4);
    pub const ROCE_VERSION: Field = field(0xd8, 8);
    pub const L3_IPV4: u8 = 0;
    pub const L3_IPV6: u8 = 1;
    pub const VERSION_1: u8 = 0;
    pub const VERSION_2: u8 = 2;
}
