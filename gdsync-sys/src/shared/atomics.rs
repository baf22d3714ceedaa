//! Accesses by `std`'s atomics, where assembly is not usable: Miri, sanitizers, fuzzers, and other processors.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes of a line of [`move_lines`].
pub(super) const LINE: usize = 64;

/// Defines a load and a store of one word.
macro_rules! word {
    ($word:ty, $atomic:ident, $load:ident, $store:ident) => {
        /// # Safety
        /// The word is valid.
        #[inline(always)]
        pub(super) unsafe fn $load(at: *const $word, order: Ordering) -> $word {
            // SAFETY: the caller's; aligned (checked), or loaded by bytes.
            unsafe {
                if at.is_aligned() {
                    return $atomic::from_ptr(at.cast_mut()).load(order);
                }
                let byte = |i| load_u8(at.cast::<u8>().add(i), order);
                <$word>::from_ne_bytes(std::array::from_fn(byte))
            }
        }

        /// # Safety
        /// The word is valid and aligned.
        #[inline(always)]
        pub(super) unsafe fn $store(at: *mut $word, value: $word, order: Ordering) {
            // SAFETY: the caller's.
            unsafe { $atomic::from_ptr(at) }.store(value, order);
        }
    };
}

word!(u8, AtomicU8, load_u8, store_u8);
word!(u16, AtomicU16, load_u16, store_u16);
word!(u32, AtomicU32, load_u32, store_u32);
word!(u64, AtomicU64, load_u64, store_u64);

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
/// `64 * lines` bytes are readable at `from` and writable at `to`, which is a multiple of 16. If they overlap, `to`
/// comes first.
pub(super) unsafe fn move_lines(to: *mut u8, from: *const u8, lines: usize) {
    for at in (0..lines * LINE).step_by(size_of::<u64>()) {
        // SAFETY: the caller's.
        unsafe { store_u64(to.add(at).cast(), load_u64(from.add(at).cast(), Relaxed), Relaxed) };
    }
}
