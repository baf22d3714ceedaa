//! Queues of events: asynchronous ones of a context, completions of a channel. The card knows objects by
//! number, the program by pointer.
//!
//! The rules are those of the kernel and libibverbs. An asynchronous event is queued at the context that made
//! the object, a completion event at the queue's channel. Destroying an object drops its events that are not
//! fetched, and waits until all fetched ones are acknowledged.

use super::errno::{Errno, Result};
use crate::card::Event;
use crate::os::wait;
use gdsync_sys::verbs::{self, ibv_cq, ibv_qp, ibv_srq};
use libc::c_int;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// A card's object with events, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ObjectNumber {
    Cq(u32),
    Qp(u32),
    Srq(u32),
}

/// The same object, by its caller's pointer, which is never dereferenced here.
#[derive(Clone, Copy, Debug)]
pub(super) enum ObjectPointer {
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
}

// SAFETY: passed on only, not dereferenced.
unsafe impl Send for ObjectPointer {}

#[derive(Debug, Default)]
pub(super) struct EventSource {
    /// Number of events fetched and not acknowledged.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
}

impl EventSource {
    pub(super) fn acknowledge(&self, events: u32) {
        let mut count = self.unacknowledged.lock();
        *count = count.saturating_sub(events);
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
pub(super) struct Pending {
    /// `IBV_EVENT_*`; `None` for a completion.
    pub(super) event_type: Option<c_int>,
    pub(super) object: ObjectPointer,
    source: Arc<EventSource>,
}

/// The pending events of a context or of a channel.
#[derive(Debug)]
pub(super) struct EventQueue {
    /// A semaphore eventfd: its count is the length of `pending` whenever that lock is free.
    counter: File,
    pending: Mutex<VecDeque<Pending>>,
}

impl EventQueue {
    pub(super) fn new() -> Result<Self> {
        let counter = wait::event(libc::EFD_SEMAPHORE).map_err(|_| Errno::last())?;
        Ok(EventQueue { counter: File::from(counter), pending: Mutex::default() })
    }

    /// Readable while there are events.
    pub(super) fn fd(&self) -> RawFd {
        self.counter.as_raw_fd()
    }

    fn push(&self, event: Pending) {
        let mut pending = self.pending.lock();
        // Fails only if the counter would exceed 2^64 - 2.
        if (&self.counter).write_all(&1u64.to_ne_bytes()).is_ok() {
            pending.push_back(event);
        }
    }

    /// Decrements the counter for an event taken under the lock. Polls first: it must not block if the
    /// program has read from the descriptor itself.
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
        // SAFETY: the call accesses no memory; the descriptor is ours.
        unsafe { libc::fcntl(self.fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }

    pub(super) fn next(&self) -> Result<Pending> {
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

/// The queue and the counter of an object's events of one kind.
#[derive(Clone)]
pub(super) struct Sink {
    pub(super) queue: Arc<EventQueue>,
    pub(super) source: Arc<EventSource>,
}

impl Sink {
    fn push(&self, event_type: Option<c_int>, object: ObjectPointer) {
        self.queue.push(Pending { event_type, object, source: self.source.clone() });
    }

    /// Drops the events that are not fetched, and waits until the fetched ones are acknowledged.
    fn close(&self) {
        self.queue.forget(&self.source);
        self.source.wait_until_acknowledged();
    }
}

struct Route {
    object: ObjectPointer,
    asynchronous: Sink,
    /// `None` for an object other than a completion queue with a channel.
    completions: Option<Sink>,
}

/// The event queues of a card's objects.
#[derive(Default)]
pub(super) struct Routes {
    by_number: Mutex<HashMap<ObjectNumber, Route>>,
}

impl Routes {
    pub(super) fn add(
        &self,
        number: ObjectNumber,
        object: ObjectPointer,
        asynchronous: Sink,
        completions: Option<Sink>,
    ) {
        self.by_number.lock().insert(number, Route { object, asynchronous, completions });
    }

    /// Runs `destroy`. If it succeeds, drops the object's events that are not fetched, and waits until the
    /// fetched ones are acknowledged.
    pub(super) fn remove(&self, number: ObjectNumber, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        // The route is removed before the object, whose number can be reused at once.
        let route = self.by_number.lock().remove(&number);
        // The lock is free here, as destroying may deliver events.
        let Some(route) = route else { return destroy() };
        if let Err(errno) = destroy() {
            self.by_number.lock().insert(number, route);
            return Err(errno);
        }
        route.asynchronous.close();
        if let Some(completions) = route.completions {
            completions.close();
        }
        Ok(())
    }

    /// Queues an event of the card if its object still exists.
    pub(super) fn deliver(&self, event: Event) {
        let (number, event_type) = match event {
            Event::CqError { cqn } => (ObjectNumber::Cq(cqn), verbs::IBV_EVENT_CQ_ERR),
            Event::QpFatal { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_QP_FATAL),
            Event::QpRequestError { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_QP_REQ_ERR),
            Event::QpAccessError { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_QP_ACCESS_ERR),
            Event::CommunicationEstablished { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_COMM_EST),
            // This front has no management agent.
            Event::Management => return,
            Event::Completion { cqn } => {
                // A program may arm a queue without a channel, which then raises no event.
                if let Some(Route { object, completions: Some(sink), .. }) =
                    self.by_number.lock().get(&ObjectNumber::Cq(cqn))
                {
                    sink.push(None, *object);
                }
                return;
            }
            Event::LastReceive { qpn } => (ObjectNumber::Qp(qpn), verbs::IBV_EVENT_QP_LAST_WQE_REACHED),
            Event::SrqLimit { srqn } => (ObjectNumber::Srq(srqn), verbs::IBV_EVENT_SRQ_LIMIT_REACHED),
            Event::SrqError { srqn } => (ObjectNumber::Srq(srqn), verbs::IBV_EVENT_SRQ_ERR),
        };
        let by_number = self.by_number.lock();
        if let Some(route) = by_number.get(&number) {
            // Under the lock, so that a later removal of the route finds the event in the queue.
            route.asynchronous.push(Some(event_type), route.object);
        }
    }
}
