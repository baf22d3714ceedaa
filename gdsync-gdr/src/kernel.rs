//! System calls of mappings, as a trait, so that tests can replace kernel modules.

use std::ffi::CString;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) trait Kernel: Send + Sync {
    /// Opens a file for reading and writing, close-on-exec.
    fn open(&self, path: &str) -> io::Result<i32>;

    /// Closes a file that the caller owns.
    fn close(&self, fd: i32);

    /// Sends a request whose structure the kernel reads and writes.
    ///
    /// # Safety
    /// The request's structure is as long as `argument`, and its pointers refer to memory that the request may read
    /// and write.
    unsafe fn ioctl(&self, fd: i32, request: u64, argument: &mut [u8]) -> io::Result<()>;

    /// Maps `len` bytes of a file, readable and writable, at an address that the kernel chooses. Children do not
    /// inherit the mapping.
    fn mmap(&self, fd: i32, len: usize, offset: u64) -> io::Result<NonNull<u8>>;

    /// Unmaps.
    ///
    /// # Safety
    /// The range is exactly one that [`Kernel::mmap`] returned, and is not used afterwards.
    unsafe fn munmap(&self, at: NonNull<u8>, len: usize) -> io::Result<()>;

    fn read_text(&self, path: &str) -> io::Result<String>;
}

struct System;

/// Returns the kernel of this machine.
pub(crate) fn system() -> Arc<dyn Kernel> {
    Arc::new(System)
}

impl Kernel for System {
    fn open(&self, path: &str) -> io::Result<i32> {
        let path = CString::new(path)?;
        // SAFETY: a zero-terminated path.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
    }

    fn close(&self, fd: i32) {
        // SAFETY: the caller owns the descriptor.
        unsafe { libc::close(fd) };
    }

    unsafe fn ioctl(&self, fd: i32, request: u64, argument: &mut [u8]) -> io::Result<()> {
        // SAFETY: the caller's.
        let result = unsafe { libc::ioctl(fd, request as _, argument.as_mut_ptr()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn mmap(&self, fd: i32, len: usize, offset: u64) -> io::Result<NonNull<u8>> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping at an address that the kernel chooses touches no existing memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: these `len` bytes were just mapped.
        if unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) } != 0 {
            // Children inherit the pages, which is harmless: `Mapping` refuses access in them.
            tracing::debug!(error = %io::Error::last_os_error(), "children inherit a mapping");
        }
        NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    unsafe fn munmap(&self, at: NonNull<u8>, len: usize) -> io::Result<()> {
        // SAFETY: the caller's.
        let result = unsafe { libc::munmap(at.as_ptr().cast(), len) };
        if result != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn read_text(&self, path: &str) -> io::Result<String> {
        std::fs::read_to_string(path)
    }
}

pub(crate) struct File {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) fd: i32,
}

impl File {
    pub(crate) fn open(kernel: &Arc<dyn Kernel>, path: &str) -> io::Result<Self> {
        let fd = kernel.open(path)?;
        Ok(File { kernel: kernel.clone(), fd })
    }

    /// Sends a request.
    ///
    /// # Safety
    /// As [`Kernel::ioctl`].
    pub(crate) unsafe fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()>
    where
        T: zerocopy::FromBytes + zerocopy::IntoBytes,
    {
        // SAFETY: the caller's.
        unsafe { self.kernel.ioctl(self.fd, request, argument.as_mut_bytes()) }
    }

    pub(crate) fn map(&self, len: usize, offset: u64) -> io::Result<Pages> {
        let at = self.kernel.mmap(self.fd, len, offset)?;
        Ok(Pages { kernel: self.kernel.clone(), at, len })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.kernel.close(self.fd);
    }
}

pub(crate) struct Pages {
    kernel: Arc<dyn Kernel>,
    pub(crate) at: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: contains only an address and a length; the code that accesses the pages synchronises accesses.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `File::map` mapped the pages, and their users keep this value.
        if let Err(error) = unsafe { self.kernel.munmap(self.at, self.len) } {
            tracing::debug!(%error, "pages were not unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_the_systems_own() {
        let kernel = system();
        let code = |error: io::Error| error.raw_os_error();
        assert_eq!(File::open(&kernel, "/dev/no-such-device").err().and_then(code), Some(libc::ENOENT));
        assert!(File::open(&kernel, "/dev/\0").is_err());
        let null = File::open(&kernel, "/dev/null").unwrap();
        // SAFETY: a request of terminals, with its structure of 8 bytes; /dev/null is not a terminal.
        let refused = unsafe { null.ioctl(libc::TIOCGWINSZ, &mut [0u8; 8]) };
        assert_eq!(refused.err().and_then(code), Some(libc::ENOTTY));
        assert_eq!(null.map(4096, 0).err().and_then(code), Some(libc::ENODEV));
        assert_eq!(
            null.map(4096, u64::MAX).err().map(|error| error.kind()),
            Some(io::ErrorKind::InvalidInput)
        );
        assert!(kernel.read_text("/proc/self/status").unwrap().contains("Pid:"));
        assert!(kernel.read_text("/proc/no-such-file").is_err());
    }
}
