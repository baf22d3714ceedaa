//! Shared receive queues.

use super::cq::check_memory;
use crate::attributes::Request;
use crate::context::{Context, Object, Objects};
use crate::errno::{Errno, Result};
use crate::events::routes::Route;
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::mlx5::{CreateSrq, CreateSrqResp};
use crate::uapi::queues::{ModifySrq, QuerySrq, QuerySrqResp, SRQ_LIMIT, SRQ_MAX_WR, SRQT_BASIC, SRQT_XRC};
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::SEGMENT;
use softhca::card::{LIMITS, SrqConfig, XrcConfig};
use zerocopy::FromZeros;

/// Bytes of a doorbell record: one word.
const RECORD: u64 = 4;

/// The state of a shared receive queue.
pub(crate) struct Srq {
    number: u32,
    /// As the program asked: the driver does not tell how many fit.
    max_sge: u32,
    pub(crate) is_xrc: bool,
}

pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    let asked: CreateSrq = request.structure(attr::UHW_IN)?;
    let kind = request.number(attr::SRQ_TYPE)?;
    let (max_wr, max_sge) = (request.number32(attr::SRQ_MAX_WR)?, request.number32(attr::SRQ_MAX_SGE)?);
    let user_handle = request.number(attr::SRQ_USER_HANDLE)?;
    let mut objects = context.objects.lock();
    let pdn = objects.number(object::PD, request.handle(attr::SRQ_PD)?)?;
    let (xrc, uses) = if kind == SRQT_XRC { xrc(&objects, request, &asked)? } else { (None, Vec::new()) };
    if ![SRQT_BASIC, SRQT_XRC].contains(&kind) || (asked.reserved0, asked.reserved1) != (0, 0) {
        // Without the capability, the driver finds a list of tags too long (`mlx5_ib_create_srq`).
        tracing::warn!(kind, "ibv_create_srq: the software card has IBV_SRQT_BASIC and IBV_SRQT_XRC");
        return Err(Errno::INVALID);
    }
    if asked.flags != 0 {
        tracing::warn!(asked.flags, "ibv_create_srq: the software card has no MLX5_SRQ_SIGNATURE");
        return Err(Errno::NOT_SUPPORTED);
    }
    if max_wr >= LIMITS.max_srq_entries || max_sge > LIMITS.max_srq_sge {
        tracing::warn!(max_wr, max_sge, "more than the card's max_srq_wr or max_srq_sge");
        return Err(Errno::INVALID);
    }
    // libmlx5 does not pass the stride; the driver also computes it this way.
    let (entries, stride) = ((max_wr + 1).next_power_of_two(), recv::linked_stride(max_sge));
    check_memory(asked.buf_addr, u64::from(entries) * u64::from(stride), SEGMENT as u64)?;
    check_memory(asked.db_addr, RECORD, RECORD)?;
    let config = SrqConfig {
        pdn,
        ring: asked.buf_addr as *mut u8,
        entries,
        stride,
        dbrec: asked.db_addr as *mut u32,
        cyclic: false,
        xrc,
    };
    // SAFETY: `check_memory` found ring and record mapped and aligned; libmlx5 keeps them mapped until it has
    // destroyed the queue.
    let number = unsafe { context.card().create_srq(&config) }?;
    let route = Route::new(user_handle, None, context.async_events.clone());
    context.open.routes.add(Resource::Srq(number), route);
    let srq = Object::new(object::SRQ, Resource::Srq(number)).with(Srq {
        number,
        max_sge,
        is_xrc: kind == SRQT_XRC,
    });
    let handle = objects.add(srq.using(uses));
    drop(objects);
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::SRQ_RESP_MAX_WR, &(entries - 1))?;
    request.answer_with(attr::SRQ_RESP_MAX_SGE, &max_sge)?;
    request.answer_with(attr::SRQ_RESP_NUM, &number)?;
    request.answer_with(attr::UHW_OUT, &CreateSrqResp { srqn: number, ..CreateSrqResp::new_zeroed() })
}

/// Returns the relations of an XRC queue, and the handle that must outlive it. A missing object is ENOENT.
fn xrc(objects: &Objects, request: &Request, asked: &CreateSrq) -> Result<(Option<XrcConfig>, Vec<u32>)> {
    if !request.has(attr::SRQ_CQ) || !request.has(attr::SRQ_XRCD) {
        return Err(Errno::NO_ENTRY);
    }
    let domain = request.handle(attr::SRQ_XRCD)?;
    let config = XrcConfig {
        xrcd: objects.number(object::XRCD, domain)?,
        cqn: objects.number(object::CQ, request.handle(attr::SRQ_CQ)?)?,
        user_index: asked.uidx & 0xff_ffff,
    };
    Ok((Some(config), vec![domain]))
}

/// `DESTROY`: answers the count of the queue's events that the program has read.
pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    let reported = context.destroy(object::SRQ, request.handle(attr::HANDLE)?)?;
    request.answer_with(attr::DESTROY_RESP, &reported.asynchronous)
}

/// `MODIFY_SRQ`: arms the limit. As with the driver, the size does not change.
pub(crate) fn modify(context: &Context, request: &Request) -> Result<()> {
    let asked: ModifySrq = request.structure(attr::CORE_IN)?;
    let number = context.objects.lock().number(object::SRQ, asked.srq_handle)?;
    if asked.attr_mask & SRQ_MAX_WR != 0 {
        tracing::warn!("a shared receive queue keeps its size (IBV_SRQ_MAX_WR)");
        return Err(Errno::INVALID);
    }
    if asked.attr_mask & SRQ_LIMIT != 0 {
        context.card().set_srq_limit(number, asked.srq_limit)?;
    }
    Ok(())
}

pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let asked: QuerySrq = request.structure(attr::CORE_IN)?;
    let objects = context.objects.lock();
    let srq = objects.state::<Srq>(asked.srq_handle)?;
    let now = context.card().query_srq(srq.number)?;
    let answer = QuerySrqResp {
        max_wr: now.entries - 1,
        max_sge: srq.max_sge,
        srq_limit: now.limit,
        ..QuerySrqResp::new_zeroed()
    };
    request.answer_with(attr::CORE_OUT, &answer)
}
