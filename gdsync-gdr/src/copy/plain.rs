//! Words of at most 8 bytes.

use gdsync_sys::shared::{SharedU8, SharedU16, SharedU32, SharedU64};
use std::sync::atomic::Ordering::Relaxed;

/// Stores one aligned word at once. False, and nothing is stored, where the bytes are not one.
///
/// # Safety
/// As [`super::store`].
#[inline]
pub(super) unsafe fn store_word(to: *mut u8, from: *const u8, len: usize) -> bool {
    if !matches!(len, 1 | 2 | 4 | 8) || !(to as usize).is_multiple_of(len) {
        return false;
    }
    // SAFETY: the caller's; the destination is aligned (checked).
    unsafe { store_piece(to, from, len) };
    true
}

/// Loads one aligned word at once. False, and nothing is loaded, where the bytes are not one.
///
/// # Safety
/// As [`super::load`].
#[inline]
pub(super) unsafe fn load_word(to: *mut u8, from: *const u8, len: usize) -> bool {
    if !matches!(len, 1 | 2 | 4 | 8) || !(from as usize).is_multiple_of(len) {
        return false;
    }
    // SAFETY: the caller's; the source is aligned (checked).
    unsafe { load_piece(to, from, len) };
    true
}

/// Bytes of the widest aligned access at an address in the mapping, with `left` bytes to copy.
#[inline]
fn piece(address: usize, left: usize) -> usize {
    let aligned = 1 << address.trailing_zeros().min(3);
    let fitting = 1 << left.ilog2().min(3);
    std::cmp::min(aligned, fitting)
}

/// # Safety
/// As [`super::store`], for 1, 2, 4 or 8 bytes at an aligned destination.
#[inline]
unsafe fn store_piece(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's. Other threads and the GPU access the word meanwhile, which shared words
    // tolerate.
    unsafe {
        match len {
            8 => SharedU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), Relaxed),
            4 => SharedU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Relaxed),
            2 => SharedU16::from_ptr(to.cast()).store(from.cast::<u16>().read_unaligned(), Relaxed),
            _ => SharedU8::from_ptr(to).store(from.read(), Relaxed),
        }
    }
}

/// # Safety
/// As [`super::load`], for 1, 2, 4 or 8 bytes at an aligned source.
#[inline]
unsafe fn load_piece(to: *mut u8, from: *const u8, len: usize) {
    let from = from.cast_mut();
    // SAFETY: the caller's. Other threads and the GPU access the word meanwhile, which shared words
    // tolerate.
    unsafe {
        match len {
            8 => to.cast::<u64>().write_unaligned(SharedU64::from_ptr(from.cast()).load(Relaxed)),
            4 => to.cast::<u32>().write_unaligned(SharedU32::from_ptr(from.cast()).load(Relaxed)),
            2 => to.cast::<u16>().write_unaligned(SharedU16::from_ptr(from.cast()).load(Relaxed)),
            _ => to.write(SharedU8::from_ptr(from).load(Relaxed)),
        }
    }
}

/// # Safety
/// As [`super::store`].
pub(super) unsafe fn store(to: *mut u8, from: *const u8, len: usize) {
    let mut done = 0;
    while done < len {
        // SAFETY: inside both, and aligned in the mapping.
        unsafe {
            let at = to.add(done);
            let size = piece(at as usize, len - done);
            store_piece(at, from.add(done), size);
            done += size;
        }
    }
}

/// # Safety
/// As [`super::load`].
pub(super) unsafe fn load(to: *mut u8, from: *const u8, len: usize) {
    let mut done = 0;
    while done < len {
        // SAFETY: inside both, and aligned in the mapping.
        unsafe {
            let at = from.add(done);
            let size = piece(at as usize, len - done);
            load_piece(to.add(done), at, size);
            done += size;
        }
    }
}
