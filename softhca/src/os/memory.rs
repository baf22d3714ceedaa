//! Memory shared between processes.

use super::{check, owned};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

/// The name of memory files in `/proc/self/maps`.
pub const MEMORY_FILE: &str = "/memfd:gdsync-softhca";

/// Creates a file in memory, without a name in any file system.
fn memory_file() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a zero-terminated string, and the descriptor is new.
    unsafe { owned(libc::memfd_create(c"gdsync-softhca".as_ptr(), flags)) }
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
        // SAFETY: plain system calls on our own descriptor.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), size))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
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
        // SAFETY: a plain system call on our own descriptor.
        check(unsafe { libc::ftruncate(self.0.as_raw_fd(), end) })?;
        SharedMemory::map(self.0.as_fd(), start, len)
    }

    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}
