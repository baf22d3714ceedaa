//! The state of a send queue: encoded work requests from preparation to completion.
//!
//! Blocks are counted from 0 on (modulo 2^32): `head` blocks were prepared, and `tail` blocks are free again after
//! a polled completion. Serial numbers identify work requests.

#[deny(unsafe_code)]
mod posting;
mod waits;

pub(crate) use posting::{BorrowedSends, LastPost, PreviousPost};
pub(crate) use waits::{CardWait, Enable, PostMode, WaitRequest};

use crate::memory::HostAddr;
use crate::queue::completion::CompletionState;
use crate::queue::doorbell::ring;
use crate::queue::regions::Regions;
use crate::queue::request::Rules;
use crate::queue::status::Claims;
use crate::queue::{Claim, Copy, Doorbell, QueueError, QueueFull, Ring, SegmentWriter, WorkRequest};
use crate::verbs::DeferredDeregistration;
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::{BASIC_BLOCK, SEGMENT};
use std::collections::VecDeque;
use std::sync::Arc;

const UNITS_PER_BLOCK: u32 = (BASIC_BLOCK / SEGMENT) as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// In the ring, not announced to the card.
    Prepared,
    /// Its completion is not returned. A WAIT, or a send that was dropped before it was posted: a NOP, which goes
    /// to the card with the next posted send.
    Hidden,
    Posted,
    /// Given to the card by a flush, before it was posted.
    FlushedUnposted,
}

impl EntryState {
    /// Returns whether the card has it, or a stream that rings for it.
    fn is_given(self) -> bool {
        matches!(self, EntryState::Posted | EntryState::FlushedUnposted)
    }
}

#[derive(Debug)]
struct Entry {
    wr_id: u64,
    first: u32,
    /// At most 16.
    blocks: u16,
    signaled: bool,
    state: EntryState,
    /// Keeps the memory that the card accesses.
    regions: Regions,
}

impl Entry {
    fn end(&self) -> u32 {
        self.first.wrapping_add(self.blocks.into())
    }

    /// Returns whether the CPU has posted it, and the queue's keeper keeps its regions.
    fn is_kept(&self) -> bool {
        matches!(self.regions, Regions::Kept)
    }
}

/// How prepared sends come to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// A stream or the CPU rings.
    Doorbells,
    /// The CPU rings when it prepares a send, and the card waits in front of it.
    Waits,
    /// A master's queue waits, and releases them.
    Master,
}

/// The result of completing an entry of the ring.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    pub(crate) wr_id: u64,
    /// Work requests that retired together, and how many of them are signaled.
    pub(crate) entries: u32,
    pub(crate) signaled: u32,
    /// True for a WAIT or a dropped send, whose completion is not returned.
    pub(crate) hidden: bool,
    /// True if it was flushed before it was posted.
    pub(crate) flushed_unposted: bool,
    pub(crate) claim: Option<Arc<Claim>>,
}

/// Work requests that were removed from the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) entries: u32,
    /// How many of them are signaled.
    pub(crate) signaled: u32,
}

struct Written {
    /// Value for the doorbell register: the first 8 bytes of the WQE.
    doorbell: u64,
    /// True if its slices are of several regions.
    several: bool,
    units: u32,
}

/// Writes a work request from block `head` on.
#[inline(always)]
fn write(
    writer: &mut SegmentWriter,
    request: &WorkRequest<'_>,
    rules: &impl Rules,
    head: u32,
    qpn: u32,
) -> Result<Written, QueueError> {
    writer.skip();
    let several = request.encode(rules, writer)?;
    let units = writer.written();
    let words: [u64; 2] = zerocopy::transmute!(request.control(head as u16, qpn, units as u8));
    writer.put_first(zerocopy::transmute!(words));
    Ok(Written { doorbell: words[0], several, units })
}

/// Writes a work request that wraps around the ring's end.
#[cold]
#[inline(never)]
fn write_wrapped(
    ring: &mut Ring,
    request: &WorkRequest<'_>,
    rules: &impl Rules,
    head: u32,
    qpn: u32,
) -> Result<Written, QueueError> {
    let mut copy = Copy::new();
    // SAFETY: no request has more segments (`WorkRequest::most_units`), and `write` writes no more than it has.
    let mut writer = unsafe { copy.writer() };
    let written = write(&mut writer, request, rules, head, qpn)?;
    ring.write(head, copy.bytes(written.units));
    Ok(written)
}

fn blocks_of(units: u32) -> u32 {
    units.div_ceil(UNITS_PER_BLOCK)
}

#[derive(Debug)]
pub(crate) struct SendState {
    ring: Ring,
    qpn: u32,
    pub(crate) register: HostAddr,
    head: u32,
    tail: u32,
    entries: VecDeque<Entry>,
    /// Claims of persistent requests: polling does not return their completions.
    pub(crate) claims: Claims,
    first_serial: u64,
    /// Serial number of the next send to be posted: the oldest prepared one, if there is any.
    next_to_post: u64,
    /// The newest post, which keeps a queue pair on one stream at a time.
    last_post: Option<LastPost>,
    /// Doorbells of posted sends that the proxy has not rung yet.
    proxied: u32,
    flushed: bool,
    /// True if a post must check more than the order: a stream waits for unposted sends, or the queue was flushed.
    pub(crate) guarded: bool,
    attached: bool,
    handover: Handover,
    /// True if a master releases the outstanding requests, false if the CPU rings for them.
    is_masters: bool,
    /// Keeps the regions of posts that do not hold them.
    keeper: Arc<DeferredDeregistration>,
    kept: u64,
}

impl SendState {
    pub(crate) fn new(ring: Ring, qpn: u32, register: HostAddr) -> Self {
        SendState {
            ring,
            qpn,
            register,
            head: 0,
            tail: 0,
            entries: VecDeque::new(),
            claims: Claims::default(),
            first_serial: 0,
            next_to_post: 0,
            last_post: None,
            proxied: 0,
            flushed: false,
            guarded: false,
            attached: false,
            handover: Handover::Doorbells,
            is_masters: false,
            keeper: Arc::new(DeferredDeregistration::new()),
            kept: 0,
        }
    }

    /// Returns the keeper of regions of posts that do not hold them.
    pub(crate) fn keeper(&self) -> &Arc<DeferredDeregistration> {
        &self.keeper
    }

    pub(crate) fn handed_over(self, handover: Handover) -> Self {
        SendState { handover, ..self }
    }

    /// Counts a doorbell given to the proxy (true), or rung or withdrawn (false).
    pub(crate) fn count_proxied(&mut self, pending: bool) {
        self.proxied = if pending { self.proxied + 1 } else { self.proxied.saturating_sub(1) };
    }

    /// Returns the doorbell by which the proxy rings; none after a flush, as an older record must not follow a
    /// newer one.
    pub(crate) fn proxied(&self, record: u32, value: u64) -> Option<Doorbell> {
        (!self.flushed).then(|| self.doorbell(record, value))
    }

    fn doorbell(&self, record: u32, value: u64) -> Doorbell {
        let record_at = HostAddr(self.ring.record().as_ptr() as u64);
        Doorbell { record_at, record, register: self.register, value }
    }

    fn free(&self) -> u32 {
        self.ring.entries() - self.head.wrapping_sub(self.tail)
    }

    #[inline(always)]
    pub(crate) fn check_room(&self, blocks: u32) -> Result<(), QueueError> {
        let (free, capacity) = (self.free(), self.ring.entries());
        if blocks > free {
            return Err(QueueError::Full(QueueFull::SendQueue { needed: blocks, free, capacity }));
        }
        Ok(())
    }

    /// Writes WAITs, followed by a work request, into the ring. On an error, nothing has changed.
    ///
    /// Returns the request's serial number, and the doorbell that hands all of them to the card, for a stream or the
    /// CPU to ring. A slave's requests need none: the master releases them.
    ///
    /// # Errors
    /// No room, a refused request; [`OrderError::MixedCpuAndMasterSends`](crate::queue::OrderError) for a slave.
    pub(crate) fn prepare(
        &mut self,
        waits: impl IntoIterator<Item = WaitRequest>,
        request: &WorkRequest<'_>,
        rules: &impl Rules,
        completions: &mut CompletionState,
    ) -> Result<(u64, Doorbell), QueueError> {
        let is_slave = self.handover == Handover::Master;
        if is_slave {
            self.check_masters_turn()?;
        }
        let before = self.entries.len();
        let waits = waits.into_iter().try_for_each(|wait| self.place_wait(wait, completions));
        let placed = waits.and_then(|()| {
            self.place(request, rules, |signaled| completions.reserve(signaled), EntryState::Prepared)
        });
        let value = placed.inspect_err(|_| self.take_back(before, completions))?;
        self.is_masters |= is_slave;
        // WAITs are not posted: without earlier prepared sends, the request is the next.
        self.skip_unprepared();
        Ok((self.next_serial() - 1, self.doorbell(doorbell::record(self.head), value)))
    }

    /// Writes a work request into the ring and rings the card at once. Returns what [`Self::prepare`] does.
    ///
    /// # Errors
    /// Those of [`Self::prepare`]; earlier sends that are prepared and not posted, or outstanding on a stream.
    ///
    /// # Safety
    /// The register is valid.
    #[inline(always)]
    pub(crate) unsafe fn post_now(
        &mut self,
        request: &WorkRequest<'_>,
        rules: &impl Rules,
        book: impl FnOnce(bool) -> Result<(), QueueError>,
    ) -> Result<(u64, Doorbell), QueueError> {
        let serial = self.next_serial();
        if (self.next_to_post != serial) | self.is_masters {
            self.check_cpus_turn(serial)?;
        }
        self.settle()?;
        let value = self.place(request, rules, book, EntryState::Posted)?;
        self.next_to_post = serial + 1;
        let record = doorbell::record(self.head);
        // SAFETY: the caller's.
        unsafe { ring(&self.ring, record, self.register, value) };
        Ok((serial, self.doorbell(record, value)))
    }

    /// Writes a work request behind the newest, and reserves the entry of its completion. On an error, nothing has
    /// changed. Returns the value for the doorbell register.
    #[inline(always)]
    fn place<R: Rules>(
        &mut self,
        request: &WorkRequest<'_>,
        rules: &R,
        book: impl FnOnce(bool) -> Result<(), QueueError>,
        state: EntryState,
    ) -> Result<u64, QueueError> {
        request.check(rules)?;
        let most = request.most_units(rules.limits())?;
        self.check_room(blocks_of(most))?;
        let head = self.head;
        // SAFETY: the ring has room for that many segments, and `write` writes no more.
        let written = match unsafe { self.ring.writer(head, most) } {
            Some(mut writer) => write(&mut writer, request, rules, head, self.qpn)?,
            None => write_wrapped(&mut self.ring, request, rules, head, self.qpn)?,
        };
        let signaled = request.is_signaled();
        book(signaled)?;
        let blocks = blocks_of(written.units);
        self.head = head.wrapping_add(blocks);
        let regions = if R::KEEPS && request.has_regions_only() {
            self.kept += 1;
            self.keeper.post(self.kept);
            Regions::Kept
        } else {
            request.regions(written.several)
        };
        self.entries.push_back(Entry {
            wr_id: request.wr_id,
            first: head,
            blocks: blocks as u16,
            signaled,
            state,
            regions,
        });
        // Drained here, so that ringing does not depend on the kind of memory that the ring is in.
        self.ring.drain();
        Ok(written.doorbell)
    }

    /// Adds an entry that was written at the head.
    fn push(&mut self, entry: Entry) {
        self.head = entry.end();
        self.entries.push_back(entry);
    }

    pub(crate) fn end(&self) -> u32 {
        self.head
    }

    fn next_serial(&self) -> u64 {
        self.first_serial + self.entries.len() as u64
    }

    #[inline]
    fn position(&self, serial: u64) -> Option<usize> {
        let position = usize::try_from(serial.checked_sub(self.first_serial)?).ok()?;
        (position < self.entries.len()).then_some(position)
    }

    /// Returns the doorbell for an entry and everything before it: the first 8 bytes of the *last* WQE's control
    /// segment, as it is in the ring now, perhaps a NOP.
    fn doorbell_of(&self, entry: &Entry) -> Doorbell {
        self.doorbell(doorbell::record(entry.end()), self.ring.first_bytes(entry.first))
    }

    /// Matches a completion with its work request, which retires together with all earlier ones.
    pub(crate) fn retire(&mut self, wqe_counter: u16) -> Option<Retired> {
        let position = self.entries.iter().position(|entry| entry.first as u16 == wqe_counter)?;
        let (mut retired, mut kept) = (Retired::default(), 0);
        for entry in self.entries.drain(..=position) {
            kept += u64::from(entry.is_kept());
            retired.wr_id = entry.wr_id;
            retired.hidden = entry.state == EntryState::Hidden;
            retired.flushed_unposted = entry.state == EntryState::FlushedUnposted;
            retired.entries += 1;
            retired.signaled += u32::from(entry.signaled);
            self.tail = entry.end();
        }
        if kept > 0 {
            self.keeper.retire(kept);
        }
        self.first_serial += u64::from(retired.entries);
        retired.claim = self.claims.take(self.first_serial.wrapping_sub(1));
        if !self.has_posted() {
            self.last_post.iter_mut().for_each(|last| last.settled = true);
        }
        Some(retired)
    }

    /// Gives the newest request, which has one slice and no remote address, a key that the card does not know.
    #[cfg(test)]
    pub(crate) fn spoil_key(&self) {
        let newest = self.entries.back().map_or(0, |entry| entry.first);
        self.ring.word(newest, SEGMENT + 4).store(!0, std::sync::atomic::Ordering::Release);
    }

    /// Returns the number of work requests that have not retired.
    pub(crate) fn outstanding(&self) -> Removed {
        let signaled = self.entries.iter().filter(|entry| entry.signaled).count();
        Removed { entries: self.entries.len() as u32, signaled: signaled as u32 }
    }

    /// Returns whether the card, a stream or a kernel may still access it.
    pub(crate) fn in_flight(&self) -> bool {
        self.has_posted() || self.attached
    }

    /// Sends are posted in order, so the oldest that was not dropped decides.
    fn has_posted(&self) -> bool {
        self.entries
            .iter()
            .find(|entry| entry.state != EntryState::Hidden)
            .is_some_and(|entry| entry.state.is_given())
    }
}

#[cfg(test)]
mod tests;
