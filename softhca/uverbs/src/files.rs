//! Which file descriptors are ours: open devices and completion channels.
//!
//! The hooks ask here for every file that the program, the libraries and this library itself touch. So the answer "not ours"
//! takes no lock, and nothing here or below takes one while it touches files.

use crate::card::Cards;
use crate::channel::Channels;
use crate::context::Context;
use crate::errno::{Errno, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// File descriptors above this number are not given to devices and channels.
const MAX_FD: usize = 1 << 16;
/// One bit for each file descriptor of ours.
static OURS: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];

/// What this process has open.
#[derive(Debug, Default)]
struct Process {
    cards: Cards,
    channels: Arc<Channels>,
    contexts: Mutex<HashMap<RawFd, Arc<Context>>>,
}

/// Made at the first use; a child of fork makes another. Never freed: a forked child cannot end its parent's threads.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

fn process() -> &'static Process {
    let present = PROCESS.load(Ordering::Acquire);
    let chosen = if present.is_null() {
        let fresh = Box::into_raw(Box::<Process>::default());
        match PROCESS.compare_exchange(present, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        }
    } else {
        present
    };
    // SAFETY: from `Box::into_raw`, and never freed once it is in `PROCESS`.
    unsafe { &*chosen }
}

/// In the child of a fork: nothing of what the parent has open is there. The parent's cards go on in the parent only.
///
/// Only stores to atomics: other threads of the parent may have held any lock.
extern "C" fn forget_in_child() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
    OWNER.store(0, Ordering::Release);
    for word in &OURS {
        word.store(0, Ordering::Release);
    }
}

/// The process whose files they are, 0 before there are any.
///
/// A child of vfork(2) or posix_spawn(3) shares its parent's memory until it executes another program, and may close files on its
/// way there: they are its own copies, and the parent's devices stay open. No handler of pthread_atfork(3) runs for it.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn own_process() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether a file descriptor is a device or a channel of this process.
pub(crate) fn is_ours(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
        && OWNER.load(Ordering::Acquire) == own_process()
}

/// From now on the closing of this file descriptor is noticed.
pub(crate) fn watch(fd: RawFd) -> Result<()> {
    let (word, mask) = bit(fd).ok_or(Errno(libc::EMFILE))?;
    word.fetch_or(mask, Ordering::AcqRel);
    Ok(())
}

/// Makes `fd` an open device.
pub(crate) fn open(fd: RawFd, index: usize) -> Result<()> {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        start_log();
        // SAFETY: the handler does what a handler may; this library is preloaded, and never unloaded.
        if unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) } != 0 {
            tracing::warn!("children of a fork cannot have cards of their own");
        }
    });
    let own = own_process();
    let owner = OWNER.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
    if owner.is_err_and(|owner| owner != own) {
        // It shares its parent's memory, or was forked without the C library's knowledge: the parent's locks are in it.
        tracing::warn!(
            "a device is opened in a child that vfork or clone has made: it must execute a program first"
        );
        return Err(Errno::NO_DEVICE);
    }
    let process = process();
    let context = Arc::new(Context::new(process.cards.open(index)?, process.channels.clone())?);
    watch(fd)?;
    let earlier = process.contexts.lock().insert(fd, context);
    // One that was closed without our knowledge.
    drop(earlier);
    Ok(())
}

/// The open device behind a file descriptor.
pub(crate) fn context(fd: RawFd) -> Option<Arc<Context>> {
    if !is_ours(fd) {
        return None;
    }
    process().contexts.lock().get(&fd).cloned()
}

/// The program is about to close a file descriptor of ours.
pub(crate) fn forget(fd: RawFd) {
    if let Some((word, mask)) = bit(fd) {
        word.fetch_and(!mask, Ordering::AcqRel);
    }
    let process = process();
    let context = process.contexts.lock().remove(&fd);
    // Its objects go with it; they close files, which must happen without the lock.
    drop(context);
    process.channels.forget(fd);
}

/// Whether the log has been started by this process, or one that it was forked from.
static LOGGING: AtomicBool = AtomicBool::new(false);

/// The file descriptor, without the standard library's lock: at a fork, the card's thread may hold that, and the child would wait
/// for it for ever. Each message is one write.
struct Stderr;

impl std::io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // SAFETY: the bytes are readable.
        let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| std::io::Error::last_os_error())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes what `SOFTHCA_LOG` asks for (as `tracing_subscriber::EnvFilter` reads it) to stderr.
fn start_log() {
    let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("SOFTHCA_LOG") else { return };
    if LOGGING.swap(true, Ordering::AcqRel) {
        return;
    }
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Stderr);
    // Fails where this library is linked into a program that has a log: then it is in that.
    let _ = log.try_init();
}
