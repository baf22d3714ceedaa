//! Common parts of the fake modules.

use std::io;

/// Start of the GPU's memory, in the GPU's address space.
pub(crate) const GPU: u64 = 0x7f00_0020_0000;
pub(crate) const GPU_LEN: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    Gdrdrv,
    Control,
    Device(u32),
}

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// Decodes a request's structure. With a wrong length, the real module would access memory outside of it.
pub(super) fn argument<T: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout>(
    bytes: &[u8],
) -> T {
    T::read_from_bytes(bytes).unwrap_or_else(|_| panic!("{} bytes are not {}", bytes.len(), size_of::<T>()))
}
