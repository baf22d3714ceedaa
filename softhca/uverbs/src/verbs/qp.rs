//! Queue pairs: creation with the checks of the kernel and of the mlx5 driver, and destruction.

use super::cq::{RECORD, check_memory};
use super::derived::{Rights, ece};
use super::port::PORT;
use crate::attributes::Request;
use crate::context::{Context, Object, Objects};
use crate::errno::{Errno, Result};
use crate::events::routes::Route;
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::mlx5::{
    CreateQp, CreateQpResp, QP_ALLOW_SCATTER_CQE, QP_DC_INITIATOR, QP_DC_TARGET, QP_SCATTER_CQE, QP_SUPPORTED,
};
use crate::uapi::queues::{
    OpenQp, OpenQpResp, QP_CREATE_BLOCK_MULTICAST_LOOPBACK, QP_CREATE_KNOWN, QP_CREATE_OF_RAW_PACKETS,
    QP_CREATE_SQ_SIG_ALL, QPT_DRIVER, QPT_RAW_PACKET, QPT_RC, QPT_UC, QPT_UD, QPT_XRC_INI, QPT_XRC_TGT,
    QpCap, QpDest,
};
use crate::{calls, privilege};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::wqe::SEGMENT;
use softhca::card::{Address, LIMITS, QpConfig, QpState, ScatterToCqe, Transport};
use std::mem::offset_of;
use zerocopy::FromZeros;

/// Bytes of a basic block of the send queue.
pub(crate) const BLOCK: u64 = 64;
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) config: QpConfig,
    pub(super) cap: QpCap,
    /// libmlx5 asks for an entry of each send.
    pub(super) signal_all: bool,
    pub(super) rights: Rights,
    /// The attached multicast groups: GID and LID.
    pub(super) groups: Vec<([u8; 16], u16)>,
    /// The UDP source port that a DEVX command has set.
    pub(crate) source_port: u16,
    /// The program's structure, of which the card keeps only a part.
    pub(super) destination: QpDest,
}

impl Qp {
    fn new(number: u32, config: QpConfig, cap: QpCap, signal_all: bool) -> Self {
        let (rights, groups, destination) = (Rights::default(), Vec::new(), QpDest::new_zeroed());
        Qp { number, config, cap, signal_all, rights, groups, source_port: 0, destination }
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
    let kind = request.number(attr::QP_TYPE)?;
    check_type(kind)?;
    let named = |list: &[u16]| list.iter().any(|id| request.has(*id));
    let (of_targets, of_others) =
        (&[attr::QP_XRCD][..], &[attr::QP_PD, attr::QP_SEND_CQ, attr::QP_RECV_CQ][..]);
    let misplaced = if kind == QPT_XRC_TGT { of_others } else { of_targets };
    if named(misplaced) || kind == QPT_XRC_INI && named(&[attr::QP_SRQ]) {
        tracing::warn!(kind, "ibv_create_qp: objects that queue pairs of this type do not have");
        return Err(Errno::INVALID);
    }
    let flags = request.optional_number(attr::QP_FLAGS)?.unwrap_or(0);
    check_flags(kind, flags, request.has(attr::QP_SOURCE_QPN))?;
    let asked: CreateQp = request.structure(attr::UHW_IN)?;
    // `process_udata_size` and `check_ucmd_data` of the driver.
    if request.len(attr::UHW_IN) < offset_of!(CreateQp, ece_options) || asked.reserved != 0 {
        return Err(Errno::INVALID);
    }
    let cap = request.structure(attr::QP_CAP)?;
    let signal_all = flags & QP_CREATE_SQ_SIG_ALL != 0;
    let transport = transport_of(kind, asked.flags)?;
    let QpCap { max_recv_wr, max_recv_sge, .. } = cap;
    if transport == Transport::DcInitiator && (max_recv_wr, max_recv_sge) != (0, 0) {
        tracing::warn!(max_recv_wr, max_recv_sge, "a DC initiator has no receives");
        return Err(Errno::INVALID);
    }
    let cap = granted(&cap, &asked);
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
    let uses = if config.xrcd.is_some() { vec![request.handle(attr::QP_XRCD)?] } else { Vec::new() };
    let handle = objects.add(Object::new(object::QP, Resource::Qp(number)).with(qp).using(uses));
    drop(objects);
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::QP_RESP_CAP, &cap)?;
    request.answer_with(attr::QP_RESP_NUM, &number)?;
    let ece_options = ece(context, asked.ece_options);
    let answer = CreateQpResp { bfreg_index: asked.bfreg_index, ece_options, ..CreateQpResp::new_zeroed() };
    request.answer_with(attr::UHW_OUT, &answer)
}

/// Returns the granted capacities. The receive capacity is that of the ring that libmlx5 has allocated, which
/// also tracks the send queue.
fn granted(cap: &QpCap, asked: &CreateQp) -> QpCap {
    let stride = 1u32.checked_shl(asked.rq_wqe_shift).unwrap_or(0);
    let max_recv_sge = if asked.rq_wqe_count == 0 { 0 } else { stride / SEGMENT as u32 };
    QpCap { max_recv_wr: asked.rq_wqe_count, max_recv_sge, ..*cap }
}

/// Refuses types as the core does, before it looks at anything else.
fn check_type(kind: u64) -> Result<()> {
    if [QPT_RC, QPT_UC, QPT_UD, QPT_XRC_INI, QPT_XRC_TGT, QPT_DRIVER].contains(&kind) {
        return Ok(());
    }
    let qp_type = calls::of_qp_type(kind);
    tracing::warn!(qp_type, "the software card has queue pairs of the types RC, UC, UD, XRC and DC");
    Err(match kind {
        QPT_RAW_PACKET if privilege::has(privilege::NET_RAW) => Errno::NOT_SUPPORTED,
        QPT_RAW_PACKET => Errno(libc::EPERM),
        _ => Errno::INVALID,
    })
}

/// Refuses flags as the core (`check_creation_flags`) and the driver (`process_create_flags`) do.
fn check_flags(kind: u64, flags: u64, has_source: bool) -> Result<()> {
    let flags = flags & !QP_CREATE_SQ_SIG_ALL;
    let unsupported = flags & !QP_CREATE_BLOCK_MULTICAST_LOOPBACK;
    let is_known = unsupported & !QP_CREATE_KNOWN == 0;
    let fits = flags == 0 || kind == QPT_DRIVER || kind == QPT_UD && flags & QP_CREATE_OF_RAW_PACKETS == 0;
    if is_known && fits && unsupported == 0 && !has_source {
        return Ok(());
    }
    let create_flags = calls::of_bits(flags, calls::QP_CREATE);
    tracing::warn!(create_flags, has_source, "ibv_create_qp: not on this type, or not on the software card");
    Err(if is_known && fits { Errno::NOT_SUPPORTED } else { Errno::INVALID })
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
            tracing::warn!(qp_type, "ibv_create_qp: one type of the driver must be named");
            // As in `process_vendor_flags` of the driver.
            Err(Errno::INVALID)
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
    let largest = LIMITS.max_qp_wr;
    if asked.sq_wqe_count > largest || asked.rq_wqe_count > largest || asked.rq_wqe_shift > 16 {
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
    // What the core looks up even where the device does not use it. A missing object is ENOENT.
    let needed = |id, kind, is_needed| match number(id, kind)? {
        None if is_needed => Err(Errno::NO_ENTRY),
        number => Ok(number),
    };
    let is_xrc_target = transport == Transport::XrcTarget;
    let is_initiator = matches!(transport, Transport::DcInitiator | Transport::XrcInitiator);
    Ok(QpConfig {
        pdn: needed(attr::QP_PD, object::PD, !is_xrc_target)?,
        send_cq: needed(attr::QP_SEND_CQ, object::CQ, !is_xrc_target)?.filter(|_| !is_target),
        recv_cq: needed(attr::QP_RECV_CQ, object::CQ, has_receives || is_dc)?.filter(|_| !is_initiator),
        srq: number(attr::QP_SRQ, object::SRQ)?.filter(|_| !is_initiator),
        xrcd: needed(attr::QP_XRCD, object::XRCD, is_xrc_target)?,
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
    let opened = Object::new(object::QP, Resource::Qp(number)).with(qp).using([asked.pd_handle]);
    let qp_handle = objects.add(opened);
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

/// `IBV_QPS_*`. DEVX's `MLX5_QP_STATE_*` has the same codes for these states.
pub(crate) fn code_of(state: QpState) -> u8 {
    state.to_ibv() as u8
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
