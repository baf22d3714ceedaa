//! The library's memory allocator, which uses system calls only.
//!
//! MPI libraries, UCX and libfabric track unmapped memory: while they start and end they patch the code of
//! the C library's `munmap`, `madvise` and `brk`, and their replacements take locks that they also hold while
//! they call the card. Rust's default allocator is the C library's, which calls those functions. With it, the
//! card's thread would run code that is being written, or wait for a thread that waits for the card.
//!
//! Block sizes are powers of two. Blocks are cut from chunks of the system's memory, and kept in free lists.
//! A larger request has its own mapping.

use crate::errno::keeping_errno;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[cfg(not(any(test, fuzzing)))]
#[global_allocator]
static MEMORY: Memory = Memory::new();

const PAGE: usize = 4096;
/// Bytes of a chunk of the system's memory.
const PIECE: usize = 1 << 20;
/// Logarithms of the sizes of the smallest and the largest blocks.
const SMALLEST: u32 = 4;
const LARGEST: u32 = 16;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;

/// Returns the size class of a request; `None` for one with its own mapping.
fn class(layout: Layout) -> Option<usize> {
    if layout.align() > PAGE {
        return None;
    }
    let bits =
        layout.size().max(layout.align()).max(1 << SMALLEST).checked_next_power_of_two()?.trailing_zeros();
    (bits <= LARGEST).then_some((bits - SMALLEST) as usize)
}

fn block_size(class: usize) -> usize {
    1 << (SMALLEST as usize + class)
}

/// Maps zeroed memory; null on failure.
fn map(len: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let none = ptr::null_mut::<u8>();
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe { libc::syscall(libc::SYS_mmap, none, len, protection, flags, -1, 0) };
    if base == -1 { none } else { base as *mut u8 }
}

/// Memory for what the library allocates when the system gives it no chunk: it is loaded into programs under any limit, and
/// a failed allocation would end them. No card starts then.
#[repr(align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: `chunk` gives it to the caller once.
unsafe impl Sync for Reserve {}

const RESERVE_BYTES: usize = 1 << 17;
static RESERVE: Reserve = Reserve(UnsafeCell::new([0; RESERVE_BYTES]));
static RESERVE_IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns a new chunk and its length; null without memory.
fn chunk() -> (*mut u8, usize) {
    let piece = map(PIECE);
    match piece.is_null() && !RESERVE_IS_TAKEN.swap(true, Ordering::Relaxed) {
        true => (RESERVE.0.get().cast(), RESERVE_BYTES),
        false => (piece, PIECE),
    }
}

/// Room for a path (`PATH_MAX`): its own pages, because threads may have small stacks, and signal handlers open files.
pub(crate) struct PathRoom(*mut [u8; libc::PATH_MAX as usize]);

impl PathRoom {
    /// Maps zeroed room; `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        let base = keeping_errno(|| map(libc::PATH_MAX as usize));
        (!base.is_null()).then_some(PathRoom(base.cast()))
    }
}

impl Deref for PathRoom {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped by `new`, and only this value refers to it.
        unsafe { &*self.0 }
    }
}

impl DerefMut for PathRoom {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { &mut *self.0 }
    }
}

impl Drop for PathRoom {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        keeping_errno(|| unsafe { libc::syscall(libc::SYS_munmap, self.0, libc::PATH_MAX as usize) });
    }
}

/// A free block, which contains the address of the next one of its size.
struct Free(*mut Free);

struct Blocks {
    lists: [*mut Free; CLASSES],
    /// The rest of the last chunk.
    rest: *mut u8,
    left: usize,
}

impl Blocks {
    const fn none() -> Self {
        Blocks { lists: [ptr::null_mut(); CLASSES], rest: ptr::null_mut(), left: 0 }
    }

    fn take(&mut self, class: usize) -> *mut u8 {
        let first = self.lists[class];
        if !first.is_null() {
            // SAFETY: a free block is writable, and `give` has put the address of the next one there.
            self.lists[class] = unsafe { (*first).0 };
            return first.cast();
        }
        let size = block_size(class);
        // A block is aligned to its size, but to a page at most.
        let lead = self.rest.align_offset(size.min(PAGE));
        if self.left < lead + size {
            let (piece, len) = chunk();
            if piece.is_null() {
                return piece;
            }
            (self.rest, self.left) = (piece.wrapping_add(size), len - size);
            return piece;
        }
        let block = self.rest.wrapping_add(lead);
        (self.rest, self.left) = (block.wrapping_add(size), self.left - lead - size);
        block
    }

    /// # Safety
    /// The block is of this class, and nothing uses it any more.
    unsafe fn give(&mut self, block: *mut u8, class: usize) {
        let block = block.cast::<Free>();
        // SAFETY: the block is the caller's, writable, and aligned to at least 16.
        unsafe { block.write(Free(self.lists[class])) };
        self.lists[class] = block;
    }
}

struct Memory {
    lock: Lock,
    blocks: UnsafeCell<Blocks>,
    is_prepared: AtomicBool,
}

// SAFETY: the lock guards the blocks.
unsafe impl Sync for Memory {}

impl Memory {
    const fn new() -> Self {
        let blocks = UnsafeCell::new(Blocks::none());
        Memory { lock: Lock::new(), blocks, is_prepared: AtomicBool::new(false) }
    }

    fn with_blocks<R>(&self, work: impl FnOnce(&mut Blocks) -> R) -> R {
        if !self.is_prepared.load(Ordering::Relaxed) && !self.is_prepared.swap(true, Ordering::Relaxed) {
            prepare_for_forks();
        }
        self.lock.lock();
        // SAFETY: the lock makes this the only reference; `work` is from this module and does not re-enter.
        let result = work(unsafe { &mut *self.blocks.get() });
        self.lock.unlock();
        result
    }

    /// Discards the free blocks in the child of a fork, as another thread of the parent may have been
    /// changing their lists.
    fn forget(&self) {
        // SAFETY: the child has one thread, which was not in the lists when it forked.
        unsafe { *self.blocks.get() = Blocks::none() };
        self.lock.unlock();
    }
}

#[cfg(not(any(test, fuzzing)))]
fn prepare_for_forks() {
    extern "C" fn in_child() {
        MEMORY.forget();
    }
    // If it fails, the child of a multi-threaded program may wait forever, as with any lock.
    //
    // SAFETY: the handler only stores to memory of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cfg(any(test, fuzzing))]
fn prepare_for_forks() {}

// SAFETY: blocks have the size and the alignment of their requests, and belong to one request until it frees them.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            Some(class) => keeping_errno(|| self.with_blocks(|blocks| blocks.take(class))),
            None if layout.align() <= PAGE => keeping_errno(|| map(layout.size())),
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            // SAFETY: a block of this class, as the request had this layout.
            Some(class) => self.with_blocks(|blocks| unsafe { blocks.give(block, class) }),
            None => keeping_errno(|| {
                // SAFETY: `alloc` has mapped this for the request.
                unsafe { libc::syscall(libc::SYS_munmap, block, layout.size()) };
            }),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        let block = unsafe { self.alloc(layout) };
        // Mapped memory is zeroed.
        if class(layout).is_some() && !block.is_null() {
            // SAFETY: a block of this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size does not overflow when it is rounded up to the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if class(layout).is_some() && class(layout) == class(wanted) {
            return block;
        }
        // SAFETY: guaranteed by the caller.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: two blocks of these sizes, the first of which is the caller's.
            unsafe {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

/// A lock without allocation: 0 is free, 1 taken, 2 taken and possibly waited for.
struct Lock(AtomicU32);

impl Lock {
    const fn new() -> Self {
        Lock(AtomicU32::new(0))
    }

    fn futex(&self, operation: libc::c_int, value: u32) {
        let (operation, none) = (operation | libc::FUTEX_PRIVATE_FLAG, ptr::null::<libc::timespec>());
        // SAFETY: the word lives during the call, which only reads it.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, none) };
    }

    fn lock(&self) {
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(2, Ordering::Acquire) != 0 {
                keeping_errno(|| self.futex(libc::FUTEX_WAIT, 2));
            }
        }
    }

    fn unlock(&self) {
        if self.0.swap(0, Ordering::Release) == 2 {
            keeping_errno(|| self.futex(libc::FUTEX_WAKE, 1));
        }
    }
}

#[cfg(test)]
mod tests;
