//! A TCP port for rank 0, chosen before it starts.

use crate::failure::Failure;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A TCP port that the system gives to no other socket while this is alive, but to one that asks for it, as rank 0 does.
pub(super) struct ReservedPort {
    pub(super) at: SocketAddr,
    _socket: OwnedFd,
}

impl ReservedPort {
    pub(super) fn at(address: IpAddr) -> Result<Self, Failure> {
        let refused = |error| format!("{address} cannot be used as an address of this host: {error}");
        let last = io::Error::last_os_error;
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: a plain system call.
        let socket = unsafe { libc::socket(family, kind, 0) };
        if socket < 0 {
            return Err(refused(last()).into());
        }
        // SAFETY: the descriptor is new.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let reuse: libc::c_int = 1;
        // SAFETY: the value is readable for its length. A socket that does not listen shares its port with one that does,
        // if both ask for that.
        let set = unsafe {
            let length = size_of_val(&reuse) as libc::socklen_t;
            let option = (&raw const reuse).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, option, length)
        };
        if set != 0 {
            return Err(refused(last()).into());
        }
        let port = bind(&socket, address).map_err(refused)?;
        Ok(ReservedPort { at: SocketAddr::new(address, port), _socket: socket })
    }
}

/// Binds a socket to a port that the system chooses, and returns it.
fn bind(socket: &OwnedFd, address: IpAddr) -> io::Result<u16> {
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut place: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let short: *mut libc::sockaddr_in = (&raw mut place).cast();
    let length = match address {
        IpAddr::V4(address) => {
            // SAFETY: the structure is larger than one for IPv4, and as aligned.
            unsafe {
                (*short).sin_family = libc::AF_INET as libc::sa_family_t;
                (*short).sin_addr.s_addr = u32::from(address).to_be();
            }
            size_of::<libc::sockaddr_in>()
        }
        IpAddr::V6(address) => {
            place.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            place.sin6_addr.s6_addr = address.octets();
            size_of::<libc::sockaddr_in6>()
        }
    };
    let mut length = length as libc::socklen_t;
    // SAFETY: the address is valid for its length, and writable when it is read back.
    let result = unsafe {
        match libc::bind(socket.as_raw_fd(), (&raw const place).cast(), length) {
            0 => libc::getsockname(socket.as_raw_fd(), (&raw mut place).cast(), &mut length),
            failed => failed,
        }
    };
    // The port is at the same place in both structures.
    if result == 0 { Ok(u16::from_be(place.sin6_port)) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    #[test]
    fn a_reserved_port_is_free_for_a_listener() {
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let Ok(reserved) = ReservedPort::at(address) else {
                assert!(address.is_ipv6(), "a host without IPv4");
                continue;
            };
            assert_ne!(reserved.at.port(), 0);
            let listener = TcpListener::bind(reserved.at).unwrap();
            assert_eq!(listener.local_addr().unwrap(), reserved.at);
        }
        assert!(ReservedPort::at([192, 0, 2, 1].into()).is_err(), "an address that no host has");
    }
}
