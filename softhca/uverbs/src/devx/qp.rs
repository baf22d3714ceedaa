//! Queue pairs: making them, and what they are.

use super::cq::{check_length, check_uar, page_offset};
use super::made;
use super::status::{Refusal, Syndrome};
use super::umem::Part;
use crate::context::{Context, Objects};
use crate::cq::RECORD;
use gdsync_sys::prm::command::{ads, header, qp, qpc};
use softhca::card::{Access, LIMITS, QpAttributes, QpConfig, QpState, Transport};

/// Bytes of a basic block of the send queue.
const BLOCK: u64 = 64;

/// A queue pair that a command made.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(super) number: u32,
    pub(super) config: QpConfig,
    pub(super) umems: [u32; 2],
    /// `qpc` as it was given.
    context: Vec<u8>,
}

/// Codes of `st` (`MLX5_QP_ST_*`).
fn transport_of(code: u8) -> Result<Transport, Refusal> {
    match code {
        0 => Ok(Transport::Rc),
        1 => Ok(Transport::Uc),
        2 => Ok(Transport::Ud),
        _ => Err(Refusal::parameter(Syndrome::QpTransport, code, "RC (0), UC (1) or UD (2)")),
    }
}

fn code_of(transport: Transport) -> u8 {
    match transport {
        Transport::Rc => 0,
        Transport::Uc => 1,
        Transport::Ud => 2,
    }
}

/// `CREATE_QP`.
pub(super) fn create(context: &Context, objects: &Objects, input: &[u8]) -> Result<(Qp, Vec<u8>), Refusal> {
    check_length(input, qp::BYTES)?;
    let asked = &input[qp::CONTEXT..qp::CONTEXT + qpc::BYTES];
    let transport = transport_of(qpc::ST.get8(asked))?;
    for (field, limit) in [
        (qpc::WQ_SIGNATURE, "no signatures of work-queue entries (wq_signature 0)"),
        (qpc::SEND_DBR_MODE, "doorbells with a record (send_dbr_mode 0)"),
    ] {
        if field.is_set(asked) {
            return Err(Refusal::parameter(Syndrome::QpContext, field.get(asked), limit));
        }
    }
    let rq_entries = match qpc::RQ_TYPE.get8(asked) {
        qpc::RQ_OWN => 1 << qpc::LOG_RQ_SIZE.get32(asked),
        qpc::RQ_NONE => 0,
        other => {
            let limit = "a receive queue of its own (0) or none (3)";
            return Err(Refusal::parameter(Syndrome::QpContext, other, limit));
        }
    };
    let rq_stride = 16 << qpc::LOG_RQ_STRIDE.get32(asked);
    let sq_blocks = if qpc::NO_SQ.is_set(asked) { 0 } else { 1 << qpc::LOG_SQ_SIZE.get32(asked) };
    let (pdn, uar) = (qpc::PD.get32(asked), qpc::UAR_PAGE.get32(asked));
    objects.check_pd(pdn)?;
    check_uar(objects, uar)?;
    let (send_cq, recv_cq) = (qpc::CQN_SND.get32(asked), qpc::CQN_RCV.get32(asked));
    objects.check_cq(send_cq)?;
    objects.check_cq(recv_cq)?;

    let receive_bytes = u64::from(rq_entries) * u64::from(rq_stride);
    let lead = page_offset(qpc::LOG_PAGE_SIZE.get(asked), qpc::PAGE_OFFSET.get(asked));
    let ring = Part {
        id: qp::UMEM_ID.get32(input),
        offset: qp::UMEM_OFFSET.get(input).saturating_add(lead),
        len: receive_bytes + u64::from(sq_blocks) * BLOCK,
        alignment: BLOCK,
        // Work-queue entries are read only.
        writes: false,
    };
    let record = Part {
        id: qpc::DBR_UMEM_ID.get32(asked),
        offset: qpc::DBR_ADDR.get(asked),
        len: RECORD,
        alignment: RECORD,
        writes: true,
    };
    let start = if ring.len == 0 { 0 } else { ring.address(objects)? };
    let config = QpConfig {
        transport,
        pdn,
        send_cq,
        recv_cq,
        uar,
        // The receive queue comes first in the buffer.
        sq: (start + receive_bytes) as *mut u8,
        sq_blocks,
        rq: start as *mut u8,
        rq_entries,
        rq_stride,
        dbrec: record.address(objects)? as *mut u32,
        signal_all: false,
        user_index: Some(qpc::USER_INDEX.get32(asked)),
    };
    // SAFETY: inside registered user memory, mapped and aligned, as was just checked. The program keeps that memory mapped
    // while it is registered, and it stays registered until the queue pair is gone (`umem::deregister`).
    let number = unsafe { context.card().create_qp(&config) }?;
    // A queue pair without rings is in no memory but its record's.
    let umems = [if ring.len == 0 { record.id } else { ring.id }, record.id];
    Ok((Qp { number, config, umems, context: asked.to_vec() }, made(number)))
}

/// `QUERY_QP`, of a queue pair that a command made or of one of verbs, whose context is made of what it was created with.
pub(super) fn query(
    context: &Context,
    number: u32,
    config: &QpConfig,
    made: Option<&Qp>,
) -> Result<Vec<u8>, Refusal> {
    let now = context.card().query_qp(number)?;
    let mut output = vec![0; qp::BYTES];
    let place = &mut output[qp::CONTEXT..qp::CONTEXT + qpc::BYTES];
    if let Some(qp) = made {
        place.copy_from_slice(&qp.context);
        qpc::DBR_UMEM_VALID.put(place, 1u8);
    }
    describe(config, place);
    describe_state(&now, place);
    header::NUMBER.put(&mut output, number);
    Ok(output)
}

/// What a queue pair was created with.
fn describe(config: &QpConfig, place: &mut [u8]) {
    qpc::ST.put(place, code_of(config.transport));
    qpc::PD.put(place, config.pdn);
    qpc::UAR_PAGE.put(place, config.uar);
    qpc::CQN_SND.put(place, config.send_cq);
    qpc::CQN_RCV.put(place, config.recv_cq);
    qpc::USER_INDEX.put(place, config.user_index.unwrap_or(0));
    match config.rq_entries.checked_ilog2() {
        None => qpc::RQ_TYPE.put(place, qpc::RQ_NONE),
        Some(log_size) => {
            qpc::RQ_TYPE.put(place, qpc::RQ_OWN);
            qpc::LOG_RQ_SIZE.put(place, log_size);
            qpc::LOG_RQ_STRIDE.put(place, config.rq_stride.ilog2().saturating_sub(4));
        }
    }
    match config.sq_blocks.checked_ilog2() {
        None => qpc::NO_SQ.put(place, 1u8),
        Some(log_size) => qpc::LOG_SQ_SIZE.put(place, log_size),
    }
}

/// What has become of it.
fn describe_state(now: &QpAttributes, place: &mut [u8]) {
    // `MLX5_QP_STATE_*`.
    let state = match now.state {
        QpState::Reset => 0u8,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Err => 6,
    };
    qpc::STATE.put(place, state);
    qpc::PM_STATE.put(place, qpc::PM_MIGRATED);
    qpc::MTU.put(place, now.path_mtu as u64);
    qpc::LOG_MSG_MAX.put(place, LIMITS.max_message.ilog2());
    qpc::REMOTE_QPN.put(place, now.dest_qpn);
    qpc::NEXT_SEND_PSN.put(place, now.sq_psn);
    qpc::NEXT_RCV_PSN.put(place, now.rq_psn);
    qpc::LOG_SRA_MAX.put(place, now.max_rd_atomic.max(1).ilog2());
    qpc::LOG_RRA_MAX.put(place, now.max_dest_rd_atomic.max(1).ilog2());
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
