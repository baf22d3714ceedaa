//! Event files of the process, by the program's descriptors: pipes that stand in for the kernel's event files, and
//! those of DEVX.

use super::packets::PacketFile;
use crate::errno::{Errno, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// A queue of events of one size, which the program reads. It holds 64 KiB: thousands of events.
#[derive(Debug)]
pub(crate) struct EventPipe {
    ends: Mutex<Ends>,
}

/// Both ends are non-blocking. The library's read end is a separate open file, so that the program's read end
/// keeps the mode that the program sets.
#[derive(Debug)]
struct Ends {
    write: File,
    read: File,
}

impl EventPipe {
    /// Creates a pipe. Also returns the program's read end.
    pub(crate) fn new() -> Result<(EventPipe, OwnedFd)> {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: `pipe2` has just opened both descriptors, and nothing else owns them.
        let (theirs, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        let reopen = |fd: &OwnedFd, options: &mut OpenOptions| {
            options.custom_flags(libc::O_NONBLOCK).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        };
        let read = reopen(&theirs, OpenOptions::new().read(true))?;
        let write = reopen(&write, OpenOptions::new().write(true))?;
        Ok((EventPipe { ends: Mutex::new(Ends { write, read }) }, theirs))
    }

    /// Adds an event. Returns false if the pipe is full.
    pub(super) fn push(&self, event: &[u8]) -> bool {
        // A write of at most 4 KiB is atomic (pipe(7)).
        let pushed = self.ends.lock().write.write_all(event);
        if let Err(error) = &pushed {
            tracing::error!(%error, "an event is lost: the program does not read its event channel");
        }
        pushed.is_ok()
    }

    /// Removes the unread events that start with `element`. Returns their count.
    pub(super) fn take_back(&self, size: usize, element: u64) -> u32 {
        let mut ends = self.ends.lock();
        let (mut taken, mut others) = (0, Vec::new());
        let mut event = vec![0; size];
        // The program, too, reads whole events, so every read here starts at an event.
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

/// Files of one kind. A duplicate of a descriptor is the same file.
#[derive(Debug)]
pub(crate) struct Files<T> {
    /// Each with the context that it belongs to.
    by_fd: Mutex<HashMap<RawFd, (u64, Arc<T>)>>,
}

impl<T> Default for Files<T> {
    fn default() -> Self {
        Files { by_fd: Mutex::default() }
    }
}

impl<T> Files<T> {
    /// Returns the file of a context's descriptor.
    pub(crate) fn find(&self, owner: u64, fd: RawFd) -> Option<Arc<T>> {
        self.of_any(fd).filter(|(of, _)| *of == owner).map(|(_, file)| file)
    }

    fn of_any(&self, fd: RawFd) -> Option<(u64, Arc<T>)> {
        self.by_fd.lock().get(&fd).cloned()
    }

    pub(crate) fn add(&self, owner: u64, fd: RawFd, file: T) {
        self.insert(fd, (owner, Arc::new(file)));
    }

    fn insert(&self, fd: RawFd, file: (u64, Arc<T>)) {
        let stale = self.by_fd.lock().insert(fd, file);
        // A file whose close the hooks missed. Dropped after the lock is released, because it closes files.
        drop(stale);
    }

    fn duplicate(&self, from: RawFd, to: RawFd) {
        if let Some(file) = self.of_any(from) {
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
    pub(crate) fn duplicate(&self, from: RawFd, to: RawFd) {
        self.completions.duplicate(from, to);
        self.devx.duplicate(from, to);
    }

    /// Returns the DEVX file of a descriptor, of whichever context.
    pub(crate) fn packets(&self, fd: RawFd) -> Option<Arc<PacketFile>> {
        self.devx.of_any(fd).map(|(_, file)| file)
    }

    /// Ends the DEVX files of a context that is closed, whose descriptors the program may still have.
    pub(crate) fn end(&self, owner: u64) {
        for (of, file) in self.devx.by_fd.lock().values() {
            if *of == owner {
                file.end();
            }
        }
    }

    /// Removes a file that the program is about to close. Completion queues keep their own reference to a channel.
    pub(crate) fn remove(&self, fd: RawFd) {
        self.completions.remove(fd);
        self.devx.remove(fd);
    }
}
