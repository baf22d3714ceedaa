//! Accesses to host memory of programs, which may have unmapped or protected it meanwhile.
//!
//! A card has pinned the pages. Memory that is still mapped, but protected, is accessed by way of the kernel, as a card
//! would access it. Memory that is not mapped any more is gone.

use super::guard::guarded;
use super::maps::mappings;
use gdsync_sys::shared::{self, SharedU8, SharedU32, SharedU64};
use gdsync_sys::wake;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// The smallest page.
const PAGE: usize = 4096;

/// Memory that the card cannot reach any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {addr:#x} {}", state_of(*addr))]
pub(crate) struct Gone {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    /// True if the card wanted to write.
    pub(crate) writes: bool,
}

/// Copies a piece while programs read and write its words. A piece that is an aligned word is written at once, and
/// becomes visible after everything copied earlier: programs poll such words, as hardware writes memory in order.
///
/// # Errors
/// The source or the target is gone. In the second case everything that is still there is written.
///
/// # Safety
/// Both are `count` bytes that were readable, or writable, when they were registered, or the card's own. Programs access
/// them like a device's memory ([`shared`]). They may overlap.
pub(crate) unsafe fn copy_piece(from: *const u8, to: *mut u8, count: usize) -> Result<(), Gone> {
    let copy = || {
        let mut word = 0u64;
        let in_word: *mut u8 = (&raw mut word).cast();
        // SAFETY: the caller guarantees this; aligned where a word is stored.
        unsafe {
            if count == size_of::<u32>() && to.cast::<u32>().is_aligned() {
                shared::copy(in_word, from, count);
                let word = in_word.cast::<u32>().read();
                SharedU32::from_ptr(to.cast()).store(word, Ordering::Release);
            } else if count == size_of::<u64>() && to.cast::<u64>().is_aligned() {
                shared::copy(in_word, from, count);
                SharedU64::from_ptr(to.cast()).store(word, Ordering::Release);
            } else {
                shared::copy(to, from, count);
            }
        }
    };
    let mut copied = Ok(());
    if guarded(copy).is_err() {
        let mut bytes = vec![0; count];
        // SAFETY: the caller guarantees this.
        unsafe { read(from, &mut bytes) }?;
        // SAFETY: as above.
        copied = unsafe { write(to, &bytes) };
    }
    wake::report_write(to as usize, count);
    copied
}

/// Copies bytes of a program to memory of the card.
///
/// # Errors
/// They are gone.
///
/// # Safety
/// As [`copy_piece`].
pub(crate) unsafe fn read(from: *const u8, into: &mut [u8]) -> Result<(), Gone> {
    // SAFETY: the caller guarantees this; the slice is the card's.
    if guarded(|| unsafe { shared::copy(into.as_mut_ptr(), from, into.len()) }).is_ok() {
        return Ok(());
    }
    let memory = OpenOptions::new().read(true).open(MEMORY);
    match memory.and_then(|memory| memory.read_exact_at(into, from as u64)) {
        Ok(()) => Ok(()),
        Err(_) => Err(Gone { addr: from as u64, len: into.len(), writes: false }),
    }
}

/// Writes bytes to a program's memory, page by page, whatever its protection.
///
/// # Errors
/// A part is gone. The rest is written.
///
/// # Safety
/// As [`copy_piece`].
pub(crate) unsafe fn write(to: *mut u8, bytes: &[u8]) -> Result<(), Gone> {
    let memory = OpenOptions::new().write(true).open(MEMORY);
    let (mut rest, mut to, mut result) = (bytes, to, Ok(()));
    while !rest.is_empty() {
        let (page, behind) = rest.split_at(rest.len().min(PAGE - to as usize % PAGE));
        // SAFETY: the caller guarantees this.
        let written = guarded(|| unsafe { shared::copy(to, page.as_ptr(), page.len()) }).is_ok()
            || memory.as_ref().is_ok_and(|memory| memory.write_all_at(page, to as u64).is_ok());
        if !written && result.is_ok() {
            result = Err(Gone { addr: to as u64, len: page.len(), writes: true });
        }
        (rest, to) = (behind, to.wrapping_add(page.len()));
    }
    result
}

/// The memory of this process. Its rights are those of a debugger: it ignores protection, except that of memory that
/// other processes share (proc_pid_mem(5)).
const MEMORY: &str = "/proc/self/mem";

/// Loads an aligned word. Acquire.
///
/// # Errors
/// It is gone.
///
/// # Safety
/// As [`copy_piece`].
#[inline]
pub(crate) unsafe fn load(at: *const u32) -> Result<u32, Gone> {
    let mut word = 0;
    // SAFETY: the caller guarantees this; the program changes it concurrently, which a shared word tolerates.
    if guarded(|| word = unsafe { SharedU32::from_ptr(at.cast_mut()) }.load(Ordering::Acquire)).is_err() {
        let mut bytes = [0; size_of::<u32>()];
        // SAFETY: as above.
        unsafe { read(at.cast(), &mut bytes) }?;
        word = u32::from_ne_bytes(bytes);
    }
    Ok(word)
}

/// Returns whether the card can still read bytes, by reading one of each page.
///
/// # Errors
/// A page is gone.
///
/// # Safety
/// As [`copy_piece`].
pub(crate) unsafe fn probe(from: *const u8, count: usize) -> Result<(), Gone> {
    let (mut at, end) = (from, from.wrapping_add(count));
    while at < end {
        // SAFETY: the caller guarantees this.
        if guarded(|| unsafe { _ = SharedU8::from_ptr(at.cast_mut()).load(Ordering::Relaxed) }).is_err() {
            // SAFETY: as above.
            unsafe { read(at, &mut [0]) }?;
        }
        at = at.wrapping_add(PAGE - at as usize % PAGE);
    }
    Ok(())
}

/// Describes what has become of an address.
fn state_of(addr: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    match mappings(&maps).find(|(range, _)| range.contains(&addr)) {
        None => "are no longer mapped".to_owned(),
        Some((_, rest)) => {
            let rest: Vec<&str> = rest.split_whitespace().collect();
            format!("cannot be accessed: their mapping is {}", rest.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_what_is_none_arrive_at_every_offset() {
        for (start, end, count) in (0..9)
            .flat_map(|start| (0..9).map(move |end| (start, end)))
            .flat_map(|(start, end)| [0, 1, 3, 4, 5, 7, 8, 9, 12].map(|count| (start, end, count)))
        {
            let source: Vec<u8> = (1..=32).collect();
            let mut target = [0u64; 4];
            let place: *mut u8 = target.as_mut_ptr().cast();
            // SAFETY: both have 32 bytes, and no piece ends beyond byte 21.
            unsafe { copy_piece(source.as_ptr().add(start), place.add(end), count) }.unwrap();
            let bytes: Vec<u8> = target.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(
                bytes[end..end + count],
                source[start..start + count],
                "{count} bytes from {start} to {end}"
            );
            assert!(bytes[..end].iter().chain(&bytes[end + count..]).all(|byte| *byte == 0));
        }
    }
}
