//! The status thread. Clients cannot block the program: answers are limited in time, and the server's end aborts one.

use crate::name;
use gdsync_sys::{local, thread};
use parking_lot::Mutex;
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time within which a client must take the whole answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of one write. The kernel's time limit applies to each message that it creates from a write; this is one
/// message.
const WRITE_SIZE: usize = 16 << 10;
const STACK: usize = 256 << 10;
/// Pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The status thread. Dropping the server ends it.
pub(crate) struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    listener: UnixListener,
    make: fn() -> Vec<u8>,
    patience: Duration,
    client: Mutex<Client>,
}

#[derive(Default)]
struct Client {
    socket: Option<Arc<UnixStream>>,
    /// True once the server ends.
    is_stopping: bool,
}

impl Server {
    /// Answers at a name of this process with the result of `make`.
    pub(crate) fn start(make: fn() -> Vec<u8>) -> io::Result<Self> {
        Self::on(listen()?, make, PATIENCE)
    }

    fn on(listener: UnixListener, make: fn() -> Vec<u8>, patience: Duration) -> io::Result<Self> {
        let shared = Arc::new(Shared { listener, make, patience, client: Mutex::default() });
        let own = shared.clone();
        let serve = move || {
            block_signals();
            own.serve();
        };
        let thread = thread::start(Builder::new().name("gdsync-status".to_owned()).stack_size(STACK), serve)?;
        Ok(Server { shared, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The last reference that a source kept may own this server, and the status thread drops it. The thread then
        // ends after its answer.
        let is_own = thread.thread().id() == std::thread::current().id();
        // SAFETY: a plain system call, which ends the thread's `accept` and refuses new clients.
        unsafe { libc::shutdown(self.shared.listener.as_raw_fd(), libc::SHUT_RDWR) };
        let mut client = self.shared.client.lock();
        client.is_stopping = true;
        if !is_own && let Some(socket) = client.socket.take() {
            // A client that is gone already is fine.
            let _ = socket.shutdown(Shutdown::Both);
        }
        drop(client);
        if !is_own {
            // It does not panic: sources are contained.
            let _ = thread.join();
        }
    }
}

fn listen() -> io::Result<UnixListener> {
    for place in 0..name::MAX_NAMES {
        match UnixListener::bind_addr(&name::own(place)?) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Blocks all signals, which belong to the program's threads; also SIGPIPE, since a disappearing client must not end
/// the program.
fn block_signals() {
    // SAFETY: all-zero bytes are a valid value of this plain C structure; the pointers are valid.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

impl Shared {
    fn serve(&self) {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    if let Err(error) = self.answer(socket) {
                        tracing::debug!(%error, "who asked for the status did not get it");
                    }
                }
                Err(error) => match error.raw_os_error() {
                    // The listener was shut down.
                    Some(libc::EINVAL | libc::EBADF) => return,
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    // Without a free descriptor the system does not look at the listener.
                    _ if self.client.lock().is_stopping => return,
                    _ => std::thread::sleep(PAUSE),
                },
            }
        }
    }

    fn answer(&self, socket: UnixStream) -> io::Result<()> {
        let user = local::peer(&socket)?.uid;
        if user != local::own_user() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, format!("user {user} asks")));
        }
        let socket = Arc::new(socket);
        let mut client = self.client.lock();
        if client.is_stopping {
            return Ok(());
        }
        client.socket = Some(socket.clone());
        drop(client);
        let result = write_within(&socket, &(self.make)(), self.patience);
        self.client.lock().socket = None;
        result
    }
}

/// Writes all bytes, then shuts the socket down for writing, because a child that the program forked meanwhile keeps
/// the socket open.
fn write_within(mut socket: &UnixStream, bytes: &[u8], within: Duration) -> io::Result<()> {
    let deadline = Instant::now() + within;
    let mut rest = bytes;
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_write_timeout(Some(left))?;
        match socket.write(&rest[..rest.len().min(WRITE_SIZE)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    socket.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests;
