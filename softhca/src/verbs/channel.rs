//! Entry points for asynchronous events and for those of completion channels. Programs arm queues by the
//! record and the register; the card's events arrive here.

use super::context::Context;
use super::cq::Cq;
use super::errno::{self, Errno};
use super::event_queue::{EventQueue, ObjectPointer};
use super::object::{self, CStruct, object};
use super::qp::Qp;
use super::srq::Srq;
use gdsync_sys::verbs::{self, ibv_async_element, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq};
use libc::{c_int, c_void};
use std::sync::Arc;

object! {
    Channel: ibv_comp_channel {
        pub(super) events: Arc<EventQueue>,
        pub(super) context: Arc<Context>,
    }
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` is null or open.
pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let context = unsafe { object::share::<Context>(context) }?;
        let events = Arc::new(EventQueue::new()?);
        // libibverbs counts queues in `refcnt`; here the object's references do.
        let ibv = ibv_comp_channel { context: object::handle(&context), fd: events.fd(), refcnt: 0 };
        Ok(object::into_raw(Arc::new(Channel { ibv: CStruct::new(ibv), events, context })))
    })
}

/// `ibv_destroy_comp_channel`. EBUSY while completion queues use it.
///
/// # Safety
/// `channel` is null or created.
pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy::<Channel>(channel, |_| Ok(())) })
}

/// `ibv_get_cq_event`: 0, or -1 with `errno` set; EAGAIN if the channel is non-blocking and has no event.
///
/// # Safety
/// `channel` is null or created; the other two are null or valid.
pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    errno::minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let channel = unsafe { object::borrow::<Channel>(channel) }?;
        // SAFETY: as above.
        let (cq, cq_context) = unsafe { (object::attributes(cq)?, object::attributes(cq_context)?) };
        // Only completion queues have events here.
        let ObjectPointer::Cq(found) = channel.events.next()?.object else { return Err(Errno::INVALID) };
        // SAFETY: the queue lives until its events are acknowledged.
        (*cq, *cq_context) = (found, unsafe { (*found).cq_context });
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
        // Through another reference: the object may be destroyed, and freed, once its last event is
        // acknowledged.
        source.clone().acknowledge(1);
    }
}
