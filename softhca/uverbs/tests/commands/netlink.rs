//! Sockets of RDMA netlink, as libnl and libmnl use them.

use super::*;
use crate::hooks::sockets;
use std::ptr;

/// A request for all devices, with a sequence number.
fn request(sequence: u32) -> [u8; 16] {
    // `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)`; `NLM_F_REQUEST | NLM_F_DUMP`.
    let words = [16u32, 0x301 << 16 | 0x1401, sequence, 0];
    let mut bytes = [0; 16];
    bytes.copy_from_slice(words.as_bytes());
    bytes
}

/// Returns type and sequence number of the next message.
fn next(socket: i32) -> (u16, u32) {
    let mut room = [0u8; 8192];
    // SAFETY: room for the message.
    let got = unsafe { libc::recv(socket, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
    assert!(got >= 16, "{}", io::Error::last_os_error());
    (u16::from_ne_bytes([room[4], room[5]]), u32::from_ne_bytes(room[8..12].try_into().unwrap()))
}

#[test]
fn devices_are_listed_to_every_kind_of_sender() {
    let socket = sockets::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 20);
    assert!(socket >= 0, "{}", io::Error::last_os_error());
    for sequence in 1..=3 {
        let mut bytes = request(sequence);
        let place = bytes.as_mut_ptr().cast::<libc::c_void>();
        let mut part = [(0, 4), (4, 12)]
            .map(|(at, len)| libc::iovec { iov_base: place.wrapping_byte_add(at), iov_len: len });
        // SAFETY: all-zero bytes are a valid value of this plain C structure.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (part.as_mut_ptr(), part.len() as _);
        // SAFETY: the bytes and the parts are readable.
        let sent = unsafe {
            match sequence {
                1 => sockets::send(socket, place, 16, 0),
                2 => sockets::sendto(socket, place, 16, 0, ptr::null(), 0),
                _ => sockets::sendmsg(socket, &message, 0),
            }
        };
        assert_eq!(sent, 16);
        assert_eq!(next(socket), (0x1401, sequence));
        assert_eq!(next(socket), (3, sequence), "NLMSG_DONE");
    }
    let long = vec![0u8; 70_000];
    // SAFETY: the bytes are readable.
    let sent = unsafe { sockets::send(socket, long.as_ptr().cast(), long.len(), 0) };
    assert_eq!((sent, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EMSGSIZE)));
    assert_eq!(hooks::close(socket), 0);
    let other = sockets::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0);
    assert!(other >= 0, "other sockets are the system's");
    assert_eq!(hooks::close(other), 0);
}
