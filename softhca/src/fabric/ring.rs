//! A ring of packets in memory that two processes share: one producer, one consumer.
//!
//! Two indices count bytes without wrapping at the ring's size; their difference is the number of bytes in
//! the ring. The producer writes a record and then publishes `tail` (release). The consumer reads `tail`
//! (acquire), so it sees the record, and publishes `head` (release) when it has finished with the bytes. The
//! producer reads `head` (acquire) before it overwrites them. Either side may publish several records at
//! once, while other threads still fill placed packets or read taken ones.
//!
//! Each side may *announce* that it sleeps. Dekker's argument keeps wake-ups from being lost: the sleeper
//! stores its flag, fences (SeqCst) and loads the index again; the other side stores the index, fences
//! (SeqCst) and loads the flag. In every interleaving at least one of the two sees the other's store: either
//! the sleeper does not sleep, or the other side wakes it.
//!
//! The consumer also counts its *rounds*: in one round its card serves every queue pair that has something to
//! send. From the count the producer learns that the other card runs and has had the chance to answer.
//!
//! The other process may be broken or hostile: every number read from the ring is checked before it is used,
//! and a ring with an impossible number is closed.

use super::packet::{Hole, MAX_HEADER, MAX_PAYLOAD, PayloadPart, Use};
use crate::os::host::{Gone, copy_piece};
use crate::os::memory::SharedMemory;
use crate::speed::Speed;
use crate::staging::StagingMemory;
use gdsync_sys::shared::{self, SharedU64};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a ring's data; a power of two. It holds several batches of packets whose payload a GPU copies.
const CAPACITY: usize = 2 << 20;
/// If the ring is empty beyond this offset, the producer restarts at offset 0 with a short packet: cards that
/// exchange short packets and keep up then touch only these bytes, which stay in cache.
const RESTART_LIMIT: usize = 128 << 10;
/// Maximum bytes of a short packet. A longer one does not restart, as the skipped rest of the ring is
/// unusable until the consumer has passed it.
const SHORT_RECORD: usize = 8 << 10;
/// Marker instead of a packet's lengths: the next packet is at offset 0.
const SKIP_REST: u64 = u64::MAX;
/// Bytes before the data: indices and flags, each on its own cache line.
const CONTROL: usize = 4096;
const MAGIC: u64 = u64::from_be_bytes(*b"gdsync\x00\x06");

const AT_MAGIC: usize = 0;
const AT_TAIL: usize = 128;
pub(super) const AT_HEAD: usize = 256;
const AT_CONSUMER_SLEEPS: usize = 384;
const AT_PRODUCER_SLEEPS: usize = 512;
const AT_ROUNDS: usize = 640;
/// The speeds of the two cards. The consumer writes its own before it refuses the ring.
pub(super) const AT_PRODUCER_SPEED: usize = 768;
const AT_CONSUMER_SPEED: usize = 896;

/// Bytes of a ring's shared memory.
pub(super) const RING_BYTES: usize = CONTROL + CAPACITY;

/// A ring's memory, as either side sees it.
struct Shared {
    memory: StagingMemory,
}

impl Shared {
    fn new(memory: SharedMemory) -> Result<Self, Corrupt> {
        if memory.len() == RING_BYTES {
            Ok(Shared { memory: StagingMemory::new(memory) })
        } else {
            Err(Corrupt("the memory of the ring has another size"))
        }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `memory` maps `RING_BYTES` (`new` has checked that), page-aligned; control offsets are
        // multiples of 8 inside it; the other process changes the word, which an atomic tolerates.
        unsafe { AtomicU64::from_ptr(self.memory.base().add(offset).cast()) }
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.memory.base().add(offset).cast()) }
    }

    fn set_speed(&self, offset: usize, speed: Speed) {
        self.word32(offset).store(speed.times().into(), Ordering::Release);
    }

    /// `None` if it is unset or no valid speed.
    fn speed(&self, offset: usize) -> Option<Speed> {
        Speed::new(self.word32(offset).load(Ordering::Acquire).try_into().ok()?)
    }

    /// Splits a range of the byte stream at the ring's end.
    fn parts(&self, position: u64, len: usize) -> [(*mut u8, usize); 2] {
        let start = position as usize & (CAPACITY - 1);
        let first = len.min(CAPACITY - start);
        let data = self.memory.base().wrapping_add(CONTROL);
        [(data.wrapping_add(start), first), (data, len - first)]
    }
}

/// Returns whether everything before `position` is taken while `left` bytes before `tail` are not. True for a
/// foreign position and for an impossible `left`.
fn is_taken(tail: u64, left: u64, position: u64) -> bool {
    left > CAPACITY as u64 || tail.wrapping_sub(position) >= left
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushError {
    /// There is no room; the consumer wakes the producer when there is.
    Full,
    /// The consumer's index is impossible.
    Corrupt,
    /// The program has unmapped a part of the payload.
    Unreadable(Gone),
}

pub(super) struct Producer {
    shared: Shared,
    /// The end of the published packets.
    tail: u64,
    /// The end of the placed packets, and the start of the last of them.
    end: u64,
    last: u64,
}

/// True if the caller must wake the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MustWake(pub(super) bool);

impl Producer {
    /// Makes a ring in fresh shared memory of [`RING_BYTES`], for a card with that speed.
    pub(super) fn new(memory: SharedMemory, speed: Speed) -> Result<Self, Corrupt> {
        let shared = Shared::new(memory)?;
        shared.set_speed(AT_PRODUCER_SPEED, speed);
        shared.word64(AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(Producer { shared, tail: 0, end: 0, last: 0 })
    }

    /// Returns the speed of the consumer's card, once it has the ring.
    pub(super) fn consumer_speed(&self) -> Option<Speed> {
        self.shared.speed(AT_CONSUMER_SPEED)
    }

    /// Puts a packet into the ring, and publishes it and all placed before.
    ///
    /// # Safety
    /// Each payload part was readable when it was registered; together they are at most [`MAX_PAYLOAD`] bytes. `header` is at
    /// most [`MAX_HEADER`] bytes (checked). All earlier holes are filled.
    pub(super) unsafe fn push(
        &mut self,
        header: &[u8],
        payload: &[PayloadPart],
    ) -> Result<MustWake, PushError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.place(header, payload, &mut Vec::new()) }?;
        Ok(self.publish())
    }

    /// Places a packet after the last one, hidden from the consumer. A part at the null address is a hole:
    /// its place is added to `holes`, and the caller fills it before it publishes the packet.
    ///
    /// # Safety
    /// As [`Self::push`], but for holes.
    pub(super) unsafe fn place(
        &mut self,
        header: &[u8],
        payload: &[PayloadPart],
        holes: &mut Vec<Hole>,
    ) -> Result<(), PushError> {
        let length: usize = payload.iter().map(|part| part.1).sum();
        let need = self.reserve(header.len(), length)?;
        if need <= SHORT_RECORD {
            self.restart();
        }
        let mut at = self.end;
        let lengths = (header.len() as u64) << 32 | length as u64;
        for (bytes, count) in [(lengths.to_ne_bytes().as_ptr(), 8), (header.as_ptr(), header.len())] {
            // SAFETY: `count` bytes are readable: a local array, or the header.
            unsafe { self.copy_in(at, bytes, count) };
            at += count.next_multiple_of(8) as u64;
        }
        for &(bytes, count) in payload {
            if bytes.is_null() {
                holes.push(self.shared.parts(at, count));
            } else {
                let mut from = bytes;
                for (to, len) in self.shared.parts(at, count).into_iter().filter(|part| part.1 > 0) {
                    // SAFETY: guaranteed by the caller; for the places, as in `copy_in`.
                    unsafe { copy_piece(from, to, len) }.map_err(PushError::Unreadable)?;
                    from = from.wrapping_add(len);
                }
            }
            at += count as u64;
        }
        (self.last, self.end) = (self.end, self.end + need as u64);
        Ok(())
    }

    /// Skips the rest of the ring if it is empty and the first bytes are enough.
    fn restart(&mut self) {
        let offset = self.end as usize & (CAPACITY - 1);
        if offset < RESTART_LIMIT || self.shared.word64(AT_HEAD).load(Ordering::Acquire) != self.end {
            return;
        }
        let [(lengths, _), _] = self.shared.parts(self.end, 8);
        // SAFETY: 8 bytes inside the ring, aligned, that the consumer does not read before `tail` covers them.
        unsafe { SharedU64::from_ptr(lengths.cast()) }.store(SKIP_REST, Ordering::Relaxed);
        self.end += (CAPACITY - offset) as u64;
    }

    pub(super) fn publish(&mut self) -> MustWake {
        self.tail = self.end;
        self.shared.word64(AT_TAIL).store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let sleeps = self.shared.word32(AT_CONSUMER_SLEEPS);
        MustWake(sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0)
    }

    /// Takes back the last placed packet.
    pub(super) fn take_back(&mut self) {
        self.end = self.last.max(self.tail);
    }

    /// Takes back all placed packets that are not published.
    pub(super) fn withdraw(&mut self) {
        (self.last, self.end) = (self.tail, self.tail);
    }

    /// The end of the last packet, in bytes since the ring was made.
    pub(super) fn position(&self) -> u64 {
        self.end
    }

    /// Returns whether the consumer has taken everything before a position. True for a foreign position, and
    /// if the consumer's index is impossible.
    pub(super) fn has_taken(&self, position: u64) -> bool {
        let left = self.tail.wrapping_sub(self.shared.word64(AT_HEAD).load(Ordering::Acquire));
        is_taken(self.tail, left, position)
    }

    /// The number of rounds of the consumer's card since it has this ring. Packets that it put into any ring
    /// before the end of such a round are visible to the caller.
    pub(super) fn rounds(&self) -> u64 {
        self.shared.word64(AT_ROUNDS).load(Ordering::Acquire)
    }

    /// Checks that a packet has room, and returns its bytes in the ring. With [`PushError::Full`], the
    /// producer is announced as waiting for room.
    pub(super) fn reserve(&self, header: usize, payload: usize) -> Result<usize, PushError> {
        if header > MAX_HEADER || payload > MAX_PAYLOAD {
            return Err(PushError::Corrupt);
        }
        let need = record_bytes(header, payload);
        if !self.has_room(need)? {
            self.shared.word32(AT_PRODUCER_SLEEPS).store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !self.has_room(need)? {
                return Err(PushError::Full);
            }
            self.shared.word32(AT_PRODUCER_SLEEPS).store(0, Ordering::Relaxed);
        }
        Ok(need)
    }

    fn has_room(&self, need: usize) -> Result<bool, PushError> {
        let used = self.end.wrapping_sub(self.shared.word64(AT_HEAD).load(Ordering::Acquire));
        if used > CAPACITY as u64 { Err(PushError::Corrupt) } else { Ok(CAPACITY - used as usize >= need) }
    }

    /// # Safety
    /// `bytes..bytes + count` is readable, and the ring has room at `at`.
    unsafe fn copy_in(&self, at: u64, bytes: *const u8, count: usize) {
        let [(first, first_len), (second, second_len)] = self.shared.parts(at, count);
        // SAFETY: the parts are inside the ring's data; the consumer does not read them before `tail` covers them.
        unsafe {
            shared::copy(first, bytes, first_len);
            shared::copy(second, bytes.add(first_len), second_len);
        }
    }
}

/// Bytes of a packet in the ring: two lengths, the header, the payload, padded to 8 bytes.
fn record_bytes(header: usize, payload: usize) -> usize {
    8 + header.next_multiple_of(8) + payload.next_multiple_of(8)
}

pub(super) struct Packet<'a> {
    pub(super) header: &'a [u8],
    pub(super) payload: [PayloadPart; 2],
}

/// The other side wrote an impossible number, or the memory is no ring.
#[derive(Debug)]
pub(super) struct Corrupt(pub(super) &'static str);

pub(super) struct Consumer {
    shared: Shared,
    head: u64,
    rounds: u64,
}

impl Consumer {
    /// Opens a ring that another process made in shared memory of [`RING_BYTES`]. Tells the producer this
    /// card's speed, and returns the producer's.
    pub(super) fn new(memory: SharedMemory, speed: Speed) -> Result<(Self, Speed), Corrupt> {
        let shared = Shared::new(memory)?;
        if shared.word64(AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(Corrupt("the ring is not of this version"));
        }
        shared.set_speed(AT_CONSUMER_SPEED, speed);
        let other = shared.speed(AT_PRODUCER_SPEED).ok_or(Corrupt("the ring's speed is none"))?;
        Ok((Consumer { shared, head: 0, rounds: 0 }, other))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrived() == self.head
    }

    /// The end of the last packet that has arrived.
    pub(super) fn arrived(&self) -> u64 {
        self.shared.word64(AT_TAIL).load(Ordering::Acquire)
    }

    /// Returns whether this side has taken everything before a position. True for a foreign position, and if
    /// the producer's index is impossible.
    pub(super) fn has_taken(&self, position: u64) -> bool {
        let tail = self.arrived();
        is_taken(tail, tail.wrapping_sub(self.head), position)
    }

    /// Counts a round of this side's card.
    pub(super) fn end_round(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        self.shared.word64(AT_ROUNDS).store(self.rounds, Ordering::Release);
    }

    /// Passes the next packet to `take`. `None` if there is none, else whether the producer waits for room. A
    /// packet that `take` still uses stays in place until [`Self::release`], as do all after it.
    pub(super) fn pop(&mut self, take: impl FnOnce(Packet<'_>) -> Use) -> Result<Option<MustWake>, Corrupt> {
        let tail = self.shared.word64(AT_TAIL).load(Ordering::Acquire);
        let mut used = tail.wrapping_sub(self.head);
        let mut lengths = match self.lengths(used)? {
            None => return Ok(None),
            Some(lengths) => lengths,
        };
        if lengths == SKIP_REST {
            let rest = CAPACITY as u64 - (self.head & (CAPACITY as u64 - 1));
            used = used.checked_sub(rest).ok_or(Corrupt("the rest of the ring is incomplete"))?;
            self.head = self.head.wrapping_add(rest);
            lengths = match self.lengths(used)? {
                // The producer learns of that with the next packet.
                None => return Ok(None),
                Some(lengths) => lengths,
            };
        }
        let (header_len, payload_len) = ((lengths >> 32) as usize, lengths as u32 as usize);
        if header_len > MAX_HEADER || payload_len > MAX_PAYLOAD {
            return Err(Corrupt("a packet is too long"));
        }
        let bytes = record_bytes(header_len, payload_len);
        if bytes as u64 > used {
            return Err(Corrupt("a packet is incomplete"));
        }
        // The header is copied so that it cannot change between check and use.
        let mut header = [0u8; MAX_HEADER];
        let [(first, first_len), (second, second_len)] = self.shared.parts(self.head + 8, header_len);
        // SAFETY: both parts are inside the ring, and `header` has room for `MAX_HEADER` bytes.
        unsafe {
            shared::copy(header.as_mut_ptr(), first, first_len);
            shared::copy(header.as_mut_ptr().add(first_len), second, second_len);
        }
        let payload = self.shared.parts(self.head + 8 + header_len.next_multiple_of(8) as u64, payload_len);
        let used = take(Packet {
            header: &header[..header_len],
            payload: payload.map(|(part, len)| (part.cast_const(), len)),
        });
        self.head = self.head.wrapping_add(bytes as u64);
        Ok(Some(match used {
            Use::Over => self.release(),
            Use::GoesOn => MustWake(false),
        }))
    }

    /// Returns the lengths of the next packet if `used` bytes are in the ring; `None` if it is empty.
    fn lengths(&self, used: u64) -> Result<Option<u64>, Corrupt> {
        if used == 0 {
            return Ok(None);
        }
        if used > CAPACITY as u64 || used < 8 {
            return Err(Corrupt("the ring's tail is out of range"));
        }
        // Every position is a multiple of 8, so the two lengths never wrap.
        let [(lengths, _), _] = self.shared.parts(self.head, 8);
        // SAFETY: 8 bytes inside the ring, aligned; the producer may change them, which a shared word tolerates.
        Ok(Some(unsafe { SharedU64::from_ptr(lengths.cast()) }.load(Ordering::Relaxed)))
    }

    /// Frees the room of every taken packet. Returns whether the producer waits for room.
    pub(super) fn release(&mut self) -> MustWake {
        let tail = self.shared.word64(AT_TAIL).load(Ordering::Acquire);
        self.shared.word64(AT_HEAD).store(self.head, Ordering::Release);
        fence(Ordering::SeqCst);
        let waits = self.shared.word32(AT_PRODUCER_SLEEPS);
        // Only half a ring of room is worth a wake-up.
        let room = (CAPACITY as u64).saturating_sub(tail.wrapping_sub(self.head)) >= CAPACITY as u64 / 2;
        MustWake(room && waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0)
    }

    /// Announces sleep. If a packet is waiting, withdraws the announcement and returns false.
    pub(super) fn announce_sleep(&self) -> bool {
        self.shared.word32(AT_CONSUMER_SLEEPS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let empty = self.is_empty();
        if !empty {
            self.awake();
        }
        empty
    }

    pub(super) fn awake(&self) {
        self.shared.word32(AT_CONSUMER_SLEEPS).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
