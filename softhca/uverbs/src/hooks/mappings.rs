//! Functions that unmap or move memory, whose registered pages the cards keep, as cards pin them.

use crate::errno::{Errno, preserving};
use crate::process;
use libc::{c_int, c_long, c_void, size_t};
use softhca::card::{keep_pages, move_pages};
use std::ops::Range;

const PAGE: u64 = 4096;

/// Returns the pages of a range; `None` if the system refuses it.
fn pages(at: *mut c_void, len: size_t) -> Option<Range<u64>> {
    let end = (at as u64).checked_add(len as u64)?.checked_next_multiple_of(PAGE)?;
    (len > 0 && (at as u64).is_multiple_of(PAGE)).then_some(at as u64..end)
}

/// Keeps the registered pages of a range for the cards.
///
/// # Safety
/// The caller unmaps the range, or maps it anew, before the program accesses it again.
pub(super) unsafe fn keep(at: *mut c_void, len: size_t) {
    let Some(range) = pages(at, len) else { return };
    preserving(|| {
        let cards = process::cards();
        // SAFETY: guaranteed by the caller.
        unsafe { keep_pages(cards.iter().map(|open| &open.card), &range) };
    });
}

/// # Safety
/// As `mremap(2)`.
unsafe fn remap(at: *mut c_void, len: size_t, new_len: size_t, flags: c_int, to: *mut c_void) -> *mut c_void {
    // SAFETY: the caller vouches for the arguments. What is mapped at the new address, and what lies beyond the new end,
    // is unmapped.
    unsafe {
        if flags & libc::MREMAP_FIXED != 0 {
            keep(to, new_len);
        }
        if new_len < len {
            keep(at.wrapping_byte_add(new_len), len - new_len);
        }
    }
    let mut result = Ok(0);
    let mut perform = || {
        // SAFETY: the caller vouches for the arguments.
        let moved: c_long = unsafe { libc::syscall(libc::SYS_mremap, at, len, new_len, flags, to) };
        result = if moved == -1 { Err(Errno::last()) } else { Ok(moved) };
        result.ok().map(|to| to as u64)
    };
    match pages(at, len.min(new_len)) {
        Some(range) => preserving(|| {
            let cards = process::cards();
            move_pages(cards.iter().map(|open| &open.card), &range, perform);
        }),
        None => _ = perform(),
    }
    match result {
        Ok(moved) => moved as *mut c_void,
        Err(errno) => {
            errno.set();
            libc::MAP_FAILED
        }
    }
}

c_functions! {
    munmap(at: *mut c_void, len: size_t) -> c_int {
        {
            keep(at, len);
            libc::syscall(libc::SYS_munmap, at, len) as c_int
        }
    }

    /// A variadic call passes the new address in the register of this parameter.
    mremap(at: *mut c_void, len: size_t, new_len: size_t, flags: c_int, to: *mut c_void) -> *mut c_void {
        remap(at, len, new_len, flags, to)
    }
}
