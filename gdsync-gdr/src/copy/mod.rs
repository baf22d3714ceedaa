//! Copying into and out of memory behind a bus.
//!
//! A mapping of GPU memory is write-combining as a rule: stores gather in a buffer until a line of 64 bytes is full
//! or a fence drains it; loads are not cached, and each is a round trip over the bus. So stores are best wide and
//! non-temporal, and loads few: a streaming load (MOVNTDQA) fetches a whole line where an ordinary one fetches 8
//! bytes.
//!
//! # Order
//! [`store`] ends with a store fence (`sfence`, `dsb st`): when it returns, its bytes are on their way to the GPU,
//! before anything that this thread stores later (a doorbell, a flag). [`load`] begins with a full fence (`mfence`,
//! `dsb sy`): it sees what this thread stored before, and empties the buffers of earlier streaming loads. 1, 2, 4 or
//! 8 bytes at an address that is a multiple of their number are one access by every kernel, so a flag is never seen
//! in halves.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod kernels;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use kernels::{LoadKernel, StoreKernel};

#[cfg(target_arch = "aarch64")]
use aarch64 as wide;
#[cfg(target_arch = "x86_64")]
use x86 as wide;

use crate::info::Caching;
use gdsync_sys::barrier;
use gdsync_sys::shared::{load_word, load_words, store_word, store_words};

/// Bytes of a line: what a wide kernel moves at a time.
const LINE: usize = 64;

/// Whether bytes are one aligned word, which every kernel accesses at once.
#[inline]
fn is_word(address: usize, len: usize) -> bool {
    matches!(len, 1 | 2 | 4 | 8) && address.is_multiple_of(len)
}

/// Copies into a mapping, and fences.
///
/// # Safety
/// The processor has the kernel; `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[inline]
pub(crate) unsafe fn store(kernel: StoreKernel, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe {
        match kernel {
            _ if is_word(to.addr(), len) => store_word(to, from, len),
            StoreKernel::Volatile => store_words(to, from, len),
            StoreKernel::Memcpy => {
                libc::memcpy(to.cast(), from.cast(), len);
            }
            wide => store_lines(wide, to, from, len),
        }
    }
    barrier::drain();
}

/// Copies out of write-combined memory by the best kernel of this processor, after a full fence. Loads the blocks of
/// 16 bytes that hold the first and the last byte of `from` whole.
///
/// # Safety
/// Those blocks and what lies between them are readable, and `to` is writable for `len` bytes; they do not overlap.
pub unsafe fn load_combined(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's; the processor has the kernel (`best`).
    unsafe { load(LoadKernel::best(Caching::WriteCombining), to, from, len) };
}

/// Copies out of a mapping, after a fence.
///
/// # Safety
/// The processor has the kernel; `from` is readable and `to` writable for `len` bytes, and they do not overlap. The
/// blocks of 16 bytes that hold the first and the last byte of `from` are readable, too.
#[inline]
pub(crate) unsafe fn load(kernel: LoadKernel, to: *mut u8, from: *const u8, len: usize) {
    barrier::full();
    // SAFETY: the caller's.
    unsafe {
        match kernel {
            _ if is_word(from.addr(), len) => load_word(to, from, len),
            LoadKernel::Volatile => load_words(to, from, len),
            LoadKernel::Memcpy => {
                libc::memcpy(to.cast(), from.cast(), len);
            }
            wide => load_lines(wide, to, from, len),
        }
    }
}

/// Whole lines by the kernel, what is before and after by words.
///
/// # Safety
/// As [`store`].
unsafe fn store_lines(kernel: StoreKernel, to: *mut u8, from: *const u8, len: usize) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the parts make up the whole; the destination of the lines is aligned.
    unsafe {
        store_words(to, from, head);
        if lines > 0 {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            wide::store_lines(kernel, to.add(head), from.add(head), lines);
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            store_words(to.add(head), from.add(head), lines * LINE);
        }
        store_words(to.add(tail), from.add(tail), len - tail);
    }
    let _ = kernel;
}

/// Whole lines by the kernel, what is before and after by blocks of 16 bytes, of which only some bytes may be wanted.
///
/// # Safety
/// As [`load`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn load_lines(kernel: LoadKernel, to: *mut u8, from: *const u8, len: usize) {
    let head = from.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the parts make up the whole; the source of the lines is aligned.
    unsafe {
        load_blocks(to, from, head);
        if lines > 0 {
            wide::load_lines(kernel, to.add(head), from.add(head), lines);
        }
        load_blocks(to.add(tail), from.add(tail), len - tail);
    }
}

/// # Safety
/// As [`load`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn load_lines(_kernel: LoadKernel, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { load_words(to, from, len) };
}

/// Fewer bytes than a line, by aligned blocks of 16.
///
/// # Safety
/// As [`load`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn load_blocks(mut to: *mut u8, from: *const u8, len: usize) {
    const BLOCK: usize = 16;
    let skip = from as usize % BLOCK;
    let mut block = from.wrapping_sub(skip);
    let (mut skip, mut left) = (skip, len);
    while left > 0 {
        let wanted = left.min(BLOCK - skip);
        // SAFETY: the block is aligned and holds a wanted byte, so it is readable (the caller's); so many bytes are
        // left at `to`.
        unsafe {
            let bytes = wide::load_block(block);
            to.copy_from_nonoverlapping(bytes.as_ptr().add(skip), wanted);
            to = to.add(wanted);
        }
        block = block.wrapping_add(BLOCK);
        (skip, left) = (0, left - wanted);
    }
}

#[cfg(test)]
mod tests;
