//! The open devices of the process, and what a fork does to them.

use crate::card::Cards;
use crate::cm::command::{self, Caller};
use crate::cm::manager::{File, Manager};
use crate::context::Context;
use crate::descriptors;
use crate::errno::{Errno, Result};
use crate::events::channels::Channels;
use crate::log;
use parking_lot::Mutex;
use softhca::environment;
use std::collections::HashMap;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Once};

/// Everything that this process has open.
#[derive(Debug)]
struct Process {
    cards: Arc<Cards>,
    manager: Arc<Manager>,
    /// Open files of the connection manager.
    cm_files: Mutex<HashMap<RawFd, Arc<File>>>,
    channels: Arc<Channels>,
    contexts: Mutex<HashMap<RawFd, Arc<Context>>>,
}

impl Default for Process {
    fn default() -> Self {
        let cards = Arc::<Cards>::default();
        let manager = Manager::new(cards.clone());
        Process {
            cards,
            manager,
            cm_files: Mutex::default(),
            channels: Arc::default(),
            contexts: Mutex::default(),
        }
    }
}

/// Created at the first use; the child of a fork creates another. Never freed: a forked child
/// cannot join its parent's threads.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

fn process() -> &'static Process {
    let present = PROCESS.load(Ordering::Acquire);
    let chosen = if present.is_null() {
        let fresh = Box::into_raw(Box::<Process>::default());
        match PROCESS.compare_exchange(present, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: from `Box::into_raw` above, and the failed exchange kept it private.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        }
    } else {
        present
    };
    // SAFETY: from `Box::into_raw`, and this module never frees what it has put into `PROCESS`.
    unsafe { &*chosen }
}

/// Runs in the child of a fork, which inherits none of the parent's devices. The parent's cards
/// continue to run in the parent only.
extern "C" fn forget_in_child() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
    descriptors::reset();
}

/// Makes the process one that has devices.
fn prepare() -> Result<()> {
    static PREPARED: Once = Once::new();
    let settings = log::start().and_then(|()| environment::check());
    settings.map_err(|error| log::refuse(&error))?;
    PREPARED.call_once(|| {
        // SAFETY: the handler only stores to atomics, as the child of a fork may; a preloaded
        // library is never unloaded, so the handler stays valid.
        if unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) } != 0 {
            tracing::warn!("children of a fork cannot have cards of their own");
        }
    });
    if !descriptors::claim() {
        // The process shares its parent's memory, or was forked without the C library's knowledge:
        // the parent's threads may hold the locks in it.
        tracing::warn!(
            "a device is opened in a child that vfork or clone has made: it must execute a program first"
        );
        return Err(Errno::NO_DEVICE);
    }
    Ok(())
}

/// Makes `fd` an open device.
pub(crate) fn open(fd: RawFd, index: usize) -> Result<()> {
    prepare()?;
    let process = process();
    let context = Arc::new(Context::new(process.cards.open(index)?, process.channels.clone())?);
    descriptors::add(fd)?;
    let stale = process.contexts.lock().insert(fd, context);
    // A device whose close the hooks did not see. Dropped after the lock is released, because its
    // objects close files.
    drop(stale);
    Ok(())
}

/// Opens the connection manager. Returns the descriptor, which is closed on exec if so asked for.
pub(crate) fn open_cm(flags: i32) -> Result<RawFd> {
    prepare()?;
    let process = process();
    let (file, fd) = process.manager.open()?;
    descriptors::adopt(&fd, flags)?;
    let fd = fd.into_raw_fd();
    let stale = process.cm_files.lock().insert(fd, Arc::new(file));
    drop(stale);
    Ok(fd)
}

/// The connection manager's file of a descriptor.
pub(crate) fn cm_file(fd: RawFd) -> Option<Arc<File>> {
    if !descriptors::is_ours(fd) {
        return None;
    }
    process().cm_files.lock().get(&fd).cloned()
}

/// Performs a command that the program has written to a file of the connection manager.
pub(crate) fn command_cm(fd: RawFd, file: &File, addr: u64, length: usize) -> Result<usize> {
    let is_nonblocking = || descriptors::is_nonblocking(fd);
    let file_of = |fd: u32| cm_file(RawFd::try_from(fd).ok()?);
    command::perform(&Caller { file, is_nonblocking: &is_nonblocking, file_of: &file_of }, addr, length)
}

/// The open device of a file descriptor.
pub(crate) fn context(fd: RawFd) -> Option<Arc<Context>> {
    if !descriptors::is_ours(fd) {
        return None;
    }
    process().contexts.lock().get(&fd).cloned()
}

/// Closes the device or channel of a file descriptor that the program is about to close.
pub(crate) fn close(fd: RawFd) {
    descriptors::remove(fd);
    let process = process();
    let context = process.contexts.lock().remove(&fd);
    // After the lock is released, because the context's objects close files.
    drop(context);
    process.channels.remove(fd);
    let file = process.cm_files.lock().remove(&fd);
    drop(file);
}
