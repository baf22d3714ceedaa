//! The table of entry points, and the entry points that serve several kinds of objects.

use super::ah::Ah;
use super::context::Context;
use super::cq::Cq;
use super::domain::Pd;
use super::errno::{self, Errno};
use super::event_queue::ObjectPointer;
use super::object;
use super::qp::Qp;
use super::srq::Srq;
use super::{ah, context, cq, device, domain, modify, mr, qp, srq};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::{Provider, VerbsTable};
use gdsync_sys::mlx5dv::{
    MLX5DV_OBJ_AH, MLX5DV_OBJ_CQ, MLX5DV_OBJ_PD, MLX5DV_OBJ_QP, MLX5DV_OBJ_SRQ, mlx5dv_obj,
};
use gdsync_sys::verbs::{self, ibv_async_element, ibv_async_event, ibv_context};
use libc::c_int;

const TABLE: VerbsTable = VerbsTable {
    provider: Provider::Software,
    get_device_list: device::get_device_list,
    free_device_list: device::free_device_list,
    get_device_name: device::get_device_name,
    open_device: context::open_device,
    close_device: context::close_device,
    query_device: context::query_device,
    query_port: context::query_port,
    query_gid: context::query_gid,
    query_gid_table: Some(context::query_gid_table),
    alloc_pd: domain::alloc_pd,
    dealloc_pd: domain::dealloc_pd,
    alloc_td: domain::alloc_td,
    dealloc_td: domain::dealloc_td,
    alloc_parent_domain: domain::alloc_parent_domain,
    reg_mr: mr::reg_mr,
    dereg_mr: mr::dereg_mr,
    // GPU memory is registered through peer-memory clients.
    reg_dmabuf_mr: None,
    mlx5dv_create_cq: cq::mlx5dv_create_cq,
    destroy_cq: cq::destroy_cq,
    create_comp_channel: cq::create_comp_channel,
    destroy_comp_channel: cq::destroy_comp_channel,
    get_cq_event: cq::get_cq_event,
    ack_cq_events: cq::ack_cq_events,
    create_srq: srq::create_srq,
    destroy_srq: srq::destroy_srq,
    mlx5dv_create_qp: qp::mlx5dv_create_qp,
    // Programs write to the rings themselves.
    qp_to_qp_ex: None,
    modify_qp: modify::modify_qp,
    query_qp: modify::query_qp,
    destroy_qp: qp::destroy_qp,
    create_ah: ah::create_ah,
    destroy_ah: ah::destroy_ah,
    get_async_event,
    ack_async_event,
    mlx5dv_is_supported: device::mlx5dv_is_supported,
    mlx5dv_init_obj,
    devx_general_cmd: Some(context::general_cmd),
    devx_qp_query: Some(modify::devx_qp_query),
    // Programs that make objects by commands use libmlx5 on `softhca-uverbs`.
    devx: None,
};

// SAFETY: the entries are this module's, which behave as the manual pages of their names require, from any
// thread; C functions of Rust do not unwind.
static API: VerbsApi = unsafe { VerbsApi::new(TABLE) };

/// The software card's entry points.
pub fn verbs_api() -> &'static VerbsApi {
    &API
}

/// `mlx5dv_init_obj`, for one or several kinds of objects. EINVAL for a null pointer, EOPNOTSUPP for kinds
/// that the software card lacks; structs filled before that stay filled.
///
/// # Safety
/// `obj` is null or valid; the entries that `obj_type` selects are null, or name a live object and a valid struct.
pub(super) unsafe extern "C" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int {
    errno::status(|| {
        // SAFETY: guaranteed by the caller.
        let obj = unsafe { object::attributes(obj) }?;
        if obj_type & MLX5DV_OBJ_QP != 0 {
            // SAFETY: guaranteed by the caller.
            let (qp, out) = unsafe { (object::borrow::<Qp>(obj.qp.r#in)?, object::attributes(obj.qp.out)?) };
            qp.describe(out)?;
        }
        if obj_type & MLX5DV_OBJ_CQ != 0 {
            // SAFETY: guaranteed by the caller.
            let (cq, out) = unsafe { (object::borrow::<Cq>(obj.cq.r#in)?, object::attributes(obj.cq.out)?) };
            *out = cq.describe();
        }
        if obj_type & MLX5DV_OBJ_SRQ != 0 {
            // SAFETY: guaranteed by the caller.
            let (srq, out) =
                unsafe { (object::borrow::<Srq>(obj.srq.r#in)?, object::attributes(obj.srq.out)?) };
            srq.describe(out);
        }
        if obj_type & MLX5DV_OBJ_AH != 0 {
            // SAFETY: guaranteed by the caller.
            let (ah, out) = unsafe { (object::borrow::<Ah>(obj.ah.r#in)?, object::attributes(obj.ah.out)?) };
            out.av = ah.vector().cast();
            out.comp_mask = 0;
        }
        if obj_type & MLX5DV_OBJ_PD != 0 {
            // SAFETY: guaranteed by the caller.
            let (pd, out) = unsafe { (object::borrow::<Pd>(obj.pd.r#in)?, object::attributes(obj.pd.out)?) };
            out.pdn = pd.number();
            out.comp_mask = 0;
        }
        let known = MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ | MLX5DV_OBJ_AH | MLX5DV_OBJ_PD;
        if obj_type & !known != 0 {
            return Err(Errno::NOT_SUPPORTED);
        }
        Ok(())
    })
}

/// `ibv_get_async_event`: 0, or -1 with `errno` set.
///
/// # Safety
/// `context` is null or open; `event` is null or valid.
pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    errno::minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (context, event) = unsafe { (object::borrow::<Context>(context)?, object::attributes(event)?) };
        let pending = context.events.next()?;
        // A context's queue has no completions.
        event.event_type = pending.event_type.unwrap_or(-1);
        event.element = match pending.object {
            ObjectPointer::Cq(cq) => ibv_async_element { cq },
            ObjectPointer::Qp(qp) => ibv_async_element { qp },
            ObjectPointer::Srq(srq) => ibv_async_element { srq },
        };
        Ok(())
    })
}

/// `ibv_ack_async_event`. An event without an object is ignored.
///
/// # Safety
/// `event` is null, or as [`get_async_event`] filled it, and not acknowledged yet.
pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: guaranteed by the caller.
    let Some(event) = (unsafe { event.as_ref() }) else { return };
    let source = match event.event_type {
        verbs::IBV_EVENT_CQ_ERR => {
            // SAFETY: the type selects the valid field; the queue lives until its events are acknowledged.
            unsafe { object::borrow::<Cq>(event.element.cq) }.map(|cq| &cq.events)
        }
        verbs::IBV_EVENT_QP_FATAL
        | verbs::IBV_EVENT_QP_REQ_ERR
        | verbs::IBV_EVENT_QP_ACCESS_ERR
        | verbs::IBV_EVENT_COMM_EST
        | verbs::IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: as above.
            unsafe { object::borrow::<Qp>(event.element.qp) }.map(|qp| &qp.events)
        }
        verbs::IBV_EVENT_SRQ_ERR | verbs::IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: as above.
            unsafe { object::borrow::<Srq>(event.element.srq) }.map(|srq| &srq.events)
        }
        _ => return,
    };
    if let Ok(source) = source {
        // Through another reference: the object may be destroyed, and freed, once its last event is acknowledged.
        source.clone().acknowledge(1);
    }
}
