//! Barriers between a CPU and a device, named for their purpose, as rdma-core's
//! `util/udma_barrier.h` does.

#[cfg(not(target_arch = "aarch64"))]
use std::sync::atomic::{Ordering, fence};

/// Everything written to ordinary memory before is visible to a device that sees a later write.
///
/// x86-64 keeps stores to write-back memory in order, so only the compiler must be told (a release
/// fence is no instruction there). On aarch64 a device is in the outer shareable domain, which
/// Rust's fences do not reach. It is not enough after stores to write-combined memory: see
/// [`drain`].
#[inline]
pub fn to_device() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders accesses.
    unsafe {
        std::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::Release);
}

/// Drains write-combining buffers. Stores to write-combined memory (a doorbell register, or GPU
/// memory mapped for the CPU) leave the core now, and before any later store: those of different
/// lines would else leave in any order, or not for a long time.
#[inline]
pub fn drain() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the x86-64 baseline; the instruction only orders stores.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders stores.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Later loads find what a device has written before the value that an earlier load found. In
/// write-combined memory, too: there the CPU performs loads as early as it likes, on x86-64 as well
/// (Intel SDM volume 3, 13.3.1), so that what stands behind a record or an owner bit could be older
/// than these.
#[inline]
pub fn from_device() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of the x86-64 baseline; the instruction only orders loads.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders loads.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Keeps all accesses before it before all after it. Streaming loads want it before them: it also
/// empties the buffers that they read ahead into (Intel SDM volume 1, 12.10.3).
#[inline]
pub fn full() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of the x86-64 baseline; the instruction only orders loads and stores.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders loads and stores.
    unsafe {
        std::arch::asm!("dsb sy", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}
