//! Copies of 64-byte lines on x86-64.
//!
//! In assembly, because the compiler must not merge, split or move these accesses, and has AVX-512 intrinsics only
//! since Rust 1.89. Clobbers name only the registers' low halves: the surrounding code is compiled for SSE2 and keeps
//! nothing above them.

use super::{LoadKernel, StoreKernel};
use std::arch::asm;

macro_rules! lines {
    ($(#[$doc:meta])* $name:ident, $($line:literal),+; $($last:literal)?) => {
        $(#[$doc])*
        unsafe fn $name(to: *mut u8, from: *const u8, lines: usize) {
            // SAFETY: the caller's: the processor has the instructions, and the ranges are accessible.
            unsafe {
                asm!(
                    "2:",
                    $($line,)+
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    $($last,)?
                    from = inout(reg) from => _,
                    to = inout(reg) to => _,
                    lines = inout(reg) lines => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    options(nostack),
                );
            }
        }
    };
}

lines! {
    /// # Safety
    /// As [`store_lines`].
    store_avx512, "vmovdqu64 zmm0, [{from}]", "vmovntdq [{to}], zmm0"; "vzeroupper"
}
lines! {
    /// # Safety
    /// As [`store_lines`].
    store_avx2,
    "vmovdqu ymm0, [{from}]", "vmovdqu ymm1, [{from} + 32]", "vmovntdq [{to}], ymm0", "vmovntdq [{to} + 32], ymm1";
    "vzeroupper"
}
lines! {
    /// # Safety
    /// As [`store_lines`].
    store_sse2,
    "movdqu xmm0, [{from}]", "movdqu xmm1, [{from} + 16]", "movdqu xmm2, [{from} + 32]", "movdqu xmm3, [{from} + 48]",
    "movntdq [{to}], xmm0", "movntdq [{to} + 16], xmm1", "movntdq [{to} + 32], xmm2", "movntdq [{to} + 48], xmm3";
}
lines! {
    /// # Safety
    /// As [`load_lines`].
    load_avx512, "vmovntdqa zmm0, [{from}]", "vmovdqu64 [{to}], zmm0"; "vzeroupper"
}
lines! {
    /// # Safety
    /// As [`load_lines`].
    load_avx2,
    "vmovntdqa ymm0, [{from}]", "vmovntdqa ymm1, [{from} + 32]", "vmovdqu [{to}], ymm0", "vmovdqu [{to} + 32], ymm1";
    "vzeroupper"
}
lines! {
    /// # Safety
    /// As [`load_lines`].
    load_sse41,
    "movntdqa xmm0, [{from}]", "movntdqa xmm1, [{from} + 16]", "movntdqa xmm2, [{from} + 32]",
    "movntdqa xmm3, [{from} + 48]",
    "movdqu [{to}], xmm0", "movdqu [{to} + 16], xmm1", "movdqu [{to} + 32], xmm2", "movdqu [{to} + 48], xmm3";
}

/// # Safety
/// As [`super::store`], for at least one line of 64 bytes to an address that is a multiple of 64.
pub(super) unsafe fn store_lines(kernel: StoreKernel, to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's.
    unsafe {
        match kernel {
            StoreKernel::Avx512 => store_avx512(to, from, lines),
            StoreKernel::Avx2 => store_avx2(to, from, lines),
            _ => store_sse2(to, from, lines),
        }
    }
}

/// # Safety
/// As [`super::load`], for at least one line of 64 bytes from an address that is a multiple of 64.
pub(super) unsafe fn load_lines(kernel: LoadKernel, to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's.
    unsafe {
        match kernel {
            LoadKernel::Avx512 => load_avx512(to, from, lines),
            LoadKernel::Avx2 => load_avx2(to, from, lines),
            _ => load_sse41(to, from, lines),
        }
    }
}

/// Loads a block by MOVNTDQA, which the processors of all wide kernels have.
///
/// # Safety
/// 16 bytes are readable at `from`, a multiple of 16.
pub(super) unsafe fn load_block(from: *const u8) -> [u8; 16] {
    let mut block = [0; 16];
    // SAFETY: the caller's; `block` has the same length.
    unsafe {
        asm!(
            "movntdqa xmm0, [{from}]",
            "movdqu [{to}], xmm0",
            from = in(reg) from,
            to = in(reg) block.as_mut_ptr(),
            out("xmm0") _,
            options(nostack, preserves_flags),
        );
    }
    block
}
