//! `QUERY_HCA_CAP`: the device's capabilities. Maximum and current values are the same here.

use super::status::{Refusal, Syndrome};
use crate::context::Context;
use crate::verbs::port::PORT;
use gdsync_sys::prm::command::{cap, header};
use softhca::card::{LIMITS, LinkLayer};

/// Bytes of a blue-flame register, as a power of two: two buffers of 256 bytes.
const LOG_BF_REG_SIZE: u8 = 9;
/// Bytes of the largest work-queue entry.
const MAX_WQE: u32 = 1024;
/// Memory keys have no limit on their size.
const LOG_MAX_KEY_LENGTH: u8 = 64;
/// `MLX5_ATOMIC_OPS_CMP_SWAP` and `_FETCH_ADD`, on 8 bytes: one bit for each power of two.
const ATOMIC_OPERATIONS: u8 = 1 << 0 | 1 << 1;
const ATOMIC_SIZES: u8 = 1 << 3;

pub(super) fn query(context: &Context, input: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut output = vec![0; cap::BYTES];
    let modifier = header::OP_MOD.get(input);
    match modifier >> 1 {
        cap::TYPE_GENERAL => general(context, &mut output),
        cap::TYPE_ATOMIC => {
            cap::ATOMIC_OPERATIONS.put(&mut output, ATOMIC_OPERATIONS);
            cap::ATOMIC_SIZE_QP.put(&mut output, ATOMIC_SIZES);
        }
        // All zero. libmlx5 asks even if the general capabilities exclude the feature.
        cap::TYPE_ODP | cap::TYPE_ROCE | cap::TYPE_QOS => {}
        _ => {
            let limit = "general (0), ODP (2), atomic (3), RoCE (4) or QoS (0xc) capabilities, times 2";
            return Err(Refusal::parameter(Syndrome::CapabilityType, modifier, limit));
        }
    }
    Ok(output)
}

fn general(context: &Context, output: &mut [u8]) {
    let is_ethernet = context.card().link_layer() == LinkLayer::Ethernet;
    let numbers = [
        (cap::VHCA_ID, context.open.index as u32),
        (cap::LOG_MAX_QP_SZ, LIMITS.max_qp_wr.ilog2()),
        (cap::LOG_MAX_QP, LIMITS.max_qp.ilog2()),
        (cap::LOG_MAX_CQ_SZ, LIMITS.max_cqe.ilog2()),
        (cap::LOG_MAX_CQ, LIMITS.max_cq.ilog2()),
        (cap::LOG_MAX_MKEY, LIMITS.max_mr.ilog2()),
        (cap::LOG_MAX_MRW_SZ, LOG_MAX_KEY_LENGTH.into()),
        (cap::LOG_MAX_RA_REQ_QP, LIMITS.max_rd_atomic.ilog2()),
        (cap::LOG_MAX_RA_RES_QP, LIMITS.max_rd_atomic.ilog2()),
        (cap::LOCAL_CA_ACK_DELAY, 16),
        // `MLX5_CAP_PORT_TYPE_ETH` is 1.
        (cap::PORT_TYPE, is_ethernet.into()),
        (cap::NUM_PORTS, PORT.into()),
        (cap::LOG_MAX_MSG, LIMITS.max_message.ilog2()),
        (cap::CQE_VERSION, 1),
        (cap::ROCE, is_ethernet.into()),
        (cap::ATOMIC, 1),
        (cap::UD, 1),
        (cap::UC, 1),
        (cap::RC, 1),
        (cap::UAR_4K, 1),
        (cap::LOG_PG_SZ, 12),
        (cap::BF, 1),
        (cap::LOG_BF_REG_SIZE, LOG_BF_REG_SIZE.into()),
        (cap::MAX_WQE_SZ_SQ, MAX_WQE),
        (cap::MAX_WQE_SZ_RQ, MAX_WQE),
        (cap::LOG_MAX_PD, LIMITS.max_pd.ilog2()),
        (cap::NUM_OF_UARS_PER_PAGE, 1),
    ];
    for (field, value) in numbers {
        field.put(output, value);
    }
}
