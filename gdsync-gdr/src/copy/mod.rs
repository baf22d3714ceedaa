//! Copies into and out of memory behind a bus.
//!
//! Mappings of GPU memory are usually write-combining: stores gather in a buffer until a line of 64 bytes is full or
//! a fence drains it; loads are not cached, and each is a round trip over the bus. Stores should therefore be wide
//! and non-temporal, and loads few: a streaming load (MOVNTDQA) fetches a whole line, an ordinary one 8 bytes.
//!
//! # Order
//! [`store`] ends with a store fence (`sfence`, `dsb st`): when it returns, its bytes are on their way to the GPU,
//! ahead of any later store of this thread (a doorbell, a flag). [`load`] begins with a full fence (`mfence`,
//! `dsb sy`): it sees this thread's earlier stores, and empties the buffers of earlier streaming loads. Every kernel
//! accesses 1, 2, 4 or 8 bytes at an address that is a multiple of their number in one piece, so a flag is never torn.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
use aarch64 as wide;
#[cfg(target_arch = "x86_64")]
use x86 as wide;

use crate::backend::Caching;
use gdsync_sys::barrier;
use gdsync_sys::shared::{load_word, load_words, store_word, store_words};
use std::fmt;
use std::str::FromStr;

/// Declares the kernels of a direction: their names, and whether this processor has them, the fastest for
/// write-combining memory first.
macro_rules! kernels {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $kernel:ident = $name:literal if $has:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $type { $($(#[$doc])* $kernel,)* }

        impl $type {
            /// All kernels, of every processor, the fastest for write-combining memory first.
            pub const ALL: [$type; 6] = [$($type::$kernel),*];

            /// Returns the kernels of this processor.
            pub fn available() -> impl Iterator<Item = $type> {
                Self::ALL.into_iter().filter(|kernel| kernel.is_available())
            }

            pub(crate) fn is_available(self) -> bool {
                match self { $($type::$kernel => $has),* }
            }

            /// Returns this processor's best kernel for memory that is mapped with this caching.
            pub(crate) fn best(caching: Caching) -> $type {
                match caching {
                    Caching::WriteCombining => Self::available().next().unwrap_or($type::Volatile),
                    Caching::Cached => $type::Memcpy,
                    // Wide and unaligned accesses may fault.
                    Caching::Device => $type::Volatile,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($type::$kernel => $name),* })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                match name {
                    $($name => Ok($type::$kernel),)*
                    _ => Err(format!("{name} is no copy kernel: there are {}", [$($name),*].join(", "))),
                }
            }
        }
    };
}

kernels! {
    /// Kernels that store bytes into a mapping. [`Mapping::copy_to`](crate::Mapping::copy_to) uses this processor's
    /// best one.
    StoreKernel {
        /// Non-temporal stores of 64 bytes (x86, AVX-512).
        Avx512 = "avx512" if has("avx512f"),
        /// Non-temporal stores of 32 bytes (x86, AVX2).
        Avx2 = "avx2" if has("avx2"),
        /// Non-temporal stores of 16 bytes (every x86-64).
        Sse2 = "sse2" if has("sse2"),
        /// Pairs of 16-byte stores (every aarch64).
        Neon = "neon" if has("neon"),
        /// Ordinary stores of at most 8 bytes, aligned.
        Volatile = "volatile" if true,
        /// `memcpy` of the C library, for comparison: it may store bytes twice, and in any order.
        Memcpy = "memcpy" if true,
    }
}

kernels! {
    /// Kernels that load bytes from a mapping. [`Mapping::copy_from`](crate::Mapping::copy_from) uses this
    /// processor's best one.
    LoadKernel {
        /// Streaming loads of 64 bytes (x86, AVX-512).
        Avx512 = "avx512" if has("avx512f") && has("sse4.1"),
        /// Streaming loads of 32 bytes (x86, AVX2).
        Avx2 = "avx2" if has("avx2") && has("sse4.1"),
        /// Streaming loads of 16 bytes: MOVNTDQA (x86, SSE4.1).
        Sse41 = "sse4.1" if has("sse4.1"),
        /// Pairs of 16-byte loads (every aarch64).
        Neon = "neon" if has("neon"),
        /// Ordinary loads of at most 8 bytes, aligned.
        Volatile = "volatile" if true,
        /// `memcpy` of the C library, for comparison: it may load bytes twice.
        Memcpy = "memcpy" if true,
    }
}

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    // Miri cannot run assembly.
    !cfg!(miri)
        && match feature {
            "sse2" => is_x86_feature_detected!("sse2"),
            "sse4.1" => is_x86_feature_detected!("sse4.1"),
            "avx2" => is_x86_feature_detected!("avx2"),
            "avx512f" => is_x86_feature_detected!("avx512f"),
            _ => false,
        }
}

#[cfg(target_arch = "aarch64")]
fn has(feature: &str) -> bool {
    !cfg!(miri) && feature == "neon" && std::arch::is_aarch64_feature_detected!("neon")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has(_feature: &str) -> bool {
    false
}

/// Bytes of a line, the unit of wide kernels.
const LINE: usize = 64;

/// Returns true if the bytes are one aligned word, which every kernel accesses in one piece.
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

/// Copies out of write-combined memory by this processor's best kernel, after a full fence. Loads the whole 16-byte
/// blocks that contain the first and the last byte of `from`.
///
/// # Safety
/// Those blocks and everything between them are readable, and `to` is writable for `len` bytes; they do not overlap.
pub unsafe fn load_combined(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's; the processor has the kernel (`best`).
    unsafe { load(LoadKernel::best(Caching::WriteCombining), to, from, len) };
}

/// Copies out of a mapping, after a fence.
///
/// # Safety
/// The processor has the kernel; `from` is readable and `to` writable for `len` bytes, and they do not overlap. The
/// 16-byte blocks that contain the first and the last byte of `from` are readable, too.
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

/// Copies whole lines by the kernel, the bytes before and after them by words.
///
/// # Safety
/// As [`store`].
unsafe fn store_lines(kernel: StoreKernel, to: *mut u8, from: *const u8, len: usize) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the parts make up the whole range; the side in the mapping is aligned for the lines.
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

/// Copies whole lines by the kernel, the bytes before and after them by partly used 16-byte blocks.
///
/// # Safety
/// As [`load`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn load_lines(kernel: LoadKernel, to: *mut u8, from: *const u8, len: usize) {
    let head = from.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the parts make up the whole range; the side in the mapping is aligned for the lines.
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

/// Copies less than a line by aligned 16-byte blocks.
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
        // SAFETY: the block is aligned and contains a requested byte, so it is readable (the caller's); `to` has room
        // for `wanted` bytes.
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
