//! Asynchronous events: from the card, which numbers its objects, to the context whose caller knows them by pointer.
//!
//! The rules are those of the kernel and libibverbs: an event goes to the context that made the object; what nobody has
//! fetched when the object is destroyed is dropped; and destroying an object waits until every event of it that was fetched
//! has been acknowledged.

use super::context::Context;
use super::cq::Cq;
use super::errno::{self, Errno, Result};
use super::object;
use super::qp::Qp;
use crate::card::Event;
use gdsync_sys::verbs::{self, ibv_async_element, ibv_async_event, ibv_context, ibv_cq, ibv_qp};
use libc::c_int;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A card's object that events can concern, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ObjectNumber {
    Cq(u32),
    Qp(u32),
}

/// The same object as its caller knows it. Never dereferenced here.
#[derive(Clone, Copy, Debug)]
pub(super) enum ObjectPointer {
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
}

// SAFETY: handed through only, not dereferenced.
unsafe impl Send for ObjectPointer {}

/// What an object keeps of its events.
#[derive(Debug, Default)]
pub(super) struct EventSource {
    /// Events fetched and not acknowledged.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
}

impl EventSource {
    fn acknowledge(&self) {
        let mut count = self.unacknowledged.lock();
        *count = count.saturating_sub(1);
        self.acknowledged.notify_all();
    }

    fn wait_until_acknowledged(&self) {
        let mut count = self.unacknowledged.lock();
        while *count > 0 {
            self.acknowledged.wait(&mut count);
        }
    }
}

#[derive(Clone, Debug)]
struct Pending {
    event_type: c_int,
    object: ObjectPointer,
    source: Arc<EventSource>,
}

/// Events of a context that wait to be fetched.
#[derive(Debug)]
pub(super) struct EventQueue {
    /// A semaphore eventfd: its count is the length of `pending` whenever that lock is free.
    counter: File,
    pending: Mutex<VecDeque<Pending>>,
}

impl EventQueue {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: just opened, owned by nobody else.
        let counter = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(EventQueue { counter, pending: Mutex::default() })
    }

    /// Readable while there are events.
    pub(super) fn fd(&self) -> RawFd {
        self.counter.as_raw_fd()
    }

    fn push(&self, event: Pending) {
        let mut pending = self.pending.lock();
        // Fails only where the counter would pass 2^64 - 2.
        if (&self.counter).write_all(&1u64.to_ne_bytes()).is_ok() {
            pending.push_back(event);
        }
    }

    /// Takes one off the count. Called under the lock, for an event that was there, so it does not block; unless the caller
    /// read from the descriptor himself, which is looked after.
    fn count_down(&self) {
        if self.is_readable(0) == Ok(true) {
            let mut one = [0; 8];
            if let Err(error) = (&self.counter).read_exact(&mut one) {
                tracing::warn!(%error, "the event counter cannot be read");
            }
        }
    }

    fn is_readable(&self, timeout_ms: c_int) -> Result<bool> {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        match unsafe { libc::poll(&mut poll, 1, timeout_ms) } {
            n if n < 0 => Err(Errno::last()),
            n => Ok(n > 0),
        }
    }

    fn take(&self) -> Option<Pending> {
        let mut pending = self.pending.lock();
        let event = pending.pop_front()?;
        self.count_down();
        *event.source.unacknowledged.lock() += 1;
        Some(event)
    }

    fn forget(&self, source: &Arc<EventSource>) {
        let mut pending = self.pending.lock();
        let before = pending.len();
        pending.retain(|event| !Arc::ptr_eq(&event.source, source));
        (pending.len()..before).for_each(|_| self.count_down());
    }

    fn is_nonblocking(&self) -> bool {
        // SAFETY: no memory is involved; the descriptor is ours.
        unsafe { libc::fcntl(self.fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }

    fn next(&self) -> Result<Pending> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            if self.is_nonblocking() {
                return Err(Errno::AGAIN);
            }
            self.is_readable(-1)?;
        }
    }
}

struct Route {
    queue: Arc<EventQueue>,
    object: ObjectPointer,
    source: Arc<EventSource>,
}

/// Where the events of a card's objects go.
#[derive(Default)]
pub(super) struct Routes {
    by_number: Mutex<HashMap<ObjectNumber, Route>>,
}

impl Routes {
    pub(super) fn add(
        &self,
        number: ObjectNumber,
        queue: &Arc<EventQueue>,
        object: ObjectPointer,
        source: &Arc<EventSource>,
    ) {
        let route = Route { queue: queue.clone(), object, source: source.clone() };
        self.by_number.lock().insert(number, route);
    }

    /// Runs `destroy`; if it succeeds, drops the object's events that nobody has fetched, and waits for those that somebody
    /// has until they are acknowledged.
    pub(super) fn remove(&self, number: ObjectNumber, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        // Before the object: as soon as that is gone its number may be given to another.
        let route = self.by_number.lock().remove(&number);
        // The lock is free now: destroying may deliver events.
        let Some(route) = route else { return destroy() };
        if let Err(errno) = destroy() {
            self.by_number.lock().insert(number, route);
            return Err(errno);
        }
        route.queue.forget(&route.source);
        route.source.wait_until_acknowledged();
        Ok(())
    }

    /// Passes an event of the card on, if its object is still there.
    pub(super) fn deliver(&self, event: Event) {
        let (number, event_type) = match event {
            Event::CqError { cqn } => (ObjectNumber::Cq(cqn), verbs::IBV_EVENT_CQ_ERR),
            Event::QpFatal { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_QP_FATAL),
            Event::QpRequestError { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_QP_REQ_ERR),
            Event::QpAccessError { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_QP_ACCESS_ERR),
            Event::CommunicationEstablished { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_COMM_EST),
            // Nobody arms a queue here: there are no completion channels.
            Event::Completion { .. } => return,
        };
        let by_number = self.by_number.lock();
        if let Some(route) = by_number.get(&number) {
            // Under the lock: whoever removes the route afterwards finds the event in the queue.
            route.queue.push(Pending { event_type, object: route.object, source: route.source.clone() });
        }
    }
}

/// `ibv_get_async_event`: 0, or -1 with `errno` set.
///
/// # Safety
/// `context` is null or open; `event` is null or valid.
pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's.
    errno::minus_one(unsafe { next_event(context, event) })
}

unsafe fn next_event(context: *mut ibv_context, event: *mut ibv_async_event) -> Result<()> {
    // SAFETY: the caller's.
    let (context, event) = unsafe { (object::borrow::<Context>(context)?, object::attributes(event)?) };
    let pending = context.events.next()?;
    event.event_type = pending.event_type;
    event.element = match pending.object {
        ObjectPointer::Cq(cq) => ibv_async_element { cq },
        ObjectPointer::Qp(qp) => ibv_async_element { qp },
    };
    Ok(())
}

/// `ibv_ack_async_event`. An event that names nothing is ignored.
///
/// # Safety
/// `event` is null, or as [`get_async_event`] filled it, and not acknowledged yet.
pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's.
    let Some(event) = (unsafe { event.as_ref() }) else { return };
    let source = match event.event_type {
        verbs::IBV_EVENT_CQ_ERR => {
            // SAFETY: the type says which field holds; the queue lives until its events are acknowledged.
            unsafe { object::borrow::<Cq>(event.element.cq) }.map(|cq| &cq.events)
        }
        verbs::IBV_EVENT_QP_FATAL
        | verbs::IBV_EVENT_QP_REQ_ERR
        | verbs::IBV_EVENT_QP_ACCESS_ERR
        | verbs::IBV_EVENT_COMM_EST => {
            // SAFETY: as above.
            unsafe { object::borrow::<Qp>(event.element.qp) }.map(|qp| &qp.events)
        }
        _ => return,
    };
    if let Ok(source) = source {
        // A count of its own: the object may be destroyed, and freed, as soon as the last event is acknowledged.
        source.clone().acknowledge();
    }
}
