//! A thread that reads asynchronous events, for programs that ask for one.
//!
//! It is not a [`crate::util::poller::Poller`]: it blocks in the operating system until an event
//! arrives, and ends with its handle.

use super::events::AsyncEvent;
use crate::util::contain::{drop_contained, log};
use crate::verbs::{Device, Error};
use gdsync_sys::contain::contain;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

const NAME: &str = "gdsync-events";

/// Reads asynchronous events until it is dropped; see [`Device::watch_events`].
pub struct EventWatch {
    stop: File,
    thread: Option<JoinHandle<()>>,
}

impl Device {
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
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(Error::Verbs { call: "eventfd", detail: String::new(), source });
        }
        // SAFETY: just opened, and it has no other owner.
        let stop = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let no_thread = |source| Error::Thread { name: NAME, source };
        let stopped = stop.try_clone().map_err(no_thread)?;
        let device = self.clone();
        let read = move || {
            while !is_readable(&stopped) {
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

fn is_readable(file: &File) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
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

impl fmt::Debug for EventWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWatch").finish_non_exhaustive()
    }
}
