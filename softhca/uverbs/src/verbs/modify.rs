//! Changes and queries of queue pairs, with the checks of the kernel's `modify_qp` and of the mlx5 driver. Other values
//! reach the card as the driver would write them: cut to the width of their field in the queue pair's context.

use super::ah;
use super::derived::ece;
use super::port::PORT;
use super::qp::{Qp, code_of};
use crate::attributes::Request;
use crate::calls;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;
use crate::uapi::mlx5::{ModifyQpResp, ModifyQpUhw};
use crate::uapi::queues::{ModifyQp, QpDest, QueryQp, QueryQpResp};
use gdsync_sys::verbs as ibv;
use softhca::card::{DataOrdering, QpAttributes, QpChange, QpState, Transport};
use zerocopy::FromZeros;

/// `IB_QP_ATTR_STANDARD_BITS`: the attributes that both commands know.
const STANDARD: u32 = (ibv::IBV_QP_DEST_QPN << 1) - 1;
/// Attributes that the card does not support: drained queues, resizing, pacing. No change of state of these
/// types has them (`qp_state_table` of the core).
const UNSUPPORTED: u32 = ibv::IBV_QP_EN_SQD_ASYNC_NOTIFY | ibv::IBV_QP_CAP | ibv::IBV_QP_RATE_LIMIT;
/// What a query of a DC target may ask for (`mlx5_ib_dct_query_qp`).
const OF_TARGETS: u32 = ibv::IBV_QP_STATE
    | ibv::IBV_QP_ACCESS_FLAGS
    | ibv::IBV_QP_PORT
    | ibv::IBV_QP_MIN_RNR_TIMER
    | ibv::IBV_QP_AV
    | ibv::IBV_QP_PATH_MTU
    | ibv::IBV_QP_PKEY_INDEX;
/// Queue pair numbers and PSNs.
const BITS_24: u32 = 0xff_ffff;
/// `MLX5_IB_MODIFY_QP_OOO_DP`.
const OUT_OF_ORDER: u32 = 1 << 0;

/// The driver's own part of the command (`mlx5_ib_modify_qp`). libmlx5 sends none without ECE, pacing and out-of-order
/// data placement.
fn driver_part(request: &Request) -> Result<ModifyQpUhw> {
    let size = request.len(attr::UHW_IN);
    if size != 0 && size < size_of::<ModifyQpUhw>() {
        return Err(Errno::INVALID);
    }
    let asked: ModifyQpUhw = request.structure(attr::UHW_IN)?;
    if asked.comp_mask & !OUT_OF_ORDER != 0 || asked.reserved != 0 {
        tracing::warn!(asked.comp_mask, known = OUT_OF_ORDER, "ibv_modify_qp: bits that no driver knows");
        return Err(Errno::NOT_SUPPORTED);
    }
    Ok(asked)
}

/// `MODIFY_QP`, also the extended one.
pub(crate) fn modify(context: &Context, request: &Request, is_extended: bool) -> Result<()> {
    let asked: ModifyQp = if is_extended {
        // The extended structure ends with a rate limit and a reserved field.
        let extended: [u8; size_of::<ModifyQp>() + 8] = request.structure(attr::CORE_IN)?;
        zerocopy::FromBytes::read_from_bytes(&extended[..size_of::<ModifyQp>()])
            .map_err(|_| Errno::INVALID)?
    } else {
        request.structure(attr::CORE_IN)?
    };
    let known = if is_extended { STANDARD | ibv::IBV_QP_RATE_LIMIT } else { STANDARD };
    if asked.attr_mask & !known != 0 {
        tracing::warn!(asked.attr_mask, known, "ibv_modify_qp: bits of the mask that no kernel knows");
        return Err(Errno::NOT_SUPPORTED);
    }
    let mut objects = context.objects.lock();
    let qp = objects.state_mut::<Qp>(asked.qp_handle)?;
    let uhw = driver_part(request)?;
    let transport = qp.config.transport;
    let asked = ModifyQp { attr_mask: asked.attr_mask & !ignored(transport), ..asked };
    check_states(&asked, context.card().query_qp(qp.number)?.state, transport)?;
    let mut rights = qp.rights;
    // The driver keeps the flag until it makes the queue pair ready to receive, which only INIT precedes.
    let becomes_ready = [ibv::IBV_QPS_INIT, ibv::IBV_QPS_RTR].contains(&asked.qp_state.into());
    let is_asked = uhw.comp_mask & OUT_OF_ORDER != 0 && asked.attr_mask & ibv::IBV_QP_STATE != 0;
    let change = QpChange {
        access: rights.change(&asked, transport),
        ordering: (is_asked && becomes_ready).then_some(DataOrdering::AnyOrder),
        ..change_of(context, &asked, transport)?
    };
    context.card().modify_qp(qp.number, &change)?;
    qp.rights = rights;
    if change.address.is_some() {
        qp.destination = asked.dest;
    }
    if change.state == Some(QpState::Reset) {
        qp.destination = QpDest::new_zeroed();
    }
    let number = qp.number;
    drop(objects);
    let answer = ModifyQpResp {
        response_length: size_of::<ModifyQpResp>() as u32,
        dctn: if transport == Transport::DcTarget { number } else { 0 },
        ece_options: ece(context, uhw.ece_options),
        reserved: 0,
    };
    request.answer_with(attr::UHW_OUT, &answer)
}

/// Returns the attributes that the kernel ignores, as only the other side of XRC has them (`modify_qp_mask`).
fn ignored(transport: Transport) -> u32 {
    match transport {
        Transport::XrcInitiator => ibv::IBV_QP_MAX_DEST_RD_ATOMIC | ibv::IBV_QP_MIN_RNR_TIMER,
        Transport::XrcTarget => ibv::IBV_QP_MAX_QP_RD_ATOMIC | ibv::IBV_QP_RETRY_CNT | ibv::IBV_QP_RNR_RETRY,
        _ => 0,
    }
}

/// Refuses what `ib_modify_qp_is_ok` and `modify_dci_qp_is_ok` refuse and devices do not: ERR from RESET, and a current
/// state beside RESET or ERR.
fn check_states(asked: &ModifyQp, now: QpState, transport: Transport) -> Result<()> {
    let has = |bit| asked.attr_mask & bit != 0;
    let to = if has(ibv::IBV_QP_STATE) { state_of(asked.qp_state)? } else { now };
    let fails_at_once = (now, to) == (QpState::Reset, QpState::Err);
    let states_current = has(ibv::IBV_QP_CUR_STATE) && matches!(to, QpState::Reset | QpState::Err);
    if transport != Transport::DcTarget && (fails_at_once || states_current) {
        tracing::warn!(?now, ?to, "ibv_modify_qp: no such transition, or none with IBV_QP_CUR_STATE");
        return Err(Errno::INVALID);
    }
    Ok(())
}

fn change_of(context: &Context, asked: &ModifyQp, transport: Transport) -> Result<QpChange> {
    let has = |bit| asked.attr_mask & bit != 0;
    if has(UNSUPPORTED) {
        let attr_mask = calls::of_bits(asked.attr_mask & UNSUPPORTED, calls::QP_ATTRIBUTES);
        tracing::warn!(attr_mask, "ibv_modify_qp: the software card does not have this");
        return Err(Errno::INVALID);
    }
    let port_num = asked.dest.port_num;
    if has(ibv::IBV_QP_AV) && port_num != PORT {
        tracing::warn!(port_num, "ibv_modify_qp: ah_attr.port_num is not the port's number, 1");
        return Err(Errno::INVALID);
    }
    Ok(QpChange {
        state: has(ibv::IBV_QP_STATE).then(|| state_of(asked.qp_state)).transpose()?,
        current: has(ibv::IBV_QP_CUR_STATE).then(|| state_of(asked.cur_qp_state)).transpose()?,
        pkey_index: has(ibv::IBV_QP_PKEY_INDEX).then_some(asked.pkey_index),
        port: has(ibv::IBV_QP_PORT).then_some(asked.port_num),
        qkey: has(ibv::IBV_QP_QKEY).then_some(asked.qkey),
        access: None,
        address: has(ibv::IBV_QP_AV)
            .then(|| ah::address_of(context.card(), &asked.dest, transport))
            .transpose()?,
        path_mtu: has(ibv::IBV_QP_PATH_MTU).then_some(asked.path_mtu.into()),
        dest_qpn: has(ibv::IBV_QP_DEST_QPN).then_some(asked.dest_qp_num & BITS_24),
        rq_psn: has(ibv::IBV_QP_RQ_PSN).then_some(asked.rq_psn & BITS_24),
        sq_psn: has(ibv::IBV_QP_SQ_PSN).then_some(asked.sq_psn & BITS_24),
        max_rd_atomic: has(ibv::IBV_QP_MAX_QP_RD_ATOMIC).then_some(asked.max_rd_atomic),
        max_dest_rd_atomic: has(ibv::IBV_QP_MAX_DEST_RD_ATOMIC).then_some(asked.max_dest_rd_atomic),
        min_rnr_timer: has(ibv::IBV_QP_MIN_RNR_TIMER).then_some(asked.min_rnr_timer & 31),
        timeout: has(ibv::IBV_QP_TIMEOUT).then_some(asked.timeout & 31),
        retry_cnt: has(ibv::IBV_QP_RETRY_CNT).then_some(asked.retry_cnt & 7),
        rnr_retry: has(ibv::IBV_QP_RNR_RETRY).then_some(asked.rnr_retry & 7),
        path_migration: has(ibv::IBV_QP_PATH_MIG_STATE),
        alternate_path: has(ibv::IBV_QP_ALT_PATH),
        // The driver gives the device's longest (`log_msg_max`).
        log_msg_max: None,
        ordering: None,
    })
}

fn state_of(code: u8) -> Result<QpState> {
    // Also for SQD: the driver has no command for it (`optab` of `__mlx5_ib_modify_qp`).
    QpState::from_ibv(code.into()).ok_or(Errno::INVALID)
}

/// `QUERY_QP`: answers all attributes, regardless of the program's mask.
///
/// # Errors
/// EINVAL for a DC target before RTR, or for an attribute that targets do not have.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let asked: QueryQp = request.structure(attr::CORE_IN)?;
    let objects = context.objects.lock();
    let qp = objects.state::<Qp>(asked.qp_handle)?;
    let now = context.card().query_qp(qp.number)?;
    let is_target = qp.config.transport == Transport::DcTarget;
    if is_target && (now.state != QpState::Rtr || asked.attr_mask & !OF_TARGETS != 0) {
        return Err(Errno::INVALID);
    }
    request.answer_with(attr::CORE_OUT, &answer_of(qp, &now))
}

/// Returns a number of reads and atomics in flight as the context has it: a power of two, to which the driver rounds up.
pub(crate) fn depth_of(count: u8) -> u8 {
    count.checked_next_power_of_two().unwrap_or(1 << 7)
}

fn answer_of(qp: &Qp, now: &QpAttributes) -> QueryQpResp {
    QueryQpResp {
        dest: qp.destination,
        max_send_wr: qp.cap.max_send_wr,
        max_recv_wr: qp.cap.max_recv_wr,
        max_send_sge: qp.cap.max_send_sge,
        max_recv_sge: qp.cap.max_recv_sge,
        max_inline_data: qp.cap.max_inline_data,
        qkey: now.qkey,
        rq_psn: now.rq_psn,
        sq_psn: now.sq_psn,
        dest_qp_num: now.dest_qpn,
        qp_access_flags: now.access.bits(),
        pkey_index: now.pkey_index,
        qp_state: code_of(now.state),
        cur_qp_state: code_of(now.state),
        path_mtu: u8::try_from(now.path_mtu).unwrap_or(0),
        max_rd_atomic: depth_of(now.max_rd_atomic),
        max_dest_rd_atomic: depth_of(now.max_dest_rd_atomic),
        min_rnr_timer: now.min_rnr_timer,
        port_num: now.port,
        timeout: now.timeout,
        retry_cnt: now.retry_cnt,
        rnr_retry: now.rnr_retry,
        sq_sig_all: qp.signal_all.into(),
        ..QueryQpResp::new_zeroed()
    }
}
