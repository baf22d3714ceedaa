//! Sockets: non-blocking connections, gathered sends, descriptors in messages.

use super::{check, owned};
use gdsync_sys::host::process_stat;
use gdsync_sys::local;
use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn internet_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// Returns whether the process, or the system, has no file descriptor left.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Begins to connect to a peer from an address of this host, without blocking.
pub(crate) fn connect_tcp(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<TcpStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call, whose descriptor is new.
    let socket = unsafe { owned(libc::socket(libc::AF_INET, kind, 0)) }?;
    // The kernel chooses the port at connect time, so that one port serves many connections.
    set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let (own, peer) = (internet_address(SocketAddrV4::new(from, 0)), internet_address(to));
    // SAFETY: the addresses are valid for their length.
    let rc = unsafe {
        check(libc::bind(socket.as_raw_fd(), (&raw const own).cast(), length))?;
        check(libc::connect(socket.as_raw_fd(), (&raw const peer).cast(), length))
    };
    match rc {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Listens at an address of this host, at which other processes of the user may listen, too.
pub(crate) fn listen_shared(at: SocketAddrV4) -> io::Result<TcpListener> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call, whose descriptor is new.
    let socket = unsafe { owned(libc::socket(libc::AF_INET, kind, 0)) }?;
    // Connections of processes that have ended keep the port for a while.
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    let own = internet_address(at);
    // SAFETY: the address is valid for its length.
    unsafe {
        check(libc::bind(socket.as_raw_fd(), (&raw const own).cast(), size_of_val(&own) as libc::socklen_t))?;
        check(libc::listen(socket.as_raw_fd(), libc::SOMAXCONN))?;
    }
    Ok(socket.into())
}

fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is readable for its length.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    check(rc).map(drop)
}

/// Closes a descriptor that a child has inherited, and whose owner is in the parent's memory. Only makes a system call.
pub(crate) fn close_inherited(fd: RawFd) {
    // SAFETY: the call accesses no memory of the process; in the child, nothing uses the descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Ends a connection whose peer has not answered keep-alive probes for this long.
///
/// # Errors
/// The operating system's.
pub fn limit_silence(socket: &TcpStream, limit: Duration) -> io::Result<()> {
    const PROBES: libc::c_int = 5;
    let socket = socket.as_fd();
    let millis = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    let each = (millis / 1000 / (PROBES + 1)).max(1);
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, each)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, each)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis)
}

/// Ends a connection, after the bytes that it has taken, or makes a listener refuse connections from now on, pending ones
/// included.
pub(crate) fn shut_down(socket: BorrowedFd<'_>) {
    // SAFETY: a plain system call. It fails only if the socket neither listens nor is connected.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Returns the user that a socket's peer ran as when it connected.
pub(crate) fn peer_user(socket: &UnixStream) -> io::Result<libc::uid_t> {
    local::peer(socket).map(|peer| peer.uid)
}

/// Returns the process that listens at, or has connected to, a socket; 0 if this process's PID namespace does not
/// contain it.
pub(crate) fn peer_id(socket: &UnixStream) -> u32 {
    local::peer(socket).ok().and_then(|peer| u32::try_from(peer.pid).ok()).unwrap_or(0)
}

/// Returns a descriptor of the process that listens at the peer of a socket. It becomes readable when the
/// process ends, even if a forked child keeps the socket open. `None` where the kernel gives none: before
/// Linux 5.3, under some filters of system calls, or for a process of another PID namespace.
///
/// # Errors
/// `ESRCH` if the process has ended already, or an error such as `EMFILE`.
pub(crate) fn peer_process(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let pid = local::peer(socket)?.pid;
    if pid <= 0 {
        return Ok(None);
    }
    // SAFETY: a plain system call, whose descriptor is new and closed on exec. Descriptors fit in an `int`.
    match unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int) } {
        Ok(process) => Ok(Some(process)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL | libc::ENODEV) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns whether a signal has stopped the process that listens at the peer of a socket, with all its threads. False if
/// the process has ended, or if `/proc` does not show it.
pub(crate) fn is_peer_stopped(socket: &UnixStream) -> bool {
    let stat = local::peer(socket).ok().and_then(|peer| process_stat(peer.pid as u32));
    stat.is_some_and(|stat| stat.starts_with(" T"))
}

/// A control message buffer for one descriptor, aligned as `cmsghdr` asks.
#[repr(C)]
union ControlBuffer {
    _header: libc::cmsghdr,
    bytes: [u8; 64],
}

pub(crate) fn send_with_fd(socket: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = ControlBuffer { bytes: [0; 64] };
    let fd_len = size_of::<libc::c_int>() as libc::c_uint;
    // SAFETY: all-zero bytes are a valid message header; the control buffer holds one descriptor (24 of 64
    // bytes), so `CMSG_FIRSTHDR` is not null and its data has room for it; all pointers outlive the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = libc::CMSG_SPACE(fd_len) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(fd_len) as usize;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(fd.as_raw_fd());
        let sent = libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL);
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

pub(crate) fn receive_with_fd(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = ControlBuffer { bytes: [0; 64] };
    // SAFETY: all-zero bytes are a valid message header; buffers outlive the call; the kernel writes at most
    // 64 bytes of control data and reports how many; a descriptor that it passes is new.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<ControlBuffer>();
        let got = libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC);
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        let mut fd = None;
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<libc::c_int>();
                for i in 0..count {
                    let raw = libc::CMSG_DATA(header).cast::<libc::c_int>().add(i).read_unaligned();
                    // The last of several descriptors is kept; the assignment closes the others.
                    fd = Some(OwnedFd::from_raw_fd(raw));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        // The kernel drops a descriptor if this process is at its limit.
        if fd.is_none() && message.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok((got, fd))
    }
}

/// Sends one byte to wake the thread that sleeps on the socket. A full socket is readable already.
pub(crate) fn poke(socket: &UnixStream) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: one readable byte.
    unsafe { libc::send(socket.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
    POKED.set(true);
}

thread_local! {
    static POKED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread has called [`poke`] since the last call.
pub(crate) fn take_poked() -> bool {
    POKED.take()
}
