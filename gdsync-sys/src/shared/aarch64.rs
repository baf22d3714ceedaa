//! Accesses by instructions of aarch64.
//!
//! Loads only read (`readonly`); the compiler must assume that every other block changes any memory.

use super::fenced;
use std::arch::asm;
use std::sync::atomic::Ordering;

/// Bytes of a line of [`move_lines`].
pub(super) const LINE: usize = 64;

word!(u8, reg, load_u8 "ldrb {v:w}, [{at}]", store_u8 "strb {v:w}, [{at}]");
word!(u16, reg, load_u16 "ldrh {v:w}, [{at}]", store_u16 "strh {v:w}, [{at}]");
word!(u32, reg, load_u32 "ldr {v:w}, [{at}]", store_u32 "str {v:w}, [{at}]");
word!(u64, reg, load_u64 "ldr {v:x}, [{at}]", store_u64 "str {v:x}, [{at}]");

/// Defines exchanges of a word: `$update` computes `{new}` from `{old}` and `{v}`.
macro_rules! exchange {
    ($word:ty, $name:ident, $load:literal, $update:literal, $store:literal) => {
        /// # Safety
        /// The word is valid and aligned.
        #[inline]
        pub(super) unsafe fn $name(at: *mut $word, value: $word, order: Ordering) -> $word {
            fenced(order, || {
                let old;
                // SAFETY: the caller's.
                unsafe {
                    asm!(
                        "2:",
                        $load,
                        $update,
                        $store,
                        "cbnz {failed:w}, 2b",
                        at = in(reg) at,
                        v = in(reg) value,
                        old = out(reg) old,
                        new = out(reg) _,
                        failed = out(reg) _,
                        options(nostack, preserves_flags),
                    );
                }
                old
            })
        }
    };
}

exchange!(u32, swap_u32, "ldxr {old:w}, [{at}]", "mov {new:w}, {v:w}", "stxr {failed:w}, {new:w}, [{at}]");
exchange!(u64, swap_u64, "ldxr {old:x}, [{at}]", "mov {new:x}, {v:x}", "stxr {failed:w}, {new:x}, [{at}]");
exchange!(
    u32,
    add_u32,
    "ldxr {old:w}, [{at}]",
    "add {new:w}, {old:w}, {v:w}",
    "stxr {failed:w}, {new:w}, [{at}]"
);
exchange!(
    u64,
    add_u64,
    "ldxr {old:x}, [{at}]",
    "add {new:x}, {old:x}, {v:x}",
    "stxr {failed:w}, {new:x}, [{at}]"
);

macro_rules! compare_exchange {
    ($word:ty, $name:ident, $load:literal, $compare:literal, $store:literal) => {
        /// # Safety
        /// The word is valid and aligned.
        #[inline]
        pub(super) unsafe fn $name(
            at: *mut $word,
            current: $word,
            new: $word,
            success: Ordering,
            _: Ordering,
        ) -> Result<$word, $word> {
            fenced(success, || {
                let found: $word;
                // SAFETY: the caller's.
                unsafe {
                    asm!(
                        "2:",
                        $load,
                        $compare,
                        "b.ne 3f",
                        $store,
                        "cbnz {failed:w}, 2b",
                        "3:",
                        at = in(reg) at,
                        current = in(reg) current,
                        new = in(reg) new,
                        found = out(reg) found,
                        failed = out(reg) _,
                        options(nostack),
                    );
                }
                if found == current { Ok(found) } else { Err(found) }
            })
        }
    };
}

compare_exchange!(
    u32,
    compare_exchange_u32,
    "ldxr {found:w}, [{at}]",
    "cmp {found:w}, {current:w}",
    "stxr {failed:w}, {new:w}, [{at}]"
);
compare_exchange!(
    u64,
    compare_exchange_u64,
    "ldxr {found:x}, [{at}]",
    "cmp {found:x}, {current:x}",
    "stxr {failed:w}, {new:x}, [{at}]"
);

/// Copies lines of 64 bytes.
///
/// # Safety
/// `64 * lines` bytes are readable at `from` and writable at `to`, which is a multiple of 16. If they overlap, `to`
/// comes first. `lines` is not 0.
#[inline]
pub(super) unsafe fn move_lines(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's. `ldp` and `stp` access a pair of 64-bit registers as two words.
    unsafe {
        asm!(
            "2:",
            "ldp {a}, {b}, [{from}]",
            "ldp {c}, {d}, [{from}, 16]",
            "ldp {e}, {f}, [{from}, 32]",
            "ldp {g}, {h}, [{from}, 48]",
            "stp {a}, {b}, [{to}]",
            "stp {c}, {d}, [{to}, 16]",
            "stp {e}, {f}, [{to}, 32]",
            "stp {g}, {h}, [{to}, 48]",
            "add {from}, {from}, 64",
            "add {to}, {to}, 64",
            "sub {lines}, {lines}, 1",
            "cbnz {lines}, 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            e = out(reg) _, f = out(reg) _, g = out(reg) _, h = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}
