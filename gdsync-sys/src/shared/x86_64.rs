//! Accesses by instructions of x86-64.
//!
//! A load only reads (`readonly`); every other block may change any memory, for all that the
//! compiler knows.

use super::copy::LINE;
use super::fenced::fenced;
use std::arch::asm;
use std::sync::atomic::Ordering;

/// A load, a store, and a copy of one word.
macro_rules! word {
    ($word:ty, $class:ident, $load:ident $l:literal, $store:ident $s:literal, $move:ident) => {
        /// # Safety
        /// The word is valid and aligned.
        #[inline(always)]
        pub(super) unsafe fn $load(at: *const $word, order: Ordering) -> $word {
            fenced(order, || {
                let value;
                // SAFETY: the caller's.
                unsafe {
                    asm!($l, at = in(reg) at, v = out($class) value, options(nostack, preserves_flags, readonly));
                }
                value
            })
        }

        /// # Safety
        /// The word is valid and aligned.
        #[inline(always)]
        pub(super) unsafe fn $store(at: *mut $word, value: $word, order: Ordering) {
            fenced(order, || {
                // SAFETY: the caller's.
                unsafe {
                    asm!($s, at = in(reg) at, v = in($class) value, options(nostack, preserves_flags));
                }
            });
        }

        /// # Safety
        /// The bytes of a word are readable at `from` and writable at `to`, which is aligned.
        #[inline(always)]
        pub(super) unsafe fn $move(to: *mut u8, from: *const u8) {
            // SAFETY: the caller's; the processor loads from any address.
            unsafe { $store(to.cast(), $load(from.cast(), Ordering::Relaxed), Ordering::Relaxed) };
        }
    };
}

word!(u8, reg_byte, load_u8 "mov {v}, byte ptr [{at}]", store_u8 "mov byte ptr [{at}], {v}", move_u8);
word!(u16, reg, load_u16 "movzx {v:e}, word ptr [{at}]", store_u16 "mov word ptr [{at}], {v:x}", move_u16);
word!(u32, reg, load_u32 "mov {v:e}, dword ptr [{at}]", store_u32 "mov dword ptr [{at}], {v:e}", move_u32);
word!(u64, reg, load_u64 "mov {v}, qword ptr [{at}]", store_u64 "mov qword ptr [{at}], {v}", move_u64);

/// Exchanges of a word with a new value. The instructions are full fences, so that no ordering needs
/// more.
macro_rules! exchange {
    (
        $word:ty, $swap:ident $s:literal, $add:ident $a:literal, $compare_exchange:ident $c:literal
    ) => {
        /// # Safety
        /// The word is valid and aligned.
        #[inline]
        pub(super) unsafe fn $swap(at: *mut $word, mut value: $word, order: Ordering) -> $word {
            fenced(weaker(order), || {
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
            fenced(weaker(order), || {
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
            fenced(weaker(success), || {
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

/// What the compiler has to be told, where the instruction is a full fence.
fn weaker(order: Ordering) -> Ordering {
    if order == Ordering::SeqCst { Ordering::AcqRel } else { order }
}

/// Copies lines of 64 bytes, in the order of their addresses.
///
/// # Safety
/// So many bytes are readable at `from` and writable at `to`, which is a multiple of 16. If they
/// overlap, `to` comes first. `lines` is not 0.
#[inline]
pub(super) unsafe fn move_lines(to: *mut u8, from: *const u8, lines: usize) {
    const _: () = assert!(LINE == 64);
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
