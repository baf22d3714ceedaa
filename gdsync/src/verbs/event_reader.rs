//! Reads a card's asynchronous events (`ibv_get_async_event`), and fails the queue pairs that they concern.

use crate::util::contain::{drop_contained, log};
use crate::verbs::events::{AsyncEvent, AsyncEventKind, Element, EventSink, event_fd, poll};
use crate::verbs::{Device, DeviceInner, Error, call};
use gdsync_sys::contain::contain;
use gdsync_sys::verbs::{ibv_async_element, ibv_async_event};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const NAME: &str = "gdsync-events";

/// A thread that reads asynchronous events until this is dropped; see [`Device::watch_events`].
#[derive(Debug)]
pub struct EventWatch {
    stop: File,
    thread: Option<JoinHandle<()>>,
}

impl Drop for EventWatch {
    /// Ends the thread, and waits for a running callback, unless the callback itself drops this.
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

impl Device {
    /// Takes the next asynchronous event of the card, if one comes within `timeout`. Before it returns a fatal event,
    /// it fails the queue pairs that the event concerns, and wakes their waits.
    ///
    /// Events are read only by this call or by [`Device::watch_events`]. The program reads the events of a device of
    /// [`Device::from_raw`] either through this library or itself, as every event reaches only one reader.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the event cannot be read.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        next_event(&self.inner, timeout, None)
    }

    /// Starts a thread that reads the card's asynchronous events as [`Device::next_event`] does, so that the affected
    /// queue pairs fail at once. It passes each event to `callback`, and keeps the device open. If the callback
    /// panics, the thread logs it, and calls it again for the next event.
    ///
    /// # Errors
    /// [`Error::Thread`] if the thread cannot be started, [`Error::Verbs`] without a free file descriptor.
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
                match next_event(&device.inner, Duration::MAX, Some(stopped.as_raw_fd())) {
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

/// Implements [`Device::next_event`]. `stop`: another descriptor, which ends the wait when it becomes readable.
fn next_event(
    device: &DeviceInner,
    timeout: Duration,
    stop: Option<RawFd>,
) -> Result<Option<AsyncEvent>, Error> {
    // SAFETY: the context is open as long as `device`.
    let events = unsafe { (*device.context()).async_fd };
    if !poll(events, stop, timeout)? {
        return Ok(None);
    }
    // One reader at a time: the event that makes the descriptor readable is this reader's.
    let _reader = device.reader.lock();
    if !poll(events, None, Duration::ZERO)? {
        return Ok(None);
    }
    let mut event = ibv_async_event { element: ibv_async_element { port_num: 0 }, event_type: -1 };
    // SAFETY: the context is open, and the place is valid.
    let rc = unsafe { (device.api.get_async_event)(device.context(), &mut event) };
    call::status("ibv_get_async_event", rc, String::new)?;
    let concerned = device.queue_pairs.concerned(Element::of(&event));
    let told = take_event(device, &event, &concerned);
    // SAFETY: filled above, and acknowledged once: before the queue pairs are dropped, whose destruction waits
    // for it.
    unsafe { (device.api.ack_async_event)(&mut event) };
    Ok(Some(told))
}

fn take_event(device: &DeviceInner, event: &ibv_async_event, concerned: &[Arc<dyn EventSink>]) -> AsyncEvent {
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
        tracing::warn!(device = &device.name, event = %told, "the card reported an asynchronous event");
        concerned.iter().for_each(|sink| sink.fail_by_event(kind, element));
    } else {
        tracing::info!(device = &device.name, event = %told, "the card reported an asynchronous event");
    }
    told
}

#[cfg(test)]
mod tests;
