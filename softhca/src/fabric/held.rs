//! Sockets that belong to one process: the child of a fork closes them.

use crate::os::socket;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// A socket of this process, which ends when this is dropped: a listener refuses connections, a connection is shut down.
/// The name or the port that it holds is free once the last copy of the descriptor is closed: another thread may be
/// starting a program, which has copies until it is executed.
#[derive(Debug)]
pub(super) struct Held<S: AsFd>(S);

/// Sockets with descriptors below this limit are closed in children.
const MAX_FD: usize = 1 << 16;
/// The descriptors of all such sockets of the process.
static HELD: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];

impl<S: AsFd> Held<S> {
    pub(super) fn new(socket: S) -> Self {
        let fd = socket.as_fd().as_raw_fd() as usize;
        if let Some(word) = HELD.get(fd / 64) {
            word.fetch_or(1 << (fd % 64), Ordering::AcqRel);
        }
        Held(socket)
    }
}

impl<S: AsFd> Deref for Held<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: AsFd> Drop for Held<S> {
    fn drop(&mut self) {
        let fd = self.0.as_fd().as_raw_fd() as usize;
        socket::shut_down(self.0.as_fd());
        if let Some(word) = HELD.get(fd / 64) {
            word.fetch_and(!(1 << (fd % 64)), Ordering::AcqRel);
        }
    }
}

/// Closes the parent's sockets, which only the parent holds and gives up. For the child of a fork: makes system calls
/// only.
pub fn close_sockets_in_child() {
    for (index, word) in HELD.iter().enumerate() {
        let mut held = word.swap(0, Ordering::AcqRel);
        while held != 0 {
            socket::close_inherited((index * 64) as i32 + held.trailing_zeros() as i32);
            held &= held - 1;
        }
    }
}
