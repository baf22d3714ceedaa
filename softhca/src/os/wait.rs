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
            n if n == bytes.len() as isize => {}
            // Another read would find nothing, or the end, which stays readable.
            n if n > 0 => return true,
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

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    ByTime,
    /// A descriptor, by its key; others may be ready, too.
    By(u64),
    Unknown,
}

/// An epoll instance: one descriptor to sleep on for the sockets of all links.
#[derive(Debug)]
pub(crate) struct Epoll {
    instance: OwnedFd,
    /// True if it may watch descriptors for changes. Only [`Self::ready`] takes those events.
    has_changes: bool,
}

impl Epoll {
    /// `has_changes` allows [`Self::watch_changes`].
    pub(crate) fn new(has_changes: bool) -> io::Result<Self> {
        // SAFETY: a plain system call, whose descriptor is new.
        let instance = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }?;
        Ok(Epoll { instance, has_changes })
    }

    /// Watches a descriptor until it is closed. [`Self::ready`] reports its events by `key`.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.add(fd, libc::EPOLLIN | libc::EPOLLRDHUP, key)
    }

    /// Watches a descriptor for changes only (edge-triggered): readable, closed, or writable.
    pub(crate) fn watch_changes(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        debug_assert!(self.has_changes);
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
        let rc = unsafe { libc::epoll_ctl(self.instance.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) };
        check(rc).map(drop)
    }

    /// Returns the keys of descriptors that are readable or closed now, at most 64.
    pub(crate) fn ready(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for as many events as are asked for.
        let count = unsafe {
            libc::epoll_wait(self.instance.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, 0)
        };
        events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64).collect()
    }

    /// Sleeps until one of the descriptors is readable or closed, or the timeout expires. Returns what ended the sleep, if
    /// it is known.
    ///
    /// `ppoll(2)` on the instance would always do. But if a thread waits in epoll, Linux (from 6.12 on) runs it on the
    /// core of the thread that sends to its socket, without an interrupt of another core.
    pub(crate) fn sleep(&self, timeout: Duration) -> Woken {
        let time = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        if !self.has_changes
            && let Some(woken) = self.wait(&time)
        {
            return woken;
        }
        let mut polled = libc::pollfd { fd: self.instance.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, a valid time, no signal mask. An interrupted sleep is a short one.
        unsafe { libc::ppoll(&mut polled, 1, &time, ptr::null()) };
        Woken::Unknown
    }

    /// Waits for one event, which stays unless it is a change. Returns `None` if the system refuses the call: before Linux
    /// 5.11, or by a filter of system calls.
    fn wait(&self, time: &libc::timespec) -> Option<Woken> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event, a valid time, no signal mask. An interrupted sleep is a short one.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.instance.as_raw_fd(),
                &raw mut event,
                1,
                ptr::from_ref(time),
                ptr::null::<libc::sigset_t>(),
                size_of::<u64>(),
            )
        };
        match rc {
            0 => Some(Woken::ByTime),
            1 => Some(Woken::By(event.u64)),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Some(Woken::Unknown),
            _ => None,
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.instance.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_sleep_names_the_descriptor_that_ends_it_and_leaves_the_event() {
        let (epoll, event) = (Epoll::new(false).unwrap(), event(libc::EFD_NONBLOCK).unwrap());
        epoll.watch(event.as_fd(), 7).unwrap();
        assert_eq!(epoll.sleep(Duration::from_micros(1)), Woken::ByTime);
        raise(event.as_fd());
        assert_eq!([epoll.sleep(LONG), epoll.sleep(LONG)], [Woken::By(7); 2]);
        assert_eq!(epoll.ready(), [7]);
        assert!(drain(event.as_fd()));
        assert_eq!(epoll.sleep(Duration::ZERO), Woken::ByTime);
    }

    /// Makes the kernel refuse a system call of the calling thread with `EPERM`, as a container's filter does.
    fn refuse(call: libc::c_long) {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut steps = [
            // The number of the call is the first word.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: restricts the calling thread only; the program lives through the calls.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let rc = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program);
            assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        }
    }

    #[test]
    fn a_sleep_does_without_a_call_that_is_refused() {
        let refused = std::thread::spawn(|| {
            let epoll = Epoll::new(false).unwrap();
            refuse(libc::SYS_epoll_pwait2);
            epoll.wait(&libc::timespec { tv_sec: 0, tv_nsec: 1 })
        });
        assert_eq!(refused.join().unwrap(), None);
    }

    #[test]
    fn a_sleep_takes_no_change() {
        let (epoll, event) = (Epoll::new(true).unwrap(), event(libc::EFD_NONBLOCK).unwrap());
        epoll.watch_changes(event.as_fd(), 7).unwrap();
        raise(event.as_fd());
        assert_eq!([epoll.sleep(LONG), epoll.sleep(LONG)], [Woken::Unknown; 2]);
        assert_eq!((epoll.ready(), epoll.ready()), (vec![7], Vec::new()));
    }

    #[test]
    fn draining_reads_everything_and_finds_the_end() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        for count in [1, 255, 256, 257, 1000] {
            io::Write::write_all(&mut &other, &vec![1; count]).unwrap();
            assert!(drain(one.as_fd()) && !is_ready(one.as_fd()), "{count}");
        }
        io::Write::write_all(&mut &other, &[1]).unwrap();
        drop(other);
        // The end stays readable.
        assert!(drain(one.as_fd()) && is_ready(one.as_fd()) && !drain(one.as_fd()));
    }
}
