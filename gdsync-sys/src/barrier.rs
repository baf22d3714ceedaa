//! Barriers between a CPU and a device, named for their purpose, as rdma-core's `util/udma_barrier.h` does.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm_lfence, _mm_mfence, _mm_sfence};
#[cfg(not(target_arch = "aarch64"))]
use std::sync::atomic::{Ordering, fence};

/// Barriers by what x86-64 has and by an instruction of aarch64; other processors have the strongest fence of Rust.
macro_rules! barriers {
    ($($(#[$doc:meta])* $name:ident: $x86_64:expr, $aarch64:literal;)+) => { $(
        $(#[$doc])*
        #[inline]
        pub fn $name() {
            #[cfg(target_arch = "x86_64")]
            $x86_64;
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the instruction only orders accesses.
            unsafe {
                std::arch::asm!($aarch64, options(nostack, preserves_flags));
            }
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            fence(Ordering::SeqCst);
        }
    )+ };
}

barriers! {
    /// Everything written to ordinary memory before is visible to a device that sees a later write.
    ///
    /// x86-64 keeps stores to write-back memory in order, so only the compiler must be told (a release fence is no
    /// instruction there). On aarch64 a device is in the outer shareable domain, which Rust's fences do not reach. It
    /// is not enough after stores to write-combined memory: see [`drain`].
    to_device: fence(Ordering::Release), "dmb osh";

    /// Drains write-combining buffers. Stores to write-combined memory (a doorbell register, or GPU memory mapped for
    /// the CPU) leave the core now, and before any later store: those of different lines would else leave in any
    /// order, or not for a long time.
    // SAFETY: SSE is part of the x86-64 baseline; the instruction only orders stores.
    drain: unsafe { _mm_sfence() }, "dsb st";

    /// Later loads find what a device has written before the value that an earlier load found. In write-combined
    /// memory, too: there the CPU performs loads as early as it likes, on x86-64 as well (Intel SDM volume 3,
    /// 13.3.1), so that what stands behind a record or an owner bit could be older than these.
    // SAFETY: SSE2 is part of the x86-64 baseline; the instruction only orders loads.
    from_device: unsafe { _mm_lfence() }, "dmb oshld";

    /// Keeps all accesses before it before all after it. Streaming loads want it before them: it also empties the
    /// buffers that they read ahead into (Intel SDM volume 1, 12.10.3).
    // SAFETY: SSE2 is part of the x86-64 baseline; the instruction only orders loads and stores.
    full: unsafe { _mm_mfence() }, "dsb sy";
}
