//! Payload that the card has taken and not yet written: a liberty lets bytes reach memory in any order, and not all at
//! once, where nothing orders them. docs/liberties.md lists what orders them.

use super::copy::{Location, MemoryFailure, Target, collect, copy};
use super::peer_copies::PeerCopies;
use crate::card::config::DataOrdering;
use crate::card::watch::{Missing, Watches};
use crate::fabric::PayloadPart;
use crate::liberties::{Decisions, Draw, LibertyKinds, Subject, Work};
use crate::os::host::{Gone, copy_piece};
use crate::os::watch::Watched;
use std::collections::BTreeSet;
use std::time::Instant;

/// Maximum number of deferred bytes of a queue pair.
const MOST: usize = 1 << 20;
/// Maximum number of pieces of a range.
const PIECES: usize = 8;
/// Pieces begin at multiples of this, so that words stay whole: every card writes a word at once.
const WORD: usize = 8;

/// Bytes for a piece of host memory.
#[derive(Debug)]
struct Piece {
    to: *mut u8,
    bytes: Vec<u8>,
    /// True if later messages do not wait for it.
    relaxed: bool,
    of: Subject,
}

// SAFETY: its address is used only by `DeferredWrites`, by the thread that holds the engine's lock.
unsafe impl Send for Piece {}

/// Where the payload of a packet comes from, and what decides how it is written.
pub(crate) struct HowToWrite<'a> {
    pub(crate) work: Work,
    /// True if all targets are in regions of relaxed ordering.
    pub(crate) is_relaxed: bool,
    pub(crate) decisions: &'a mut Decisions,
    pub(crate) watches: &'a mut Watches,
    pub(crate) now: Instant,
}

impl HowToWrite<'_> {
    /// Returns whether later messages do not wait for all of it, and a draw, if it is not written as it comes. A program
    /// that asks for an order of its queue pair's messages allows, or rules out, what adaptive routing does.
    fn decide(&mut self, ordering: Option<DataOrdering>) -> Option<(bool, Draw)> {
        let HowToWrite { work, is_relaxed, decisions, .. } = self;
        let may_overtake = *is_relaxed || ordering.is_some_and(|asked| asked != DataOrdering::InOrder);
        let relaxed = if may_overtake { decisions.take(LibertyKinds::RELAXED, *work) } else { None };
        let unordered = match ordering {
            Some(DataOrdering::InOrder) => None,
            _ => decisions.take(LibertyKinds::UNORDERED, *work),
        };
        let pieces = decisions.take(LibertyKinds::PIECES, *work);
        relaxed.or(unordered).map(|draw| (true, draw)).or(pieces.map(|draw| (false, draw)))
    }
}

/// The deferred writes of a queue pair; none on a card without liberties.
#[derive(Debug, Default)]
pub(crate) struct DeferredWrites {
    pieces: Vec<Piece>,
    bytes: usize,
    /// When they are performed at the latest.
    due: Option<Instant>,
    /// The order of messages that the program has asked for.
    pub(crate) ordering: Option<DataOrdering>,
    /// The memory of messages and results of which some pieces are not written.
    watched: Vec<(Subject, Watched)>,
    qpn: u32,
    /// Memory that was gone when bytes for it arrived, or when they were written.
    pub(crate) lost: Option<Gone>,
}

impl DeferredWrites {
    pub(crate) fn of(qpn: u32) -> Self {
        DeferredWrites { qpn, ..DeferredWrites::default() }
    }

    /// Returns when all writes are performed at the latest; `None` if there are none.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the numbers of the messages, but for one, of which later messages do not wait for some writes.
    pub(crate) fn held(&self, but: Subject) -> Vec<u32> {
        let relaxed = self.pieces.iter().filter(|piece| piece.relaxed && piece.of != but);
        relaxed.map(|piece| piece.of.number()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Performs all writes, before something that is ordered after them becomes visible.
    #[inline]
    pub(crate) fn write_all(&mut self) {
        if self.due.take().is_some() {
            self.bytes = 0;
            self.pieces.drain(..).for_each(|piece| piece.write(&mut self.lost));
            self.watched.clear();
        }
    }

    /// Performs all writes except to regions of relaxed ordering, before another message begins.
    #[inline]
    pub(crate) fn write_ordered(&mut self) {
        if self.due.is_some() {
            let ordered = self.pieces.extract_if(.., |piece| !piece.relaxed);
            ordered.for_each(|piece| piece.write(&mut self.lost));
            self.bytes = self.pieces.iter().map(|piece| piece.bytes.len()).sum();
            self.due = self.due.filter(|_| !self.pieces.is_empty());
            self.watched.retain(|(of, _)| self.pieces.iter().any(|piece| piece.of == *of));
        }
    }

    /// Performs all writes if they are due. Returns whether they were.
    pub(crate) fn write_due(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.write_all();
        }
        is_due
    }

    /// Copies the concatenated parts to the concatenated targets like [`copy`], but takes the liberty to write pieces
    /// in any order, and some later. Peer memory is written at once.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// As [`copy`]; and the targets stay registered until [`Self::write_all`] is called.
    pub(crate) unsafe fn copy(
        &mut self,
        parts: &[PayloadPart],
        targets: &[Target<'_>],
        peers: &mut PeerCopies,
        mut how: HowToWrite<'_>,
    ) -> Result<(), MemoryFailure> {
        let Some((relaxed, mut draw)) = how.decide(self.ordering) else {
            // SAFETY: the caller guarantees this.
            return unsafe { copy(parts, targets, peers, &mut self.lost) };
        };
        // SAFETY: the caller guarantees this.
        let bytes = unsafe { collect(parts) }?;
        let of = how.work.subject;
        let (mut rest, mut pieces) = (&bytes[..], Vec::new());
        for &(at, room) in targets {
            let (mine, behind) = rest.split_at(room.min(rest.len()));
            match at {
                Location::Host(to) => {
                    cut(to, mine, &mut draw, |to, bytes| pieces.push(Piece { to, bytes, relaxed, of }))
                }
                Location::Peer(..) => {
                    let mine = [(mine.as_ptr(), mine.len())];
                    // SAFETY: the caller guarantees this; the bytes are ours.
                    unsafe { copy(&mine, &[(at, room)], peers, &mut self.lost) }?;
                }
            }
            rest = behind;
        }
        draw.shuffle(&mut pieces);
        let at_once = if relaxed && draw.below(2) == 0 { 0 } else { draw.below(pieces.len() + 1) };
        let later = pieces.split_off(at_once);
        pieces.into_iter().for_each(|piece| piece.write(&mut self.lost));
        if !later.is_empty() && how.watches.is_on() {
            self.watch(targets, bytes.len(), of, how.watches);
        }
        self.park(later, how.now + draw.pause());
        Ok(())
    }

    /// Watches the memory of a packet.
    #[cold]
    fn watch(&mut self, targets: &[Target<'_>], mut left: usize, of: Subject, watches: &mut Watches) {
        let what = match of {
            Subject::Request(number) => Missing::Result(number),
            Subject::Message(number) | Subject::Completion(number) | Subject::Answer(number) => {
                Missing::Message(number)
            }
        };
        // A word is polled with reason: it orders itself.
        if left <= WORD && matches!(what, Missing::Message(_)) {
            return;
        }
        for &(at, room) in targets {
            let len = room.min(left);
            left -= len;
            if let Location::Host(to) = at {
                self.watched.extend(watches.begin(self.qpn, what, to, len).map(|watched| (of, watched)));
            }
        }
    }

    fn park(&mut self, pieces: Vec<Piece>, until: Instant) {
        if pieces.is_empty() {
            return;
        }
        self.bytes += pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        self.pieces.extend(pieces);
        self.due.get_or_insert(until);
        if self.bytes > MOST {
            self.write_all();
        }
    }
}

impl Piece {
    fn write(self, lost: &mut Option<Gone>) {
        // SAFETY: the caller of `DeferredWrites::copy` guarantees that the target is still registered; the bytes are ours.
        if let Err(gone) = unsafe { copy_piece(self.bytes.as_ptr(), self.to, self.bytes.len()) } {
            lost.get_or_insert(gone);
        }
    }
}

/// Calls `add` for each of the pieces into which it cuts bytes.
fn cut(to: *mut u8, bytes: &[u8], draw: &mut Draw, mut add: impl FnMut(*mut u8, Vec<u8>)) {
    let lead = (to as usize).next_multiple_of(WORD) - to as usize;
    let words = bytes.len().saturating_sub(lead).div_ceil(WORD);
    let cuts = (0..PIECES.min(words)).map(|_| lead + draw.below(words) * WORD);
    let mut ends: Vec<usize> = cuts.filter(|cut| (1..bytes.len()).contains(cut)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    ends.dedup();
    let mut start = 0;
    for end in ends {
        if end > start {
            add(to.wrapping_add(start), bytes[start..end].to_vec());
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liberties::{Liberties, Subject, of_one_card};
    use proptest::prelude::*;

    fn decisions(seed: u64, kinds: LibertyKinds) -> Decisions {
        of_one_card(Some(&Liberties { seed, kinds }.into()), 0)
    }

    fn work(message: u32) -> Work {
        Work { subject: Subject::Message(message), ..Work::of_qp(0) }
    }

    proptest! {
        #[test]
        fn every_byte_arrives_once_and_words_stay_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            sizes in proptest::collection::vec(0usize..60, 0..8),
            start in 0usize..16,
            seed: u64,
        ) {
            let mut target = vec![0u64; 70];
            let base = target.as_mut_ptr().cast::<u8>().wrapping_add(start);
            let mut at = 0;
            let targets: Vec<Target<'_>> = sizes
                .iter()
                .map(|size| {
                    at += size;
                    (Location::Host(base.wrapping_add(at - size)), *size)
                })
                .collect();
            let (mut deferred, mut decisions) = (DeferredWrites::default(), decisions(seed, LibertyKinds::PIECES));
            let parts = [(bytes.as_ptr(), bytes.len())];
            let count = bytes.len().min(at);
            let now = Instant::now();
            let how = HowToWrite { work: work(0), is_relaxed: false, decisions: &mut decisions, watches: &mut Watches::default(), now };
            // SAFETY: at most 420 bytes from the start, inside the vector, which outlives `deferred`.
            unsafe { deferred.copy(&parts, &targets, &mut PeerCopies::default(), how) }.unwrap();
            for piece in &deferred.pieces {
                let (first, last) = (piece.to as usize, piece.to as usize + piece.bytes.len());
                let is_edge = |at: usize| targets.iter().any(|(location, size)| {
                    matches!(location, Location::Host(to) if *to as usize == at || *to as usize + size == at)
                }) || at == base as usize + count;
                prop_assert!(first.is_multiple_of(WORD) || is_edge(first));
                prop_assert!(last.is_multiple_of(WORD) || is_edge(last));
            }
            prop_assert_eq!(deferred.due().is_some(), !deferred.pieces.is_empty());
            deferred.write_all();
            // SAFETY: 560 bytes from the vector's start.
            let written = unsafe { std::slice::from_raw_parts(target.as_ptr().cast::<u8>(), 560) };
            prop_assert_eq!(&written[start..start + count], &bytes[..count]);
            let rest = written[..start].iter().chain(&written[start + count..]);
            prop_assert!(rest.copied().all(|byte| byte == 0));
        }
    }

    #[test]
    fn a_message_waits_for_what_is_ordered_only() {
        let target = [0u64; 64];
        let location = Location::Host(target.as_ptr().cast::<u8>().cast_mut());
        let bytes = [7u8; 512];
        let (mut relaxed, mut ordered) = (0, 0);
        for seed in 0..64 {
            let kinds = LibertyKinds::PIECES | LibertyKinds::RELAXED;
            let (mut deferred, mut decisions) = (DeferredWrites::default(), decisions(seed, kinds));
            let now = Instant::now();
            let mut copy = |is_relaxed: bool| {
                let (parts, targets) = ([(bytes.as_ptr(), 512)], [(location, 512)]);
                let work = work(is_relaxed.into());
                let how = HowToWrite {
                    work,
                    is_relaxed,
                    decisions: &mut decisions,
                    watches: &mut Watches::default(),
                    now,
                };
                // SAFETY: the array outlives `deferred`; nothing reads it meanwhile.
                unsafe { deferred.copy(&parts, &targets, &mut PeerCopies::default(), how) }.unwrap();
            };
            copy(false);
            copy(true);
            ordered += deferred.pieces.iter().filter(|piece| !piece.relaxed).count();
            deferred.write_ordered();
            assert!(deferred.pieces.iter().all(|piece| piece.relaxed));
            relaxed += deferred.pieces.len();
            assert!(!deferred.write_due(now));
            let was_due = deferred.due().is_some_and(|due| deferred.write_due(due));
            assert!(deferred.pieces.is_empty() && deferred.due().is_none(), "{was_due}");
        }
        assert!(relaxed > 0 && ordered > 0, "{relaxed} {ordered}");
    }

    #[test]
    fn a_queue_pair_parks_so_much() {
        let mut target = vec![0u64; MOST / 4];
        let location = Location::Host(target.as_mut_ptr().cast());
        let bytes = vec![7u8; 2 * MOST];
        for seed in 0..32 {
            let (mut deferred, mut decisions) =
                (DeferredWrites::default(), decisions(seed, LibertyKinds::PIECES));
            let (parts, targets) = ([(bytes.as_ptr(), bytes.len())], [(location, bytes.len())]);
            let now = Instant::now();
            let how = HowToWrite {
                work: work(0),
                is_relaxed: false,
                decisions: &mut decisions,
                watches: &mut Watches::default(),
                now,
            };
            // SAFETY: the vectors have that many bytes and outlive `deferred`.
            unsafe { deferred.copy(&parts, &targets, &mut PeerCopies::default(), how) }.unwrap();
            assert!(deferred.pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>() <= MOST);
            deferred.write_all();
        }
        assert!(target.iter().all(|word| *word == 0x0707_0707_0707_0707));
    }
}
