//! Routes from the card's completion queues and queue pairs to the pipes that the program reads.

use super::files::EventPipe;
use super::subscriptions::Subscriptions;
use crate::resource::Resource;
use parking_lot::Mutex;
use softhca::card::Event;
use std::collections::HashMap;
use std::sync::Arc;

/// The destination of an object's events, and the count of those delivered.
#[derive(Debug)]
pub(crate) struct Route {
    user_handle: u64,
    completions: Option<Arc<EventPipe>>,
    asynchronous: Arc<EventPipe>,
    sent: Reported,
}

impl Route {
    pub(crate) fn new(
        user_handle: u64,
        completions: Option<Arc<EventPipe>>,
        asynchronous: Arc<EventPipe>,
    ) -> Self {
        Route { user_handle, completions, asynchronous, sent: Reported::default() }
    }
}

/// Counts of an object's events that the program has read or is about to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) completions: u32,
    pub(crate) asynchronous: u32,
}

/// Bytes of `struct ib_uverbs_comp_event_desc`: the queue's user handle.
const COMPLETION_EVENT: usize = 8;
/// Bytes of `struct ib_uverbs_async_event_desc`: user handle, type, reserved.
const ASYNC_EVENT: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Routes {
    routes: Mutex<HashMap<Resource, Route>>,
    /// Subscriptions of DEVX, which come in addition.
    pub(crate) subscriptions: Subscriptions,
}

impl Routes {
    pub(crate) fn add(&self, source: Resource, route: Route) {
        self.routes.lock().insert(source, route);
    }

    /// Ends the delivery of a destroyed object's events, and removes its unread events from the pipes.
    pub(crate) fn remove(&self, source: Resource) -> Reported {
        self.subscriptions.remove(source);
        let mut routes = self.routes.lock();
        let Some(route) = routes.remove(&source) else { return Reported::default() };
        // `deliver` adds no more events of the object. The pipe has its own lock, and dropping the route may
        // close files, which must not happen under this lock.
        drop(routes);
        let channel = route.completions.as_ref();
        let completions = channel.map_or(0, |pipe| pipe.take_back(COMPLETION_EVENT, route.user_handle));
        let asynchronous = route.asynchronous.take_back(ASYNC_EVENT, route.user_handle);
        Reported {
            completions: route.sent.completions - completions,
            asynchronous: route.sent.asynchronous - asynchronous,
        }
    }

    /// Delivers an event of the card, unless its source has no route.
    pub(crate) fn deliver(&self, event: Event) {
        self.subscriptions.deliver(&event);
        let (source, code) = match event {
            Event::Completion { cqn } => return self.complete(cqn),
            // `enum ib_event_type`.
            Event::CqError { cqn } => (Resource::Cq(cqn), 0u32),
            Event::QpFatal { qpn } => (Resource::Qp(qpn), 1),
            Event::QpRequestError { qpn } => (Resource::Qp(qpn), 2),
            Event::QpAccessError { qpn } => (Resource::Qp(qpn), 3),
            Event::CommunicationEstablished { qpn } => (Resource::Qp(qpn), 4),
            Event::SrqError { srqn } => (Resource::Srq(srqn), 14),
            Event::SrqLimit { srqn } => (Resource::Srq(srqn), 15),
            Event::LastReceive { qpn } => (Resource::Qp(qpn), 16),
            other => return tracing::warn!(?other, "an event that programs do not receive"),
        };
        if let Some(route) = self.routes.lock().get_mut(&source) {
            let mut bytes = [0; ASYNC_EVENT];
            bytes[..8].copy_from_slice(&route.user_handle.to_ne_bytes());
            bytes[8..12].copy_from_slice(&code.to_ne_bytes());
            route.sent.asynchronous += u32::from(route.asynchronous.push(&bytes));
        }
    }

    fn complete(&self, cqn: u32) {
        let mut routes = self.routes.lock();
        let Some(route) = routes.get_mut(&Resource::Cq(cqn)) else { return };
        // The program may also arm a queue without a channel; its events are dropped.
        if let Some(channel) = &route.completions {
            route.sent.completions += u32::from(channel.push(&route.user_handle.to_ne_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn pipe() -> (Arc<EventPipe>, File) {
        let (pipe, theirs) = EventPipe::new().unwrap();
        (Arc::new(pipe), File::from(theirs))
    }

    fn next(file: &mut File) -> u64 {
        let mut event = [0; 8];
        file.read_exact(&mut event).unwrap();
        u64::from_ne_bytes(event)
    }

    #[test]
    fn what_was_read_is_reported_and_what_was_not_is_taken_back() {
        let (routes, (channel, mut reader), (events, _async_reader)) = (Routes::default(), pipe(), pipe());
        for (cqn, handle) in [(5, 500), (6, 600)] {
            routes.add(Resource::Cq(cqn), Route::new(handle, Some(channel.clone()), events.clone()));
        }
        for cqn in [5, 6, 5, 6, 5] {
            routes.deliver(Event::Completion { cqn });
        }
        assert_eq!((next(&mut reader), next(&mut reader)), (500, 600));
        routes.deliver(Event::CqError { cqn: 5 });
        let reported = routes.remove(Resource::Cq(5));
        assert_eq!(reported, Reported { completions: 1, asynchronous: 0 }, "two and one were not read");
        assert_eq!(next(&mut reader), 600, "the other queue's event has stayed");
        assert_eq!(routes.remove(Resource::Cq(6)), Reported { completions: 2, asynchronous: 0 });
        routes.deliver(Event::Completion { cqn: 5 });
        assert_eq!(routes.remove(Resource::Cq(5)), Reported::default(), "it is gone");
    }

    #[test]
    fn asynchronous_events_name_object_and_kind() {
        let (routes, (events, mut reader)) = (Routes::default(), pipe());
        routes.add(Resource::Qp(7), Route::new(700, None, events));
        routes.deliver(Event::QpAccessError { qpn: 7 });
        routes.deliver(Event::Completion { cqn: 7 });
        assert_eq!((next(&mut reader), next(&mut reader)), (700, 3));
        assert_eq!(routes.remove(Resource::Qp(7)), Reported { completions: 0, asynchronous: 1 });
    }

    #[test]
    fn an_unread_channel_does_not_block_the_card() {
        let (routes, (channel, _reader), (events, _async_reader)) = (Routes::default(), pipe(), pipe());
        routes.add(Resource::Cq(1), Route::new(1, Some(channel), events));
        for _ in 0..10_000 {
            routes.deliver(Event::Completion { cqn: 1 });
        }
        assert_eq!(routes.remove(Resource::Cq(1)), Reported::default());
    }
}
