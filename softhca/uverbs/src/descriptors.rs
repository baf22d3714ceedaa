//! The file descriptors that belong to the library: open devices, completion channels, files of the
//! connection manager, and netlink sockets of RDMA.
//!
//! The hooks ask here for every file that the program, its libraries and this library touch. The answer takes
//! no lock, because code that holds a lock of this library may itself touch files.

use crate::errno::{Errno, Result};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Descriptors of the library are below this limit.
pub(crate) const MAX_FD: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FdKind {
    /// A device, or a completion channel.
    Card,
    Netlink,
    Cm,
    /// A device that the parent of this process has opened, and that this process has not used yet.
    Inherited,
}

const KINDS: [FdKind; 4] = [FdKind::Card, FdKind::Netlink, FdKind::Cm, FdKind::Inherited];

type Set = [AtomicU64; MAX_FD / 64];
static CARDS: Set = [const { AtomicU64::new(0) }; MAX_FD / 64];
static NETLINKS: Set = [const { AtomicU64::new(0) }; MAX_FD / 64];
static CMS: Set = [const { AtomicU64::new(0) }; MAX_FD / 64];
static INHERITED: Set = [const { AtomicU64::new(0) }; MAX_FD / 64];

/// ID of the process that owns the descriptors; 0 before the first one.
///
/// A child of vfork(2) or posix_spawn(3) shares its parent's memory until it executes another program, and
/// may close its copies of files before that, while the parent's devices stay open. The child runs no handler
/// of pthread_atfork(3), so only the ID tells it apart.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn process_id() -> libc::pid_t {
    // SAFETY: the call has no preconditions.
    unsafe { libc::getpid() }
}

fn set(kind: FdKind) -> &'static Set {
    match kind {
        FdKind::Card => &CARDS,
        FdKind::Netlink => &NETLINKS,
        FdKind::Cm => &CMS,
        FdKind::Inherited => &INHERITED,
    }
}

fn bit(kind: FdKind, fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((set(kind).get(fd / 64)?, 1 << (fd % 64)))
}

pub(crate) fn has(kind: FdKind, fd: RawFd) -> bool {
    bit(kind, fd).is_some_and(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
        && OWNER.load(Ordering::Acquire) == process_id()
}

/// Returns the kind of a file descriptor of this process; `None` if it is not the library's.
pub(crate) fn kind(fd: RawFd) -> Option<FdKind> {
    KINDS.into_iter().find(|kind| has(*kind, fd))
}

/// Returns the library's file descriptors from `first` to `last`.
pub(crate) fn between(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let limit = MAX_FD as RawFd - 1;
    let [first, last] = [first, last].map(|fd| RawFd::try_from(fd).unwrap_or(RawFd::MAX));
    (first..=last.min(limit)).filter(|fd| kind(*fd).is_some())
}

/// Makes this process the owner. Returns false if another process is.
pub(crate) fn claim() -> bool {
    let id = process_id();
    let before = OWNER.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire);
    before.is_ok() || before == Err(id)
}

pub(crate) fn add(kind: FdKind, fd: RawFd) -> Result<()> {
    let (word, mask) = bit(kind, fd).ok_or(Errno(libc::EMFILE))?;
    // Before the others: a device of the parent is one all the time.
    word.fetch_or(mask, Ordering::AcqRel);
    remove_where(fd, |other| other != kind);
    Ok(())
}

fn remove_where(fd: RawFd, is_gone: impl Fn(FdKind) -> bool) {
    for (word, mask) in KINDS.into_iter().filter(|kind| is_gone(*kind)).filter_map(|kind| bit(kind, fd)) {
        word.fetch_and(!mask, Ordering::AcqRel);
    }
}

/// Returns whether the program's file is non-blocking.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: the call accesses no memory of the process.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Removes the mark of a file that the program is about to close.
pub(crate) fn remove(fd: RawFd) {
    remove_where(fd, |_| true);
}

/// Makes the child of a fork the owner. Of its parent's files it keeps the devices. Only stores to atomics: any thread of
/// the parent may have held any lock.
pub(crate) fn inherit(is_device: impl Fn(RawFd) -> bool) {
    for (index, (cards, inherited)) in CARDS.iter().zip(&INHERITED).enumerate() {
        let cards = cards.swap(0, Ordering::AcqRel);
        if cards == 0 {
            continue;
        }
        let bits = (0..64).filter(|bit| cards & 1 << bit != 0 && is_device((index * 64 + bit) as RawFd));
        inherited.fetch_or(bits.fold(0, |kept, bit| kept | 1 << bit), Ordering::AcqRel);
    }
    for word in NETLINKS.iter().chain(&CMS) {
        word.store(0, Ordering::Release);
    }
    OWNER.store(process_id(), Ordering::Release);
}
