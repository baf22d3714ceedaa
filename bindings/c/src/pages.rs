//! Host memory that descriptors name only by address. It is registered with GPUs by pages, which stay registered.

use gdsync::PinnedMemory;
use gdsync::batch::{MemoryWrite, WriteError};
use gdsync::memop::{Word32, WordError};
use gdsync::memory::OutOfBounds;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ptr::NonNull;

pub(crate) const PAGE: usize = 4096;

/// Pages registered for streams of GPUs.
static PAGES: Mutex<BTreeMap<usize, PinnedMemory>> = Mutex::new(BTreeMap::new());

/// Returns the page around an address, and the offset of the address in it.
///
/// # Safety
/// The page is mapped, readable and writable until [`forget`] is called for it, and the program's other uses of it tolerate concurrent
/// access.
unsafe fn page(address: usize) -> Option<(PinnedMemory, usize)> {
    let base = address & !(PAGE - 1);
    let mut pages = PAGES.lock();
    if let Some(known) = pages.get(&base) {
        return Some((known.clone(), address - base));
    }
    let start = NonNull::new(base as *mut u8)?;
    // SAFETY: the caller keeps the page mapped. The library accesses only bytes that descriptors name.
    let made = unsafe { PinnedMemory::from_raw(start, PAGE, ()) };
    pages.insert(base, made.clone());
    Some((made, address - base))
}

/// Returns the word at an address.
///
/// # Safety
/// As [`page`].
pub(crate) unsafe fn word(address: usize) -> Result<Word32, WordError> {
    let bad = WordError::Outside { offset: address, size: size_of::<u32>(), len: usize::MAX };
    // SAFETY: the caller keeps the memory of the descriptors valid.
    let (memory, offset) = unsafe { page(address) }.ok_or(bad)?;
    Word32::new(&memory, offset)
}

/// Returns a write of bytes within one page.
///
/// # Safety
/// As [`page`].
pub(crate) unsafe fn write(address: usize, bytes: &[u8]) -> Result<MemoryWrite, WriteError> {
    let bad = OutOfBounds { start: address as u64, end: (address + bytes.len()) as u64, len: 0 };
    // SAFETY: the caller keeps the memory of the descriptors valid.
    let (memory, offset) = unsafe { page(address) }.ok_or(bad)?;
    MemoryWrite::new(&memory, offset, bytes)
}

pub(crate) fn forget(address: usize, len: usize) {
    let (first, end) = (address & !(PAGE - 1), address.saturating_add(len));
    let mut pages = PAGES.lock();
    let known: Vec<usize> = pages.range(first..end).map(|(base, _)| *base).collect();
    let gone: Vec<_> = known.iter().map(|base| pages.remove(base)).collect();
    drop(pages);
    drop(gone);
}
