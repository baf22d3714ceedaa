//! Copies of 64-byte lines on aarch64.
//!
//! In assembly, because the compiler must not merge, split or move these accesses. Normal non-cacheable memory, the
//! equivalent of write-combining, allows any alignment; device memory is copied by words only.

use super::{LoadKernel, StoreKernel};
use std::arch::asm;

/// # Safety
/// `from` is readable and `to` writable for `lines` lines of 64 bytes, at least one.
unsafe fn lines(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's; every aarch64 Linux supports these registers.
    unsafe {
        asm!(
            "2:",
            "ldp q0, q1, [{from}]",
            "ldp q2, q3, [{from}, #32]",
            "stp q0, q1, [{to}]",
            "stp q2, q3, [{to}, #32]",
            "add {from}, {from}, #64",
            "add {to}, {to}, #64",
            "subs {lines}, {lines}, #1",
            "b.ne 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`super::store`], for at least one line of 64 bytes.
pub(super) unsafe fn store_lines(_kernel: StoreKernel, to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller's.
    unsafe { lines(to, from, count) };
}

/// # Safety
/// As [`super::load`], for at least one line of 64 bytes.
pub(super) unsafe fn load_lines(_kernel: LoadKernel, to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller's.
    unsafe { lines(to, from, count) };
}

/// # Safety
/// 16 bytes are readable at `from`, a multiple of 16.
pub(super) unsafe fn load_block(from: *const u8) -> [u8; 16] {
    let mut block = [0; 16];
    // SAFETY: the caller's; `block` has the same length.
    unsafe {
        asm!(
            "ldr q0, [{from}]",
            "str q0, [{to}]",
            from = in(reg) from,
            to = in(reg) block.as_mut_ptr(),
            out("v0") _,
            options(nostack, preserves_flags),
        );
    }
    block
}
