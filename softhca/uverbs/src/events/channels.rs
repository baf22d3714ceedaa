//! The event files of the process, by the program's file descriptors.

use super::packets::PacketFile;
use super::pipe::EventPipe;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Files of one kind. A duplicate of a descriptor is the same file.
#[derive(Debug)]
pub(crate) struct Files<T> {
    by_fd: Mutex<HashMap<RawFd, Arc<T>>>,
}

impl<T> Default for Files<T> {
    fn default() -> Self {
        Files { by_fd: Mutex::default() }
    }
}

impl<T> Files<T> {
    pub(crate) fn find(&self, fd: RawFd) -> Option<Arc<T>> {
        self.by_fd.lock().get(&fd).cloned()
    }

    pub(crate) fn add(&self, fd: RawFd, file: T) {
        self.insert(fd, Arc::new(file));
    }

    fn insert(&self, fd: RawFd, file: Arc<T>) {
        let stale = self.by_fd.lock().insert(fd, file);
        // A file whose close the hooks missed. Dropped after the lock is released, because it closes files.
        drop(stale);
    }

    fn duplicate(&self, from: RawFd, to: RawFd) {
        if let Some(file) = self.find(from) {
            self.insert(to, file);
        }
    }

    fn remove(&self, fd: RawFd) {
        let closed = self.by_fd.lock().remove(&fd);
        drop(closed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Channels {
    pub(crate) completions: Files<EventPipe>,
    pub(crate) devx: Files<PacketFile>,
}

impl Channels {
    /// Makes a duplicate of a descriptor the same file.
    pub(crate) fn duplicate(&self, from: RawFd, to: RawFd) {
        self.completions.duplicate(from, to);
        self.devx.duplicate(from, to);
    }

    /// Removes a file that the program is about to close. Completion queues keep their own reference to a
    /// channel.
    pub(crate) fn remove(&self, fd: RawFd) {
        self.completions.remove(fd);
        self.devx.remove(fd);
    }
}
