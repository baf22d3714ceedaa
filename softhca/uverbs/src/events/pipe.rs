//! Pipes that stand in for the kernel's event files.

use crate::errno::{Errno, Result};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

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
