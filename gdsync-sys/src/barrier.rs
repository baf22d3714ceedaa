//! Barriers between a CPU and a device, named by purpose as in rdma-core's `util/udma_barrier.h`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm_lfence, _mm_mfence, _mm_sfence};
#[cfg(not(target_arch = "aarch64"))]
use std::sync::atomic::{Ordering, fence};

/// Defines barriers: an expression for x86-64, an instruction for aarch64, Rust's strongest fence elsewhere.
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
    /// Makes all earlier writes to ordinary memory visible to a device that sees a later write.
    ///
    /// x86-64 keeps stores to write-back memory in order, so a release fence, which emits no instruction, suffices
    /// there. On aarch64 a device is in the outer shareable domain, which Rust's fences do not cover. Stores to
    /// write-combined memory need [`drain`] as well.
    to_device: fence(Ordering::Release), "dmb osh";

    /// Drains write-combining buffers: stores to write-combined memory (a doorbell register, or GPU memory mapped for
    /// the CPU) leave the core now, before any later store. Otherwise stores to different lines leave in any order
    /// and possibly much later.
    // SAFETY: SSE is part of the x86-64 baseline; the instruction only orders stores.
    drain: unsafe { _mm_sfence() }, "dsb st";

    /// Orders loads: later loads see everything that a device wrote before the value that an earlier load returned.
    /// This matters for write-combined memory on x86-64, too, where the CPU loads speculatively (Intel SDM volume 3,
    /// 13.3.1): data after a doorbell record or an owner bit could otherwise be older than the record.
    // SAFETY: SSE2 is part of the x86-64 baseline; the instruction only orders loads.
    from_device: unsafe { _mm_lfence() }, "dmb oshld";

    /// Orders all accesses before it before all accesses after it. Streaming loads need it before them: it also
    /// empties the buffers into which they prefetch (Intel SDM volume 1, 12.10.3).
    // SAFETY: SSE2 is part of the x86-64 baseline; the instruction only orders loads and stores.
    full: unsafe { _mm_mfence() }, "dsb sy";
}
