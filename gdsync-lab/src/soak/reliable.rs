//! Reliable links: no message may be lost or arrive twice, whatever fails.
//!
//! Each message consumes a receive. The receiver writes its count of receives into the sender's window as the sender's
//! credit. After a failure both ends exchange the next number that they expect, and resume sending there.

use super::atomics::{Atomic, Atomics, Words};
use super::kernels::{PosterKind, Request};
use super::ledger::{Ended, Work};
use super::plan::{How, LONGEST, Planned, Random};
use super::region::{MemoryLocation, Region};
use super::tally::Tally;
use super::traffic::{Numbers, Offer, Traffic};
use super::wire::{DEPTH, RECEIVES, Wire};
use gdsync::queue::WorkKind;
use gdsync::{
    Access, Completion, Device, Endpoint, MemoryRegion, ProtectionDomain, RemoteMemory, Slice, WorkRequest,
};
use gdsync_cli::failure::Failure;
use gdsync_cli::pattern::Pattern;
use std::fmt;
use std::sync::atomic::Ordering;

/// Places of messages under way: more than the receiver can have left unread.
const PLACES: u64 = 2 * RECEIVES;
const PLACE: usize = LONGEST;
/// Bytes of the control words that the other end writes: the credit, and the words for atomic operations.
const CONTROL: usize = 64;
const CREDIT: usize = 0;
const COUNTER: usize = 1;
const SWAPPED: usize = 2;
const READS: usize = 3;
const ATOMICS: usize = 6;
const FIXED: usize = 64 << 10;

pub(super) struct Reliable {
    seed: u64,
    own: u64,
    other: u64,
    random: Random,
    source: Region,
    window: Region,
    fixed: Region,
    landing: Region,
    control: MemoryRegion,
    results: MemoryRegion,
    free_landings: Vec<usize>,
    free_results: Vec<usize>,
    there: Option<There>,
    numbers: Numbers,
    atomics: Atomics,
    has_reads: bool,
    has_atomics: bool,
    /// True once the other end's words have been checked for the last time.
    is_verified: bool,
}

#[derive(Clone, Copy, Debug)]
struct There {
    window: RemoteMemory,
    fixed: RemoteMemory,
    control: RemoteMemory,
}

impl There {
    fn control(&self, index: usize) -> Result<RemoteMemory, Failure> {
        Ok(self.control.slice(index * 8..index * 8 + 8)?)
    }
}

fn fixed_content(seed: u64, end: u64) -> Pattern {
    Pattern { seed: Random::new(seed ^ end.wrapping_mul(77)).next() }
}

impl Reliable {
    pub(super) fn new(
        (device, pd): (&Device, &ProtectionDomain),
        seed: u64,
        (own, other): (u64, u64),
        random: Random,
        (location, by): (&MemoryLocation, PosterKind),
    ) -> Result<Self, Failure> {
        let region = |len, piece, access| Region::new(location, pd, (len, piece), access);
        let places = PLACES as usize * PLACE;
        let fixed = region(FIXED, FIXED, Access::REMOTE_READ)?;
        fixed.fill(fixed_content(seed, own), 0, FIXED)?;
        let window = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        Ok(Reliable {
            seed,
            own,
            other,
            random,
            source: region(places, PLACE, Access::empty())?,
            window: region(places, PLACE, window)?,
            fixed,
            landing: region(READS * FIXED, FIXED, Access::LOCAL_WRITE)?,
            control: MemoryRegion::allocate(pd, CONTROL, window | Access::REMOTE_ATOMIC)?,
            results: MemoryRegion::allocate(pd, ATOMICS * 8, Access::LOCAL_WRITE)?,
            free_landings: (0..READS).collect(),
            free_results: (0..ATOMICS).collect(),
            there: None,
            numbers: Numbers::default(),
            atomics: Atomics::default(),
            // Kernels support neither here.
            has_reads: by != PosterKind::Kernels,
            has_atomics: by != PosterKind::Kernels && device.attributes()?.atomics,
            is_verified: false,
        })
    }

    fn word(&self, index: usize) -> u64 {
        self.control.memory().words64()[index].load(Ordering::Acquire)
    }

    fn there(&self) -> Result<There, Failure> {
        self.there.ok_or_else(|| "not connected".into())
    }

    fn planned(&self, wire: &Wire, sender: u64, number: u64) -> Planned {
        let planned = Planned::new(self.seed, sender, number);
        if wire.is_by_kernels() { planned.by_kernels() } else { planned }
    }

    fn post_message(&mut self, wire: &mut Wire, tally: &mut Tally) -> Result<(), Failure> {
        let number = self.numbers.next;
        let planned = self.planned(wire, self.own, number);
        let at = (number % PLACES) as usize * PLACE;
        planned.fill(&self.source, at)?;
        if wire.is_by_kernels() {
            let (slice, (first, key)) = (self.source.slice(at..at + planned.length)?, self.source.local());
            let request = Request::Send { slice, address: first + at as u64, key };
            if wire.post_by_kernels(request, Work::Message(number), tally) {
                self.numbers.next += 1;
                tally.sent += 1;
            }
            return Ok(());
        }
        let window = self.there()?.window;
        // Sometimes in two pieces.
        let cut = at + if planned.length > 16 && self.random.below(3) == 0 { 16 } else { planned.length };
        let slices = [self.source.slice(at..cut)?, self.source.slice(cut..at + planned.length)?];
        let immediate = Planned::immediate(number);
        let request = match planned.how {
            How::Send => WorkRequest::send(&slices),
            How::SendImmediate => WorkRequest::send(&slices).immediate(immediate),
            How::WriteImmediate => {
                WorkRequest::write(&slices, window.slice(at..at + planned.length)?).immediate(immediate)
            }
        };
        // The last one reports that all have completed.
        let unacknowledged = number - self.numbers.acknowledged;
        let signaled =
            self.random.below(3) > 0 || unacknowledged > RECEIVES / 2 || self.numbers.last.is_some();
        if wire.post(request, Work::Message(number), signaled, tally)? {
            self.numbers.next += 1;
            tally.sent += 1;
        }
        Ok(())
    }

    fn post_credit(&mut self, wire: &mut Wire, tally: &mut Tally) -> Result<(), Failure> {
        let (to, value) = (self.there()?.control(CREDIT)?, self.numbers.expected);
        let is_posted = if wire.is_by_kernels() {
            wire.post_by_kernels(Request::Put { to, value }, Work::Credit, tally)
        } else {
            let bytes = value.to_ne_bytes();
            wire.post(WorkRequest::write_inline(&bytes, to), Work::Credit, true, tally)?
        };
        if is_posted {
            self.numbers.credited = self.numbers.expected;
        }
        Ok(())
    }

    fn post_read(&mut self, wire: &mut Wire, tally: &mut Tally) -> Result<(), Failure> {
        let fixed = self.there()?.fixed;
        let Some(landing) = self.free_landings.pop() else { return Ok(()) };
        let from = self.random.below(FIXED as u64 / 8) as usize * 8;
        let length = self.random.below((FIXED - from) as u64 + 1) as usize;
        let at = landing * FIXED;
        let slices: [Slice; 1] = [self.landing.slice(at..at + length)?];
        let request = WorkRequest::read(&slices, fixed.slice(from..from + length)?);
        let request = if self.random.below(2) == 0 { request.fence() } else { request };
        if !wire.post(request, Work::Read { landing, from, length }, true, tally)? {
            self.free_landings.push(landing);
        }
        Ok(())
    }

    fn post_atomic(
        &mut self,
        wire: &mut Wire,
        operation: Atomic,
        tally: &mut Tally,
    ) -> Result<bool, Failure> {
        let there = self.there()?;
        let Some(result) = self.free_results.pop() else { return Ok(false) };
        let slice = self.results.slice(result * 8..result * 8 + 8)?;
        let request = match operation {
            Atomic::Add(value) => WorkRequest::fetch_add(&slice, there.control(COUNTER)?, value),
            Atomic::Swap { compare, swap } => {
                WorkRequest::compare_swap(&slice, there.control(SWAPPED)?, compare, swap)
            }
        };
        let mut foreseen = self.atomics.expected();
        let original = foreseen.perform(operation);
        let is_posted = wire.post(request, Work::Atomic { result, operation, original }, true, tally)?;
        if is_posted {
            self.atomics.post(operation);
        } else {
            self.free_results.push(result);
        }
        Ok(is_posted)
    }

    /// Returns an operation that the expected words predict: an addition, a swap that succeeds, or one that fails.
    fn any_atomic(&mut self) -> Atomic {
        let Words { swapped, .. } = self.atomics.expected();
        let swap = self.random.next();
        match self.random.below(4) {
            0 | 1 => Atomic::Add(1 + self.random.below(1000)),
            2 => Atomic::Swap { compare: swapped, swap },
            _ => Atomic::Swap { compare: swapped ^ 1, swap },
        }
    }

    fn check_message(&self, wire: &Wire, completion: &Completion, tally: &mut Tally) -> Result<(), Failure> {
        let number = self.numbers.expected;
        let planned = self.planned(wire, self.other, number);
        let immediate = (planned.how != How::Send).then(|| Planned::immediate(number));
        let (kind, region, at) = match planned.how {
            How::WriteImmediate => {
                let at = (number % PLACES) as usize * PLACE;
                (WorkKind::ReceiveRdmaWithImmediate, &self.window, at)
            }
            _ => {
                let (region, at) = wire.received(completion);
                (WorkKind::Receive, region, at)
            }
        };
        let right = completion.kind == kind
            && completion.immediate == immediate
            && completion.byte_len as usize == planned.length
            && planned.is_in(region, at)?;
        if !right {
            tally.wrong(|| format!("{self}: message {number}: {completion:?}, planned {planned:?}"));
        }
        Ok(())
    }

    fn check_read(
        &self,
        (landing, from, length): (usize, usize, usize),
        told: Option<usize>,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let content = fixed_content(self.seed, self.other);
        if !self.landing.holds(content, (landing * FIXED, from), length)? || told != Some(length) {
            tally.wrong(|| format!("{self}: a wrong read of {length} bytes from {from} on"));
        }
        Ok(())
    }

    fn check_atomic(&self, result: usize, operation: Atomic, original: u64, tally: &mut Tally) {
        let found = self.results.memory().words64()[result].load(Ordering::Acquire);
        if found != original {
            tally.wrong(|| format!("{self}: {operation:?} has found {found} instead of {original}"));
        }
    }
}

impl Traffic for Reliable {
    fn offer(&self) -> Offer {
        Offer {
            expected: self.numbers.expected,
            window: self.window.remote().to_string(),
            fixed: self.fixed.remote().to_string(),
            control: self.control.remote().to_string(),
            words: Words { counter: self.word(COUNTER), swapped: self.word(SWAPPED) },
        }
    }

    fn resume(&mut self, _: &Wire, _: &Endpoint, offer: &Offer, tally: &mut Tally) -> Result<(), Failure> {
        self.numbers.resume(offer.expected, tally);
        match self.atomics.resume(offer.words) {
            Some((failed, executed)) => {
                tally.atomics_failed += failed;
                tally.atomics_executed += executed;
            }
            None => {
                tally.wrong(|| format!("{self}: atomic operations have left {:?}", offer.words));
            }
        }
        self.control.memory().words64()[CREDIT].store(offer.expected, Ordering::Relaxed);
        self.there = Some(There {
            window: offer.window.parse()?,
            fixed: offer.fixed.parse()?,
            control: offer.control.parse()?,
        });
        self.free_landings = (0..READS).collect();
        self.free_results = (0..ATOMICS).collect();
        Ok(())
    }

    fn receive(&mut self, wire: &Wire, completion: &Completion, tally: &mut Tally) -> Result<(), Failure> {
        self.check_message(wire, completion, tally)?;
        self.numbers.expected += 1;
        tally.received += 1;
        tally.bytes += u64::from(completion.byte_len);
        Ok(())
    }

    fn end(
        &mut self,
        ended: &Ended,
        completion: Option<&Completion>,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        if !ended.is_good {
            return Ok(());
        }
        match ended.work {
            Work::Message(number) => self.numbers.acknowledged = number + 1,
            Work::Credit => {}
            Work::Read { landing, from, length } => {
                self.free_landings.push(landing);
                tally.reads += 1;
                tally.bytes += length as u64;
                let told = completion.map(|completion| completion.byte_len as usize);
                self.check_read((landing, from, length), told, tally)?;
            }
            Work::Atomic { result, operation, original } => {
                self.free_results.push(result);
                self.atomics.complete();
                tally.atomics += 1;
                self.check_atomic(result, operation, original, tally);
            }
        }
        Ok(())
    }

    fn post(&mut self, wire: &mut Wire, tally: &mut Tally) -> Result<(), Failure> {
        if wire.ledger.len() as u32 >= DEPTH / 2 {
            return Ok(());
        }
        if self.numbers.expected - self.numbers.credited >= RECEIVES / 4 {
            self.post_credit(wire, tally)?;
        }
        let credit = self.word(CREDIT) + RECEIVES;
        let unacknowledged = self.numbers.next - self.numbers.acknowledged;
        match self.numbers.last {
            Some(last) if self.numbers.next >= last => {
                if wire.ledger.ends_silently() {
                    // No later completion would cover it.
                    self.post_credit(wire, tally)?;
                } else if self.has_atomics && !self.is_verified && wire.ledger.len() == 0 {
                    // They change nothing, and return the final words.
                    let Words { swapped, .. } = self.atomics.expected();
                    let swap = Atomic::Swap { compare: swapped, swap: swapped };
                    self.is_verified = self.post_atomic(wire, Atomic::Add(0), tally)?
                        && self.post_atomic(wire, swap, tally)?;
                }
                return Ok(());
            }
            _ if self.numbers.next < credit && unacknowledged < PLACES - 1 => {
                self.post_message(wire, tally)?
            }
            _ => {}
        }
        if self.numbers.last.is_none() {
            match self.random.below(8) {
                0 | 1 if self.has_reads => self.post_read(wire, tally)?,
                2 | 3 if self.has_atomics => {
                    let operation = self.any_atomic();
                    self.post_atomic(wire, operation, tally)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.numbers.last.get_or_insert(self.numbers.next);
    }

    fn sent(&self, wire: &Wire) -> Option<u64> {
        let verified = self.is_verified || !self.has_atomics;
        let through = verified && self.numbers.is_through() && wire.ledger.len() == 0;
        self.numbers.last.filter(|_| through)
    }

    fn has_all(&self, peer_sent: u64) -> bool {
        self.numbers.expected == peer_sent
    }

    fn close(&self, peer_sent: u64, tally: &mut Tally) {
        tally.lost += peer_sent.saturating_sub(self.numbers.expected);
        tally.duplicated += self.numbers.expected.saturating_sub(peer_sent);
    }
}

impl fmt::Display for Reliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "end {} {:?} credit {}", self.own, self.numbers, self.word(CREDIT))
    }
}
