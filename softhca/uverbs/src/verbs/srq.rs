//! Shared receive queues.

use super::cq::check_memory;
use crate::attributes::Request;
use crate::context::{Context, Object, Objects};
use crate::errno::{Errno, Result};
use crate::events::routes::Route;
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::mlx5::{CreateSrq, CreateSrqResp};
use crate::uapi::queues::{
    ModifySrq, QuerySrq, QuerySrqResp, SRQ_LIMIT, SRQ_MAX_WR, SRQT_BASIC, SRQT_TM, SRQT_XRC,
};
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::SEGMENT;
use softhca::card::{LIMITS, SrqConfig, XrcConfig};
use zerocopy::FromZeros;

/// Bytes of a doorbell record: one word.
const RECORD: u64 = 4;

pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[
        attr::HANDLE,
        attr::SRQ_PD,
        attr::SRQ_XRCD,
        attr::SRQ_CQ,
        attr::SRQ_USER_HANDLE,
        attr::SRQ_MAX_WR,
        attr::SRQ_MAX_SGE,
        attr::SRQ_LIMIT,
        attr::SRQ_TYPE,
        attr::SRQ_EVENT_FD,
        attr::SRQ_RESP_MAX_WR,
        attr::SRQ_RESP_MAX_SGE,
        attr::SRQ_RESP_NUM,
        attr::UHW_IN,
        attr::UHW_OUT,
    ])?;
    let asked: CreateSrq = request.structure(attr::UHW_IN)?;
    let kind = request.number(attr::SRQ_TYPE)?;
    if ![SRQT_BASIC, SRQT_XRC].contains(&kind) || asked.flags != 0 {
        tracing::warn!(
            kind,
            asked.flags,
            "ibv_create_srq: the software card has IBV_SRQT_BASIC and IBV_SRQT_XRC, without MLX5_SRQ_SIGNATURE"
        );
        return Err(if kind > SRQT_TM { Errno::INVALID } else { Errno::NOT_SUPPORTED });
    }
    let (max_wr, max_sge) = (request.number32(attr::SRQ_MAX_WR)?, request.number32(attr::SRQ_MAX_SGE)?);
    if max_wr >= LIMITS.max_srq_entries || max_sge > LIMITS.max_srq_sge {
        tracing::warn!(max_wr, max_sge, "more than the card's max_srq_wr or max_srq_sge");
        return Err(Errno::INVALID);
    }
    // libmlx5 does not pass the stride; the driver also computes it this way.
    let (entries, stride) = ((max_wr + 1).next_power_of_two(), recv::linked_stride(max_sge));
    check_memory(asked.buf_addr, u64::from(entries) * u64::from(stride), SEGMENT as u64)?;
    check_memory(asked.db_addr, RECORD, RECORD)?;
    let user_handle = request.number(attr::SRQ_USER_HANDLE)?;
    let mut objects = context.objects.lock();
    let config = SrqConfig {
        pdn: objects.number(object::PD, request.handle(attr::SRQ_PD)?)?,
        ring: asked.buf_addr as *mut u8,
        entries,
        stride,
        dbrec: asked.db_addr as *mut u32,
        cyclic: false,
        xrc: if kind == SRQT_XRC { Some(xrc(&objects, request, &asked)?) } else { None },
    };
    // SAFETY: `check_memory` found ring and record mapped and aligned; libmlx5 keeps them mapped until it has
    // destroyed the queue.
    let number = unsafe { context.card().create_srq(&config) }?;
    let route = Route::new(user_handle, None, context.async_events.clone());
    context.open.routes.add(Resource::Srq(number), route);
    let handle = objects.add(Object::new(object::SRQ, Resource::Srq(number)));
    drop(objects);
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::SRQ_RESP_MAX_WR, &(entries - 1))?;
    request.answer_with(attr::SRQ_RESP_MAX_SGE, &recv::linked_segments(stride))?;
    request.answer_with(attr::SRQ_RESP_NUM, &number)?;
    request.answer_with(attr::UHW_OUT, &CreateSrqResp { srqn: number, ..CreateSrqResp::new_zeroed() })
}

fn xrc(objects: &Objects, request: &Request, asked: &CreateSrq) -> Result<XrcConfig> {
    Ok(XrcConfig {
        xrcd: objects.number(object::XRCD, request.handle(attr::SRQ_XRCD)?)?,
        cqn: objects.number(object::CQ, request.handle(attr::SRQ_CQ)?)?,
        user_index: asked.uidx & 0xff_ffff,
    })
}

/// `DESTROY`: answers the count of the queue's events that the program has read.
pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    let reported = context.destroy(object::SRQ, request.handle(attr::HANDLE)?)?;
    request.answer_with(attr::DESTROY_RESP, &reported.asynchronous)
}

/// `MODIFY_SRQ`: arms the limit. As with the driver, the size does not change.
pub(crate) fn modify(context: &Context, request: &Request) -> Result<()> {
    let asked: ModifySrq = request.structure(attr::CORE_IN)?;
    if asked.attr_mask & SRQ_MAX_WR != 0 {
        tracing::warn!("a shared receive queue keeps its size (IBV_SRQ_MAX_WR)");
        return Err(Errno::INVALID);
    }
    if asked.attr_mask & SRQ_LIMIT != 0 {
        let number = context.objects.lock().number(object::SRQ, asked.srq_handle)?;
        context.card().set_srq_limit(number, asked.srq_limit)?;
    }
    Ok(())
}

pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let asked: QuerySrq = request.structure(attr::CORE_IN)?;
    let number = context.objects.lock().number(object::SRQ, asked.srq_handle)?;
    let now = context.card().query_srq(number)?;
    let answer = QuerySrqResp {
        max_wr: now.entries - 1,
        max_sge: recv::linked_segments(now.stride),
        srq_limit: now.limit,
        ..QuerySrqResp::new_zeroed()
    };
    request.answer_with(attr::CORE_OUT, &answer)
}
