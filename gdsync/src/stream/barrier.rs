//! Barriers between a CPU and a device, named for their purpose.

use std::sync::atomic::{Ordering, fence};

/// Everything written to memory before is visible to a device that sees a later write.
///
/// x86-64 keeps stores to write-back memory in order, so only the compiler must be told (a release fence is no
/// instruction there); aarch64 gets a `dmb`.
pub(super) fn to_device() {
    fence(Ordering::Release);
}

/// Drains write-combining buffers: a doorbell stored to a write-combined page leaves the core now, and not after a later
/// store to the same register.
pub(super) fn mmio_flush() {
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
