//! Conversion of queue pair attributes between libibverbs' struct with its mask and the card's typed change.

use super::ah;
use super::errno::{self, Errno, Result};
use super::object;
use super::qp::{Path, Qp};
use crate::card::{Access, Card, QpAttributes, QpChange, QpState};
use gdsync_sys::prm::command::{header, opcode, qp as command, qpc};
use gdsync_sys::verbs::{self, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use libc::{c_int, c_void, size_t};

/// Bits that `ibv_modify_qp` knows: `IBV_QP_STATE` to `IBV_QP_DEST_QPN`, and the rate limit.
const KNOWN_MASK: u32 = ((verbs::IBV_QP_DEST_QPN << 1) - 1) | verbs::IBV_QP_RATE_LIMIT;
/// Bits that no transition of this card has: for drained queues, resizing and pacing.
const NOT_HERE: u32 = verbs::IBV_QP_EN_SQD_ASYNC_NOTIFY | verbs::IBV_QP_CAP | verbs::IBV_QP_RATE_LIMIT;

/// `ibv_modify_qp`. EINVAL for unknown bits, an impossible transition, a missing or superfluous attribute, or
/// a value out of range; EOPNOTSUPP for the drained state. Nothing has changed then. The transition to RESET
/// zeroes the doorbell records.
///
/// # Safety
/// `qp` is null or created; `attr` is null or valid.
pub(super) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    errno::status(|| {
        let mask = mask as u32;
        // SAFETY: guaranteed by the caller.
        let (qp, attr) = unsafe { (object::borrow::<Qp>(qp)?, object::attributes(attr)?) };
        let change = change_of(qp.context().card(), attr, mask)?;
        let ordering = qp.ordering.filter(|_| change.state == Some(QpState::Init));
        let change = QpChange { ordering, ..change };
        let mut path = qp.path.lock();
        qp.context().card().modify_qp(qp.number, &change)?;
        if change.address.is_some() {
            path.address = attr.ah_attr;
        }
        if change.state == Some(QpState::Reset) {
            *path = Path::default();
            qp.clear_records();
        }
        if mask & verbs::IBV_QP_STATE != 0 {
            qp.set_state(attr.qp_state);
        }
        Ok(())
    })
}

fn change_of(card: &Card, attr: &ibv_qp_attr, mask: u32) -> Result<QpChange> {
    if mask & !KNOWN_MASK != 0 || mask & NOT_HERE != 0 {
        tracing::warn!(mask, "attributes that queue pairs of the software card do not have");
        return Err(Errno::INVALID);
    }
    let has = |bit| mask & bit != 0;
    let state = has(verbs::IBV_QP_STATE).then(|| state_of(attr.qp_state)).transpose()?;
    let current = has(verbs::IBV_QP_CUR_STATE).then(|| state_of(attr.cur_qp_state)).transpose()?;
    let access = has(verbs::IBV_QP_ACCESS_FLAGS)
        .then(|| Access::from_bits(attr.qp_access_flags).ok_or(Errno::INVALID))
        .transpose()?;
    let address = has(verbs::IBV_QP_AV).then(|| ah::address_of(card, &attr.ah_attr)).transpose()?;
    Ok(QpChange {
        state,
        current,
        pkey_index: has(verbs::IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        port: has(verbs::IBV_QP_PORT).then_some(attr.port_num),
        access,
        address,
        path_mtu: has(verbs::IBV_QP_PATH_MTU).then_some(attr.path_mtu),
        dest_qpn: has(verbs::IBV_QP_DEST_QPN).then_some(attr.dest_qp_num),
        rq_psn: has(verbs::IBV_QP_RQ_PSN).then_some(attr.rq_psn),
        sq_psn: has(verbs::IBV_QP_SQ_PSN).then_some(attr.sq_psn),
        max_rd_atomic: has(verbs::IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: has(verbs::IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(verbs::IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        timeout: has(verbs::IBV_QP_TIMEOUT).then_some(attr.timeout),
        retry_cnt: has(verbs::IBV_QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(verbs::IBV_QP_RNR_RETRY).then_some(attr.rnr_retry),
        qkey: has(verbs::IBV_QP_QKEY).then_some(attr.qkey),
        log_msg_max: None,
        path_migration: has(verbs::IBV_QP_PATH_MIG_STATE),
        alternate_path: has(verbs::IBV_QP_ALT_PATH),
        ordering: None,
    })
}

fn state_of(code: c_int) -> Result<QpState> {
    if code == verbs::IBV_QPS_SQD {
        tracing::warn!("the software card cannot drain a send queue (IBV_QPS_SQD)");
        return Err(Errno::NOT_SUPPORTED);
    }
    QpState::from_ibv(code).ok_or(Errno::INVALID)
}

/// `ibv_query_qp`: fills both structs completely, regardless of `mask`. EOPNOTSUPP for the rate limit and
/// bits above it.
///
/// # Safety
/// `qp` is null or created; `attr` and `init` are null or valid.
pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    errno::status(|| {
        let mask = mask as u32;
        // SAFETY: guaranteed by the caller.
        let (qp, attr, init) =
            unsafe { (object::borrow::<Qp>(qp)?, object::attributes(attr)?, object::attributes(init)?) };
        if mask >= verbs::IBV_QP_RATE_LIMIT {
            return Err(Errno::NOT_SUPPORTED);
        }
        let path = qp.path.lock();
        let now = qp.context().card().query_qp(qp.number)?;
        *attr = attributes_of(&now, &path, qp);
        *init = qp.init_attributes();
        if mask & verbs::IBV_QP_STATE != 0 {
            qp.set_state(attr.qp_state);
        }
        Ok(())
    })
}

/// `mlx5dv_devx_qp_query`, for QUERY_QP: fills the fields of the data ordering. EINVAL for another command, or without
/// room for the answer.
///
/// # Safety
/// `qp` is null or created; `input` is readable and `output` writable for their lengths.
pub(super) unsafe extern "C" fn devx_qp_query(
    qp: *mut ibv_qp,
    input: *const c_void,
    input_len: size_t,
    output: *mut c_void,
    output_len: size_t,
) -> c_int {
    errno::status(|| {
        // SAFETY: guaranteed by the caller.
        let qp = unsafe { object::borrow::<Qp>(qp) }?;
        if input.is_null() || output.is_null() || input_len < header::BYTES || output_len < command::BYTES {
            return Err(Errno::INVALID);
        }
        // SAFETY: not null, and of the checked length, which the caller guarantees.
        let asked = unsafe { input.cast::<[u8; header::BYTES]>().read_unaligned() };
        if header::OPCODE.get(&asked) != u64::from(opcode::QUERY_QP) {
            return Err(Errno::INVALID);
        }
        let card = qp.context().card();
        let ordering = card.query_qp(qp.number)?.ordering;
        let code = ordering.unwrap_or(card.network_ordering()) as u8;
        let mut answer = [0; command::BYTES];
        let context = &mut answer[command::CONTEXT..];
        qpc::DP_ORDERING_0.put(context, code & 1);
        qpc::DP_ORDERING_1.put(context, code >> 1);
        qpc::DP_ORDERING_FORCE.put(context, ordering.is_some());
        // SAFETY: not null, and of the checked length, which the caller guarantees.
        unsafe { answer.as_ptr().copy_to_nonoverlapping(output.cast::<u8>(), answer.len()) };
        Ok(())
    })
}

fn attributes_of(now: &QpAttributes, path: &Path, qp: &Qp) -> ibv_qp_attr {
    let state = now.state.to_ibv();
    ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: now.path_mtu,
        rq_psn: now.rq_psn,
        sq_psn: now.sq_psn,
        dest_qp_num: now.dest_qpn,
        qp_access_flags: now.access.bits(),
        cap: qp.cap,
        ah_attr: path.address,
        max_rd_atomic: now.max_rd_atomic,
        max_dest_rd_atomic: now.max_dest_rd_atomic,
        min_rnr_timer: now.min_rnr_timer,
        port_num: now.port,
        pkey_index: now.pkey_index,
        qkey: now.qkey,
        timeout: now.timeout,
        retry_cnt: now.retry_cnt,
        rnr_retry: now.rnr_retry,
        ..ibv_qp_attr::default()
    }
}
