//! Host memory as a replacement for GPU memory.

use crate::error::MappingError;
use crate::info::{Caching, MappingBackend};
use crate::kernel::{self, File};
use crate::mapping::{Mapped, Mapping};
use gdsync_sys::host::page_size;
use std::io;

impl Mapping {
    /// Creates a mapping of `len` zeroed bytes of *host* memory, to test copies to and from GPU memory on a machine
    /// without a GPU. Except for its speed, it behaves like write-combining memory.
    ///
    /// # Errors
    /// [`MappingError::NoHostMemory`].
    pub fn stand_in(len: usize) -> Result<Mapping, MappingError> {
        let failed = |error: io::Error| MappingError::NoHostMemory { len, reason: error.to_string() };
        let page = page_size();
        let size = len
            .max(1)
            .checked_next_multiple_of(page)
            .filter(|size| i64::try_from(*size).is_ok())
            .ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: the name is zero-terminated.
        let fd = unsafe { libc::memfd_create(c"gdsync-stand-in".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        let file = File { kernel: kernel::system(), fd };
        // SAFETY: the file is owned here.
        if unsafe { libc::ftruncate(fd, size as libc::off_t) } != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        let pages = file.map(size, 0).map_err(failed)?;
        let kind = (MappingBackend::StandIn, Caching::WriteCombining);
        Mapping::new(Mapped::new(pages, file, kind, page, 0), len, false)
    }
}

#[cfg(test)]
mod tests;
