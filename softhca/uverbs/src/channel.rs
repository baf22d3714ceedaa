//! Completion channels, and the file of asynchronous events.

use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::events::EventPipe;
use crate::files;
use crate::uapi::ioctl::attr;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Arc;

/// The completion channels of the process, by the program's file descriptor.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    by_fd: Mutex<HashMap<RawFd, Arc<EventPipe>>>,
}

impl Channels {
    pub(crate) fn find(&self, fd: RawFd) -> Option<Arc<EventPipe>> {
        self.by_fd.lock().get(&fd).cloned()
    }

    fn add(&self, fd: RawFd, pipe: EventPipe) {
        let earlier = self.by_fd.lock().insert(fd, Arc::new(pipe));
        // One that was closed without our knowledge; its files are closed here, after the lock.
        drop(earlier);
    }

    /// The program has closed a channel. Completion queues keep what they need of it.
    pub(crate) fn forget(&self, fd: RawFd) {
        let closed = self.by_fd.lock().remove(&fd);
        drop(closed);
    }
}

/// `CREATE_COMP_CHANNEL`.
pub(crate) fn create(context: &Context, request: &Request) -> Result<()> {
    let (pipe, theirs) = EventPipe::new()?;
    let fd = theirs.as_raw_fd();
    request.answer_with(attr::CORE_OUT, &(fd as u32))?;
    files::watch(fd)?;
    context.channels.add(fd, pipe);
    // The program's from here on.
    let _ = theirs.into_raw_fd();
    Ok(())
}

/// `ASYNC_EVENT_ALLOC`: all of a context's event files are one.
pub(crate) fn alloc_async(context: &Context, request: &Request) -> Result<()> {
    let fd = context.async_fd.try_clone().map_err(Errno::from)?;
    request.answer_made(attr::ASYNC_EVENT_FD, fd.as_raw_fd() as u32)?;
    // The program's from here on.
    let _ = fd.into_raw_fd();
    Ok(())
}
