//! Events on their way to the program: through pipes, which it reads as it would read the kernel's event files.

use crate::errno::{Errno, Result};
use parking_lot::Mutex;
use softhca::card::Event;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// A queue of events of one size, readable by the program. It holds 64 KiB: thousands of events that nobody reads.
#[derive(Debug)]
pub(crate) struct EventPipe {
    ends: Mutex<Ends>,
}

#[derive(Debug)]
struct Ends {
    /// Does not block.
    write: File,
    /// Neither does this: an open file of its own, so that the program's end keeps the mode that the program gave it.
    read: File,
}

impl EventPipe {
    /// A pipe and the program's end of it.
    pub(crate) fn new() -> Result<(EventPipe, OwnedFd)> {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: just opened, owned by nobody else.
        let (theirs, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        let reopen = |fd: &OwnedFd, options: &mut OpenOptions| {
            options.custom_flags(libc::O_NONBLOCK).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        };
        let read = reopen(&theirs, OpenOptions::new().read(true))?;
        let write = reopen(&write, OpenOptions::new().write(true))?;
        Ok((EventPipe { ends: Mutex::new(Ends { write, read }) }, theirs))
    }

    /// Adds an event. False where there is no room.
    fn push(&self, event: &[u8]) -> bool {
        // Up to 4 KiB are written in one piece or not at all (pipe(7)).
        let pushed = self.ends.lock().write.write_all(event);
        if let Err(error) = &pushed {
            tracing::error!(%error, "an event is lost: the program does not read its event channel");
        }
        pushed.is_ok()
    }

    /// Takes back the events that start with `element` and have not been read. Returns how many there were.
    fn take_back(&self, size: usize, element: u64) -> u32 {
        let mut ends = self.ends.lock();
        let (mut taken, mut others) = (0, Vec::new());
        let mut event = vec![0; size];
        // Both sides write and read whole events, so they stay whole.
        while ends.read.read_exact(&mut event).is_ok() {
            if event.starts_with(&element.to_ne_bytes()) {
                taken += 1
            } else {
                others.extend_from_slice(&event)
            }
        }
        if ends.write.write_all(&others).is_err() {
            tracing::error!("events are lost: they do not fit where they came from");
        }
        taken
    }
}

/// A card's object that events can concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// Completion queue, by number.
    Cq(u32),
    /// Queue pair, by number.
    Qp(u32),
}

/// Where an object's events go, and how many did.
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

/// Events that the program has read, or is about to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) completions: u32,
    pub(crate) asynchronous: u32,
}

/// Bytes of `struct ib_uverbs_comp_event_desc`: the queue's user handle.
const COMPLETION_EVENT: usize = 8;
/// Bytes of `struct ib_uverbs_async_event_desc`: user handle, type, nothing.
const ASYNC_EVENT: usize = 16;

/// Where the events of a card's objects go.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    routes: Mutex<HashMap<Source, Route>>,
}

impl Routes {
    pub(crate) fn add(&self, source: Source, route: Route) {
        self.routes.lock().insert(source, route);
    }

    /// Ends the delivery of events of an object that has just been destroyed; those that nobody has read are taken back.
    pub(crate) fn remove(&self, source: Source) -> Reported {
        let mut routes = self.routes.lock();
        let Some(route) = routes.remove(&source) else { return Reported::default() };
        // From here on nobody adds an event: both sides of a channel may be used without this lock, and be closed.
        drop(routes);
        let channel = route.completions.as_ref();
        let completions = channel.map_or(0, |pipe| pipe.take_back(COMPLETION_EVENT, route.user_handle));
        let asynchronous = route.asynchronous.take_back(ASYNC_EVENT, route.user_handle);
        Reported {
            completions: route.sent.completions - completions,
            asynchronous: route.sent.asynchronous - asynchronous,
        }
    }

    /// Passes an event of the card on, if its object is still there.
    pub(crate) fn deliver(&self, event: Event) {
        let (source, code) = match event {
            Event::Completion { cqn } => return self.complete(cqn),
            // `enum ib_event_type`.
            Event::CqError { cqn } => (Source::Cq(cqn), 0u32),
            Event::QpFatal { qpn } => (Source::Qp(qpn), 1),
            Event::QpRequestError { qpn } => (Source::Qp(qpn), 2),
            Event::QpAccessError { qpn } => (Source::Qp(qpn), 3),
            Event::CommunicationEstablished { qpn } => (Source::Qp(qpn), 4),
            other => return tracing::warn!(?other, "an event that programs are not told of"),
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
        let Some(route) = routes.get_mut(&Source::Cq(cqn)) else { return };
        // A queue without a channel may be armed, too: nobody hears of it.
        if let Some(channel) = &route.completions {
            route.sent.completions += u32::from(channel.push(&route.user_handle.to_ne_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            routes.add(Source::Cq(cqn), Route::new(handle, Some(channel.clone()), events.clone()));
        }
        for cqn in [5, 6, 5, 6, 5] {
            routes.deliver(Event::Completion { cqn });
        }
        assert_eq!((next(&mut reader), next(&mut reader)), (500, 600));
        routes.deliver(Event::CqError { cqn: 5 });
        let reported = routes.remove(Source::Cq(5));
        assert_eq!(reported, Reported { completions: 1, asynchronous: 0 }, "two and one were not read");
        assert_eq!(next(&mut reader), 600, "the other queue's event has stayed");
        assert_eq!(routes.remove(Source::Cq(6)), Reported { completions: 2, asynchronous: 0 });
        routes.deliver(Event::Completion { cqn: 5 });
        assert_eq!(routes.remove(Source::Cq(5)), Reported::default(), "it is gone");
    }

    #[test]
    fn asynchronous_events_name_object_and_kind() {
        let (routes, (events, mut reader)) = (Routes::default(), pipe());
        routes.add(Source::Qp(7), Route::new(700, None, events));
        routes.deliver(Event::QpAccessError { qpn: 7 });
        routes.deliver(Event::Completion { cqn: 7 });
        assert_eq!((next(&mut reader), next(&mut reader)), (700, 3));
        assert_eq!(routes.remove(Source::Qp(7)), Reported { completions: 0, asynchronous: 1 });
    }

    #[test]
    fn a_channel_that_nobody_reads_does_not_block_the_card() {
        let (routes, (channel, _reader), (events, _async_reader)) = (Routes::default(), pipe(), pipe());
        routes.add(Source::Cq(1), Route::new(1, Some(channel), events));
        for _ in 0..10_000 {
            routes.deliver(Event::Completion { cqn: 1 });
        }
        assert_eq!(routes.remove(Source::Cq(1)), Reported::default());
    }
}
