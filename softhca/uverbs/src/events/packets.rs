//! Sockets that stand in for the event files of DEVX: each read gets one event, regardless of its size.

use crate::errno::{Errno, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Content of a DEVX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Answers of asynchronous commands.
    Answers,
    /// Events, each with the device's event queue entry.
    Entries,
    /// Events, each as the cookie of its subscription.
    Cookies,
}

/// The sending end of a file of DEVX.
#[derive(Debug)]
pub(crate) struct PacketFile {
    pub(crate) content: Content,
    socket: OwnedFd,
}

impl PacketFile {
    /// Creates a file. Also returns the program's end.
    pub(crate) fn new(content: Content) -> Result<(Self, OwnedFd)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `fds` has room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: `socketpair` has just opened both descriptors, and nothing else owns them.
        let (socket, theirs) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        Ok((PacketFile { content, socket }, theirs))
    }

    /// Adds an event. EAGAIN if there is no room for unread events.
    pub(crate) fn push(&self, event: &[u8]) -> Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the slice keeps the bytes readable. A system call, as the hook of send(2) serves the
        // program's sockets.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.socket.as_raw_fd(),
                event.as_ptr(),
                event.len(),
                flags,
                std::ptr::null::<libc::sockaddr>(),
                0,
            )
        };
        if sent < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn each_read_gets_one_event() {
        let (file, theirs) = PacketFile::new(Content::Answers).unwrap();
        let mut theirs = File::from(theirs);
        file.push(&[1; 100]).unwrap();
        file.push(&[2; 8]).unwrap();
        let mut room = [0; 200];
        assert_eq!((theirs.read(&mut room).unwrap(), room[99]), (100, 1));
        assert_eq!((theirs.read(&mut room).unwrap(), room[0]), (8, 2));
    }

    #[test]
    fn a_file_that_is_not_read_fills_up_and_a_closed_one_is_an_error() {
        let (file, theirs) = PacketFile::new(Content::Cookies).unwrap();
        let full = (0..1_000_000).find_map(|_| file.push(&[0; 8]).err());
        assert_eq!(full, Some(Errno(libc::EAGAIN)));
        drop(theirs);
        let (closed, theirs) = PacketFile::new(Content::Cookies).unwrap();
        drop(theirs);
        assert_eq!(closed.push(&[0; 8]), Err(Errno(libc::EPIPE)));
    }
}
