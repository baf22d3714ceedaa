//! Waiting for several descriptors, and waking the waiting thread.

use super::{check, owned};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Creates an eventfd with these flags and `EFD_CLOEXEC`.
pub(crate) fn event(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call, whose descriptor is new.
    unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | flags)) }
}

pub(crate) fn raise(event: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: 8 readable bytes. It fails only if the counter is full; the eventfd is readable then.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Reads everything from a non-blocking descriptor. Returns false if the other side has closed it or it failed.
pub(crate) fn drain(fd: BorrowedFd<'_>) -> bool {
    let mut bytes = [0u8; 256];
    loop {
        // SAFETY: the buffer has room for the bytes asked for.
        let got = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
        match got {
            0 => return false,
            n if n > 0 => {}
            _ => match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock => return true,
                io::ErrorKind::Interrupted => {}
                _ => return false,
            },
        }
    }
}

/// Returns whether a descriptor is readable or closed now.
pub(crate) fn is_ready(fd: BorrowedFd<'_>) -> bool {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry. An interrupted call returns false, and the caller retries.
    unsafe { libc::poll(&mut polled, 1, 0) == 1 }
}

/// Sleeps until one of the descriptors is readable or closed, or the timeout expires.
pub(crate) fn sleep(fds: &[BorrowedFd<'_>; 2], timeout: Duration) {
    let entry = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled = [entry(&fds[0]), entry(&fds[1])];
    let time = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: two valid entries, a valid time, no signal mask. An interrupted sleep is a short one.
    unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &time, ptr::null()) };
}

/// An epoll instance: one descriptor to sleep on for the sockets of all links.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a plain system call, whose descriptor is new.
        unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }.map(Epoll)
    }

    /// Watches a descriptor until it is closed. [`Self::ready`] reports its events by `key`.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.add(fd, libc::EPOLLIN | libc::EPOLLRDHUP, key)
    }

    /// Watches a descriptor for changes only (edge-triggered): readable, closed, or writable.
    pub(crate) fn watch_changes(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.add(fd, libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT | libc::EPOLLET, key)
    }

    /// Ends the watch of a descriptor, which a forked child may keep open.
    pub(crate) fn ignore(&self, fd: BorrowedFd<'_>) {
        // Fails only if it is not watched.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Changes the key by which the events of a watched descriptor are reported.
    pub(crate) fn rename(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN | libc::EPOLLRDHUP, key)
    }

    fn add(&self, fd: BorrowedFd<'_>, events: libc::c_int, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, key)
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        events: libc::c_int,
        key: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        // SAFETY: both descriptors are open, the event is valid.
        let rc = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) };
        check(rc).map(drop)
    }

    /// Returns the keys of descriptors that are readable or closed now, at most 64.
    pub(crate) fn ready(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for as many events as are asked for.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, 0) };
        events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64).collect()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
