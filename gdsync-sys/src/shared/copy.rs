//! Copies that access memory like a device.

use super::access;
use std::sync::atomic::Ordering::Relaxed;

/// The widest store of the inner loop.
const VECTOR: usize = 16;
const WORD: usize = size_of::<u64>();

/// Copies bytes while others access them. The ranges may overlap.
///
/// Each byte is stored once, as by a device: a program that sees a byte arrive may store to it. An access of 1, 2, 4
/// or 8 bytes to an address that is a multiple of its size is one word; in a longer copy, an aligned word of 8 bytes
/// is copied whole if source and target are equally aligned. Addresses ascend unless the target begins inside the
/// source; on x86-64 other processors see the bytes arrive in that order, so that the last byte announces all others,
/// as with a card.
///
/// The copy is not ordered with other accesses; callers add fences.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes. Concurrent accesses to the bytes are this module's, a
/// device's or another process's.
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let begins_inside = to.addr().wrapping_sub(from.addr()) < len;
    // SAFETY: the caller's.
    unsafe { if begins_inside { copy_down(to, from, len) } else { copy_up(to, from, len) } }
}

/// Copies bytes while others access the target: stores each byte once, in words of at most 8 bytes that are aligned
/// at the target.
///
/// # Safety
/// As [`copy`]. If the ranges overlap, `to` comes first.
#[inline]
pub unsafe fn store_words(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { copy_words(to, from, 0, len) };
}

/// Copies bytes while others access the source: loads each byte once, in words of at most 8 bytes that are aligned at
/// the source.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes; they do not overlap. Concurrent accesses to the source are
/// this module's, a device's or another process's; there are none to the target.
#[inline]
pub unsafe fn load_words(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        let size = word_size(from.addr() + at, len - at);
        // SAFETY: the caller's; aligned to its size.
        unsafe { load_word(to.add(at), from.add(at), size) };
        at += size;
    }
}

/// Loads 1, 2, 4 or 8 bytes at once.
///
/// # Safety
/// As [`load_words`]; `from` is a multiple of their number.
#[inline(always)]
pub unsafe fn load_word(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's.
    unsafe {
        match size {
            8 => to.cast::<u64>().write_unaligned(access::load_u64(from.cast(), Relaxed)),
            4 => to.cast::<u32>().write_unaligned(access::load_u32(from.cast(), Relaxed)),
            2 => to.cast::<u16>().write_unaligned(access::load_u16(from.cast(), Relaxed)),
            _ => to.write(access::load_u8(from, Relaxed)),
        }
    }
}

/// Returns the size of the widest word, at most 8 bytes, that is aligned to its size and not longer than the rest.
#[inline(always)]
fn word_size(aligned: usize, left: usize) -> usize {
    let alignment = 1 << aligned.trailing_zeros().min(WORD.trailing_zeros());
    let fitting = 1 << left.ilog2().min(WORD.trailing_zeros());
    std::cmp::min::<usize>(alignment, fitting)
}

/// Stores 1, 2, 4 or 8 bytes at once.
///
/// # Safety
/// As [`copy`]; `to` is a multiple of their number.
#[inline(always)]
pub unsafe fn store_word(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's.
    unsafe {
        match size {
            8 => access::store_u64(to.cast(), access::load_u64(from.cast(), Relaxed), Relaxed),
            4 => access::store_u32(to.cast(), access::load_u32(from.cast(), Relaxed), Relaxed),
            2 => access::store_u16(to.cast(), access::load_u16(from.cast(), Relaxed), Relaxed),
            _ => access::store_u8(to, access::load_u8(from, Relaxed), Relaxed),
        }
    }
}

/// # Safety
/// As [`copy`]. If the ranges overlap, `to` comes first.
#[inline]
unsafe fn copy_up(to: *mut u8, from: *const u8, len: usize) {
    // Whole lines use wide loads: if the source is a WQE in GPU memory, each load costs a round trip on the bus.
    let head = to.align_offset(VECTOR);
    let head = if len.saturating_sub(head) < access::LINE { len } else { head };
    let lines = (len - head) / access::LINE;
    // SAFETY: the caller's: the parts make up the whole range, and the target of the lines is aligned.
    unsafe {
        copy_words(to, from, 0, head);
        if lines > 0 {
            access::move_lines(to.add(head), from.add(head), lines);
        }
        copy_words(to, from, head + lines * access::LINE, len);
    }
}

/// Copies bytes `at..end` by words.
///
/// # Safety
/// As [`copy_up`].
#[inline]
unsafe fn copy_words(to: *mut u8, from: *const u8, mut at: usize, end: usize) {
    while at < end {
        let size = word_size(to.addr() + at, end - at);
        // SAFETY: the caller's; aligned to its size.
        unsafe { store_word(to.add(at), from.add(at), size) };
        at += size;
    }
}

/// Copies by descending addresses: each word's source is loaded before a store can reach it.
///
/// # Safety
/// As [`copy`].
unsafe fn copy_down(to: *mut u8, from: *const u8, len: usize) {
    let mut end = len;
    while end > 0 {
        let size = word_size(to.addr() + end, end);
        // SAFETY: the caller's; the end is aligned to the size, and so is the beginning.
        unsafe { store_word(to.add(end - size), from.add(end - size), size) };
        end -= size;
    }
}
