//! Accesses of any size to memory that cards, GPUs, other processes and other threads access at the same time.
//!
//! The CPU accesses such memory in two ways. Programs read words of it, possibly of different sizes on different
//! threads. A software card meanwhile copies payloads into and out of it, as a card does by DMA. Rust's own accesses
//! allow neither. A plain copy that overlaps a store is a data race, and [the documentation of
//! atomics](std::sync::atomic#memory-model-for-atomic-accesses) says: "every pair of non-synchronized atomic accesses
//! must be either disjoint, access the exact same memory (including using the same access size), or both be reads".
//!
//! # Why these accesses are sound
//! On x86-64 and aarch64 every access here is an `asm!` block, between the fences of its [`Ordering`]. The compiler
//! may assume only what the block's interface states (the Reference, "Inline assembly", `asm.rules.black-box`), and
//! the block may access what a function of another language may (`asm.rules.mem-same-as-ffi`). A block is therefore
//! sound if equivalent Rust code exists. For an access of *n* bytes that code is: *n* relaxed atomic accesses of *one
//! byte* each: loads, stores, or both in one step. A copy is a load and a store of each byte. All accesses are then
//! atomic, so none races; and all have the same size, so none overlap partially. Safe code that uses these types
//! cannot change that.
//!
//! The instruction is one of the allowed executions of these byte accesses: all of them without an access of others
//! in between. It is not Rust but the processor that guarantees that an aligned word is loaded and stored whole
//! (Intel SDM volume 3, "Guaranteed Atomic Operations"; Arm ARM, "Requirements for single-copy atomicity"). Soundness
//! does not depend on it.
//!
//! Consequently, `std`'s atomics or plain accesses may access the same memory only if something else orders the two
//! (a lock, a doorbell record), or if they are atomics that always have the size of the word used here: the block is
//! then equivalent to one Rust access of that size.
//!
//! # Where the blocks are not used
//! Miri runs no assembly, and sanitizers and fuzzers do not instrument it. For them (`cfg(miri)`, `cfg(fuzzing)`, and
//! `cfg(gdsync_sanitize)`, which `scripts/sanitize` sets), and on other processors, the same functions use relaxed
//! atomics of the word's size. Accesses of mixed sizes then depend on LLVM and the processor: LLVM defines each byte
//! of an atomic load (the language reference, "Memory Model for Concurrent Operations"), Rust does not.

/// Defines a load and a store of one word. Both processors load ordinary memory from any address.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, fuzzing, gdsync_sanitize))))]
macro_rules! word {
    ($word:ty, $class:ident, $load:ident $l:literal, $store:ident $s:literal) => {
        /// # Safety
        /// The word is valid.
        #[inline(always)]
        pub(super) unsafe fn $load(at: *const $word, order: Ordering) -> $word {
            fenced(order, || {
                let value;
                // SAFETY: the caller's.
                unsafe {
                    asm!($l, at = in(reg) at, v = out($class) value, options(nostack, preserves_flags, readonly));
                }
                value
            })
        }

        /// # Safety
        /// The word is valid and aligned.
        #[inline(always)]
        pub(super) unsafe fn $store(at: *mut $word, value: $word, order: Ordering) {
            fenced(order, || {
                // SAFETY: the caller's.
                unsafe {
                    asm!($s, at = in(reg) at, v = in($class) value, options(nostack, preserves_flags));
                }
            });
        }
    };
}

#[cfg(all(target_arch = "aarch64", not(any(miri, fuzzing, gdsync_sanitize))))]
mod aarch64;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri, fuzzing, gdsync_sanitize))]
mod atomics;
mod copy;
#[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, gdsync_sanitize))))]
mod x86_64;

pub use copy::{copy, load_word, load_words, store_word, store_words};

#[cfg(all(target_arch = "aarch64", not(any(miri, fuzzing, gdsync_sanitize))))]
use aarch64 as access;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri, fuzzing, gdsync_sanitize))]
use atomics as access;
#[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, gdsync_sanitize))))]
use x86_64 as access;

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::atomic::Ordering;

/// Returns the ordering for a load: orderings that only stores have become acquire.
fn load_ordering(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::SeqCst => order,
        _ => Ordering::Acquire,
    }
}

/// Returns the ordering for a store: orderings that only loads have become release.
fn store_ordering(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::SeqCst => order,
        _ => Ordering::Release,
    }
}

/// Performs an access between the fences of its ordering.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, fuzzing, gdsync_sanitize))))]
#[inline(always)]
fn fenced<T>(order: Ordering, access: impl FnOnce() -> T) -> T {
    use std::sync::atomic::fence;

    match order {
        Ordering::Release | Ordering::AcqRel => fence(Ordering::Release),
        Ordering::SeqCst => fence(Ordering::SeqCst),
        _ => {}
    }
    let result = access();
    match order {
        Ordering::Acquire | Ordering::AcqRel => fence(Ordering::Acquire),
        Ordering::SeqCst => fence(Ordering::SeqCst),
        _ => {}
    }
    result
}

macro_rules! shared {
    ($(#[$doc:meta])* $name:ident, $value:ty, $load:ident, $store:ident) => {
        $(#[$doc])*
        /// The methods are those of `std`'s atomic type of the same size. A load with an ordering that only stores
        /// have acquires, a store with one that only loads have releases.
        #[repr(transparent)]
        pub struct $name(UnsafeCell<$value>);

        // SAFETY: every access through a shared reference is one of this module's accesses, which never race with
        // each other, whatever their sizes (see the module's documentation).
        unsafe impl Sync for $name {}

        impl RefUnwindSafe for $name {}

        impl $name {
            /// Creates a word with that value.
            pub const fn new(value: $value) -> Self {
                $name(UnsafeCell::new(value))
            }

            /// Returns the word at an address.
            ///
            /// # Safety
            /// The address is aligned to the word's size and valid for as long as the borrow is used. All concurrent
            /// accesses to the bytes are this module's, a device's or another process's; all others are ordered with
            /// those through the borrow.
            pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the caller guarantees validity; the types have the same layout, and an `UnsafeCell` permits
                // changes by others.
                unsafe { &*at.cast() }
            }

            /// Returns the word's address.
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.get()
            }

            /// Returns the value.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                // SAFETY: a word of this type is valid and aligned.
                unsafe { access::$load(self.as_ptr(), load_ordering(order)) }
            }

            /// Sets the value.
            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                // SAFETY: as in `load`.
                unsafe { access::$store(self.as_ptr(), value, store_ordering(order)) }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.load(Ordering::Relaxed).fmt(f)
            }
        }
    };
}

/// Defines the operations that a processor performs in one step.
macro_rules! exchanged {
    ($name:ident, $value:ty, $swap:ident, $add:ident, $compare_exchange:ident) => {
        impl $name {
            /// Sets the value and returns the previous one, in one step.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                // SAFETY: a word of this type is valid and aligned.
                unsafe { access::$swap(self.as_ptr(), value, order) }
            }

            /// Adds to the value, wrapping, and returns the previous one, in one step.
            #[inline]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                // SAFETY: as in `swap`.
                unsafe { access::$add(self.as_ptr(), value, order) }
            }

            /// Sets the value if it is `current`, in one step.
            ///
            /// # Errors
            /// The actual value, if it is not `current`. The ordering is that of `success` in this case, too, which
            /// is at least as strong.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                // SAFETY: as in `swap`.
                unsafe {
                    access::$compare_exchange(self.as_ptr(), current, new, success, load_ordering(failure))
                }
            }
        }
    };
}

shared! {
    /// A byte of shared memory.
    SharedU8, u8, load_u8, store_u8
}
shared! {
    /// A 16-bit word of shared memory.
    SharedU16, u16, load_u16, store_u16
}
shared! {
    /// A 32-bit word of shared memory.
    SharedU32, u32, load_u32, store_u32
}
shared! {
    /// A 64-bit word of shared memory.
    SharedU64, u64, load_u64, store_u64
}
exchanged! { SharedU32, u32, swap_u32, add_u32, compare_exchange_u32 }
exchanged! { SharedU64, u64, swap_u64, add_u64, compare_exchange_u64 }

#[cfg(test)]
mod tests;
