//! Completion channels. Programs arm queues by the record and the register; the card's events come
//! here.

use super::context::Context;
use super::errno::{self, Errno, Result};
use super::event_queue::{EventQueue, ObjectPointer};
use super::object::{self, Object};
use gdsync_sys::verbs::{ibv_comp_channel, ibv_context, ibv_cq};
use libc::{c_int, c_void};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A completion channel.
#[repr(C)]
pub(super) struct Channel {
    ibv: UnsafeCell<ibv_comp_channel>,
    pub(super) events: Arc<EventQueue>,
    pub(super) context: Arc<Context>,
}

// SAFETY: the C struct is written once, before the caller gets the channel; the rest is `Sync`
// itself.
unsafe impl Sync for Channel {}
// SAFETY: as above; its pointer is not dereferenced.
unsafe impl Send for Channel {}
// SAFETY: `repr(C)`, and the C struct is first.
unsafe impl Object for Channel {
    type C = ibv_comp_channel;
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` is null or open.
pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: the caller's.
    let context = unsafe { object::share::<Context>(context) };
    errno::pointer(context.and_then(|context| {
        let events = Arc::new(EventQueue::new()?);
        // libibverbs counts queues in `refcnt` for itself; here the references of the object do.
        let ibv = ibv_comp_channel { context: object::handle(&context), fd: events.fd(), refcnt: 0 };
        Ok(object::into_raw(Arc::new(Channel { ibv: UnsafeCell::new(ibv), events, context })))
    }))
}

/// `ibv_destroy_comp_channel`. EBUSY while completion queues use it.
///
/// # Safety
/// `channel` is null or created.
pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's.
    errno::status(unsafe { object::destroy::<Channel>(channel, |_| Ok(())) })
}

/// `ibv_get_cq_event`: 0, or -1 with `errno` set; EAGAIN where the channel is non-blocking and has no
/// event.
///
/// # Safety
/// `channel` is null or created; the other two are null or valid.
pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    errno::minus_one(unsafe { next_event(channel, cq, cq_context) })
}

unsafe fn next_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Result<()> {
    // SAFETY: the caller's.
    let channel = unsafe { object::borrow::<Channel>(channel) }?;
    // SAFETY: as above.
    let (cq, cq_context) = unsafe { (object::attributes(cq)?, object::attributes(cq_context)?) };
    // Nothing but completion queues has events here.
    let ObjectPointer::Cq(found) = channel.events.next()?.object else { return Err(Errno::INVALID) };
    // SAFETY: the queue lives until its events are acknowledged.
    (*cq, *cq_context) = (found, unsafe { (*found).cq_context });
    Ok(())
}
