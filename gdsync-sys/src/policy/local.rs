//! Sockets of one host with abstract names: connecting without blocking, and the peer's credentials.
//!
//! Any user may bind an abstract name. Users of a name therefore check which user bound it ([`peer`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Returns the effective user of this process.
pub fn own_user() -> libc::uid_t {
    // SAFETY: no preconditions; cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns the socket address of an abstract name, and its length.
fn abstract_address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero bytes are a valid socket address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let place = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in place.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, length as libc::socklen_t))
}

/// Connects to an abstract name without blocking (the standard library's connect waits while the backlog is full).
/// The socket itself does not block either.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] while the backlog is full; [`io::ErrorKind::InvalidInput`] for a name of more than
/// 107 bytes; others of the operating system.
pub fn connect(name: &[u8]) -> io::Result<UnixStream> {
    let (address, length) = abstract_address(name)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    let descriptor = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: the address is valid for its length.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(socket.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns process and user of the peer of a connected socket, as they were when it connected or listened. The
/// process is 0 if this process's PID namespace does not contain it.
///
/// # Errors
/// The operating system's.
pub fn peer(socket: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut credentials).cast();
    // SAFETY: `place` has room for `length` bytes.
    match unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut length)
    } {
        0 => Ok(credentials),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns which of several files are readable or at their end, in their order: [`ready`] with `POLLIN`.
///
/// # Errors
/// The operating system's.
pub fn readable<S: AsFd>(files: &[S], within: Duration) -> io::Result<Vec<bool>> {
    let files: Vec<_> = files.iter().map(|file| (file.as_fd(), libc::POLLIN)).collect();
    ready(&files, within)
}

/// Returns which of several files are ready for their events (`POLLIN`, `POLLOUT`) or have failed, in their order.
/// Waits until one is ready, but at most `within`, rounded up to milliseconds. A signal ends the wait early; possibly
/// no file is ready then.
///
/// # Errors
/// The operating system's.
pub fn ready(files: &[(BorrowedFd<'_>, i16)], within: Duration) -> io::Result<Vec<bool>> {
    let awaited =
        |&(fd, events): &(BorrowedFd<'_>, i16)| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let mut list: Vec<libc::pollfd> = files.iter().map(awaited).collect();
    let millis = within.as_nanos().div_ceil(1_000_000);
    let millis = libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX);
    // SAFETY: the list is valid for its length; its descriptors are borrowed, so they stay open during the call.
    match unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, millis) } {
        0.. => {}
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        },
    }
    Ok(list.iter().map(|one| one.revents != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn a_connection_knows_its_other_side_and_never_blocks() {
        let name = format!("gdsync-sys-local-{}", std::process::id());
        let refused = connect(name.as_bytes()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
        // SAFETY: a plain system call that makes the listener's backlog as short as possible.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let first = connect(name.as_bytes()).unwrap();
        let peer = peer(&first).unwrap();
        assert_eq!((peer.pid as u32, peer.uid), (std::process::id(), own_user()));
        let full = connect(name.as_bytes()).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(connect(&[b'x'; 108]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn sockets_that_can_be_read_are_told_from_others() {
        let [one, another, third] = std::array::from_fn(|_| UnixStream::pair().unwrap());
        let all = [&one.0, &another.0, &third.0];
        assert_eq!(readable(&all, Duration::ZERO).unwrap(), [false; 3]);
        std::io::Write::write_all(&mut &one.1, b"x").unwrap();
        drop(third.1);
        assert_eq!(readable(&all, Duration::from_secs(60)).unwrap(), [true, false, true]);
        assert!(readable::<UnixStream>(&[], Duration::from_nanos(1)).unwrap().is_empty());
    }
}
