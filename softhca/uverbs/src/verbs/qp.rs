//! Queue pairs.

use super::ah;
use super::cq::{RECORD, check_memory};
use super::port::PORT;
use crate::attributes::Request;
use crate::calls;
use crate::context::{Context, Object, Objects};
use crate::errno::{Errno, Result};
use crate::events::routes::Route;
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::mlx5::{
    CreateQp, CreateQpResp, ModifyQpResp, QP_ALLOW_SCATTER_CQE, QP_DC_INITIATOR, QP_DC_TARGET,
    QP_SCATTER_CQE, QP_SUPPORTED,
};
use crate::uapi::queues::{
    ModifyQp, OpenQp, OpenQpResp, QP_CREATE_BLOCK_MULTICAST_LOOPBACK, QP_CREATE_KNOWN, QP_CREATE_SQ_SIG_ALL,
    QPT_DRIVER, QPT_RC, QPT_UC, QPT_UD, QPT_XRC_INI, QPT_XRC_TGT, QpCap, QpDest, QueryQp, QueryQpResp,
};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::wqe::SEGMENT;
use gdsync_sys::verbs as ibv;
use softhca::card::{Access, Address, QpAttributes, QpChange, QpConfig, QpState, ScatterToCqe, Transport};
use zerocopy::FromZeros;

/// Bytes of a basic block of the send queue.
pub(crate) const BLOCK: u64 = 64;
/// Limit on the basic blocks or entries of a queue. It bounds the arithmetic here; the card checks its own limits.
const LARGEST: u32 = 1 << 16;

pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) config: QpConfig,
    cap: QpCap,
    /// libmlx5 asks for an entry of each send.
    signal_all: bool,
    /// The attached multicast groups: GID and LID.
    pub(super) groups: Vec<([u8; 16], u16)>,
    /// The program's structure, of which the card keeps only a part.
    destination: QpDest,
}

impl Qp {
    fn new(number: u32, config: QpConfig, cap: QpCap, signal_all: bool) -> Self {
        Qp { number, config, cap, signal_all, groups: Vec::new(), destination: QpDest::new_zeroed() }
    }

    /// Records the path that a DEVX command has set; `None` after a reset.
    pub(crate) fn set_path(&mut self, address: Option<&Address>) {
        self.destination = QpDest::new_zeroed();
        if let Some(address) = address {
            self.destination.dlid = address.dlid;
            self.destination.is_global = address.gid.is_some().into();
            self.destination.dgid = address.gid.unwrap_or_default();
            self.destination.port_num = PORT;
        }
    }
}

pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[
        attr::HANDLE,
        attr::QP_XRCD,
        attr::QP_PD,
        attr::QP_SRQ,
        attr::QP_SEND_CQ,
        attr::QP_RECV_CQ,
        attr::QP_USER_HANDLE,
        attr::QP_CAP,
        attr::QP_TYPE,
        attr::QP_FLAGS,
        attr::QP_EVENT_FD,
        attr::QP_RESP_CAP,
        attr::QP_RESP_NUM,
        attr::UHW_IN,
        attr::UHW_OUT,
    ])?;
    let flags = request.optional_number(attr::QP_FLAGS)?.unwrap_or(0);
    let unsupported = flags & !(QP_CREATE_SQ_SIG_ALL | QP_CREATE_BLOCK_MULTICAST_LOOPBACK);
    if unsupported != 0 {
        let create_flags = calls::of_bits(unsupported, calls::QP_CREATE);
        tracing::warn!(create_flags, "ibv_create_qp: the software card does not have this");
        // The core knows some flags that the driver does not support.
        let is_known = unsupported & !QP_CREATE_KNOWN == 0;
        return Err(if is_known { Errno::NOT_SUPPORTED } else { Errno::INVALID });
    }
    let asked: CreateQp = request.structure(attr::UHW_IN)?;
    let cap = granted(&request.structure(attr::QP_CAP)?, &asked);
    let signal_all = flags & QP_CREATE_SQ_SIG_ALL != 0;
    let transport = transport_of(request.number(attr::QP_TYPE)?, asked.flags)?;
    let user_handle = request.number(attr::QP_USER_HANDLE)?;
    let mut objects = context.objects.lock();
    let block_own_multicast = flags & QP_CREATE_BLOCK_MULTICAST_LOOPBACK != 0;
    let config = config(&objects, request, &asked, transport, signal_all)?;
    let scatter = ScatterToCqe { requests: holds_results(context, &config)?, ..config.scatter };
    let config = QpConfig { block_own_multicast, scatter, ..config };
    // SAFETY: `config` found rings and record mapped and aligned; libmlx5 keeps them mapped until it has
    // destroyed the queue pair.
    let number = unsafe { context.card().create_qp(&config) }?;
    let route = Route::new(user_handle, None, context.async_events.clone());
    context.open.routes.add(Resource::Qp(number), route);
    let qp = Qp::new(number, config, cap, signal_all);
    let handle = objects.add(Object::new(object::QP, Resource::Qp(number)).with(qp));
    drop(objects);
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::QP_RESP_CAP, &cap)?;
    request.answer_with(attr::QP_RESP_NUM, &number)?;
    let answer = CreateQpResp { bfreg_index: asked.bfreg_index, ..CreateQpResp::new_zeroed() };
    request.answer_with(attr::UHW_OUT, &answer)
}

/// Returns the granted capacities. The receive capacity is that of the ring that libmlx5 has allocated, which
/// also tracks the send queue.
fn granted(cap: &QpCap, asked: &CreateQp) -> QpCap {
    let stride = 1u32.checked_shl(asked.rq_wqe_shift).unwrap_or(0);
    let max_recv_sge = if asked.rq_wqe_count == 0 { 0 } else { stride / SEGMENT as u32 };
    QpCap { max_recv_wr: asked.rq_wqe_count, max_recv_sge, ..*cap }
}

fn transport_of(code: u64, flags: u32) -> Result<Transport> {
    match code {
        QPT_RC => Ok(Transport::Rc),
        QPT_UC => Ok(Transport::Uc),
        QPT_UD => Ok(Transport::Ud),
        QPT_XRC_INI => Ok(Transport::XrcInitiator),
        QPT_XRC_TGT => Ok(Transport::XrcTarget),
        QPT_DRIVER if flags & (QP_DC_TARGET | QP_DC_INITIATOR) == QP_DC_TARGET => Ok(Transport::DcTarget),
        QPT_DRIVER if flags & (QP_DC_TARGET | QP_DC_INITIATOR) == QP_DC_INITIATOR => {
            Ok(Transport::DcInitiator)
        }
        _ => {
            let qp_type = calls::of_qp_type(code);
            tracing::warn!(qp_type, "the software card has queue pairs of the types RC, UC, UD, XRC and DC");
            // `process_vendor_flags` and `check_qp_type` of the driver.
            Err(if code == QPT_DRIVER { Errno::INVALID } else { Errno::NOT_SUPPORTED })
        }
    }
}

fn config(
    objects: &Objects,
    request: &Request,
    asked: &CreateQp,
    transport: Transport,
    signal_all: bool,
) -> Result<QpConfig> {
    let is_dc = matches!(transport, Transport::DcInitiator | Transport::DcTarget);
    let supported = if is_dc { QP_SUPPORTED | QP_DC_INITIATOR | QP_DC_TARGET } else { QP_SUPPORTED };
    if asked.flags & !supported != 0 {
        let flags = calls::of_bits(asked.flags & !supported, calls::QP_MLX5);
        tracing::warn!(flags, "mlx5dv_create_qp: the software card does not have this");
        // As in `process_vendor_flags` for a card without a capability.
        return Err(Errno::INVALID);
    }
    if asked.sq_wqe_count > LARGEST || asked.rq_wqe_count > LARGEST || asked.rq_wqe_shift > 16 {
        return Err(Errno::INVALID);
    }
    let receive_bytes = u64::from(asked.rq_wqe_count) << asked.rq_wqe_shift;
    let send_bytes = u64::from(asked.sq_wqe_count) * BLOCK;
    let ring = asked.buf_addr;
    if receive_bytes + send_bytes > 0 {
        check_memory(ring, receive_bytes + send_bytes, BLOCK)?;
    }
    if transport != Transport::DcTarget {
        check_memory(asked.db_addr, RECORD, RECORD)?;
    }
    let is_target = matches!(transport, Transport::XrcTarget | Transport::DcTarget);
    let has_receives = matches!(transport, Transport::Rc | Transport::Uc | Transport::Ud);
    let uar = (!is_target).then_some(asked.bfreg_index);
    if uar.is_some_and(|uar| !objects.has(Resource::Uar(uar))) {
        return Err(Errno::INVALID);
    }
    let number = |id, kind| match request.has(id) {
        true => objects.number(kind, request.handle(id)?).map(Some),
        false => Ok(None),
    };
    Ok(QpConfig {
        pdn: number(attr::QP_PD, object::PD)?,
        // Programs also name queues that DC does not have.
        send_cq: number(attr::QP_SEND_CQ, object::CQ)?.filter(|_| !is_target),
        recv_cq: number(attr::QP_RECV_CQ, object::CQ)?.filter(|_| transport != Transport::DcInitiator),
        srq: number(attr::QP_SRQ, object::SRQ)?.filter(|_| transport != Transport::DcInitiator),
        xrcd: number(attr::QP_XRCD, object::XRCD)?,
        dc_key: if transport == Transport::DcTarget { asked.sq_buf_addr } else { 0 },
        uar,
        // The receive queue comes first in the buffer.
        sq: (ring + receive_bytes) as *mut u8,
        // Programs may ask for receives that XRC does not have, for which libmlx5 leaves room.
        sq_blocks: if is_target { 0 } else { asked.sq_wqe_count },
        rq: ring as *mut u8,
        rq_entries: if has_receives { asked.rq_wqe_count } else { 0 },
        rq_stride: 1 << asked.rq_wqe_shift,
        dbrec: asked.db_addr as *mut u32,
        // libmlx5 has no index for a target of XRC, only for its shared queues.
        user_index: (transport != Transport::XrcTarget).then_some(asked.uidx & 0xff_ffff),
        scatter: scatter(asked.flags, transport, signal_all),
        ..QpConfig::new(transport)
    })
}

/// `OPEN_QP`: another handle of an XRC target, which lives until the last one is destroyed.
pub(crate) fn open(context: &Context, request: &Request) -> Result<()> {
    let asked: OpenQp = request.structure(attr::CORE_IN)?;
    if u64::from(asked.qp_type) != QPT_XRC_TGT {
        tracing::warn!(asked.qp_type, "only targets of XRC can be opened (10)");
        return Err(Errno::INVALID);
    }
    let mut objects = context.objects.lock();
    let xrcd = objects.number(object::XRCD, asked.pd_handle)?;
    let (number, cap) = (asked.qpn, QpCap::new_zeroed());
    let config = context.card().open_qp(number, xrcd)?;
    let mut qp = Qp::new(number, config, cap, false);
    qp.set_path(Some(&context.card().query_qp(number)?.address));
    let qp_handle = objects.add(Object::new(object::QP, Resource::Qp(number)).with(qp));
    drop(objects);
    let answer = OpenQpResp { qp_handle, qpn: number, cap, reserved: 0 };
    request.answer_with(attr::CORE_OUT, &answer)
}

/// Returns the small data in completion entries, by libmlx5's flags.
fn scatter(flags: u32, transport: Transport, signal_all: bool) -> ScatterToCqe {
    if flags & QP_SCATTER_CQE == 0 {
        return ScatterToCqe::default();
    }
    ScatterToCqe::of_verbs(transport, signal_all || flags & QP_ALLOW_SCATTER_CQE != 0)
}

/// Returns whether completion entries hold small results. Entries of 128 bytes do not: libmlx5 would copy them from the
/// byte before their place (`mlx5_parse_cqe` of its `cq.c`). The card then uses memory, which is permitted.
fn holds_results(context: &Context, config: &QpConfig) -> Result<bool> {
    match config.send_cq.filter(|_| config.scatter.requests) {
        Some(cqn) => Ok(context.card().query_cq(cqn)?.stride as usize == CQE_SIZE),
        None => Ok(false),
    }
}

/// `DESTROY`: answers the count of the queue pair's events that the program has read.
///
/// # Errors
/// EBUSY while it is attached to multicast groups, and those of [`Context::destroy`].
pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    let handle = request.handle(attr::HANDLE)?;
    if context.objects.lock().state::<Qp>(handle).is_ok_and(|qp| !qp.groups.is_empty()) {
        tracing::warn!(handle, "a queue pair is attached to multicast groups: detach it first");
        return Err(Errno::BUSY);
    }
    let reported = context.destroy(object::QP, handle)?;
    request.answer_with(attr::DESTROY_RESP, &reported.asynchronous)
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
    let mut objects = context.objects.lock();
    let qp = objects.state_mut::<Qp>(asked.qp_handle)?;
    let asked = ModifyQp { attr_mask: asked.attr_mask & !ignored(qp.config.transport), ..asked };
    let change = change_of(context, &asked)?;
    context.card().modify_qp(qp.number, &change)?;
    if change.address.is_some() {
        qp.destination = asked.dest;
    }
    if change.state == Some(QpState::Reset) {
        qp.destination = QpDest::new_zeroed();
    }
    let (number, transport) = (qp.number, qp.config.transport);
    drop(objects);
    let dctn = if transport == Transport::DcTarget { number } else { 0 };
    let response_length = size_of::<ModifyQpResp>() as u32;
    let answer = ModifyQpResp { response_length, dctn, ..ModifyQpResp::new_zeroed() };
    request.answer_with(attr::UHW_OUT, &answer)
}

/// Attributes that the card does not support: drained queues, resizing, pacing. No change of state of these
/// types has them (`qp_state_table` of the core).
const UNSUPPORTED: u32 = ibv::IBV_QP_EN_SQD_ASYNC_NOTIFY | ibv::IBV_QP_CAP | ibv::IBV_QP_RATE_LIMIT;

/// Returns the attributes that the kernel ignores, as only the other side of XRC has them (`modify_qp_mask`).
fn ignored(transport: Transport) -> u32 {
    match transport {
        Transport::XrcInitiator => ibv::IBV_QP_MAX_DEST_RD_ATOMIC | ibv::IBV_QP_MIN_RNR_TIMER,
        Transport::XrcTarget => ibv::IBV_QP_MAX_QP_RD_ATOMIC | ibv::IBV_QP_RETRY_CNT | ibv::IBV_QP_RNR_RETRY,
        _ => 0,
    }
}

fn change_of(context: &Context, asked: &ModifyQp) -> Result<QpChange> {
    let has = |bit| asked.attr_mask & bit != 0;
    if has(UNSUPPORTED) {
        let attr_mask = calls::of_bits(asked.attr_mask & UNSUPPORTED, calls::QP_ATTRIBUTES);
        tracing::warn!(attr_mask, "ibv_modify_qp: the software card does not have this");
        return Err(Errno::INVALID);
    }
    if has(ibv::IBV_QP_AV) && asked.dest.port_num != PORT {
        tracing::warn!(
            port_num = asked.dest.port_num,
            "ibv_modify_qp: ah_attr.port_num is not the port's number, 1"
        );
        return Err(Errno::INVALID);
    }
    let access = has(ibv::IBV_QP_ACCESS_FLAGS)
        .then(|| Access::from_bits(asked.qp_access_flags).ok_or(Errno::INVALID))
        .transpose()?;
    Ok(QpChange {
        state: has(ibv::IBV_QP_STATE).then(|| state_of(asked.qp_state)).transpose()?,
        current: has(ibv::IBV_QP_CUR_STATE).then(|| state_of(asked.cur_qp_state)).transpose()?,
        pkey_index: has(ibv::IBV_QP_PKEY_INDEX).then_some(asked.pkey_index),
        port: has(ibv::IBV_QP_PORT).then_some(asked.port_num),
        qkey: has(ibv::IBV_QP_QKEY).then_some(asked.qkey),
        access,
        address: has(ibv::IBV_QP_AV).then(|| ah::address_of(context.card(), &asked.dest)).transpose()?,
        path_mtu: has(ibv::IBV_QP_PATH_MTU).then_some(asked.path_mtu.into()),
        dest_qpn: has(ibv::IBV_QP_DEST_QPN).then_some(asked.dest_qp_num),
        rq_psn: has(ibv::IBV_QP_RQ_PSN).then_some(asked.rq_psn),
        sq_psn: has(ibv::IBV_QP_SQ_PSN).then_some(asked.sq_psn),
        max_rd_atomic: has(ibv::IBV_QP_MAX_QP_RD_ATOMIC).then_some(asked.max_rd_atomic),
        max_dest_rd_atomic: has(ibv::IBV_QP_MAX_DEST_RD_ATOMIC).then_some(asked.max_dest_rd_atomic),
        min_rnr_timer: has(ibv::IBV_QP_MIN_RNR_TIMER).then_some(asked.min_rnr_timer),
        timeout: has(ibv::IBV_QP_TIMEOUT).then_some(asked.timeout),
        retry_cnt: has(ibv::IBV_QP_RETRY_CNT).then_some(asked.retry_cnt),
        rnr_retry: has(ibv::IBV_QP_RNR_RETRY).then_some(asked.rnr_retry),
        path_migration: has(ibv::IBV_QP_PATH_MIG_STATE),
        alternate_path: has(ibv::IBV_QP_ALT_PATH),
    })
}

fn state_of(code: u8) -> Result<QpState> {
    // Also for SQD: the driver has no command for it (`optab` of `__mlx5_ib_modify_qp`).
    QpState::from_ibv(code.into()).ok_or(Errno::INVALID)
}

/// `IBV_QPS_*`. DEVX's `MLX5_QP_STATE_*` has the same codes for these states.
pub(crate) fn code_of(state: QpState) -> u8 {
    state.to_ibv() as u8
}

/// `QUERY_QP`: answers all attributes, regardless of the program's mask.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let asked: QueryQp = request.structure(attr::CORE_IN)?;
    let objects = context.objects.lock();
    let qp = objects.state::<Qp>(asked.qp_handle)?;
    let now = context.card().query_qp(qp.number)?;
    request.answer_with(attr::CORE_OUT, &answer_of(qp, &now))
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
        max_rd_atomic: now.max_rd_atomic,
        max_dest_rd_atomic: now.max_dest_rd_atomic,
        min_rnr_timer: now.min_rnr_timer,
        port_num: now.port,
        timeout: now.timeout,
        retry_cnt: now.retry_cnt,
        rnr_retry: now.rnr_retry,
        sq_sig_all: qp.signal_all.into(),
        ..QueryQpResp::new_zeroed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_into_entries_as_the_driver_has_it() {
        let of = |flags, transport, signal_all| {
            let ScatterToCqe { requests, receives } = scatter(flags, transport, signal_all);
            (requests, receives)
        };
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
            for signal_all in [false, true] {
                assert_eq!(of(QP_ALLOW_SCATTER_CQE, transport, signal_all), (false, false));
            }
        }
        assert_eq!(of(QP_SCATTER_CQE, Transport::Rc, false), (false, true));
        assert_eq!(of(QP_SCATTER_CQE, Transport::Rc, true), (true, true));
        assert_eq!(of(QP_SCATTER_CQE | QP_ALLOW_SCATTER_CQE, Transport::Rc, false), (true, true));
        assert_eq!(of(QP_SCATTER_CQE, Transport::Uc, true), (false, true));
        for other in [Transport::Ud, Transport::XrcTarget, Transport::DcInitiator, Transport::DcTarget] {
            assert_eq!(of(QP_SCATTER_CQE, other, true), (false, false), "{other}");
        }
    }
}
