//! Asynchronous events: what the card reports that belongs to no work request
//! (`ibv_get_async_event`).

use crate::util::contain::{drop_contained, log};
use crate::verbs::{Device, DeviceInner, Error, call};
use gdsync_sys::contain::contain;
use gdsync_sys::verbs::{self, ibv_async_element, ibv_async_event};
use parking_lot::Mutex;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

/// What happened (`enum ibv_event_type` of `infiniband/verbs.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventKind {
    /// A completion queue overran or failed.
    CompletionQueueError,
    /// A queue pair failed and could not say so in a completion.
    QueuePairFatal,
    /// A remote request broke the transport's rules.
    QueuePairRequestError,
    /// A remote request broke this side's access rights.
    QueuePairAccessError,
    /// The first packet arrived before the queue pair was moved to RTR.
    CommunicationEstablished,
    /// A queue pair that has failed takes no more receives from its shared receive queue.
    LastReceive,
    /// A shared receive queue failed.
    SharedReceivesError,
    /// The device failed for good.
    DeviceFatal,
    /// A port carries traffic.
    PortActive,
    /// A port carries no traffic any more.
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
    fn from_raw(code: i32) -> Self {
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

    /// True where the queue pairs that it concerns do not work any more.
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

/// An asynchronous event, and what it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// Numbers of the queue pairs of this library that it concerns: the one that it names, those of
    /// the completion queue, the shared receive queue or the port that it names, or all of the device.
    pub queue_pairs: Vec<u32>,
    /// Number of the shared receive queue, where it names one.
    pub shared_receives: Option<u32>,
    /// The port, where it names one.
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

/// What an event names, by the addresses of verbs objects, which are compared only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Cq(usize),
    Qp(usize),
    Srq(usize),
    Port(u8),
    Device,
}

impl Element {
    fn of(event: &ibv_async_event) -> Self {
        let code = event.event_type;
        if code == verbs::IBV_EVENT_CQ_ERR {
            // SAFETY: the type says that this field holds; any bits are a valid pointer, which is
            // not dereferenced.
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

/// What asynchronous events concern: queue pairs and shared receive queues, which stand in a layer
/// above the device.
pub(crate) trait EventSink: fmt::Debug + Send + Sync {
    /// Its number.
    fn number(&self) -> u32;

    /// False for a shared receive queue.
    fn is_queue_pair(&self) -> bool {
        true
    }

    /// True where an event that names `element` concerns it.
    fn is_concerned(&self, element: Element) -> bool;

    /// Fails for good because of an event.
    fn fail_by_event(&self, kind: AsyncEventKind, element: Element);
}

/// What the events of a device may concern.
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

    fn concerned(&self, element: Element) -> Vec<Arc<dyn EventSink>> {
        // Collected before any is dropped: dropping the last handle of one takes other locks.
        let alive: Vec<_> = self.known.lock().iter().filter_map(Weak::upgrade).collect();
        alive.into_iter().filter(|sink| sink.is_concerned(element)).collect()
    }
}

impl Device {
    /// Takes the next asynchronous event of the card, if one comes within `timeout`. When it returns a
    /// fatal one, the queue pairs that the event concerns have failed, and whatever waits for them wakes.
    ///
    /// Events are read only if the program calls this, or [`Device::watch_events`]. Of a device
    /// made by [`Device::from_raw`], the program reads them either through this library or itself:
    /// each reader takes events away from the other.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn next_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        self.inner.next_event(timeout, None)
    }

    /// Starts a thread that reads the card's asynchronous events as [`Device::next_event`] does, so
    /// that the queue pairs concerned fail at once. It passes each event to `callback`, sleeps
    /// while there is none, and keeps the device open. A callback that panics is logged, and called
    /// again for the next event.
    ///
    /// # Errors
    /// [`Error::Thread`]; [`Error::Verbs`] if the process has no file descriptor left.
    pub fn watch_events(
        &self,
        mut callback: impl FnMut(&AsyncEvent) + Send + 'static,
    ) -> Result<EventWatch, Error> {
        let stop = event_fd("")?;
        let no_thread = |source| Error::Thread { name: NAME, source };
        let stopped = stop.try_clone().map_err(no_thread)?;
        let device = self.clone();
        let read = move || {
            while !poll(stopped.as_raw_fd(), None, Duration::ZERO).unwrap_or(false) {
                match device.inner.next_event(Duration::MAX, Some(stopped.as_raw_fd())) {
                    Ok(Some(event)) => {
                        if let Err(panic) = contain(|| callback(&event)) {
                            log(|| tracing::error!(panic, "a callback for asynchronous events panicked"));
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        log(|| tracing::error!(%error, "asynchronous events cannot be read any more"));
                        break;
                    }
                }
            }
            drop_contained(callback, "a callback for asynchronous events");
        };
        let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(read).map_err(no_thread)?;
        Ok(EventWatch { stop, thread: Some(thread) })
    }
}

impl DeviceInner {
    fn event_fd(&self) -> RawFd {
        // SAFETY: the context is open as long as `self`.
        unsafe { (*self.context()).async_fd }
    }

    /// `stop`: another descriptor that ends the wait when it becomes readable.
    pub(super) fn next_event(
        &self,
        timeout: Duration,
        stop: Option<RawFd>,
    ) -> Result<Option<AsyncEvent>, Error> {
        if !poll(self.event_fd(), stop, timeout)? {
            return Ok(None);
        }
        // One reader at a time: a reader that finds the descriptor readable finds an event.
        let _reader = self.reader.lock();
        if !poll(self.event_fd(), None, Duration::ZERO)? {
            return Ok(None);
        }
        let mut event = ibv_async_event { element: ibv_async_element { port_num: 0 }, event_type: -1 };
        // SAFETY: the context is open, and the place is valid.
        let rc = unsafe { (self.api.get_async_event)(self.context(), &mut event) };
        call::status("ibv_get_async_event", rc, String::new)?;
        let concerned = self.queue_pairs.concerned(Element::of(&event));
        let told = self.take_event(&event, &concerned);
        // SAFETY: as it was filled above, and not acknowledged yet. Acknowledged before the queue
        // pairs are dropped: destroying one waits for the acknowledgement.
        unsafe { (self.api.ack_async_event)(&mut event) };
        Ok(Some(told))
    }

    fn take_event(&self, event: &ibv_async_event, concerned: &[Arc<dyn EventSink>]) -> AsyncEvent {
        let kind = AsyncEventKind::from_raw(event.event_type);
        let element = Element::of(event);
        let port = if let Element::Port(port) = element { Some(port) } else { None };
        let of = |queue_pairs| {
            concerned.iter().filter(move |sink| sink.is_queue_pair() == queue_pairs).map(|sink| sink.number())
        };
        let named = matches!(element, Element::Srq(_));
        let shared_receives = of(false).next().filter(|_| named);
        let told = AsyncEvent { kind, queue_pairs: of(true).collect(), shared_receives, port };
        if kind.is_fatal() {
            tracing::warn!(device = &self.name, event = %told, "the card reported an asynchronous event");
            concerned.iter().for_each(|sink| sink.fail_by_event(kind, element));
        } else {
            tracing::info!(device = &self.name, event = %told, "the card reported an asynchronous event");
        }
        told
    }
}

/// Waits until `fd` is readable; false after `timeout`, or when `stop` is readable.
pub(crate) fn poll(fd: RawFd, stop: Option<RawFd>, timeout: Duration) -> Result<bool, Error> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(fd), entry(stop.unwrap_or(-1))];
    // Rounded up: a wait for less than a millisecond is one.
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

/// A new eventfd. The error says what it is for.
pub(crate) fn event_fd(detail: &str) -> Result<File, Error> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    call::status("eventfd", fd.min(0), || detail.to_owned())?;
    // SAFETY: just opened, and it has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

const NAME: &str = "gdsync-events";

/// Reads asynchronous events until it is dropped; see [`Device::watch_events`].
#[derive(Debug)]
pub struct EventWatch {
    stop: File,
    thread: Option<JoinHandle<()>>,
}

impl Drop for EventWatch {
    /// Ends the thread, and waits for a callback that is running, unless that callback drops this.
    fn drop(&mut self) {
        if let Err(error) = self.stop.write_all(&1u64.to_ne_bytes()) {
            tracing::error!(%error, "the thread that reads events cannot be told to end");
            return;
        }
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the thread that reads asynchronous events panicked");
        }
    }
}

#[cfg(test)]
mod tests;
