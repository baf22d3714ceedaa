//! Copies, as a device makes them.

use super::access;

/// Bytes that the inner loop moves at a time.
pub(super) const LINE: usize = 64;
/// The widest store of the inner loop.
const VECTOR: usize = 16;
/// The widest single word.
const WORD: usize = size_of::<u64>();

/// Copies bytes while others access them. The ranges may overlap.
///
/// It stores each byte once, as a device does: a program that sees a byte arrive may store to it. It
/// moves 1, 2, 4 or 8 bytes to an address that is a multiple of their number as one word, and an
/// aligned word of 8 bytes inside a longer copy whole if source and target are equally aligned. It
/// goes up the addresses, unless the target begins inside the source; on x86-64 another processor
/// sees the bytes arrive in that order, so that the last one tells of all others, as with a card.
///
/// It has no ordering with other accesses: fence before it, or after.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes. Other accesses to the bytes meanwhile are of
/// this module, or a device's or another process's.
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let begins_inside = to.addr().wrapping_sub(from.addr()) < len;
    // SAFETY: the caller's.
    unsafe { if begins_inside { copy_down(to, from, len) } else { copy_up(to, from, len) } }
}

/// Bytes of the widest word, of 8 bytes at most, that is aligned to its size and not longer than
/// what is left.
#[inline(always)]
fn piece(aligned: usize, left: usize) -> usize {
    let alignment = 1 << aligned.trailing_zeros().min(WORD.trailing_zeros());
    let fitting = 1 << left.ilog2().min(WORD.trailing_zeros());
    std::cmp::min::<usize>(alignment, fitting)
}

/// Moves 1, 2, 4 or 8 bytes.
///
/// # Safety
/// As [`copy`]; `to` is a multiple of their number.
#[inline(always)]
unsafe fn move_piece(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's.
    unsafe {
        match size {
            8 => access::move_u64(to, from),
            4 => access::move_u32(to, from),
            2 => access::move_u16(to, from),
            _ => access::move_u8(to, from),
        }
    }
}

/// # Safety
/// As [`copy`]. If the ranges overlap, `to` comes first.
#[inline]
unsafe fn copy_up(to: *mut u8, from: *const u8, len: usize) {
    // A line is moved by wide loads: of a work request in GPU memory, each load costs the CPU a
    // round trip on the bus.
    let head = to.align_offset(VECTOR);
    let head = if len.saturating_sub(head) < LINE { len } else { head };
    let lines = (len - head) / LINE;
    // SAFETY: the caller's: the parts make up the whole, and the lines' target is aligned.
    unsafe {
        words_up(to, from, 0, head);
        if lines > 0 {
            access::move_lines(to.add(head), from.add(head), lines);
        }
        words_up(to, from, head + lines * LINE, len);
    }
}

/// Copies bytes `at..end` by words.
///
/// # Safety
/// As [`copy_up`].
#[inline]
unsafe fn words_up(to: *mut u8, from: *const u8, mut at: usize, end: usize) {
    while at < end {
        let size = piece(to.addr() + at, end - at);
        // SAFETY: the caller's; aligned to its size.
        unsafe { move_piece(to.add(at), from.add(at), size) };
        at += size;
    }
}

/// Down the addresses: a word's source is loaded before a store can reach it.
///
/// # Safety
/// As [`copy`].
unsafe fn copy_down(to: *mut u8, from: *const u8, len: usize) {
    let mut end = len;
    while end > 0 {
        let size = piece(to.addr() + end, end);
        // SAFETY: the caller's; the end is aligned to the size, and so is the beginning.
        unsafe { move_piece(to.add(end - size), from.add(end - size), size) };
        end -= size;
    }
}
