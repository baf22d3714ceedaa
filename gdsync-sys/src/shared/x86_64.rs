//! Accesses by instructions of x86-64.
//!
//! Loads only read (`readonly`); the compiler must assume that every other block changes any memory.

use super::fenced;
use std::arch::asm;
use std::sync::atomic::Ordering;

/// Bytes of a line of [`move_lines`].
pub(super) const LINE: usize = 64;

word!(u8, reg_byte, load_u8 "mov {v}, byte ptr [{at}]", store_u8 "mov byte ptr [{at}], {v}");
word!(u16, reg, load_u16 "movzx {v:e}, word ptr [{at}]", store_u16 "mov word ptr [{at}], {v:x}");
word!(u32, reg, load_u32 "mov {v:e}, dword ptr [{at}]", store_u32 "mov dword ptr [{at}], {v:e}");
word!(u64, reg, load_u64 "mov {v}, qword ptr [{at}]", store_u64 "mov qword ptr [{at}], {v}");

/// Defines exchanges of a word. The instructions are full fences, so stronger orderings need nothing more.
macro_rules! exchange {
    (
        $word:ty, $swap:ident $s:literal, $add:ident $a:literal, $compare_exchange:ident $c:literal
    ) => {
        /// # Safety
        /// The word is valid and aligned.
        #[inline]
        pub(super) unsafe fn $swap(at: *mut $word, mut value: $word, order: Ordering) -> $word {
            fenced(compiler_ordering(order), || {
                // SAFETY: the caller's.
                unsafe {
                    asm!($s, at = in(reg) at, v = inout(reg) value, options(nostack, preserves_flags));
                }
                value
            })
        }

        /// # Safety
        /// The word is valid and aligned.
        #[inline]
        pub(super) unsafe fn $add(at: *mut $word, mut value: $word, order: Ordering) -> $word {
            fenced(compiler_ordering(order), || {
                // SAFETY: the caller's.
                unsafe {
                    asm!($a, at = in(reg) at, v = inout(reg) value, options(nostack));
                }
                value
            })
        }

        /// # Safety
        /// The word is valid and aligned.
        #[inline]
        pub(super) unsafe fn $compare_exchange(
            at: *mut $word,
            current: $word,
            new: $word,
            success: Ordering,
            _: Ordering,
        ) -> Result<$word, $word> {
            fenced(compiler_ordering(success), || {
                let found;
                // SAFETY: the caller's.
                unsafe {
                    asm!(
                        $c,
                        at = in(reg) at,
                        new = in(reg) new,
                        inout("rax") current => found,
                        options(nostack),
                    );
                }
                if found == current { Ok(found) } else { Err(found) }
            })
        }
    };
}

exchange!(
    u32, swap_u32 "xchg dword ptr [{at}], {v:e}", add_u32 "lock xadd dword ptr [{at}], {v:e}",
    compare_exchange_u32 "lock cmpxchg dword ptr [{at}], {new:e}"
);
exchange!(
    u64, swap_u64 "xchg qword ptr [{at}], {v}", add_u64 "lock xadd qword ptr [{at}], {v}",
    compare_exchange_u64 "lock cmpxchg qword ptr [{at}], {new}"
);

/// Returns the ordering for the compiler's fences around an instruction that is a full fence itself.
fn compiler_ordering(order: Ordering) -> Ordering {
    if order == Ordering::SeqCst { Ordering::AcqRel } else { order }
}

/// Copies lines of 64 bytes, in the order of their addresses.
///
/// Loads are as wide as the processor allows, because each load from memory behind a bus costs a round trip. Stores
/// are 16 aligned bytes, none of which crosses a cache line, so they stay in order.
///
/// # Safety
/// `64 * lines` bytes are readable at `from` and writable at `to`, which is a multiple of 16. If they overlap, `to`
/// comes first. `lines` is not 0.
#[inline]
pub(super) unsafe fn move_lines(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's; the processor has the instructions.
    unsafe {
        if std::arch::is_x86_feature_detected!("avx") {
            move_lines_avx(to, from, lines);
        } else {
            move_lines_sse2(to, from, lines);
        }
    }
}

/// # Safety
/// As [`move_lines`]; the processor has AVX, and the system saves its registers.
#[inline]
unsafe fn move_lines_avx(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's. `vzeroupper` clears the upper register halves, as SSE2 code expects.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, ymmword ptr [{from}]",
            "vmovdqu ymm1, ymmword ptr [{from} + 32]",
            "vmovdqa xmmword ptr [{to}], xmm0",
            "vextractf128 xmmword ptr [{to} + 16], ymm0, 1",
            "vmovdqa xmmword ptr [{to} + 32], xmm1",
            "vextractf128 xmmword ptr [{to} + 48], ymm1, 1",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            // `vzeroupper` clears the upper halves of all registers.
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`move_lines`].
#[inline]
unsafe fn move_lines_sse2(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's; SSE2 is part of the x86-64 baseline.
    unsafe {
        asm!(
            "2:",
            "movdqu xmm0, [{from}]",
            "movdqu xmm1, [{from} + 16]",
            "movdqu xmm2, [{from} + 32]",
            "movdqu xmm3, [{from} + 48]",
            "movdqa [{to}], xmm0",
            "movdqa [{to} + 16], xmm1",
            "movdqa [{to} + 32], xmm2",
            "movdqa [{to} + 48], xmm3",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_loops_move_the_same_lines() {
        #[repr(align(16))]
        struct Aligned([u8; 256]);
        let from: Vec<u8> = (0..300u32).map(|byte| byte as u8).collect();
        for (offset, lines) in [(0, 1), (1, 2), (7, 4), (32, 3)] {
            let loops: [unsafe fn(*mut u8, *const u8, usize); 2] = [move_lines, move_lines_sse2];
            for move_lines in loops {
                let mut to = Aligned([0; 256]);
                // SAFETY: at most 4 lines, from 300 bytes after an offset, to 256 aligned bytes.
                unsafe { move_lines(to.0.as_mut_ptr(), from[offset..].as_ptr(), lines) };
                assert_eq!(to.0[..lines * LINE], from[offset..offset + lines * LINE]);
                assert!(to.0[lines * LINE..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
