//! Capabilities of the card, as answered to the command QUERY_HCA_CAP.

use super::config::{LIMITS, Limits, WaitRules};
use super::memory::region::MAX_DEPTH;
use super::port::LinkLayer;
use gdsync_sys::prm::command::{cap, roce_address};

/// Bytes of a blue-flame register, as a power of two: two buffers of 256 bytes.
const LOG_BF_REG_SIZE: u8 = 9;
const MAX_WQE: u32 = 1024;
/// Log of the maximum key length: keys have no size limit.
const LOG_MAX_KEY_LENGTH: u8 = 64;
/// `MLX5_ATOMIC_OPS_CMP_SWAP` and `_FETCH_ADD`, and both masked.
const ATOMIC_OPERATIONS: u8 = 0xf;
/// Bit mask of sizes in bytes: 4 and 8.
const ATOMIC_SIZES: u8 = 4 | 8;
/// `IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP` and `_8_BYTE_`: the card's operations on host memory are the CPU's.
const PCI_ATOMIC_SIZES: u8 = 1 << 0 | 1 << 1;

/// Operations that may access on-demand memory, by transport service (`enum ibv_odp_transport_cap_bits`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OdpTransports {
    /// Reliable connections.
    pub rc: u32,
    /// Unreliable connections.
    pub uc: u32,
    /// Datagrams.
    pub ud: u32,
    /// XRC.
    pub xrc: u32,
    /// DC.
    pub dc: u32,
}

const ODP_SEND: u32 = 1 << 0;
const ODP_RECV: u32 = 1 << 1;
const ODP_WRITE: u32 = 1 << 2;
const ODP_READ: u32 = 1 << 3;
const ODP_ATOMIC: u32 = 1 << 4;
const ODP_SRQ_RECV: u32 = 1 << 5;

/// On-demand paging of every software card: all operations.
pub const ODP: OdpTransports = OdpTransports {
    rc: ODP_SEND | ODP_RECV | ODP_WRITE | ODP_READ | ODP_ATOMIC | ODP_SRQ_RECV,
    uc: ODP_SEND | ODP_RECV | ODP_WRITE | ODP_SRQ_RECV,
    ud: ODP_SEND | ODP_RECV | ODP_SRQ_RECV,
    // Their receives are those of shared queues.
    xrc: ODP_SEND | ODP_WRITE | ODP_READ | ODP_ATOMIC | ODP_SRQ_RECV,
    dc: ODP_SEND | ODP_WRITE | ODP_READ | ODP_ATOMIC | ODP_SRQ_RECV,
};
/// Frequency of the card's clock, the unit of timestamps in completion entries: it counts nanoseconds.
pub const CLOCK_KHZ: u32 = 1_000_000;

/// Performs [`Card::capabilities`](super::Card::capabilities).
pub(super) fn query(
    kind: u64,
    link: LinkLayer,
    gids: usize,
    limits: &Limits,
    rules: impl FnOnce() -> WaitRules,
) -> Option<Vec<u8>> {
    let mut answer = vec![0; cap::BYTES];
    match kind {
        cap::TYPE_GENERAL => general(&mut answer, link, limits, rules()),
        cap::TYPE_GENERAL_2 => {
            cap::DP_ORDERING_FORCE.put(&mut answer, 1u8);
            cap::SEND_DBR_MODE_NO_DBR_EXT.put(&mut answer, 1u8);
            cap::LOG_MAX_SEND_DBR_LESS_QP_SQ.put(&mut answer, LIMITS.max_recordless_qp.ilog2());
        }
        cap::TYPE_ATOMIC => {
            cap::ATOMIC_8B_ENDIANNESS_MODE.put(&mut answer, 1u8);
            cap::SUPPORTED_ATOMIC_8B_ENDIANNESS_MODE_1.put(&mut answer, 1u8);
            cap::ATOMIC_OPERATIONS.put(&mut answer, ATOMIC_OPERATIONS);
            for field in [cap::ATOMIC_SIZE_QP, cap::ATOMIC_SIZE_DC] {
                field.put(&mut answer, ATOMIC_SIZES);
            }
            let operations = [cap::FETCH_ADD_PCI_ATOMIC, cap::SWAP_PCI_ATOMIC, cap::COMPARE_SWAP_PCI_ATOMIC];
            operations.iter().for_each(|field| field.put(&mut answer, PCI_ATOMIC_SIZES));
        }
        cap::TYPE_ODP => {
            for (field, bits) in [
                (cap::ODP_RC, ODP.rc),
                (cap::ODP_UC, ODP.uc),
                (cap::ODP_UD, ODP.ud),
                (cap::ODP_XRC, ODP.xrc),
                (cap::ODP_DC, ODP.dc),
            ] {
                // The first bit is the most significant one here.
                field.put(&mut answer, bits.reverse_bits() >> 26);
            }
        }
        cap::TYPE_ROCE if link == LinkLayer::Ethernet => roce(&mut answer, gids),
        // All zero. libmlx5 asks even if the general capabilities exclude the feature.
        cap::TYPE_ROCE | cap::TYPE_QOS => {}
        // Programs ask for these to learn that there are none.
        _ if cap::TYPES_OF_OPTIONS.contains(&kind) => {}
        _ => return None,
    }
    Some(answer)
}

fn roce(answer: &mut [u8], gids: usize) {
    cap::L3_TYPE.put(answer, cap::L3_IPV4 | cap::L3_IPV6);
    cap::ROCE_VERSION.put(answer, 1u8 << roce_address::VERSION_1 | 1 << roce_address::VERSION_2);
    // The ports of RoCE v2 (InfiniBand specification, annex A17).
    cap::R_ROCE_DEST_UDP_PORT.put(answer, 4791u16);
    cap::R_ROCE_MIN_SRC_UDP_PORT.put(answer, 0xc000u16);
    cap::R_ROCE_MAX_SRC_UDP_PORT.put(answer, 0xffffu16);
    cap::ROCE_ADDRESS_TABLE_SIZE.put(answer, gids as u64);
}

fn general(answer: &mut [u8], link: LinkLayer, limits: &Limits, rules: WaitRules) {
    let is_ethernet = link == LinkLayer::Ethernet;
    let (waits, cross_channel) = (rules.supported, rules.has_cross_channel());
    let numbers = [
        (cap::HCA_CAP_2, 1),
        (cap::LOG_MAX_QP_SZ, LIMITS.max_qp_wr.ilog2()),
        (cap::LOG_MAX_QP, limits.max_qp.ilog2()),
        (cap::LOG_MAX_CQ_SZ, LIMITS.max_cqe.ilog2()),
        (cap::LOG_MAX_CQ, limits.max_cq.ilog2()),
        (cap::LOG_MAX_MKEY, limits.max_mr.ilog2()),
        (cap::LOG_MAX_MRW_SZ, LOG_MAX_KEY_LENGTH.into()),
        (cap::LOG_MAX_RA_REQ_QP, LIMITS.max_rd_atomic.ilog2()),
        (cap::LOG_MAX_RA_RES_QP, LIMITS.max_rd_atomic.ilog2()),
        (cap::RTS2RTS_QP_DSCP, is_ethernet.into()),
        (cap::RTS2RTS_QP_UDP_SPORT, is_ethernet.into()),
        (cap::LOCAL_CA_ACK_DELAY, 16),
        // `MLX5_CAP_PORT_TYPE_ETH` is 1.
        (cap::PORT_TYPE, is_ethernet.into()),
        (cap::NUM_PORTS, 1),
        (cap::LOG_MAX_MSG, LIMITS.max_message.ilog2()),
        (cap::DP_ORDERING_OOO_RW_XRC, 1),
        (cap::DP_ORDERING_OOO_RW_DC, 1),
        (cap::DP_ORDERING_OOO_RW_RC, 1),
        (cap::CQE_VERSION, 1),
        (cap::ROCE, is_ethernet.into()),
        (cap::ATOMIC, 1),
        (cap::DUMP_FILL_MKEY, 1),
        (cap::MAX_INDIRECTION, MAX_DEPTH as u32),
        (cap::FIXED_BUFFER_SIZE, 1),
        (cap::LOG_MAX_KLM_LIST_SIZE, LIMITS.max_key_entries.ilog2()),
        (cap::PG, 1),
        (cap::DCT, 1),
        (cap::LOG_MAX_RMP, limits.max_srq.ilog2()),
        (cap::CQ_OI, 1),
        (cap::CD, cross_channel.into()),
        (cap::UD, 1),
        (cap::UC, 1),
        (cap::RC, 1),
        (cap::UAR_4K, 1),
        (cap::LOG_PG_SZ, 12),
        (cap::BF, 1),
        (cap::LOG_BF_REG_SIZE, LOG_BF_REG_SIZE.into()),
        (cap::MAX_WQE_SZ_SQ, MAX_WQE),
        (cap::MAX_WQE_SZ_RQ, limits.max_recv_sge * 16),
        (cap::LOG_MAX_PD, limits.max_pd.ilog2()),
        (cap::DP_ORDERING_OOO_ALL_UD, 1),
        (cap::DP_ORDERING_OOO_ALL_UC, 1),
        (cap::DP_ORDERING_OOO_ALL_XRC, 1),
        (cap::DP_ORDERING_OOO_ALL_DC, 1),
        (cap::DP_ORDERING_OOO_ALL_RC, 1),
        (cap::DEVICE_FREQUENCY_KHZ, CLOCK_KHZ),
        (cap::NUM_OF_UARS_PER_PAGE, 1),
        (cap::WAIT_ON_DATA, waits.into()),
        (cap::WAIT_ON_TIME, waits.into()),
    ];
    for (field, value) in numbers {
        field.put(answer, value);
    }
}
