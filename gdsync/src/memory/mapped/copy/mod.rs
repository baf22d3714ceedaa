//! Copy kernels: how bytes get into and out of memory behind a bus.
//!
//! A mapping of GPU memory is write-combining as a rule: stores gather in a buffer until a line of 64 bytes is full, or a fence
//! pushes it out; loads are not cached, and each is a round trip over the bus. So stores are best wide and non-temporal, and loads
//! few: streaming loads (MOVNTDQA) fetch a whole line where ordinary ones fetch 8 bytes.
//!
//! # Order
//! [`store`] ends with a store fence (`sfence`, `dsb st`): when it returns, its bytes are on their way to the GPU, before anything
//! that this thread stores later (a doorbell, a flag). [`load`] begins with a full fence (`mfence`, `dsb sy`): it sees what this thread
//! stored before, and no line that a streaming load of earlier left in a buffer. 1, 2, 4 or 8 bytes at an address that is a multiple
//! of their number are one access: a flag is never seen in halves, whatever the kernel.

mod plain;
#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod wide;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod wide;

use super::Caching;
use gdsync_sys::barrier;
use std::fmt;
use std::str::FromStr;

/// Bytes of a line: what a wide kernel moves at a time.
const LINE: usize = 64;

/// How bytes are stored into a mapping. See [`StoreKernel::best`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKernel {
    /// Non-temporal stores of 64 bytes (x86, AVX-512).
    Avx512,
    /// Non-temporal stores of 32 bytes (x86, AVX2).
    Avx2,
    /// Non-temporal stores of 16 bytes (x86, always there).
    Sse2,
    /// Pairs of 16-byte stores (aarch64, always there).
    Neon,
    /// Ordinary stores of at most 8 bytes, aligned.
    Volatile,
    /// `memcpy` of the C library, for comparison: it may store bytes twice, and in any order.
    Memcpy,
}

/// How bytes are loaded from a mapping. See [`LoadKernel::best`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadKernel {
    /// Streaming loads of 64 bytes (x86, AVX-512).
    Avx512,
    /// Streaming loads of 32 bytes (x86, AVX2).
    Avx2,
    /// Streaming loads of 16 bytes: MOVNTDQA (x86, SSE4.1).
    Sse41,
    /// Pairs of 16-byte loads (aarch64, always there).
    Neon,
    /// Ordinary loads of at most 8 bytes, aligned.
    Volatile,
    /// `memcpy` of the C library, for comparison: it may load bytes twice.
    Memcpy,
}

impl StoreKernel {
    /// All that there are, on any processor, the fastest for write-combining memory first.
    pub const ALL: [StoreKernel; 6] = [
        StoreKernel::Avx512,
        StoreKernel::Avx2,
        StoreKernel::Sse2,
        StoreKernel::Neon,
        StoreKernel::Volatile,
        StoreKernel::Memcpy,
    ];

    /// Those that this processor has.
    pub fn available() -> impl Iterator<Item = StoreKernel> {
        Self::ALL.into_iter().filter(|kernel| kernel.is_available())
    }

    /// True where this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            StoreKernel::Avx512 => has("avx512f"),
            StoreKernel::Avx2 => has("avx2"),
            StoreKernel::Sse2 => has("sse2"),
            StoreKernel::Neon => has("neon"),
            StoreKernel::Volatile | StoreKernel::Memcpy => true,
        }
    }

    /// The best of this processor for memory that is mapped so.
    pub fn best(caching: Caching) -> StoreKernel {
        match caching {
            Caching::WriteCombining => Self::available().next().unwrap_or(StoreKernel::Volatile),
            Caching::Cached => StoreKernel::Memcpy,
            // Wide accesses and unaligned ones may fault there.
            Caching::Device => StoreKernel::Volatile,
        }
    }
}

impl LoadKernel {
    /// All that there are, on any processor, the fastest for write-combining memory first.
    pub const ALL: [LoadKernel; 6] = [
        LoadKernel::Avx512,
        LoadKernel::Avx2,
        LoadKernel::Sse41,
        LoadKernel::Neon,
        LoadKernel::Volatile,
        LoadKernel::Memcpy,
    ];

    /// Those that this processor has.
    pub fn available() -> impl Iterator<Item = LoadKernel> {
        Self::ALL.into_iter().filter(|kernel| kernel.is_available())
    }

    /// True where this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            LoadKernel::Avx512 => has("avx512f") && has("sse4.1"),
            LoadKernel::Avx2 => has("avx2") && has("sse4.1"),
            LoadKernel::Sse41 => has("sse4.1"),
            LoadKernel::Neon => has("neon"),
            LoadKernel::Volatile | LoadKernel::Memcpy => true,
        }
    }

    /// The best of this processor for memory that is mapped so.
    pub fn best(caching: Caching) -> LoadKernel {
        match caching {
            Caching::WriteCombining => Self::available().next().unwrap_or(LoadKernel::Volatile),
            Caching::Cached => LoadKernel::Memcpy,
            Caching::Device => LoadKernel::Volatile,
        }
    }
}

macro_rules! names {
    ($type:ident: $($kernel:ident = $name:literal),*) => {
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

names!(StoreKernel: Avx512 = "avx512", Avx2 = "avx2", Sse2 = "sse2", Neon = "neon", Volatile = "volatile", Memcpy = "memcpy");
names!(LoadKernel: Avx512 = "avx512", Avx2 = "avx2", Sse41 = "sse4.1", Neon = "neon", Volatile = "volatile", Memcpy = "memcpy");

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    // Miri knows no assembly.
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

/// Copies into a mapping, and fences.
///
/// # Safety
/// The processor has the kernel; `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[inline]
pub(super) unsafe fn store(kernel: StoreKernel, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe {
        if !plain::store_word(to, from, len) {
            match kernel {
                StoreKernel::Volatile => plain::store(to, from, len),
                StoreKernel::Memcpy => {
                    libc::memcpy(to.cast(), from.cast(), len);
                }
                wide => store_lines(wide, to, from, len),
            }
        }
    }
    barrier::drain();
}

/// As [`load`], from write-combined memory, by the best kernel of this processor.
///
/// # Safety
/// As [`load`].
pub(crate) unsafe fn load_combined(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's; the processor has the kernel (`best`).
    unsafe { load(LoadKernel::best(Caching::WriteCombining), to, from, len) };
}

/// Copies out of a mapping, after a fence.
///
/// # Safety
/// The processor has the kernel; `from` is readable and `to` writable for `len` bytes, and they do not overlap. The blocks of 16 bytes
/// that hold the first and the last byte of `from` are readable, too.
#[inline]
pub(super) unsafe fn load(kernel: LoadKernel, to: *mut u8, from: *const u8, len: usize) {
    barrier::full();
    // SAFETY: the caller's.
    unsafe {
        if plain::load_word(to, from, len) {
            return;
        }
        match kernel {
            LoadKernel::Volatile => plain::load(to, from, len),
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
        plain::store(to, from, head);
        if lines > 0 {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            wide::store_lines(kernel, to.add(head), from.add(head), lines);
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            plain::store(to.add(head), from.add(head), lines * LINE);
        }
        plain::store(to.add(tail), from.add(tail), len - tail);
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
    unsafe { plain::load(to, from, len) };
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
        // SAFETY: the block is aligned and holds a wanted byte, so it is readable (the caller's); so many bytes are left at `to`.
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
#[path = "../copy_tests.rs"]
mod tests;
