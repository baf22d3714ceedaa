//! Accesses by the atomics of `std`, for what cannot follow assembly: Miri, sanitizers, fuzzers, and
//! processors without blocks of their own.

use super::copy::LINE;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A load, a store, and a copy of one word.
macro_rules! word {
    ($word:ty, $atomic:ident, $load:ident, $store:ident, $move:ident) => {
        /// # Safety
        /// The word is valid and aligned.
        #[inline(always)]
        pub(super) unsafe fn $load(at: *const $word, order: Ordering) -> $word {
            // SAFETY: the caller's.
            unsafe { $atomic::from_ptr(at.cast_mut()) }.load(order)
        }

        /// # Safety
        /// The word is valid and aligned.
        #[inline(always)]
        pub(super) unsafe fn $store(at: *mut $word, value: $word, order: Ordering) {
            // SAFETY: the caller's.
            unsafe { $atomic::from_ptr(at) }.store(value, order);
        }

        /// # Safety
        /// The bytes of a word are readable at `from` and writable at `to`, which is aligned.
        #[inline(always)]
        pub(super) unsafe fn $move(to: *mut u8, from: *const u8) {
            let word = from.cast::<$word>();
            // SAFETY: the caller's; aligned (checked), or a byte.
            unsafe {
                let value = if word.is_aligned() {
                    $load(word, Ordering::Relaxed)
                } else {
                    let mut bytes = [0; size_of::<$word>()];
                    for (i, byte) in bytes.iter_mut().enumerate() {
                        *byte = load_u8(from.add(i), Ordering::Relaxed);
                    }
                    <$word>::from_ne_bytes(bytes)
                };
                $store(to.cast(), value, Ordering::Relaxed);
            }
        }
    };
}

word!(u8, AtomicU8, load_u8, store_u8, move_u8);
word!(u16, AtomicU16, load_u16, store_u16, move_u16);
word!(u32, AtomicU32, load_u32, store_u32, move_u32);
word!(u64, AtomicU64, load_u64, store_u64, move_u64);

macro_rules! exchange {
    ($word:ty, $atomic:ident, $swap:ident, $add:ident, $compare_exchange:ident) => {
        /// # Safety
        /// The word is valid and aligned.
        pub(super) unsafe fn $swap(at: *mut $word, value: $word, order: Ordering) -> $word {
            // SAFETY: the caller's.
            unsafe { $atomic::from_ptr(at) }.swap(value, order)
        }

        /// # Safety
        /// The word is valid and aligned.
        pub(super) unsafe fn $add(at: *mut $word, value: $word, order: Ordering) -> $word {
            // SAFETY: the caller's.
            unsafe { $atomic::from_ptr(at) }.fetch_add(value, order)
        }

        /// # Safety
        /// The word is valid and aligned.
        pub(super) unsafe fn $compare_exchange(
            at: *mut $word,
            current: $word,
            new: $word,
            success: Ordering,
            failure: Ordering,
        ) -> Result<$word, $word> {
            // SAFETY: the caller's.
            unsafe { $atomic::from_ptr(at) }.compare_exchange(current, new, success, failure)
        }
    };
}

exchange!(u32, AtomicU32, swap_u32, add_u32, compare_exchange_u32);
exchange!(u64, AtomicU64, swap_u64, add_u64, compare_exchange_u64);

/// Copies lines of 64 bytes, in the order of their addresses.
///
/// # Safety
/// So many bytes are readable at `from` and writable at `to`, which is a multiple of 16. If they
/// overlap, `to` comes first.
pub(super) unsafe fn move_lines(to: *mut u8, from: *const u8, lines: usize) {
    for at in (0..lines * LINE).step_by(size_of::<u64>()) {
        // SAFETY: the caller's.
        unsafe { move_u64(to.add(at), from.add(at)) };
    }
}
