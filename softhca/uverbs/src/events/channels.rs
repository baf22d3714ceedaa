//! The completion channels of the process.

use super::pipe::EventPipe;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Completion channels, by the program's file descriptor.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    by_fd: Mutex<HashMap<RawFd, Arc<EventPipe>>>,
}

impl Channels {
    pub(crate) fn find(&self, fd: RawFd) -> Option<Arc<EventPipe>> {
        self.by_fd.lock().get(&fd).cloned()
    }

    pub(crate) fn add(&self, fd: RawFd, pipe: EventPipe) {
        let stale = self.by_fd.lock().insert(fd, Arc::new(pipe));
        // A channel whose close the hooks did not see. Dropped after the lock is released, because
        // it closes files.
        drop(stale);
    }

    /// Makes a duplicate of a channel's descriptor the same channel.
    pub(crate) fn duplicate(&self, from: RawFd, to: RawFd) {
        let mut by_fd = self.by_fd.lock();
        let stale = by_fd.get(&from).cloned().and_then(|pipe| by_fd.insert(to, pipe));
        drop(by_fd);
        // As in `add`.
        drop(stale);
    }

    /// Removes a channel that the program is about to close. Completion queues keep their own
    /// reference to the pipe.
    pub(crate) fn remove(&self, fd: RawFd) {
        let closed = self.by_fd.lock().remove(&fd);
        drop(closed);
    }
}
