//! RDMA netlink: the library answers instead of the kernel.
//!
//! The program's socket is a `NETLINK_USERSOCK` one, by which processes send each other messages. It binds,
//! names itself and receives as any netlink socket does; only its sends are intercepted, and the answer comes
//! from a socket of the library.

use super::next;
use super::next::returned;
use crate::descriptors::{self, FdKind};
use crate::errno::{Errno, Result, preserving};
use crate::netlink;
use crate::process;
use libc::{c_int, c_void, size_t, ssize_t};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Protocol of RDMA's netlink sockets (`NETLINK_RDMA`).
const NETLINK_RDMA: c_int = 20;
/// Longest request.
const LONGEST: usize = 64 << 10;

fn open(kind: c_int) -> Result<RawFd> {
    // SAFETY: the call accesses no memory of the process.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
    // Without such sockets libibverbs reads sysfs, as with a kernel without RDMA netlink.
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Errno::UNKNOWN)?;
    process::own_netlink(fd).inspect_err(|_| {
        // SAFETY: the call above has opened the descriptor, and nothing else owns it.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    })?;
    Ok(fd)
}

/// Returns the address of a socket, and binds it if it has none, as the system does when it sends.
fn address_of(fd: RawFd) -> Result<libc::sockaddr_nl> {
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    let place = ptr::from_mut(&mut address).cast::<libc::sockaddr>();
    let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: `place` has `len` bytes.
    let got = unsafe { libc::getsockname(fd, place, &mut len) };
    if got == 0 && address.nl_pid != 0 {
        return Ok(address);
    }
    // SAFETY: as above; port 0 lets the system choose.
    let bound = unsafe { libc::bind(fd, place, len) == 0 && libc::getsockname(fd, place, &mut len) == 0 };
    if bound { Ok(address) } else { Err(Errno::last()) }
}

/// Answers the requests in a program's message.
fn answer(fd: RawFd, request: &[u8]) -> Result<ssize_t> {
    let to = address_of(fd)?;
    let answers = netlink::answer(request, to.nl_pid, &process::View)?;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call accesses no memory of the process; the descriptor is new.
    let own = unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
    let own = RawFd::try_from(own).ok().filter(|fd| *fd >= 0).ok_or_else(Errno::last)?;
    // SAFETY: as above; nothing else owns it.
    let own = unsafe { OwnedFd::from_raw_fd(own) };
    for answer in answers {
        // SAFETY: the slice keeps the bytes readable, and `to` is an address of its length.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                own.as_raw_fd(),
                answer.as_ptr(),
                answer.len(),
                libc::MSG_DONTWAIT,
                ptr::from_ref(&to),
                size_of::<libc::sockaddr_nl>(),
            )
        };
        if sent < 0 {
            // The program reads too slowly: a kernel, too, drops the message and returns ENOBUFS.
            return Err(Errno::last());
        }
    }
    Ok(request.len() as ssize_t)
}

/// # Safety
/// The range must be readable.
unsafe fn answer_bytes(fd: RawFd, bytes: *const c_void, len: size_t) -> ssize_t {
    if len > LONGEST {
        return returned::<ssize_t>(Err(Errno(libc::EMSGSIZE)));
    }
    let request = match len {
        0 => &[],
        // SAFETY: guaranteed by the caller.
        _ => unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) },
    };
    returned(preserving(|| answer(fd, request)))
}

/// # Safety
/// As `sendmsg(2)`.
unsafe fn sendmsg_any(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    if descriptors::kind(fd) != Some(FdKind::Netlink) || message.is_null() {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { next::sendmsg(fd, message, flags) };
    }
    // SAFETY: the caller vouches for the message.
    let (first, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    let mut request = Vec::new();
    for i in 0..count {
        // SAFETY: the caller vouches for the parts of the message and their bytes.
        unsafe {
            let part = &*first.add(i);
            if part.iov_len > LONGEST - request.len().min(LONGEST) {
                return returned::<ssize_t>(Err(Errno(libc::EMSGSIZE)));
            }
            if part.iov_len > 0 {
                request
                    .extend_from_slice(std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len));
            }
        }
    }
    returned(preserving(|| answer(fd, &request)))
}

/// `socket(2)`. A socket of RDMA netlink is the library's.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return returned(preserving(|| open(kind)));
    }
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

/// # Safety
/// As `sendto(2)`.
unsafe fn sendto_any(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> ssize_t {
    match descriptors::kind(fd) {
        // SAFETY: the caller vouches for the arguments.
        Some(FdKind::Netlink) => unsafe { answer_bytes(fd, bytes, len) },
        // SAFETY: as above.
        _ => unsafe { next::sendto(fd, bytes, len, flags, to, to_len) },
    }
}

/// # Safety
/// As `send(2)`.
unsafe fn send_any(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match descriptors::kind(fd) {
        // SAFETY: the caller vouches for the arguments.
        Some(FdKind::Netlink) => unsafe { answer_bytes(fd, bytes, len) },
        // SAFETY: as above.
        _ => unsafe { next::send(fd, bytes, len, flags) },
    }
}

c_functions! {
    send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        send_any(fd, bytes, len, flags)
    }

    sendto(
        fd: c_int,
        bytes: *const c_void,
        len: size_t,
        flags: c_int,
        to: *const libc::sockaddr,
        to_len: libc::socklen_t
    ) -> ssize_t {
        sendto_any(fd, bytes, len, flags, to, to_len)
    }

    sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
        sendmsg_any(fd, message, flags)
    }
}
