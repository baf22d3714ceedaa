//! Queue pairs: creation and queries.

use super::message::{check_cq, check_length, check_pd, check_srq, check_uar, created};
use super::status::{Refusal, Syndrome};
use super::umem::{UmemRange, Usage, page_offset};
use crate::context::{Context, Object, Objects};
use crate::resource::Resource;
use crate::uapi::devx::object;
use crate::verbs::modify::depth_of;
use crate::verbs::qp::{BLOCK, code_of as state_code};
use gdsync_sys::prm::command::{ads, header, qp, qpc};
use gdsync_sys::prm::field::Field;
use softhca::card::{Access, LIMITS, QpAttributes, QpConfig, ScatterToCqe, Transport};

/// The state of a queue pair that a command has created.
pub(super) struct Qp {
    pub(super) config: QpConfig,
    /// `qpc` of the command.
    context: Vec<u8>,
    /// As a command has set it.
    pub(super) source_port: u16,
}

/// `MLX5_QP_ST_DCI`.
const DCI: u8 = 0x5;

/// Returns the transport of an `st` code (`MLX5_QP_ST_*`).
fn transport_of(code: u8) -> Result<Transport, Refusal> {
    match code {
        0 => Ok(Transport::Rc),
        1 => Ok(Transport::Uc),
        2 => Ok(Transport::Ud),
        DCI => Ok(Transport::DcInitiator),
        _ => Err(Refusal::parameter(Syndrome::QpTransport, code, "RC (0), UC (1), UD (2) or DCI (5)")),
    }
}

fn code_of(transport: Transport) -> u8 {
    match transport {
        Transport::Rc => 0,
        Transport::Uc => 1,
        Transport::Ud => 2,
        // `MLX5_QP_ST_XRC`.
        Transport::XrcInitiator | Transport::XrcTarget => 3,
        Transport::DcInitiator => DCI,
        // `MLX5_QP_ST_DCT`.
        Transport::DcTarget => 6,
    }
}

/// Returns whether entries of a completion queue hold small data (`cs_req`, `cs_res`): 32 bytes in those of 64, 64 in
/// those of 128. If the program asks for 32 in those of 128, the card uses memory, which is permitted.
fn holds_data(context: &Context, asked: &[u8], field: Field, cqn: Option<u32>) -> Result<bool, Refusal> {
    let Some(cqn) = cqn else { return Ok(false) };
    let value = field.get8(asked);
    let is_long = context.card().query_cq(cqn)?.stride == 128;
    let (short, long) = match field {
        qpc::CS_REQ => (qpc::CS_REQ_32, qpc::CS_REQ_64),
        _ => (qpc::CS_RES_32, qpc::CS_RES_64),
    };
    if value == 0 || value == short || value == long && is_long {
        return Ok(value == if is_long { long } else { short });
    }
    let limit = "32 bytes inside completion entries (cs_req 0x11, cs_res 1), 64 inside those of 128 (0x22, 2), or none";
    Err(Refusal::parameter(Syndrome::QpContext, value, limit))
}

/// Returns the completion queue that a context names. A queue pair may lack the queue whose completions it takes;
/// programs then leave the number 0 (DOCA's open verbs do, whose queue pairs have no receives).
fn cq_of(objects: &Objects, asked: &[u8], field: Field, is_needed: bool) -> Result<Option<u32>, Refusal> {
    let number = field.get32(asked);
    if number == 0 && !is_needed {
        return Ok(None);
    }
    check_cq(objects, number)?;
    Ok(Some(number))
}

pub(super) fn create(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> Result<(Object, Vec<u8>), Refusal> {
    check_length(input, qp::BYTES)?;
    let asked = &input[qp::CONTEXT..qp::CONTEXT + qpc::BYTES];
    let transport = transport_of(qpc::ST.get8(asked))?;
    let cross_channel = context.card().wait_rules().has_cross_channel();
    for (field, most, limit) in [
        (qpc::WQ_SIGNATURE, 0, "no signatures of work-queue entries (wq_signature 0)"),
        (
            qpc::SEND_DBR_MODE,
            qpc::DBR_NONE,
            "doorbells of the program: with a record or without (send_dbr_mode 0 or 1)",
        ),
        (
            qpc::LOG_NUM_DCI_STREAM_CHANNELS,
            0,
            "no streams of an initiator (log_num_dci_stream_channels 0, as the capabilities say)",
        ),
        (qpc::LOG_NUM_DCI_ERRORED_STREAMS, 0, "no streams that fail alone (log_num_dci_errored_streams 0)"),
        (qpc::CD_SLAVE_RECEIVE, 0, "no receives that another queue releases (cd_slave_receive 0)"),
        (
            qpc::CD_MASTER,
            cross_channel.into(),
            "no master of other queues, as the card has no SEND_EN (cd_master 0)",
        ),
        (
            qpc::CD_SLAVE_SEND,
            cross_channel.into(),
            "no slave of other queues, as the card has no SEND_EN (cd_slave_send 0)",
        ),
    ] {
        if field.get8(asked) > most {
            return Err(Refusal::parameter(Syndrome::QpContext, field.get(asked), limit));
        }
    }
    let is_initiator = transport == Transport::DcInitiator;
    let mut srq = None;
    let rq_entries = match qpc::RQ_TYPE.get8(asked) {
        // An initiator has no receives, regardless of its context.
        _ if is_initiator => 0,
        qpc::RQ_SHARED => {
            let number = qpc::SRQN.get32(asked);
            check_srq(objects, number)?;
            srq = Some(number);
            0
        }
        qpc::RQ_OWN => 1 << qpc::LOG_RQ_SIZE.get32(asked),
        qpc::RQ_NONE => 0,
        other => {
            let limit = "a receive queue of its own (0), a shared one (1) or none (3)";
            return Err(Refusal::parameter(Syndrome::QpContext, other, limit));
        }
    };
    let rq_stride = 16 << qpc::LOG_RQ_STRIDE.get32(asked);
    let sq_blocks = if qpc::NO_SQ.is_set(asked) { 0 } else { 1 << qpc::LOG_SQ_SIZE.get32(asked) };
    let (pdn, uar) = (qpc::PD.get32(asked), qpc::UAR_PAGE.get32(asked));
    check_pd(objects, pdn)?;
    check_uar(objects, uar)?;
    let send_cq = cq_of(objects, asked, qpc::CQN_SND, sq_blocks != 0)?;
    let recv_cq = match is_initiator {
        true => None,
        false => cq_of(objects, asked, qpc::CQN_RCV, rq_entries != 0 || srq.is_some())?,
    };
    let scatter = ScatterToCqe {
        requests: holds_data(context, asked, qpc::CS_REQ, send_cq)?,
        receives: holds_data(context, asked, qpc::CS_RES, recv_cq)?,
    };

    let receive_bytes = u64::from(rq_entries) * u64::from(rq_stride);
    let lead = page_offset(qpc::LOG_PAGE_SIZE.get(asked), qpc::PAGE_OFFSET.get(asked));
    let ring = UmemRange {
        id: qp::UMEM_ID.get32(input),
        offset: qp::UMEM_OFFSET.get(input).saturating_add(lead),
        len: receive_bytes + u64::from(sq_blocks) * BLOCK,
        alignment: BLOCK,
        // The card only reads work-queue entries.
        usage: Usage::Reads,
    };
    let record = UmemRange::record(qpc::DBR_UMEM_ID.get32(asked), qpc::DBR_ADDR.get(asked));
    let start = if ring.len == 0 { 0 } else { ring.address(objects)? };
    let config = QpConfig {
        pdn: Some(pdn),
        send_cq,
        recv_cq,
        srq,
        uar: Some(uar),
        // The receive queue comes first in the buffer.
        sq: (start + receive_bytes) as *mut u8,
        sq_blocks,
        rq: start as *mut u8,
        rq_entries,
        rq_stride,
        dbrec: record.address(objects)? as *mut u32,
        user_index: Some(qpc::USER_INDEX.get32(asked)),
        master: qpc::CD_MASTER.is_set(asked),
        slave_send: qpc::CD_SLAVE_SEND.is_set(asked),
        no_send_record: qpc::SEND_DBR_MODE.get8(asked) == qpc::DBR_NONE,
        scatter,
        ..QpConfig::new(transport)
    };
    // SAFETY: the addresses are from `UmemRange::address`, which documents why they stay valid.
    let number = unsafe { context.card().create_qp(&config) }?;
    // A queue pair without rings uses only its record's memory.
    let umems = [if ring.len == 0 { record.id } else { ring.id }, record.id];
    let object = Object::new(object::DEVX_OBJ, Resource::Qp(number)).using(umems);
    Ok((object.with(Qp { config, context: asked.to_vec(), source_port: 0 }), created(number)))
}

/// `QUERY_QP`. `created` is the queue pair if a command has created it; the answer for a queue pair of verbs
/// is built from `config`.
pub(super) fn query(
    context: &Context,
    number: u32,
    config: &QpConfig,
    created: Option<&Qp>,
    source_port: u16,
) -> Result<Vec<u8>, Refusal> {
    let now = context.card().query_qp(number)?;
    let mut output = vec![0; qp::BYTES];
    let place = &mut output[qp::CONTEXT..qp::CONTEXT + qpc::BYTES];
    if let Some(qp) = created {
        place.copy_from_slice(&qp.context);
        qpc::DBR_UMEM_VALID.put(place, 1u8);
    }
    describe(config, place);
    describe_state(&now, place);
    let ordering = now.ordering.unwrap_or(context.card().network_ordering()) as u8;
    qpc::DP_ORDERING_0.put(place, ordering & 1);
    qpc::DP_ORDERING_1.put(place, ordering >> 1);
    qpc::DP_ORDERING_FORCE.put(place, now.ordering.is_some());
    ads::UDP_SPORT.put(place, source_port);
    header::NUMBER.put(&mut output, number);
    Ok(output)
}

/// Writes the constant part of a queue pair's context.
fn describe(config: &QpConfig, place: &mut [u8]) {
    qpc::ST.put(place, code_of(config.transport));
    for (field, number) in [
        (qpc::PD, config.pdn),
        (qpc::UAR_PAGE, config.uar),
        (qpc::CQN_SND, config.send_cq),
        (qpc::CQN_RCV, config.recv_cq),
    ] {
        field.put(place, number.unwrap_or(0));
    }
    qpc::USER_INDEX.put(place, config.user_index.unwrap_or(0));
    if let Some(number) = config.srq {
        qpc::RQ_TYPE.put(place, qpc::RQ_SHARED);
        qpc::SRQN.put(place, number);
    }
    match config.rq_entries.checked_ilog2() {
        None if config.srq.is_some() => {}
        None => qpc::RQ_TYPE.put(place, qpc::RQ_NONE),
        Some(log_size) => {
            qpc::RQ_TYPE.put(place, qpc::RQ_OWN);
            qpc::LOG_RQ_SIZE.put(place, log_size);
            qpc::LOG_RQ_STRIDE.put(place, config.rq_stride.ilog2().saturating_sub(4));
        }
    }
    qpc::CD_MASTER.put(place, config.master);
    qpc::CD_SLAVE_SEND.put(place, config.slave_send);
    qpc::SEND_DBR_MODE.put(place, if config.no_send_record { qpc::DBR_NONE } else { qpc::DBR_RECORD });
    match config.sq_blocks.checked_ilog2() {
        None => qpc::NO_SQ.put(place, 1u8),
        Some(log_size) => qpc::LOG_SQ_SIZE.put(place, log_size),
    }
}

/// Writes the part of a queue pair's context that transitions change.
fn describe_state(now: &QpAttributes, place: &mut [u8]) {
    qpc::STATE.put(place, state_code(now.state));
    qpc::PM_STATE.put(place, qpc::PM_MIGRATED);
    // A new queue pair has an MTU, too: DOCA's open verbs query it before they connect it, and refuse 0. A device's
    // value is not public.
    qpc::MTU.put(place, (now.path_mtu as u64).max(qpc::MTU_256));
    let longest = if now.log_msg_max == 0 { LIMITS.max_message.ilog2() } else { now.log_msg_max.into() };
    qpc::LOG_MSG_MAX.put(place, longest);
    qpc::REMOTE_QPN.put(place, now.dest_qpn);
    qpc::NEXT_SEND_PSN.put(place, now.sq_psn);
    qpc::NEXT_RCV_PSN.put(place, now.rq_psn);
    qpc::LOG_SRA_MAX.put(place, depth_of(now.max_rd_atomic).ilog2());
    qpc::LOG_RRA_MAX.put(place, depth_of(now.max_dest_rd_atomic).ilog2());
    qpc::RETRY_COUNT.put(place, now.retry_cnt);
    qpc::RNR_RETRY.put(place, now.rnr_retry);
    qpc::MIN_RNR_NAK.put(place, now.min_rnr_timer);
    qpc::Q_KEY.put(place, now.qkey);
    for (field, right) in
        [(qpc::RRE, Access::REMOTE_READ), (qpc::RWE, Access::REMOTE_WRITE), (qpc::RAE, Access::REMOTE_ATOMIC)]
    {
        field.put(place, now.access.contains(right));
    }
    ads::PKEY_INDEX.put(place, now.pkey_index);
    ads::VHCA_PORT_NUM.put(place, now.port);
    ads::ACK_TIMEOUT.put(place, now.timeout);
    ads::RLID.put(place, now.address.dlid);
    ads::GRH.put(place, now.address.gid.is_some());
    let gid = u128::from_be_bytes(now.address.gid.unwrap_or_default());
    ads::RGID[0].put(place, (gid >> 64) as u64);
    ads::RGID[1].put(place, gid as u64);
}
