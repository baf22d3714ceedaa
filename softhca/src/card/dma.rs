//! Every access of the card to a program's memory: rings, records, payloads. (Registers are the card's own: `uar.rs`.)
//!
//! Nothing else in this crate's device model dereferences an address. Validity of addresses is the front's promise (rings
//! and records live until their object is destroyed) or the memory regions' (registered memory is mapped); *contents* are
//! never trusted. Registered memory of a peer-memory client has addresses that are never dereferenced: its bytes go through a
//! buffer of the card and the client's functions.

use crate::fabric::MAX_PAYLOAD;
use crate::peer_memory::{PeerFailure, PeerMapping};
use gdsync_sys::barrier;
use gdsync_sys::prm::cqe::{CQE_SIZE, Cqe64};
use gdsync_sys::prm::doorbell::UAR_PAGE;
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// A word of a doorbell record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record(*mut u32);

// SAFETY: an address; accesses are atomic.
unsafe impl Send for Record {}

impl Record {
    /// # Safety
    /// `word` is aligned and stays valid for as long as the record is used.
    pub(super) unsafe fn new(word: *mut u32) -> Self {
        Record(word)
    }

    /// Leaves another value there, and says what there was.
    pub(super) fn exchange(self, value: u32) -> u32 {
        // Nothing is to be done then; and a record in a GPU's memory costs only a load.
        if self.load() == value {
            return value;
        }
        // SAFETY: as in `load`.
        unsafe { AtomicU32::from_ptr(self.0) }.swap(value, Ordering::AcqRel)
    }

    /// Acquire: entries announced by the record are visible.
    pub(super) fn load(self) -> u32 {
        // SAFETY: valid and aligned (`new`); the program changes it concurrently, which an atomic tolerates.
        unsafe { AtomicU32::from_ptr(self.0) }.load(Ordering::Acquire)
    }
}

/// A ring that the card reads: send or receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRing {
    base: *const u8,
    entries: u32,
    stride: usize,
}

// SAFETY: an address; see `read`.
unsafe impl Send for ReadRing {}

impl ReadRing {
    /// # Safety
    /// `base..base + entries * stride` is readable for as long as the ring is used; `entries` is a power of two, or 0: then
    /// there is no queue.
    pub(super) unsafe fn new(base: *const u8, entries: u32, stride: usize) -> Self {
        ReadRing { base, entries, stride }
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Copies entry `index` (modulo the ring's size) out; of a queue that does not exist, nothing.
    pub(super) fn read(&self, index: u32, into: &mut Vec<u8>) {
        if self.entries == 0 {
            return;
        }
        let offset = (index & (self.entries - 1)) as usize * self.stride;
        let start = into.len();
        into.resize(start + self.stride, 0);
        // SAFETY: the entry lies inside the ring (`new`), `into` has room for it. A program that writes an entry which it
        // has announced already races with this copy, as it would with hardware: the bytes are checked, not trusted.
        unsafe { into.as_mut_ptr().add(start).copy_from_nonoverlapping(self.base.add(offset), self.stride) };
    }
}

/// A send queue's ring, in basic blocks.
///
/// # Safety
/// As [`ReadRing::new`].
pub(super) unsafe fn send_ring(base: *const u8, blocks: u32) -> ReadRing {
    // SAFETY: the caller's.
    unsafe { ReadRing::new(base, blocks, BASIC_BLOCK) }
}

/// A ring that the card writes completion entries to.
#[derive(Clone, Copy, Debug)]
pub(super) struct CqRing {
    base: *mut u8,
    entries: u32,
}

// SAFETY: an address; see `write`.
unsafe impl Send for CqRing {}

impl CqRing {
    /// # Safety
    /// `base..base + entries * 64` is writable and aligned to 4 bytes for as long as the ring is used; `entries` is a
    /// power of two.
    pub(super) unsafe fn new(base: *mut u8, entries: u32) -> Self {
        CqRing { base, entries }
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Writes entry `index`: the last word, with the owner bit, after all others.
    pub(super) fn write(&self, index: u32, cqe: &Cqe64) {
        let offset = (index & (self.entries - 1)) as usize * CQE_SIZE;
        let words = cqe.as_bytes().chunks_exact(4).enumerate();
        for (i, bytes) in words {
            let value = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            // SAFETY: inside the ring and aligned (`new`); the program reads it concurrently, which atomics tolerate.
            let word = unsafe { AtomicU32::from_ptr(self.base.add(offset + i * 4).cast()) };
            if i == CQE_SIZE / 4 - 1 {
                // The ring may be write-combined: GPU memory, which the CPU reaches through a mapping.
                barrier::drain();
                word.store(value, Ordering::Release);
                barrier::drain();
            } else {
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}

/// A piece of payload in memory that the CPU reads.
pub(super) type Part = (*const u8, usize);

/// Where registered memory is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// At an address that the CPU dereferences.
    Host(*mut u8),
    /// At an address that only a client knows how to reach.
    Peer(&'a Arc<PeerMapping>, u64),
}

/// A piece of memory that payload goes to.
pub(super) type Target<'a> = (Place<'a>, usize);

/// Parts of which a beginning has been copied.
struct Source<'a> {
    parts: std::slice::Iter<'a, Part>,
    from: *const u8,
    left: usize,
}

impl Source<'_> {
    /// Copies what comes next, as much as there is room for. Returns how much that is.
    ///
    /// # Safety
    /// The parts are readable, `to..to + room` is writable. They may overlap.
    unsafe fn copy_to(&mut self, mut to: *mut u8, room: usize) -> usize {
        let mut copied = 0;
        while copied < room {
            if self.left == 0 {
                let Some(&(from, left)) = self.parts.next() else { break };
                (self.from, self.left) = (from, left);
                continue;
            }
            let count = self.left.min(room - copied);
            // SAFETY: the caller's; `count` stays inside both pieces.
            unsafe { copy_piece(self.from, to, count) };
            (self.from, self.left) = (self.from.wrapping_add(count), self.left - count);
            (to, copied) = (to.wrapping_add(count), copied + count);
        }
        copied
    }
}

/// Copies a piece. One that is a word arrives whole, and is seen by nobody before what was copied earlier: programs wait for such
/// words, as cards write to memory in order.
///
/// # Safety
/// `from` is readable, `to` is writable for `count` bytes. They may overlap.
unsafe fn copy_piece(from: *const u8, to: *mut u8, count: usize) {
    if count == size_of::<u32>() && to.cast::<u32>().is_aligned() {
        // SAFETY: the caller's; aligned. Programs read it concurrently, which an atomic tolerates.
        unsafe {
            AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Ordering::Release)
        }
    } else if count == size_of::<u64>() && to.cast::<u64>().is_aligned() {
        // SAFETY: as above.
        unsafe {
            AtomicU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), Ordering::Release)
        }
    } else {
        // SAFETY: the caller's.
        unsafe { to.copy_from(from, count) }
    }
}

/// Copies the parts, one after the other, into the targets, one after the other; stops where either ends, or where a client
/// fails. What goes to peer memory is collected in `bounce`, which is made when it is needed first: programs and other
/// processes write to the parts whenever they like, so that no client can be given them as a slice.
///
/// # Safety
/// All parts and all host targets are mapped, with the right access. They may overlap (a message to oneself), but none is
/// `bounce`.
pub(super) unsafe fn copy(
    parts: &[Part],
    targets: &[Target<'_>],
    bounce: &mut Vec<u8>,
) -> Result<(), PeerFailure> {
    let mut source = Source { parts: parts.iter(), from: std::ptr::null(), left: 0 };
    for &(place, room) in targets {
        match place {
            // SAFETY: the caller's.
            Place::Host(to) => _ = unsafe { source.copy_to(to, room) },
            // SAFETY: the caller's.
            Place::Peer(memory, addr) => unsafe { copy_to_peer(&mut source, memory, addr, room, bounce) }?,
        }
    }
    Ok(())
}

/// Copies up to `room` bytes of what comes next to peer memory: a packet's part of it with one call.
///
/// # Safety
/// The parts are readable, and none is `bounce`.
unsafe fn copy_to_peer(
    source: &mut Source<'_>,
    memory: &PeerMapping,
    addr: u64,
    room: usize,
    bounce: &mut Vec<u8>,
) -> Result<(), PeerFailure> {
    bounce.resize(MAX_PAYLOAD, 0);
    let mut done = 0;
    while done < room {
        // SAFETY: the caller's; the buffer has room for that.
        let count = unsafe { source.copy_to(bounce.as_mut_ptr(), (room - done).min(MAX_PAYLOAD)) };
        if count == 0 {
            break;
        }
        memory.write(addr.wrapping_add(done as u64), &bounce[..count])?;
        done += count;
    }
    Ok(())
}

/// What an atomic operation does to 8 bytes, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtomicOperation {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Performs an atomic operation; all CPUs see it as one. Returns the original value.
///
/// # Safety
/// `at` is aligned to 8 and 8 bytes there are mapped writable.
pub(super) unsafe fn atomic(at: *mut u8, operation: AtomicOperation) -> u64 {
    // SAFETY: the caller's; programs change it concurrently, which an atomic tolerates.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    match operation {
        AtomicOperation::CompareSwap { compare, swap } => {
            let swapped = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
            swapped.unwrap_or_else(|found| found)
        }
        AtomicOperation::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
    }
}

/// Whether a range is mapped with the access that a registration asks for. Brings its pages in, as pinning would.
pub fn is_mapped(addr: u64, len: u64, writable: bool) -> bool {
    let page = UAR_PAGE as u64;
    let start = addr & !(page - 1);
    let Some(end) = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
        return false;
    };
    let (Ok(length), Ok(base)) = (usize::try_from(end - start), usize::try_from(start)) else { return false };
    let populate = |advice| {
        // SAFETY: populating changes no content; ranges that are not mapped are reported, not touched.
        match unsafe { libc::madvise(base as *mut libc::c_void, length, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error()),
        }
    };
    match populate(if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ }) {
        Ok(()) => return true,
        Err(Some(libc::EINVAL)) => {}
        Err(_) => return false,
    }
    // EINVAL: not writable, if reading works; else memory that may not be read, a kernel before 5.14, or a device's mapping,
    // which do not populate. Then the rights must do.
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    has_rights(&maps, start..end, writable)
}

/// Whether all of a range may be read (and written), by the words of `/proc/self/maps` (proc_pid_maps(5)): lines in the order
/// of addresses, `first-end rwxp ...`.
fn has_rights(maps: &str, range: std::ops::Range<u64>, writable: bool) -> bool {
    let mut left = range.start;
    for line in maps.lines() {
        let Some((place, rest)) = line.split_once(' ') else { continue };
        let Some((first, end)) = place.split_once('-') else { continue };
        let number = |text| u64::from_str_radix(text, 16);
        let (Ok(first), Ok(end)) = (number(first), number(end)) else { continue };
        if end <= left {
            continue;
        }
        let allowed = rest.starts_with(if writable { "rw" } else { "r" });
        if first > left || !allowed {
            return false;
        }
        left = end;
        if left >= range.end {
            return true;
        }
    }
    left >= range.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::SharedMemory;
    use proptest::prelude::*;

    #[test]
    fn memory_without_rights_is_not_mapped() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 r--p 0 00:00 0 [x]\n6000-7000 ---p 0 00:00 0\n7000-8000 rw-p 0";
        assert!(has_rights(maps, 0x1000..0x3000, true) && has_rights(maps, 0x1000..0x4000, false));
        for (range, writable) in [
            (0x1000..0x4000, true),
            (0x0000..0x2000, false),
            (0x3000..0x5000, false),
            (0x5000..0x6000, false),
            (0x6000..0x7000, false),
            (0x6000..0x8000, false),
            (0x7000..0x9000, true),
        ] {
            assert!(!has_rights(maps, range.clone(), writable), "{range:x?}");
        }
        assert!(has_rights(maps, 0x7000..0x8000, true) && !has_rights("rubbish\n-\nx-y z", 1..2, false));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let reserved = unsafe { libc::mmap(std::ptr::null_mut(), UAR_PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(reserved, libc::MAP_FAILED);
        assert!(!is_mapped(reserved as u64, 8, false) && !is_mapped(reserved as u64, 8, true));
        // SAFETY: mapped above, and used by nobody.
        assert_eq!(unsafe { libc::munmap(reserved, UAR_PAGE) }, 0);
    }

    #[test]
    fn atomics_return_the_original_and_wrap() {
        use AtomicOperation::{CompareSwap, FetchAdd};
        let word = AtomicU64::new(5);
        // SAFETY: an aligned local.
        let run = |operation| unsafe { atomic(word.as_ptr().cast(), operation) };
        assert_eq!(run(CompareSwap { compare: 4, swap: 9 }), 5);
        assert_eq!(run(CompareSwap { compare: 5, swap: 9 }), 5);
        assert_eq!(run(FetchAdd { add: u64::MAX }), 9);
        assert_eq!(word.load(Ordering::SeqCst), 8);
    }

    #[test]
    fn words_and_what_is_none_arrive_at_every_offset() {
        for (start, end, count) in (0..9)
            .flat_map(|start| (0..9).map(move |end| (start, end)))
            .flat_map(|(start, end)| [0, 1, 3, 4, 5, 7, 8, 9, 12].map(|count| (start, end, count)))
        {
            let source: Vec<u8> = (1..=32).collect();
            let mut target = [0u64; 4];
            let place: *mut u8 = target.as_mut_ptr().cast();
            // SAFETY: both have 32 bytes, and no piece ends behind byte 21.
            unsafe { copy_piece(source.as_ptr().add(start), place.add(end), count) };
            let bytes: Vec<u8> = target.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(
                bytes[end..end + count],
                source[start..start + count],
                "{count} bytes from {start} to {end}"
            );
            assert!(bytes[..end].iter().chain(&bytes[end + count..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn only_mapped_memory_is_mapped() {
        let (page, _file) = SharedMemory::create(UAR_PAGE).unwrap();
        let addr = page.base() as u64;
        assert!(is_mapped(addr, 4096, true) && is_mapped(addr + 100, 1, false));
        assert!(!is_mapped(u64::MAX - 10, 20, false) && !is_mapped(0, 4096, false));
        // SAFETY: our own page, not used meanwhile.
        unsafe { libc::mprotect(page.base().cast(), UAR_PAGE, libc::PROT_READ) };
        assert!(is_mapped(addr, 4096, false) && !is_mapped(addr, 4096, true));
    }

    proptest! {
        #[test]
        fn copies_do_not_depend_on_how_memory_is_cut(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            from in proptest::collection::vec(0usize..60, 0..8),
            to in proptest::collection::vec(0usize..60, 0..8),
        ) {
            let cut = |sizes: &[usize], len: usize| {
                let mut at = 0;
                let mut pieces = Vec::new();
                for size in sizes {
                    let size = (*size).min(len - at);
                    pieces.push((at, size));
                    at += size;
                }
                pieces
            };
            let mut target = vec![0u8; 200];
            let base = target.as_mut_ptr();
            let sources = cut(&from, bytes.len());
            let targets = cut(&to, 200);
            let parts: Vec<Part> = sources.iter().map(|(at, size)| (bytes[*at..].as_ptr(), *size)).collect();
            let places: Vec<Target<'_>> =
                targets.iter().map(|(at, size)| (Place::Host(base.wrapping_add(*at)), *size)).collect();
            // SAFETY: the pieces lie inside the two vectors.
            unsafe { copy(&parts, &places, &mut Vec::new()) }.unwrap();
            let sent: usize = from.iter().sum::<usize>().min(bytes.len());
            let room: usize = to.iter().sum::<usize>().min(200);
            let count = sent.min(room);
            prop_assert_eq!(&target[..count], &bytes[..count]);
            prop_assert!(target[count..].iter().all(|byte| *byte == 0));
        }
    }
}
