//! The open devices of the process, before and after a fork.

use crate::card::{Cards, OpenCard, cannot_start, counters};
use crate::cm::command::{self, Caller};
use crate::cm::manager::{File, Manager};
use crate::context::Context;
use crate::descriptors::{self, FdKind};
use crate::errno::{Errno, Result};
use crate::events::files::Channels;
use crate::heritage::{self, Heritage};
use crate::log;
use crate::netlink;
use parking_lot::Mutex;
use softhca::card::LinkLayer;
use softhca::devices::devices_from_environment;
use softhca::environment;
use softhca::fabric::close_sockets_in_child;
use softhca::liberties::name_process;
use softhca::sysfs::LiveFile;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Once};

mod inherited;

pub(crate) use inherited::open_inherited;

#[derive(Debug)]
struct Process {
    cards: Arc<Cards>,
    manager: Arc<Manager>,
    cm_files: Mutex<HashMap<RawFd, Arc<File>>>,
    channels: Arc<Channels>,
    contexts: Mutex<HashMap<RawFd, Arc<Context>>>,
    /// Cards started because the program read their addresses, which must then stay.
    pinned: Mutex<HashMap<usize, Arc<OpenCard>>>,
    /// Held while a device of the parent is opened.
    inheriting: Mutex<()>,
}

impl Default for Process {
    fn default() -> Self {
        let cards = Arc::<Cards>::default();
        Process {
            manager: Manager::new(cards.clone()),
            cards,
            cm_files: Mutex::default(),
            channels: Arc::default(),
            contexts: Mutex::default(),
            pinned: Mutex::default(),
            inheriting: Mutex::default(),
        }
    }
}

impl Process {
    /// Makes a descriptor an open device.
    fn add(&self, fd: RawFd, context: Arc<Context>) -> Result<()> {
        heritage::enter(fd, &context.heritage);
        let stale = self.contexts.lock().insert(fd, context);
        // A device whose close the hooks missed. Dropped after the lock is released, because its objects close files.
        drop(stale);
        // Last, so that a device of the parent is one all the time.
        descriptors::add(FdKind::Card, fd).inspect_err(|_| close(fd))
    }
}

/// Created at the first use; the child of a fork creates another. Never freed: a forked child cannot join its
/// parent's threads.
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
    // SAFETY: from `Box::into_raw`, and this module never frees a pointer in `PROCESS`.
    unsafe { &*chosen }
}

/// Runs in the child of a fork. The parent's cards continue to run in the parent only: the child has one when it first
/// uses a device of its parent's, or opens one.
extern "C" fn forget_in_child() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
    descriptors::inherit(|fd| !heritage::of(fd).is_null());
    close_sockets_in_child();
}

/// Runs when a program loads the library.
extern "C" fn at_load() {
    name_process();
}

/// Children of a fork have names after their parent's, which must have its own by then.
// SAFETY: the loader calls what the section holds with the program's arguments, which a function of the C ABI without
// parameters ignores.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Prepares the process for open files. The first call starts the log.
fn prepare() -> Result<()> {
    static PREPARED: Once = Once::new();
    let settings = log::start().and_then(|()| environment::check());
    settings.map_err(|error| log::refuse(&error))?;
    PREPARED.call_once(|| {
        // SAFETY: the handler only stores to atomics and makes system calls, as the child of a fork may; a preloaded library is
        // never unloaded, so the handler stays valid.
        if unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) } != 0 {
            tracing::warn!("children of a fork cannot have cards of their own");
        }
    });
    if descriptors::claim() {
        return Ok(());
    }
    // The process shares its parent's memory, or was forked without the C library's knowledge: the parent's
    // threads may hold the locks in it.
    tracing::warn!(
        "a device is opened in a child that vfork or clone has made: it must execute a program first"
    );
    Err(Errno::NO_DEVICE)
}

/// Opens a device. The descriptor's file is that of the card's doorbell registers, so that the system itself
/// maps their pages.
pub(crate) fn open(index: usize, close_on_exec: bool) -> Result<RawFd> {
    prepare()?;
    let process = process();
    let open = process.cards.open(index)?;
    let file = open.card.uar_file().map_err(cannot_start)?;
    let fd = file.as_raw_fd();
    // SAFETY: the call accesses no memory of the process.
    if !close_on_exec && unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 {
        return Err(Errno::last());
    }
    let heritage = Heritage::new(index, heritage::inode(fd)?);
    let context = Arc::new(Context::new(open, process.channels.clone(), heritage)?);
    process.add(fd, context)?;
    // The program owns the descriptor from here on.
    Ok(file.into_raw_fd())
}

/// Opens the connection manager with the flags `O_CLOEXEC` and `O_NONBLOCK` of open(2).
pub(crate) fn open_cm(flags: i32) -> Result<RawFd> {
    prepare()?;
    let process = process();
    let (file, fd) = process.manager.open()?;
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
    let set = |command: i32, value: i32| {
        // SAFETY: the call changes flags of the file only.
        let rc = unsafe { libc::fcntl(fd.as_raw_fd(), command, value) };
        if rc < 0 { Err(Errno::last()) } else { Ok(()) }
    };
    set(libc::F_SETFD, close_on_exec)?;
    set(libc::F_SETFL, flags & libc::O_NONBLOCK)?;
    descriptors::add(FdKind::Cm, fd.as_raw_fd())?;
    let stale = process.cm_files.lock().insert(fd.as_raw_fd(), Arc::new(file));
    // As in `Process::add`.
    drop(stale);
    Ok(fd.into_raw_fd())
}

pub(crate) fn cm_file(fd: RawFd) -> Option<Arc<File>> {
    if !descriptors::has(FdKind::Cm, fd) {
        return None;
    }
    process().cm_files.lock().get(&fd).cloned()
}

/// Performs a command that the program has written to a file of the connection manager. Returns its length in bytes.
pub(crate) fn command_cm(fd: RawFd, file: &File, addr: u64, length: usize) -> Result<usize> {
    let is_nonblocking = || descriptors::is_nonblocking(fd);
    let file_of = |fd: u32| {
        let fd = RawFd::try_from(fd).map_err(|_| Errno::NO_ENTRY)?;
        // SAFETY: without arguments in memory. It fails for a number that is no descriptor.
        let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        cm_file(fd).ok_or(if is_open { Errno::INVALID } else { Errno::NO_ENTRY })
    };
    command::perform(&Caller { file, is_nonblocking: &is_nonblocking, file_of: &file_of }, addr, length)
}

/// Reads an event of a DEVX file, as [`PacketFile::read`](crate::events::packets::PacketFile::read). `None` for other
/// files.
pub(crate) fn read_event(fd: RawFd, addr: u64, room: usize) -> Option<Result<Option<usize>>> {
    if !descriptors::has(FdKind::Card, fd) {
        return None;
    }
    Some(match process().channels.packets(fd)?.read(addr, room) {
        // The kernel looks for events first.
        Err(Errno(libc::EIO)) if descriptors::is_nonblocking(fd) => Err(Errno(libc::EAGAIN)),
        read => read,
    })
}

/// Makes a duplicate of a descriptor the same device, channel or socket.
pub(crate) fn duplicate(from: RawFd, to: RawFd) -> Result<()> {
    let kind = descriptors::kind(from).ok_or(Errno::BAD_FD)?;
    descriptors::add(kind, to)?;
    if kind == FdKind::Inherited {
        heritage::duplicate(from, to);
        return Ok(());
    }
    let process = process();
    let context = process.contexts.lock().get(&from).cloned();
    context.map_or(Ok(()), |context| process.add(to, context))?;
    let mut files = process.cm_files.lock();
    let stale = files.get(&from).cloned().and_then(|file| files.insert(to, file));
    drop(files);
    drop(stale);
    process.channels.duplicate(from, to);
    Ok(())
}

/// Marks a socket as one of RDMA netlink.
pub(crate) fn own_netlink(fd: RawFd) -> Result<()> {
    prepare()?;
    descriptors::add(FdKind::Netlink, fd)
}

/// Returns the running cards. None if the process has no device, or if another device is being opened.
pub(crate) fn cards() -> Vec<Arc<OpenCard>> {
    let process = PROCESS.load(Ordering::Acquire);
    // SAFETY: null, or as in `process`.
    unsafe { process.as_ref() }.map_or_else(Vec::new, |process| process.cards.running())
}

/// Returns the card of a device, and keeps it running until the process ends, as the program has seen its addresses.
fn pinned_card(index: usize) -> Option<Arc<OpenCard>> {
    prepare().ok()?;
    let process = process();
    let card = process.cards.open(index).ok()?;
    Some(process.pinned.lock().entry(index).or_insert(card).clone())
}

/// Returns the content of a sysfs file that this process's card answers.
pub(crate) fn content(index: usize, file: LiveFile) -> Option<String> {
    if file.is_of_card() {
        file.content(Some(&pinned_card(index)?.card), None)
    } else {
        file.content(None, counters(index).as_deref())
    }
}

/// The process's devices for netlink.
pub(crate) struct View;

impl netlink::Devices for View {
    fn link_layers(&self) -> Result<Vec<LinkLayer>> {
        devices_from_environment().map_err(|error| log::refuse(&error))
    }

    fn lid(&self, index: usize) -> u16 {
        pinned_card(index).map_or(0, |open| open.card.lid())
    }
}

pub(crate) fn context(fd: RawFd) -> Option<Arc<Context>> {
    if descriptors::kind(fd) != Some(FdKind::Card) {
        return None;
    }
    process().contexts.lock().get(&fd).cloned()
}

/// Returns whether a descriptor is an open device.
pub(crate) fn is_device(fd: RawFd) -> bool {
    inherited::parents(fd).is_some() || context(fd).is_some()
}

/// Closes the device or channel of a file descriptor that the program is about to close.
pub(crate) fn close(fd: RawFd) {
    let is_inherited = descriptors::has(FdKind::Inherited, fd);
    descriptors::remove(fd);
    heritage::forget(fd);
    if is_inherited {
        return;
    }
    let process = process();
    let context = process.contexts.lock().remove(&fd);
    // After the lock is released, because the context's objects close files.
    drop(context);
    let file = process.cm_files.lock().remove(&fd);
    drop(file);
    process.channels.remove(fd);
}
