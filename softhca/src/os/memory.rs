//! Memory shared between processes.

use super::{check, owned};
use gdsync_sys::file_limit::within_file_limit;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The name of memory files in `/proc/self/maps`.
pub const MEMORY_FILE: &str = "/memfd:gdsync-softhca";

/// Creates a file in memory, without a name in any file system.
fn memory_file() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a zero-terminated string, and the descriptor is new.
    unsafe { owned(libc::memfd_create(c"gdsync-softhca".as_ptr(), flags)) }
}

fn grow(file: BorrowedFd<'_>, size: libc::off_t) -> io::Result<()> {
    // SAFETY: a plain system call on an open descriptor.
    within_file_limit(|| check(unsafe { libc::ftruncate(file.as_raw_fd(), size) })).map(drop)
}

/// Memory shared between processes, mapped while the value lives.
pub(crate) struct SharedMemory {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address and a length; all uses of the memory are atomics and raw copies.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl SharedMemory {
    /// Creates zeroed memory, with the descriptor by which another process maps it. The file is sealed: neither process
    /// can shrink it while the other has it mapped (an access beyond the end of the file raises a signal).
    pub(crate) fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memory_file()?;
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        grow(fd.as_fd(), size)?;
        // SAFETY: a plain system call on our own descriptor.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        Ok((Self::map(fd.as_fd(), 0, len)?, fd))
    }

    /// Maps memory that another process sent. Refuses memory of another size, and a file that can still shrink.
    pub(crate) fn receive(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // SAFETY: plain system calls on an open descriptor; all-zero bytes are a valid `stat`.
        let (seals, size) = unsafe {
            let seals = check(libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS))?;
            let mut stat: libc::stat = std::mem::zeroed();
            check(libc::fstat(fd.as_raw_fd(), &mut stat))?;
            (seals, stat.st_size)
        };
        if seals & libc::F_SEAL_SHRINK == 0 || usize::try_from(size) != Ok(len) {
            return Err(io::Error::other(format!("shared memory of {size} bytes with seals {seals:#x}")));
        }
        Self::map(fd, 0, len)
    }

    /// Maps the first bytes of a file, which must not shrink while they are mapped.
    pub(crate) fn of_file(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map(file, 0, len)
    }

    fn map(fd: BorrowedFd<'_>, offset: libc::off_t, len: usize) -> io::Result<Self> {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, fd.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedMemory { base: base.cast(), len })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // A direct system call, as the card's thread may drop a link at any moment: MPI libraries and
        // libfabric patch the C library's `munmap` while they start and end, and no thread may run it then.
        //
        // SAFETY: mapped by us with this length; the borrow checker keeps users of the mapping from outliving it.
        unsafe { libc::syscall(libc::SYS_munmap, self.base, self.len) };
    }
}

/// Pages that a program has unmapped, at another address. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct KeptPages {
    base: *mut libc::c_void,
    len: usize,
}

// SAFETY: an address and a length.
unsafe impl Send for KeptPages {}
// SAFETY: as above.
unsafe impl Sync for KeptPages {}

/// Where the next pages are kept if the addresses are free: far from where the kernel maps memory, as a program may map
/// memory again at an address that it has unmapped.
static NEXT_KEPT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);

impl KeptPages {
    /// Moves the pages of a mapping to another address, and leaves the mapping without pages. `None` if the kernel is older
    /// than 5.7 (5.13 for shared memory, 6.17 for pages of several mappings).
    ///
    /// # Safety
    /// The program itself unmaps the range in this call.
    pub(crate) unsafe fn take(range: &Range<u64>) -> Option<Self> {
        let (from, len) = (range.start as *mut libc::c_void, (range.end - range.start) as usize);
        let hint = NEXT_KEPT.fetch_add(len, Ordering::Relaxed) as *mut libc::c_void;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // Direct system calls, as in `SharedMemory::drop`.
        //
        // SAFETY: the reservation is a new mapping; the caller gives up the pages.
        unsafe {
            let (none, own) =
                (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
            let base = libc::syscall(libc::SYS_mmap, hint, len, none, own, -1, 0);
            let kept = (base != -1).then_some(KeptPages { base: base as *mut libc::c_void, len })?;
            let moved = libc::syscall(libc::SYS_mremap, from, len, len, flags, kept.base);
            (moved != -1).then_some(kept)
        }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.base as u64
    }

    /// Moves the pages back to the mapping that they were taken from.
    pub(crate) fn give_back(self, to: &Range<u64>) {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the mapping is still there, without pages; those of `take` move back.
        let moved =
            unsafe { libc::syscall(libc::SYS_mremap, self.base, self.len, self.len, flags, to.start) };
        if moved != -1 {
            // There is nothing left to unmap here, where another mapping may come.
            std::mem::forget(self);
        }
    }
}

impl Drop for KeptPages {
    fn drop(&mut self) {
        // SAFETY: mapped by `take`; the regions that use the pages hold this value.
        unsafe { libc::syscall(libc::SYS_munmap, self.base, self.len) };
    }
}

/// A file in memory that grows and never shrinks, so that its mappings stay valid.
pub(crate) struct MemoryFile(OwnedFd);

impl MemoryFile {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = memory_file()?;
        // SAFETY: a plain system call on our own descriptor.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) })?;
        Ok(MemoryFile(fd))
    }

    /// Appends `len` zero bytes to a file of `offset` bytes, and maps them. Both are multiples of the page size.
    pub(crate) fn extend(&self, offset: usize, len: usize) -> io::Result<SharedMemory> {
        let position = |at: Option<usize>| at.and_then(|at| libc::off_t::try_from(at).ok());
        let (Some(start), Some(end)) = (position(Some(offset)), position(offset.checked_add(len))) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        grow(self.0.as_fd(), end)?;
        SharedMemory::map(self.0.as_fd(), start, len)
    }

    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}
