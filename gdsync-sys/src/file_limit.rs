//! The limit on the size of files (`RLIMIT_FSIZE`), which memory files have, too.

use std::io::{self, ErrorKind};

/// Runs `write`, which makes a file longer, or writes to one. Beyond the limit on the size of files the system sends
/// SIGXFSZ, which ends a program that does not expect it: here the calling thread does not get it.
///
/// ```
/// use gdsync_sys::file_limit::within_file_limit;
/// use std::io::Write;
///
/// let mut text = Vec::new();
/// within_file_limit(|| text.write_all(b"short"))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::FileTooLarge`], with the limit and the remedy as its text; others of `write`.
pub fn within_file_limit<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // SAFETY: all-zero bytes are a valid value of these plain C structures; valid places, and a signal number. The
    // thread's mask is restored below.
    let (signal, before, was_pending) = unsafe {
        let (mut signal, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            std::mem::zeroed();
        libc::sigemptyset(&mut signal);
        libc::sigaddset(&mut signal, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signal, &mut before);
        libc::sigpending(&mut pending);
        (signal, before, libc::sigismember(&pending, libc::SIGXFSZ) == 1)
    };
    let result = write();
    let is_over = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::FileTooLarge);
    if is_over && !was_pending {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // The signal is this thread's. None is there if the program ignores it.
        // SAFETY: valid places.
        unsafe { libc::sigtimedwait(&signal, std::ptr::null_mut(), &now) };
    }
    // SAFETY: a valid set, which was this thread's.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    result.map_err(|error| match error.raw_os_error() {
        _ if !is_over => error,
        Some(_) => io::Error::new(ErrorKind::FileTooLarge, too_large()),
        // The caller's text has the file.
        None => io::Error::new(ErrorKind::FileTooLarge, format!("{error}: {}", too_large())),
    })
}

fn too_large() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    let has_limit = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0
        && limit.rlim_cur != libc::RLIM_INFINITY;
    if !has_limit {
        return "the file system takes no file of this size: use another".to_owned();
    }
    format!(
        "files, memory files among them, may have {} bytes (RLIMIT_FSIZE): raise the limit, in a shell by `ulimit -f unlimited`",
        limit.rlim_cur
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    #[test]
    fn a_file_beyond_the_limit_is_an_error_that_names_it() {
        // SAFETY: a C string; the descriptor is new.
        let file =
            unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"limited".as_ptr(), libc::MFD_CLOEXEC)) };
        let grow = |size| {
            within_file_limit(|| {
                // SAFETY: the call accesses no memory of the process.
                let rc = unsafe { libc::ftruncate(file.as_raw_fd(), size) };
                if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            })
        };
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut before) }, 0);
        let limit = libc::rlimit { rlim_cur: 1 << 30, ..before };
        // SAFETY: a valid limit. Other tests write no file of that size.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        grow(1 << 30).unwrap();
        for _ in 0..2 {
            let refused = grow((1 << 30) + 1).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
            assert!(refused.to_string().contains("1073741824 bytes (RLIMIT_FSIZE)"), "{refused}");
        }
        let with_name =
            within_file_limit(|| Err::<(), _>(io::Error::new(ErrorKind::FileTooLarge, "/tmp/file")));
        assert!(with_name.unwrap_err().to_string().starts_with("/tmp/file: files, "));
        // SAFETY: the limit that was there; the mask is empty unless it is this thread's.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &before), 0);
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            assert_eq!(libc::sigismember(&mask, libc::SIGXFSZ), 0);
        }
    }
}
