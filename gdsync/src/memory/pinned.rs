//! Page-aligned memory at a fixed address, shared between the CPU, a card and a stream.

use crate::memory::HostAddr;
use crate::memory::spans::{Release, Span, SpanKind};
use crate::memory::use_count::UseCount;
use gdsync_sys::host::page_size;
use gdsync_sys::shared::{self, SharedU8, SharedU32, SharedU64};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Shared, zero-initialised, page-aligned memory.
///
/// A card and a stream read and write it at any time, so it is never borrowed as `&[u8]` or `&mut [u8]`: the CPU
/// accesses it by copies and by words of any size ([`gdsync_sys::shared`]). Clones name the same memory, which is
/// released with the last of them; queues and batches in flight hold clones of the memory that they name.
#[derive(Clone, Debug)]
pub struct PinnedMemory {
    handle: Arc<Handle>,
}

/// Shared by all counted clones. A memory region holds the pages without it.
#[derive(Debug)]
struct Handle {
    // Dropped first: caches are notified while the pages still exist.
    use_count: UseCount,
    pages: Arc<Pages>,
}

#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len: usize,
    /// True for whole pages, which nothing else shares.
    own: bool,
    /// Announces the memory to streams. When all of them have forgotten it, unmaps it, or drops its owner.
    span: Arc<Span>,
}

// SAFETY: an address and a length; all access is by `gdsync_sys::shared`, which allows concurrent use.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl PinnedMemory {
    /// Maps `len` bytes of zeroes, rounded up to whole pages; at least one page.
    ///
    /// # Errors
    /// The operating system's error if the pages cannot be mapped.
    pub fn allocate(len: usize) -> io::Result<Self> {
        Self::map(len, SpanKind::Pages)
    }

    /// As [`Self::allocate`], for memory that streams map as a whole.
    pub(crate) fn allocate_whole(len: usize) -> io::Result<Self> {
        Self::map(len, SpanKind::Whole)
    }

    fn map(len: usize, kind: SpanKind) -> io::Result<Self> {
        let page = page_size();
        let mapped = len.max(1).checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice affects no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let address = base.as_ptr() as usize;
        let unmap: Release = Box::new(move || {
            // SAFETY: mapped above, with this range; the last handle was dropped, and no stream has it mapped.
            unsafe { libc::munmap(address as *mut libc::c_void, mapped) };
        });
        // The span has all pages, also those after `len`, which no other memory shares.
        let span = Span::announce(address as u64, mapped as u64, kind, unmap);
        Ok(Self::of(Arc::new(Pages { base, len, own: true, span })))
    }

    /// Wraps memory of the program.
    ///
    /// `owner` keeps the memory alive. It is dropped after the last clone of the returned value and everything made
    /// from it. If the memory is registered with a GPU, it is unregistered first, when the GPU's streams are next
    /// found idle. The drop must not call this library. Pass `()` if the program keeps the memory by other means, for
    /// example for the life of the process.
    ///
    /// # Safety
    /// `base..base + len` must be readable and writable, and must stay mapped (and registered with CUDA, if the
    /// program registered it) until `owner` is dropped. Until then, other code must access it in one of these ways:
    /// by [`gdsync_sys::shared`]; by a device, or in a language to whose memory model such accesses are like those of
    /// a device; by atomics whose size equals that of every other access to the same bytes, including those of the
    /// card and the streams; or in any way, if the access is ordered with the accesses of the card, the streams and
    /// the safe methods of this type. With `()` for an owner, the memory must stay until this library has dropped and
    /// unregistered it, at a time that the program cannot observe.
    pub unsafe fn from_raw(base: NonNull<u8>, len: usize, owner: impl Send + Sync + 'static) -> Self {
        let release: Release = Box::new(move || drop(owner));
        let span = Span::announce(base.as_ptr() as u64, len as u64, SpanKind::Pages, release);
        Self::of(Arc::new(Pages { base, len, own: false, span }))
    }

    fn of(pages: Arc<Pages>) -> Self {
        PinnedMemory { handle: Arc::new(Handle { use_count: UseCount::new(), pages }) }
    }

    /// A handle that keeps the memory without counting as a user of it.
    pub(crate) fn uncounted(&self) -> Self {
        Self::of(self.handle.pages.clone())
    }

    pub(crate) fn use_count(&self) -> &UseCount {
        &self.handle.use_count
    }

    /// The requested length in bytes.
    pub fn len(&self) -> usize {
        self.handle.pages.len
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Exposes bytes to operations: GPUs with streams map their page, or both pages if they cross a boundary.
    pub(crate) fn expose(&self, offset: usize, len: usize) {
        let (span, first) = (&self.handle.pages.span, self.addr().get() + offset as u64);
        if len > 0 {
            span.expose(first);
            span.expose(first + len as u64 - 1);
        }
    }

    /// The length that a card registers: at least one byte of whole pages, as no region is empty.
    pub(crate) fn registered_len(&self) -> usize {
        if self.handle.pages.own { self.len().max(1) } else { self.len() }
    }

    /// The address of its first byte.
    pub fn addr(&self) -> HostAddr {
        HostAddr(self.as_ptr() as u64)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.handle.pages.base.as_ptr()
    }

    /// The memory as bytes that may change at any time.
    pub fn bytes(&self) -> &[SharedU8] {
        // SAFETY: mapped as long as `self` lives (`Pages` keeps it); all others access it as `shared` demands
        // (`from_raw`).
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len()) }
    }

    /// The memory as 32-bit words, without a tail of fewer than 4 bytes. Empty if memory of
    /// [`PinnedMemory::from_raw`] is not aligned to 4 bytes.
    pub fn words32(&self) -> &[SharedU32] {
        if !(self.as_ptr() as usize).is_multiple_of(4) {
            return &[];
        }
        // SAFETY: as in `bytes`; the alignment was checked.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() / 4) }
    }

    /// The memory as 64-bit words, without a tail of fewer than 8 bytes. Empty if memory of
    /// [`PinnedMemory::from_raw`] is not aligned to 8 bytes.
    pub fn words64(&self) -> &[SharedU64] {
        if !(self.as_ptr() as usize).is_multiple_of(8) {
            return &[];
        }
        // SAFETY: as in `bytes`; the alignment was checked.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() / 8) }
    }

    /// Copies bytes out, from `offset` on. Returns their number: fewer than requested only at the end of the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let range = self.clip(offset, into.len());
        // SAFETY: the bytes are in this memory (`clip`), and in the caller's buffer.
        unsafe { shared::copy(into.as_mut_ptr(), self.as_ptr().add(range.start), range.len()) };
        range.len()
    }

    /// Copies bytes in, from `offset` on. Returns their number: fewer than given only at the end of the memory.
    pub fn write(&self, offset: usize, from: &[u8]) -> usize {
        let range = self.clip(offset, from.len());
        // SAFETY: as in `read`.
        unsafe { shared::copy(self.as_ptr().add(range.start), from.as_ptr(), range.len()) };
        range.len()
    }

    fn clip(&self, offset: usize, len: usize) -> Range<usize> {
        let start = offset.min(self.len());
        start..start + len.min(self.len() - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::spans::BEGINS_USE;
    use std::sync::atomic::Ordering;

    #[test]
    fn reads_back_what_was_written_and_clips_at_the_end() {
        let memory = PinnedMemory::allocate(10).unwrap();
        assert_eq!(memory.write(8, &[1, 2, 3]), 2);
        let mut out = [9; 4];
        assert_eq!(memory.read(7, &mut out), 3);
        assert_eq!(out, [0, 1, 2, 9]);
        assert_eq!(memory.read(11, &mut out), 0);
        assert_eq!((memory.words32().len(), memory.words64().len()), (2, 1));
    }

    #[test]
    fn zero_bytes_are_a_valid_request() {
        let memory = PinnedMemory::allocate(0).unwrap();
        assert!(memory.is_empty() && memory.bytes().is_empty());
        assert_ne!(memory.addr().get(), 0);
    }

    #[test]
    fn an_impossible_length_is_an_error() {
        assert!(PinnedMemory::allocate(usize::MAX).is_err());
        assert!(PinnedMemory::allocate(usize::MAX / 2).is_err());
    }

    #[test]
    fn clones_share_the_memory() {
        let memory = PinnedMemory::allocate(4096).unwrap();
        let other = memory.clone();
        memory.words32()[3].store(7, Ordering::Relaxed);
        drop(memory);
        assert_eq!(other.words32()[3].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn foreign_memory_need_not_be_aligned() {
        let _spans = BEGINS_USE.read();
        let bytes: Arc<[SharedU8]> = (0..64).map(|_| SharedU8::new(0)).collect();
        let base = bytes.as_ptr().cast::<u8>().cast_mut().wrapping_add(1);
        // SAFETY: the owner keeps the bytes, which are shared words.
        let memory = unsafe { PinnedMemory::from_raw(NonNull::new(base).unwrap(), 16, bytes.clone()) };
        assert_eq!(memory.words64().len(), if (base as usize).is_multiple_of(8) { 2 } else { 0 });
        memory.write(0, b"abc");
        assert_eq!(Arc::strong_count(&bytes), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&bytes), 1, "the owner is dropped with the last handle");
        assert_eq!(bytes[3].load(Ordering::Relaxed), b'c');
    }
    #[test]
    fn clones_and_keepers_keep_the_owner() {
        let _spans = BEGINS_USE.read();
        let words: Arc<[SharedU32]> = (0..4).map(|_| SharedU32::new(0)).collect();
        let base = NonNull::new(words.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the owner keeps the words, which are shared.
        let memory = unsafe { PinnedMemory::from_raw(base, 16, words.clone()) };
        let (clone, uncounted) = (memory.clone(), memory.uncounted());
        drop(memory);
        assert_eq!(Arc::strong_count(&words), 2);
        drop(clone);
        assert_eq!(Arc::strong_count(&words), 2);
        assert_eq!(uncounted.words32().len(), 4);
        drop(uncounted);
        assert_eq!(Arc::strong_count(&words), 1);
    }
}
