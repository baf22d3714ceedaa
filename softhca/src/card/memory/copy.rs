//! Copies between payloads and registered memory, and atomic operations on it.

use super::peer_copies::{MIN_DIRECT, PeerCopies};
use crate::fabric::{MAX_PAYLOAD, PayloadPart};
use crate::os::guard::guarded;
use crate::os::host::{Gone, copy_piece, read, write};
use crate::peer_memory::{PeerFailure, PeerMapping};
use gdsync_sys::shared::{SharedU32, SharedU64};
use gdsync_sys::{barrier, wake};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A copy that the card cannot perform.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum MemoryFailure {
    #[error(transparent)]
    Peer(#[from] PeerFailure),
    #[error(transparent)]
    Host(#[from] Gone),
}

impl MemoryFailure {
    /// Returns the field of its diagnostic.
    pub(crate) fn field(&self) -> &'static str {
        match self {
            MemoryFailure::Peer(_) => "peer memory",
            MemoryFailure::Host(_) => "host memory",
        }
    }
}

/// Location of registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location<'a> {
    /// An address that the CPU dereferences.
    Host(*mut u8),
    /// An address that only a peer-memory client reaches.
    Peer(&'a Arc<PeerMapping>, u64),
}

pub(crate) type Target<'a> = (Location<'a>, usize);

/// Parts, and the position up to which they are copied.
struct Source<'a> {
    parts: std::slice::Iter<'a, PayloadPart>,
    from: *const u8,
    left: usize,
}

impl Source<'_> {
    /// Returns the next contiguous bytes, `room` at most. Empty at the end.
    fn peek(&mut self, room: usize) -> PayloadPart {
        while self.left == 0 {
            let Some(&(from, left)) = self.parts.next() else { break };
            (self.from, self.left) = (from, left);
        }
        (self.from, self.left.min(room))
    }

    /// Skips bytes that [`Self::peek`] has returned.
    fn skip(&mut self, count: usize) {
        (self.from, self.left) = (self.from.wrapping_add(count), self.left - count);
    }

    /// Copies the next bytes, `room` at most. Returns how many. A part of the target that is gone is added to `lost`.
    ///
    /// # Errors
    /// The source is gone.
    ///
    /// # Safety
    /// As [`copy`].
    unsafe fn copy_to(
        &mut self,
        mut to: *mut u8,
        room: usize,
        lost: &mut Option<Gone>,
    ) -> Result<usize, Gone> {
        let mut copied = 0;
        while copied < room {
            let (from, count) = self.peek(room - copied);
            if count == 0 {
                break;
            }
            // SAFETY: the caller guarantees this; `count` stays inside both pieces.
            match unsafe { copy_piece(from, to, count) } {
                Err(gone) if gone.writes => _ = lost.get_or_insert(gone),
                copied => copied?,
            }
            self.skip(count);
            (to, copied) = (to.wrapping_add(count), copied + count);
        }
        Ok(copied)
    }
}

/// Copies the concatenated parts to the concatenated targets, until either ends or a client fails. Then waits for all
/// copies to peer memory in progress, unless those of this packet may end later ([`PeerCopies::end_later`]). A card has
/// pinned the pages of a target: if the program has unmapped it, the bytes are dropped, as no program can read them any
/// more, and `lost` says so.
///
/// # Errors
/// A client fails, perhaps with a copy of an earlier packet; or a part is gone.
///
/// # Safety
/// All parts and all host targets were mapped with the right access when they were registered, or are the card's. They
/// may overlap (a message to oneself). If copies of this packet may end later, the parts stay readable until
/// [`PeerCopies::finish`].
pub(crate) unsafe fn copy(
    parts: &[PayloadPart],
    targets: &[Target<'_>],
    peers: &mut PeerCopies,
    lost: &mut Option<Gone>,
) -> Result<(), MemoryFailure> {
    // SAFETY: the caller guarantees this; copies that have begun are waited for, also after a failure.
    let copied = unsafe { begin_copy(parts, targets, peers, lost) };
    let ended = peers.end_packet();
    copied.and(ended.map_err(MemoryFailure::from))
}

/// Copies as [`copy`], and begins the copies that clients perform directly.
///
/// # Safety
/// As [`copy`], until [`PeerCopies::end_packet`].
unsafe fn begin_copy(
    parts: &[PayloadPart],
    targets: &[Target<'_>],
    peers: &mut PeerCopies,
    lost: &mut Option<Gone>,
) -> Result<(), MemoryFailure> {
    let mut source = Source { parts: parts.iter(), from: std::ptr::null(), left: 0 };
    let len = parts.iter().map(|(_, len)| len).sum::<usize>().min(targets.iter().map(|(_, room)| room).sum());
    // A short one waits for the others as a whole.
    let mut before_end = if len >= MIN_DIRECT + END { len - END } else { 0 };
    for &(at, room) in targets {
        match at {
            Location::Host(to) => {
                // The CPU's stores would overtake all others.
                peers.end_packet()?;
                // SAFETY: the caller guarantees this.
                let copied = unsafe { source.copy_to(to, room, lost) }?;
                before_end = before_end.saturating_sub(copied);
            }
            Location::Peer(memory, addr) => {
                // SAFETY: the caller guarantees this.
                unsafe { copy_to_peer(&mut source, memory, addr, room, peers, &mut before_end) }?
            }
        }
    }
    Ok(())
}

/// Bytes at the end of a packet that are written after all others, if the packet ends with its copies and nothing orders
/// these: programs poll the last byte of a message.
const END: usize = 4096;

/// Copies the next bytes, `room` at most, to peer memory; there are `before_end` before the packet's end. If the client
/// does not copy directly, the bytes of one packet are collected for one call: programs and other processes may write to
/// the parts at any time, so a client cannot get them as a slice.
///
/// # Safety
/// As [`begin_copy`].
unsafe fn copy_to_peer(
    source: &mut Source<'_>,
    memory: &Arc<PeerMapping>,
    addr: u64,
    room: usize,
    peers: &mut PeerCopies,
    before_end: &mut usize,
) -> Result<(), MemoryFailure> {
    let (mut done, mut directly) = (0, true);
    while done < room {
        let at = addr.wrapping_add(done as u64);
        let mut room = room - done;
        if peers.overtakes(memory) {
            match *before_end {
                0 => {
                    peers.end_packet()?;
                    directly = false;
                }
                left => room = room.min(left),
            }
        }
        let (from, count) = source.peek(room);
        if count == 0 {
            break;
        }
        // SAFETY: the caller guarantees this.
        directly = directly && unsafe { peers.write(memory, at, from, count) }?;
        if directly {
            source.skip(count);
            done += count;
            *before_end = before_end.saturating_sub(count);
            continue;
        }
        let bounce = &mut peers.bounce;
        bounce.resize(MAX_PAYLOAD, 0);
        // SAFETY: the caller guarantees this; the buffer has room for that, and is no part.
        let count = unsafe { source.copy_to(bounce.as_mut_ptr(), room.min(MAX_PAYLOAD), &mut None) }?;
        memory.write(at, &bounce[..count])?;
        done += count;
        *before_end = before_end.saturating_sub(count);
    }
    Ok(())
}

/// Loads a word of 8 bytes of registered memory in native byte order. Returns `None` if it is not aligned. Everything
/// that the card reads afterwards is at least as new as the word.
///
/// # Errors
/// The client of peer memory cannot read, or host memory is gone.
///
/// # Safety
/// 8 bytes there were readable when they were registered.
pub(crate) unsafe fn load_word(location: Location<'_>) -> Result<Option<u64>, MemoryFailure> {
    let native = match location {
        Location::Host(at) if !at.cast::<u64>().is_aligned() => return Ok(None),
        Location::Host(at) => {
            let mut bytes = [0; size_of::<u64>()];
            // SAFETY: guaranteed by the caller. An aligned word is read at once.
            unsafe { read(at, &mut bytes) }?;
            fence(Ordering::Acquire);
            u64::from_ne_bytes(bytes)
        }
        Location::Peer(memory, addr) => {
            let mut bytes = [0; size_of::<u64>()];
            memory.read(addr, &mut bytes)?;
            u64::from_ne_bytes(bytes)
        }
    };
    // The word may be in a GPU's memory that the CPU has mapped, from which it may load early.
    barrier::from_device();
    Ok(Some(native))
}

/// An atomic operation, on numbers in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOperation {
    /// Swaps the bits of `swap_mask` if those of `compare_mask` are equal.
    CompareSwap { compare: u64, swap: u64, compare_mask: u64, swap_mask: u64 },
    /// Adds fields, each of which ends with a bit of `boundaries`, without carries between them.
    FetchAdd { add: u64, boundaries: u64 },
}

impl AtomicOperation {
    /// Returns the new number; `None` if `original` stays.
    fn apply(self, original: u64) -> Option<u64> {
        match self {
            AtomicOperation::CompareSwap { compare, swap, compare_mask, swap_mask } => {
                let is_equal = (original ^ compare) & compare_mask == 0;
                is_equal.then_some(original & !swap_mask | swap & swap_mask)
            }
            AtomicOperation::FetchAdd { add, boundaries } => {
                let below = (original & !boundaries).wrapping_add(add & !boundaries);
                Some(below ^ (original ^ add) & boundaries)
            }
        }
    }
}

/// Copies the parts to a buffer.
///
/// # Errors
/// A part is gone.
///
/// # Safety
/// The parts are the card's, or were readable when they were registered.
pub(crate) unsafe fn collect(parts: &[PayloadPart]) -> Result<Vec<u8>, Gone> {
    let mut bytes = vec![0; parts.iter().map(|part| part.1).sum()];
    let mut at = 0;
    for &(from, count) in parts {
        // SAFETY: the caller guarantees this.
        unsafe { read(from, &mut bytes[at..at + count]) }?;
        at += count;
    }
    Ok(bytes)
}

pub(crate) fn is_aligned(location: Location<'_>, bytes: u32) -> bool {
    let addr = match location {
        Location::Host(at) => at as u64,
        Location::Peer(_, addr) => addr,
    };
    addr.is_multiple_of(bytes.into())
}

/// Performs an atomic operation on 4 or 8 bytes. Returns the original value. In host memory it is atomic for all CPUs,
/// too; in peer memory only among the operations of this card.
///
/// # Errors
/// The client of peer memory cannot read or write, or host memory is gone.
///
/// # Safety
/// The location is aligned to `bytes`, and that many bytes there were writable when they were registered.
pub(crate) unsafe fn atomic(
    location: Location<'_>,
    bytes: u32,
    operation: AtomicOperation,
) -> Result<u64, MemoryFailure> {
    macro_rules! perform {
        ($word:ty, $number:ty) => {
            match location {
                Location::Host(at) => {
                    let mut original = 0;
                    let performed = guarded(|| {
                        // SAFETY: the caller guarantees this; programs change it concurrently, which a shared word
                        // tolerates.
                        let word = unsafe { <$word>::from_ptr(at.cast()) };
                        original = word.load(Ordering::SeqCst);
                        while let Some(next) = operation.apply(u64::from(original)) {
                            let (next, order) = (next as $number, Ordering::SeqCst);
                            match word.compare_exchange(original, next, order, order) {
                                Ok(_) => break,
                                Err(found) => original = found,
                            }
                        }
                    });
                    if performed.is_err() {
                        // The program cannot write to memory that it has protected: the operation is atomic.
                        let mut word = [0; size_of::<$number>()];
                        // SAFETY: as above.
                        unsafe { read(at, &mut word) }?;
                        original = <$number>::from_ne_bytes(word);
                        if let Some(next) = operation.apply(u64::from(original)) {
                            // SAFETY: as above.
                            unsafe { write(at, &(next as $number).to_ne_bytes()) }?;
                        }
                    }
                    wake::report_write(at as usize, size_of::<$number>());
                    Ok(u64::from(original))
                }
                Location::Peer(memory, addr) => {
                    let mut word = [0; size_of::<$number>()];
                    memory.read(addr, &mut word)?;
                    let original = u64::from(<$number>::from_ne_bytes(word));
                    if let Some(next) = operation.apply(original) {
                        memory.write(addr, &(next as $number).to_ne_bytes())?;
                    }
                    Ok(original)
                }
            }
        };
    }
    if bytes == 4 { perform!(SharedU32, u32) } else { perform!(SharedU64, u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn atomics_return_the_original_and_wrap() {
        use AtomicOperation::{CompareSwap, FetchAdd};
        let word = SharedU64::new(5);
        let location = Location::Host(word.as_ptr().cast());
        // SAFETY: an aligned local.
        let run = |operation| unsafe { atomic(location, 8, operation) }.unwrap();
        let whole = |compare, swap| CompareSwap { compare, swap, compare_mask: !0, swap_mask: !0 };
        assert_eq!(run(whole(4, 9)), 5);
        assert_eq!(run(whole(5, 9)), 5);
        assert_eq!(run(FetchAdd { add: u64::MAX, boundaries: 0 }), 9);
        assert_eq!(word.load(Ordering::SeqCst), 8);
        assert!(is_aligned(location, 8) && !is_aligned(Location::Host(place_at(&word, 4)), 8));
        word.store(0, Ordering::SeqCst);
        // SAFETY: the second half of the word, aligned to 4.
        let half = |operation| unsafe { atomic(Location::Host(place_at(&word, 4)), 4, operation) }.unwrap();
        assert_eq!(half(FetchAdd { add: u64::from(u32::MAX), boundaries: 0 }), 0);
        assert_eq!(half(FetchAdd { add: 2, boundaries: 0 }), u32::MAX.into());
        assert_eq!(half(whole(1, 7)), 1);
        assert_eq!(word.load(Ordering::SeqCst).to_ne_bytes(), [0, 0, 0, 0, 7, 0, 0, 0]);
    }

    fn place_at(word: &SharedU64, offset: usize) -> *mut u8 {
        word.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    #[test]
    fn masks_select_bits_and_boundaries_stop_carries() {
        use AtomicOperation::{CompareSwap, FetchAdd};
        let masked = CompareSwap { compare: 0xa0, swap: 0xff, compare_mask: 0xf0, swap_mask: 0x0f };
        assert_eq!((masked.apply(0xa5), masked.apply(0xb5)), (Some(0xaf), None));
        let or = CompareSwap { compare: 0, swap: 6, compare_mask: 0, swap_mask: 6 };
        assert_eq!(or.apply(0x11), Some(0x17));
        let xor = FetchAdd { add: 0x0ff0, boundaries: u64::MAX };
        assert_eq!(xor.apply(0x3c3c), Some(0x33cc));
        let bytes = FetchAdd { add: 0x01ff_0101, boundaries: 0x8080_8080 };
        assert_eq!(bytes.apply(0xff02_7f80), Some(0x0001_8081));
        assert_eq!(FetchAdd { add: 1, boundaries: 0 }.apply(u64::MAX), Some(0));
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
            let parts: Vec<PayloadPart> = sources.iter().map(|(at, size)| (bytes[*at..].as_ptr(), *size)).collect();
            let places: Vec<Target<'_>> =
                targets.iter().map(|(at, size)| (Location::Host(base.wrapping_add(*at)), *size)).collect();
            // SAFETY: the pieces lie inside the two vectors.
            unsafe { copy(&parts, &places, &mut PeerCopies::default(), &mut None) }.unwrap();
            let sent: usize = from.iter().sum::<usize>().min(bytes.len());
            let room: usize = to.iter().sum::<usize>().min(200);
            let count = sent.min(room);
            prop_assert_eq!(&target[..count], &bytes[..count]);
            prop_assert!(target[count..].iter().all(|byte| *byte == 0));
        }
    }
}
