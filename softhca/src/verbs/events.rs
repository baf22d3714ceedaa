//! Entry points of asynchronous events.

use super::context::Context;
use super::cq::Cq;
use super::errno;
use super::event_queue::ObjectPointer;
use super::object;
use super::qp::Qp;
use super::srq::Srq;
use gdsync_sys::verbs::{self, ibv_async_element, ibv_async_event, ibv_context};
use libc::c_int;

/// `ibv_get_async_event`: 0, or -1 with `errno` set.
///
/// # Safety
/// `context` is null or open; `event` is null or valid.
pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    errno::minus_one(|| {
        // SAFETY: the caller's.
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
    // SAFETY: the caller's.
    let Some(event) = (unsafe { event.as_ref() }) else { return };
    let source = match event.event_type {
        verbs::IBV_EVENT_CQ_ERR => {
            // SAFETY: the type says which field holds; the queue lives until its events are
            // acknowledged.
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
        // Through a reference of its own: the object may be destroyed, and freed, once its last
        // event is acknowledged.
        source.clone().acknowledge(1);
    }
}
