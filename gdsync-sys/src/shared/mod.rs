//! Access to memory that cards, GPUs, other processes and other threads access at the same time, in pieces of any
//! size.
//!
//! Two kinds of access by the CPU meet in such memory. A program looks at words of it: as bytes, as 32-bit words, as
//! 64-bit words, on one thread this way and on another that way. A software card copies payloads into it and out of
//! it meanwhile, as a card does by DMA. Rust's own accesses allow neither. A plain copy that meets a store is a data
//! race, and of atomics [the documentation](std::sync::atomic#memory-model-for-atomic-accesses) says: "every pair of
//! non-synchronized atomic accesses must be either disjoint, access the exact same memory (including using the same
//! access size), or both be reads".
//!
//! # Why these accesses are sound
//! On x86-64 and aarch64 every access here is an `asm!` block, between the fences of its [`Ordering`]. Of such a
//! block the compiler may assume only what its interface says (the Reference, "Inline assembly",
//! `asm.rules.black-box`), and the block may access what a function of another language may
//! (`asm.rules.mem-same-as-ffi`). So a block is sound if there is Rust code that could stand in its place. For an
//! access of *n* bytes that code is: *n* relaxed atomic accesses of *one byte* each, loads, stores, or both in one
//! step. A copy is a load of each byte and one store of it. Every access is then atomic, so none races; and every
//! access has the same size, so no two overlap in part. Nothing that safe code does with these types can change that.
//!
//! The instruction does one of the things that the bytes' accesses may do: all of them, with no access of others in
//! between. That an aligned word is loaded and stored whole is not Rust's promise but the processor's (Intel SDM
//! volume 3, "Guaranteed Atomic Operations"; Arm ARM, "Requirements for single-copy atomicity"). No soundness rests
//! on it.
//!
//! It follows that memory which is accessed here is accessed by `std`'s atomics or by plain accesses only where
//! something else orders the two (a lock, a doorbell record), or by atomics that always have the size of the word
//! that is used here: to those, the block's Rust code may as well be one access of that size.
//!
//! # Where the blocks are not used
//! Miri runs no assembly, and sanitizers and fuzzers do not look into it. For them (`cfg(miri)`, `cfg(fuzzing)`, and
//! `cfg(gdsync_sanitize)`, which `scripts/sanitize` sets), and on processors of other kinds, the same functions are
//! relaxed atomics of a word's size. There, accesses of mixed sizes are what LLVM and the processor make of them:
//! LLVM defines each byte of an atomic load (the language reference, "Memory Model for Concurrent Operations"), Rust
//! does not.

#[cfg(all(target_arch = "aarch64", not(any(miri, fuzzing, gdsync_sanitize))))]
mod aarch64;
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri, fuzzing, gdsync_sanitize))]
mod atomics;
mod copy;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, fuzzing, gdsync_sanitize))))]
mod fenced;
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

/// The ordering of a load: one that only stores have counts as acquire.
fn of_load(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::SeqCst => order,
        _ => Ordering::Acquire,
    }
}

/// The ordering of a store: one that only loads have counts as release.
fn of_store(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::SeqCst => order,
        _ => Ordering::Release,
    }
}

macro_rules! shared {
    ($(#[$doc:meta])* $name:ident, $value:ty, $load:ident, $store:ident) => {
        $(#[$doc])*
        /// Its methods are those of the atomic type of `std` with that size. A load with an ordering that only stores
        /// have acquires, a store with one that only loads have releases.
        #[repr(transparent)]
        pub struct $name(UnsafeCell<$value>);

        // SAFETY: every access by a shared reference is one of this module's, which never races with another of them,
        // whatever its size (the module's documentation).
        unsafe impl Sync for $name {}

        impl RefUnwindSafe for $name {}

        impl $name {
            /// A word with that value.
            pub const fn new(value: $value) -> Self {
                $name(UnsafeCell::new(value))
            }

            /// The word at an address.
            ///
            /// # Safety
            /// The address is aligned to the word's size and valid for as long as the borrow is used. Other accesses
            /// to the bytes meanwhile are this module's, or a device's or another process's, or are ordered with
            /// those by the borrow.
            pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the caller's; the types have the same layout, and an `UnsafeCell` may be changed by others.
                unsafe { &*at.cast() }
            }

            /// Its address.
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.get()
            }

            /// Its value.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                // SAFETY: a word of this type is valid and aligned.
                unsafe { access::$load(self.as_ptr(), of_load(order)) }
            }

            /// Sets its value.
            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                // SAFETY: as in `load`.
                unsafe { access::$store(self.as_ptr(), value, of_store(order)) }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.load(Ordering::Relaxed).fmt(f)
            }
        }
    };
}

/// What only words have that a processor exchanges in one step.
macro_rules! exchanged {
    ($name:ident, $value:ty, $swap:ident, $add:ident, $compare_exchange:ident) => {
        impl $name {
            /// Sets its value, and returns what it was, in one step.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                // SAFETY: a word of this type is valid and aligned.
                unsafe { access::$swap(self.as_ptr(), value, order) }
            }

            /// Adds to its value, wrapping, and returns what it was, in one step.
            #[inline]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                // SAFETY: as in `swap`.
                unsafe { access::$add(self.as_ptr(), value, order) }
            }

            /// Sets its value if it is `current`, in one step.
            ///
            /// # Errors
            /// The value that it has, where that is not `current`. The ordering is that of `success` then, too, which
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
                unsafe { access::$compare_exchange(self.as_ptr(), current, new, success, of_load(failure)) }
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
