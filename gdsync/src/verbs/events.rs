//! Asynchronous events: a card's reports that belong to no work request (`ibv_get_async_event`).

use crate::verbs::{Error, call};
use gdsync_sys::verbs::{self, ibv_async_event};
use parking_lot::Mutex;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io};

/// The kind of an event (`enum ibv_event_type` of `infiniband/verbs.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventKind {
    /// A completion queue overran or failed.
    CompletionQueueError,
    /// A queue pair failed and could not report it in a completion.
    QueuePairFatal,
    /// A remote request violated the transport's rules.
    QueuePairRequestError,
    /// A remote request violated this side's access rights.
    QueuePairAccessError,
    /// The first packet arrived before the queue pair was moved to RTR.
    CommunicationEstablished,
    /// A failed queue pair takes no more receives from its shared receive queue.
    LastReceive,
    /// A shared receive queue failed.
    SharedReceivesError,
    /// The device failed permanently.
    DeviceFatal,
    /// A port carries traffic.
    PortActive,
    /// A port no longer carries traffic.
    PortError,
    /// Some other code.
    Other(i32),
}

const PORT_ACTIVE: i32 = 9;
const PORT_ERROR: i32 = 10;
/// Codes of events that concern queue pairs, shared receive queues, and ports.
const OF_QUEUE_PAIRS: [i32; 8] = [1, 2, 3, 4, 5, 6, 7, 16];
const OF_SHARED_RECEIVES: [i32; 2] = [verbs::IBV_EVENT_SRQ_ERR, verbs::IBV_EVENT_SRQ_LIMIT_REACHED];
const OF_PORTS: [i32; 7] = [PORT_ACTIVE, PORT_ERROR, 11, 12, 13, 17, 18];

impl AsyncEventKind {
    pub(super) fn from_raw(code: i32) -> Self {
        match code {
            verbs::IBV_EVENT_CQ_ERR => AsyncEventKind::CompletionQueueError,
            verbs::IBV_EVENT_QP_FATAL => AsyncEventKind::QueuePairFatal,
            verbs::IBV_EVENT_QP_REQ_ERR => AsyncEventKind::QueuePairRequestError,
            verbs::IBV_EVENT_QP_ACCESS_ERR => AsyncEventKind::QueuePairAccessError,
            verbs::IBV_EVENT_COMM_EST => AsyncEventKind::CommunicationEstablished,
            verbs::IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEventKind::LastReceive,
            verbs::IBV_EVENT_SRQ_ERR => AsyncEventKind::SharedReceivesError,
            verbs::IBV_EVENT_DEVICE_FATAL => AsyncEventKind::DeviceFatal,
            PORT_ACTIVE => AsyncEventKind::PortActive,
            PORT_ERROR => AsyncEventKind::PortError,
            other => AsyncEventKind::Other(other),
        }
    }

    /// True if the affected queue pairs no longer work.
    pub(crate) fn is_fatal(self) -> bool {
        matches!(
            self,
            AsyncEventKind::CompletionQueueError
                | AsyncEventKind::QueuePairFatal
                | AsyncEventKind::QueuePairRequestError
                | AsyncEventKind::QueuePairAccessError
                | AsyncEventKind::SharedReceivesError
                | AsyncEventKind::DeviceFatal
                | AsyncEventKind::PortError
        )
    }
}

impl fmt::Display for AsyncEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AsyncEventKind::CompletionQueueError => "completion queue overrun",
            AsyncEventKind::QueuePairFatal => "fatal error of the queue pair",
            AsyncEventKind::QueuePairRequestError => "the remote side sent an invalid request",
            AsyncEventKind::QueuePairAccessError => "the remote side used a wrong rkey, bounds or access",
            AsyncEventKind::CommunicationEstablished => "communication established",
            AsyncEventKind::LastReceive => "last receive of a queue pair that has failed",
            AsyncEventKind::SharedReceivesError => "fatal error of a shared receive queue",
            AsyncEventKind::DeviceFatal => "fatal error of the device",
            AsyncEventKind::PortActive => "port active",
            AsyncEventKind::PortError => "port down",
            AsyncEventKind::Other(code) => return write!(f, "asynchronous event {code}"),
        })
    }
}

/// An asynchronous event, and the objects that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// Its kind.
    pub kind: AsyncEventKind,
    /// Numbers of the library's queue pairs that it concerns: the one that it names, those of the completion queue,
    /// shared receive queue or port that it names, or all of the device.
    pub queue_pairs: Vec<u32>,
    /// Number of the shared receive queue that it names, if any.
    pub shared_receives: Option<u32>,
    /// The port that it names, if any.
    pub port: Option<u8>,
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        self.port.map_or(Ok(()), |port| write!(f, ", port {port}"))?;
        self.shared_receives.map_or(Ok(()), |srqn| write!(f, ", shared receive queue {srqn:#x}"))?;
        self.queue_pairs.iter().try_for_each(|qpn| write!(f, ", queue pair {qpn:#x}"))
    }
}

/// The object that an event names. Addresses of verbs objects are only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Cq(usize),
    Qp(usize),
    Srq(usize),
    Port(u8),
    Device,
}

impl Element {
    pub(super) fn of(event: &ibv_async_event) -> Self {
        let code = event.event_type;
        if code == verbs::IBV_EVENT_CQ_ERR {
            // SAFETY: the type selects this field; any bits are a valid pointer, which is not dereferenced.
            Element::Cq(unsafe { event.element.cq } as usize)
        } else if OF_QUEUE_PAIRS.contains(&code) {
            // SAFETY: as above.
            Element::Qp(unsafe { event.element.qp } as usize)
        } else if OF_SHARED_RECEIVES.contains(&code) {
            // SAFETY: as above.
            Element::Srq(unsafe { event.element.srq } as usize)
        } else if OF_PORTS.contains(&code) {
            // SAFETY: as above; any bits are a valid number.
            Element::Port(u8::try_from(unsafe { event.element.port_num }).unwrap_or(0))
        } else {
            Element::Device
        }
    }
}

/// An object that asynchronous events concern: a queue pair or a shared receive queue, of a layer above the device.
pub(crate) trait EventSink: fmt::Debug + Send + Sync {
    fn number(&self) -> u32;

    /// False for a shared receive queue.
    fn is_queue_pair(&self) -> bool {
        true
    }

    /// True if an event that names `element` concerns it.
    fn is_concerned(&self, element: Element) -> bool;

    /// Fails the object permanently because of an event.
    fn fail_by_event(&self, kind: AsyncEventKind, element: Element);
}

/// The objects that a device's events may concern.
#[derive(Debug, Default)]
pub(crate) struct EventSinks {
    known: Mutex<Vec<Weak<dyn EventSink>>>,
}

impl EventSinks {
    pub(crate) fn add(&self, sink: Weak<dyn EventSink>) {
        let mut known = self.known.lock();
        known.retain(|weak| weak.strong_count() > 0);
        known.push(sink);
    }

    pub(super) fn concerned(&self, element: Element) -> Vec<Arc<dyn EventSink>> {
        // Collected before any is dropped: dropping the last handle of an object takes other locks.
        let alive: Vec<_> = self.known.lock().iter().filter_map(Weak::upgrade).collect();
        alive.into_iter().filter(|sink| sink.is_concerned(element)).collect()
    }
}

/// Waits until `fd` is readable. Returns false after `timeout`, or when `stop` is readable.
pub(crate) fn poll(fd: RawFd, stop: Option<RawFd>, timeout: Duration) -> Result<bool, Error> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(fd), entry(stop.unwrap_or(-1))];
    // Rounded up: a shorter wait takes a millisecond.
    let millis = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: two valid entries; a descriptor of -1 is ignored (poll(2)).
    let rc = unsafe { libc::poll(fds.as_mut_ptr(), 2, millis) };
    if rc < 0 {
        let source = io::Error::last_os_error();
        if source.kind() == io::ErrorKind::Interrupted {
            return Ok(false);
        }
        return Err(Error::Verbs { call: "poll", detail: "events of the card".to_owned(), source });
    }
    Ok(fds[0].revents & libc::POLLIN != 0)
}

/// Creates an eventfd. `detail` goes into the error.
pub(crate) fn event_fd(detail: &str) -> Result<File, Error> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    call::status("eventfd", fd.min(0), || detail.to_owned())?;
    // SAFETY: just opened, and it has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
