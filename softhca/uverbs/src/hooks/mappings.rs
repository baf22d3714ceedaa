//! Functions that unmap or move memory, whose registered pages the cards keep, as cards pin them.

use super::next::returned;
use crate::errno::{Errno, preserving};
use crate::process;
use libc::{c_int, c_long, c_void, size_t};
use softhca::card::change_mappings;
use std::ops::Range;

const PAGE: usize = 4096;

/// Returns the pages of a range; an empty range if there are none, or if the system refuses it.
fn pages(at: *mut c_void, len: size_t) -> Range<u64> {
    let start = at as u64;
    let end = len.checked_next_multiple_of(PAGE).and_then(|len| start.checked_add(len as u64));
    end.filter(|_| start.is_multiple_of(PAGE as u64)).map_or(0..0, |end| start..end)
}

/// Performs a system call that changes mappings, as [`change_mappings`]. Returns its result, with `errno` set.
///
/// # Safety
/// As [`change_mappings`].
unsafe fn change(gone: &[Range<u64>], moved: &Range<u64>, call: impl FnOnce() -> c_long) -> c_long {
    let mut result = Ok(0);
    preserving(|| {
        let cards = process::cards();
        let perform = || {
            let returned = call();
            result = if returned == -1 { Err(Errno::last()) } else { Ok(returned) };
            result.ok().map(|address| address as u64)
        };
        // SAFETY: guaranteed by the caller.
        unsafe { change_mappings(cards.iter().map(|open| &open.card), gone, moved, perform) };
    });
    returned(result)
}

/// Performs a system call that unmaps a range, or maps it anew. Returns its result, with `errno` set.
///
/// # Safety
/// As [`change_mappings`].
pub(super) unsafe fn replace(at: *mut c_void, len: size_t, call: impl FnOnce() -> c_long) -> c_long {
    // SAFETY: guaranteed by the caller.
    unsafe { change(&[pages(at, len)], &(0..0), call) }
}

/// # Safety
/// As `mremap(2)`.
unsafe fn remap(at: *mut c_void, len: size_t, new_len: size_t, flags: c_int, to: *mut c_void) -> *mut c_void {
    // What is mapped at the new address, and what lies beyond the new end, is unmapped.
    let target = if flags & libc::MREMAP_FIXED != 0 { pages(to, new_len) } else { 0..0 };
    let new_end = new_len.checked_next_multiple_of(PAGE).unwrap_or(len);
    let tail = pages(at.wrapping_byte_add(new_end), len.saturating_sub(new_end));
    // SAFETY: the caller vouches for the arguments.
    let call = || unsafe { libc::syscall(libc::SYS_mremap, at, len, new_len, flags, to) };
    // SAFETY: these are the changes that the call makes.
    unsafe { change(&[target, tail], &pages(at, len.min(new_len)), call) as *mut c_void }
}

c_functions! {
    munmap(at: *mut c_void, len: size_t) -> c_int {
        replace(at, len, || libc::syscall(libc::SYS_munmap, at, len)) as c_int
    }

    /// A variadic call passes the new address in the register of this parameter.
    mremap(at: *mut c_void, len: size_t, new_len: size_t, flags: c_int, to: *mut c_void) -> *mut c_void {
        remap(at, len, new_len, flags, to)
    }
}
