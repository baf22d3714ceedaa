//! The side that answers: what a process has registered, and the thread that says it to whom asks.

use crate::name;
use crate::status::{MOST_CARDS, MOST_STREAMS, Status};
use crate::wire::{LONGEST, encode};
use gdsync_sys::contain::contain;
use gdsync_sys::local;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// `0` or `off`: the process answers nothing, and has no thread for that.
pub const STATUS_VARIABLE: &str = "GDSYNC_STATUS";

/// Who asks takes the answer within this time, or loses it.
const PATIENCE: Duration = Duration::from_secs(1);
const STACK: usize = 256 << 10;
/// Time after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// What a status is made of. Another thread calls it while the process runs, and none of the process's may wait for
/// that long: what is locked for more than a moment is reported as busy.
pub trait Source: Send + Sync {
    /// Adds what it has.
    fn add_to(&self, status: &mut Status, kept: &mut Kept);
}

/// What a source has used and would drop: it is dropped once no source is being asked. Dropping it may unpublish a source.
#[derive(Default)]
pub struct Kept(Vec<Arc<dyn Any + Send + Sync>>);

impl Kept {
    /// Keeps it until then.
    pub fn keep(&mut self, used: Arc<dyn Any + Send + Sync>) {
        self.0.push(used);
    }
}

/// A source is asked as long as this lives. Dropping it waits while it is being asked.
#[derive(Debug)]
pub struct Published(Option<u64>);

#[derive(Default)]
struct Publisher {
    next: u64,
    sources: BTreeMap<u64, Arc<dyn Source>>,
    server: Option<Server>,
}

static PUBLISHER: Mutex<Publisher> =
    Mutex::new(Publisher { next: 0, sources: BTreeMap::new(), server: None });

/// Lets a source be asked. The first one starts the thread that answers; where there can be none, the process is not
/// seen, and nothing else changes.
pub fn publish(source: Arc<dyn Source>) -> Published {
    if cfg!(miri) || is_off() {
        return Published(None);
    }
    let mut publisher = PUBLISHER.lock();
    if !publisher.server.as_ref().is_some_and(Server::is_of_this_process) {
        publisher.server = Server::start()
            .inspect_err(|error| tracing::debug!(%error, "this process cannot be seen by gdsync top"))
            .ok();
    }
    publisher.next += 1;
    let key = publisher.next;
    publisher.sources.insert(key, source);
    Published(Some(key))
}

fn is_off() -> bool {
    std::env::var_os(STATUS_VARIABLE).is_some_and(|value| value == "0" || value == "off")
}

impl Drop for Published {
    fn drop(&mut self) {
        let Some(key) = self.0 else { return };
        let mut publisher = PUBLISHER.lock();
        let source = publisher.sources.remove(&key);
        let server = if publisher.sources.is_empty() { publisher.server.take() } else { None };
        drop(publisher);
        drop((source, server));
    }
}

/// What the process would answer now.
pub fn own() -> Status {
    let mut kept = Kept::default();
    let publisher = PUBLISHER.lock();
    let mut status = Status { at_ns: monotonic(), ..Status::default() };
    for source in publisher.sources.values() {
        // The process goes on whatever is wrong with one of them.
        if let Err(panic) = contain(|| source.add_to(&mut status, &mut kept)) {
            tracing::error!(panic, "what reports the status of gdsync panicked");
        }
    }
    drop(publisher);
    drop(kept);
    status.card_count = status.cards.len() as u32;
    status.cards.truncate(MOST_CARDS);
    status.stream_count = status.streams.len() as u32;
    status.streams.sort_by_key(|stream| stream.number);
    status.streams.truncate(MOST_STREAMS);
    status
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place; the clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The thread that answers. Dropping it ends it.
struct Server {
    process: u32,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> io::Result<Self> {
        let listener = Arc::new(listen()?);
        let own = listener.clone();
        let answer = move || {
            block_signals();
            serve(&own);
        };
        let thread =
            std::thread::Builder::new().name("gdsync-status".to_owned()).stack_size(STACK).spawn(answer)?;
        Ok(Server { process: std::process::id(), listener, thread: Some(thread) })
    }

    /// A forked child has the memory of its parent, and not its threads.
    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.is_of_this_process() {
            return;
        }
        // SAFETY: a plain system call. It ends the thread's wait, and refuses those who ask.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        // What a source has kept may be the last of them, and the thread itself drops that: it ends by itself then. It
        // panics nowhere: sources are contained.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

fn listen() -> io::Result<UnixListener> {
    for place in 0..name::PLACES {
        match UnixListener::bind_addr(&name::own(place)?) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Signals are for the program's own threads.
fn block_signals() {
    // SAFETY: all-zero bytes are a valid value of this plain C structure; valid places.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

fn serve(listener: &UnixListener) {
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                if let Err(error) = answer(socket) {
                    tracing::debug!(%error, "who asked for the status did not get it");
                }
            }
            Err(error) => match error.raw_os_error() {
                // The listener was shut down.
                Some(libc::EINVAL | libc::EBADF) => return,
                Some(libc::EINTR | libc::ECONNABORTED) => {}
                _ => std::thread::sleep(PAUSE),
            },
        }
    }
}

fn answer(mut socket: UnixStream) -> io::Result<()> {
    let user = local::peer(&socket)?.uid;
    if user != local::own_user() {
        return Err(io::Error::new(ErrorKind::PermissionDenied, format!("user {user} asks")));
    }
    socket.set_write_timeout(Some(PATIENCE))?;
    let bytes = encode(&own());
    debug_assert!(bytes.len() <= LONGEST);
    socket.write_all(&bytes)
}
