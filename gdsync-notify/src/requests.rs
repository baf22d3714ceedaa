//! Requests of a queue pair: what each does, which need a fence, and which have completed or may have to be reposted.

use crate::error::{NotifyError, Result};
use gdsync::queue::FailureCause;
use gdsync::verbs::DcAddress;
use gdsync::{RemoteMemory, Slice, WorkRequest};
use std::collections::{BTreeMap, VecDeque};

const NOWHERE: RemoteMemory = RemoteMemory { addr: 0, len: 0, rkey: 0 };
/// Requests are numbered from here on. Small numbers, addresses and `u64::MAX` are left for the `wr_id`s of programs, and readers of
/// traces in JSON, which have 53 bits, show the numbers exactly.
const BASE: u64 = 1 << 52;

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Write(Slice, RemoteMemory),
    Set([u8; 4], RemoteMemory),
    Read(Slice, RemoteMemory),
    /// Adds to a 64-bit number and fetches its old value.
    FetchAdd(Slice, RemoteMemory, u64),
    /// Replaces a 64-bit number by the second value if it equals the first, and fetches its old value.
    CompareSwap(Slice, RemoteMemory, [u64; 2]),
    Probe,
    /// An empty read, which orders what comes behind it with a fence after all before it ([`Writes`]).
    Order,
}

impl Request {
    pub(crate) fn work_request(&self) -> WorkRequest<'_> {
        match self {
            Request::Write(slice, to) => WorkRequest::write(std::slice::from_ref(slice), *to),
            Request::Set(value, to) => WorkRequest::write_inline(value, *to),
            Request::Read(into, from) => WorkRequest::read(std::slice::from_ref(into), *from),
            Request::FetchAdd(into, at, add) => WorkRequest::fetch_add(into, *at, *add),
            Request::CompareSwap(into, at, [compare, swap]) => {
                WorkRequest::compare_swap(into, *at, *compare, *swap)
            }
            Request::Probe => WorkRequest::write_inline(&[], NOWHERE),
            Request::Order => WorkRequest::read(&[], NOWHERE),
        }
    }

    /// Returns the local memory that its result goes to: address and length.
    fn result(&self) -> Option<(u64, u64)> {
        match self {
            Request::Read(into, _) | Request::FetchAdd(into, ..) | Request::CompareSwap(into, ..) => {
                Some((into.addr(), into.len() as u64))
            }
            _ => None,
        }
    }

    /// Returns the memory that it writes.
    fn written(&self) -> Option<RemoteMemory> {
        match self {
            Request::Write(_, to) | Request::Set(_, to) => Some(*to),
            _ => None,
        }
    }
}

/// The newest read and atomic, which later requests may overtake.
///
/// A card keeps the order of requests except behind a read or an atomic (IB specification, 10.8.3.3, ordering of work
/// requests): a write or an atomic may execute before an earlier read has, and may take its data from memory that the
/// read has not filled yet. Such a request gets a fence and starts when earlier reads and atomics have finished. Reads
/// wait for nothing, and atomics do not wait for atomics.
///
/// Only request numbers and completions decide, not earlier fences, because a prepared request may never be posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewestFetches {
    read: u64,
    atomic: u64,
}

impl NewestFetches {
    /// Returns true if the next request needs a fence, given that requests up to `completed` have completed. `None`
    /// stands for a NOP, which completes behind all others.
    pub(crate) fn need_fence(&self, request: Option<&Request>, completed: u64) -> bool {
        let newest = match request {
            Some(Request::Read(..) | Request::Order) => 0,
            Some(Request::FetchAdd(..) | Request::CompareSwap(..)) => self.read,
            Some(Request::Write(..) | Request::Set(..) | Request::Probe) | None => self.read.max(self.atomic),
        };
        newest > completed
    }

    pub(crate) fn note(&mut self, request: &Request, number: u64) {
        match request {
            Request::Read(..) | Request::Order => self.read = number,
            Request::FetchAdd(..) | Request::CompareSwap(..) => self.atomic = number,
            Request::Write(..) | Request::Set(..) | Request::Probe => {}
        }
    }
}

/// The writes that have not completed, on a queue pair that places messages out of order.
///
/// There a write may reach memory before an earlier one. Completions order them: a request with a fence starts when
/// earlier reads have completed, and requests complete in order. So an empty read in front of a notification, and a fence
/// in it, order it after all writes before. A write of the same memory as an earlier one needs that, too.
///
/// As for fences, only completions end the need: a read that was prepared may never be posted.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    is_out_of_order: bool,
    /// Rank, number and place of each.
    pending: VecDeque<(u32, u64, RemoteMemory)>,
    /// Number and place of results, which may reach local memory in any order, too.
    results: VecDeque<(u64, (u64, u64))>,
}

fn overlap((first, length): (u64, u64), (second, other): (u64, u64)) -> bool {
    first < second.saturating_add(other) && second < first.saturating_add(length)
}

impl Writes {
    pub(crate) fn of(is_out_of_order: bool) -> Self {
        Writes { is_out_of_order, ..Writes::default() }
    }

    /// Returns true if the next request, to a rank, needs a [`Request::Order`] before it, given that requests up to
    /// `completed` have completed.
    pub(crate) fn need_order(&mut self, rank: u32, request: &Request, completed: u64) -> bool {
        if !self.is_out_of_order {
            return false;
        }
        while self.pending.front().is_some_and(|(_, number, _)| *number <= completed) {
            self.pending.pop_front();
        }
        let mut earlier = self.pending.iter().filter(|(of, ..)| *of == rank);
        match request {
            Request::Set(..) => earlier.next().is_some(),
            Request::Write(_, to) => {
                earlier.any(|(.., place)| overlap((place.addr, place.len), (to.addr, to.len)))
            }
            // The card executes reads and atomics after all messages before them; an empty write touches nothing.
            _ => false,
        }
    }

    pub(crate) fn note(&mut self, rank: u32, request: &Request, number: u64) {
        if let Some(place) = request.written().filter(|place| self.is_out_of_order && place.len > 0) {
            self.pending.push_back((rank, number, place));
        }
        if let Some(place) = request.result().filter(|_| self.is_out_of_order) {
            self.results.push_back((number, place));
        }
    }

    /// Returns true if the request's result goes where that of an earlier one may still go.
    fn need_fence(&mut self, request: &Request, completed: u64) -> bool {
        while self.results.front().is_some_and(|(number, _)| *number <= completed) {
            self.results.pop_front();
        }
        request.result().is_some_and(|place| self.results.iter().any(|(_, earlier)| overlap(*earlier, place)))
    }
}

pub(crate) fn fenced(request: WorkRequest<'_>, is_needed: bool) -> WorkRequest<'_> {
    if is_needed { request.fence() } else { request }
}

/// The requests of a queue pair, numbered from [`BASE`] + 1. They complete in order.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) last_number: u64,
    /// The newest request that is certain to complete because the CPU has posted it signaled.
    pub(crate) certain: u64,
    /// All requests up to this number have completed or were given up.
    pub(crate) completed: u64,
    /// Later requests; kept only if the queue pair reaches several ranks.
    pub(crate) pending: VecDeque<Pending>,
    /// The rank whose request has failed the queue pair, and the cause.
    pub(crate) failed_rank: Option<(u32, FailureCause)>,
    /// A failure that no request has caused; the queue pair stays failed.
    pub(crate) fatal: Option<FailureCause>,
    pub(crate) routes: BTreeMap<u32, Route>,
    pub(crate) fetches: NewestFetches,
    pub(crate) writes: Writes,
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) number: u64,
    /// `None` for a NOP.
    pub(crate) to: Option<(u32, Request)>,
    pub(crate) signaled: bool,
    /// True if it was posted or given to a stream. A merely prepared request shows this when it is flushed.
    pub(crate) is_posted: bool,
    /// True if a stream waits for it and may change its source afterwards.
    pub(crate) is_awaited: bool,
}

impl Pending {
    pub(crate) fn rank(&self) -> Option<u32> {
        self.to.as_ref().map(|(rank, _)| *rank)
    }
}

/// The address of a rank, and its failures.
#[derive(Debug)]
pub(crate) struct Route {
    /// The rank's DC target; `None` if the queue pair is connected to the rank.
    pub(crate) address: Option<DcAddress>,
    pub(crate) newest: u64,
    pub(crate) failed: Option<FailureCause>,
    /// The rank whose failed request has cost this rank a request, and the cause.
    pub(crate) lost: Option<(u32, FailureCause)>,
}

impl Route {
    pub(crate) fn new(address: Option<DcAddress>, newest: u64) -> Self {
        Route { address, newest, failed: None, lost: None }
    }
}

impl Requests {
    pub(crate) fn new(routes: impl Iterator<Item = (u32, Option<DcAddress>)>, is_out_of_order: bool) -> Self {
        let routes = routes.map(|(rank, address)| (rank, Route::new(address, 0))).collect();
        let writes = Writes::of(is_out_of_order);
        Requests { last_number: BASE, certain: BASE, completed: BASE, routes, writes, ..Requests::default() }
    }

    /// Returns true if the next request needs a fence.
    pub(crate) fn need_fence(&mut self, request: &Request) -> bool {
        let completed = self.completed;
        self.fetches.need_fence(Some(request), completed) || self.writes.need_fence(request, completed)
    }

    pub(crate) fn route(&mut self, rank: u32) -> Result<&mut Route> {
        let size = self.routes.len() as u32;
        self.routes.get_mut(&rank).ok_or(NotifyError::Rank { rank, size })
    }

    pub(crate) fn push(&mut self, to: Option<(u32, Request)>, signaled: bool, is_posted: bool) {
        self.pending.push_back(Pending {
            number: self.last_number,
            to,
            signaled,
            is_posted,
            is_awaited: false,
        });
    }

    /// Counts the requests up to a completed one. A program's request has another number, and counts for nothing.
    pub(crate) fn complete(&mut self, number: u64) {
        if number > self.last_number {
            return;
        }
        self.completed = self.completed.max(number);
        while self.pending.front().is_some_and(|one| one.number <= number) {
            self.pending.pop_front();
        }
    }

    pub(crate) fn note_flushed(&mut self, number: u64, was_posted: bool) {
        if let Some(one) = self.pending.iter_mut().find(|one| one.number == number) {
            one.is_posted |= was_posted;
        }
    }

    /// Records a request that has failed, not merely been flushed; those before it have completed.
    pub(crate) fn fail(&mut self, number: u64, cause: FailureCause) {
        self.complete(number.saturating_sub(1));
        match self.pending.front().and_then(Pending::rank) {
            Some(rank) => {
                self.failed_rank = Some((rank, cause));
                if let Some(route) = self.routes.get_mut(&rank) {
                    route.failed = Some(cause);
                }
            }
            // A NOP, which no card refuses, or a request on an RC connection, perhaps the program's. That stays failed.
            None => self.fatal = Some(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::{Access, Device, MemoryRegion, ProtectionDomain};

    #[test]
    fn what_is_ordered_after_writes_gets_a_read_before_it() {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE).unwrap();
        let place = |bytes: std::ops::Range<usize>| region.remote().slice(bytes).unwrap();
        let write = |bytes: std::ops::Range<usize>| {
            Request::Write(region.slice(bytes.clone()).unwrap(), place(bytes))
        };
        let set = Request::Set([1; 4], place(60..64));
        let read = Request::Read(region.slice(..8).unwrap(), place(0..8));
        let mut of_results = Writes::of(true);
        of_results.note(1, &read, 1);
        let other = Request::Read(region.slice(8..16).unwrap(), place(0..8));
        assert!(of_results.need_fence(&read, 0) && !of_results.need_fence(&other, 0));
        assert!(!of_results.need_fence(&read, 1), "that result is there");

        let mut in_order = Writes::of(false);
        in_order.note(1, &write(0..16), 1);
        assert!(!in_order.need_order(1, &set, 0));

        let mut writes = Writes::of(true);
        assert!(!writes.need_order(1, &set, 0), "nothing before it");
        writes.note(1, &write(0..16), 1);
        writes.note(1, &write(16..32), 2);
        writes.note(1, &read, 3);
        assert!(writes.need_order(1, &set, 0) && writes.need_order(1, &set, 1));
        assert!(!writes.need_order(2, &set, 1), "another rank");
        assert!(writes.need_order(1, &write(24..40), 1) && !writes.need_order(1, &write(32..40), 1));
        assert!(!writes.need_order(1, &write(0..16), 1), "that write has completed");
        assert!(!writes.need_order(1, &read, 1) && !writes.need_order(1, &Request::Probe, 1));
        assert!(!writes.need_order(1, &set, 2), "all have completed");
        writes.note(1, &set, 4);
        assert!(writes.need_order(1, &set, 2), "a notification is a write, too");
    }

    #[test]
    fn numbers_that_no_request_has_count_for_nothing() {
        let numbers = [0, 1, BASE, BASE + 4, 1 << 53, u64::MAX];
        for number in numbers {
            let mut requests = Requests::new([(1, None)].into_iter(), false);
            requests.last_number = BASE + 2;
            requests.complete(number);
            assert_eq!(requests.completed, BASE, "{number:#x}");
            requests.complete(BASE + 1);
            requests.fail(number, FailureCause::Aborted);
            assert_eq!(
                (requests.completed, requests.fatal),
                (BASE + 1, Some(FailureCause::Aborted)),
                "{number:#x}"
            );
        }
    }

    #[test]
    fn what_may_overtake_a_read_or_an_atomic_gets_a_fence() {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let region = MemoryRegion::allocate(&pd, 8, Access::LOCAL_WRITE).unwrap();
        let (slice, at) = (region.slice(..).unwrap(), region.remote());
        let [write, set] = [Request::Write(slice.clone(), at), Request::Set([1; 4], at)];
        let read = Request::Read(slice.clone(), at);
        let [add, swap] = [Request::FetchAdd(slice.clone(), at, 1), Request::CompareSwap(slice, at, [1, 2])];
        let all = |fetches: &NewestFetches, completed| {
            [Some(&write), Some(&set), Some(&Request::Probe), None, Some(&add), Some(&swap), Some(&read)]
                .map(|request| fetches.need_fence(request, completed))
        };
        let mut fetches = NewestFetches::default();
        assert_eq!(all(&fetches, 0), [false; 7]);
        fetches.note(&write, 1);
        assert_eq!(all(&fetches, 0), [false; 7]);
        fetches.note(&add, 2);
        assert_eq!(all(&fetches, 1), [true, true, true, true, false, false, false]);
        fetches.note(&read, 3);
        assert_eq!(all(&fetches, 2), [true, true, true, true, true, true, false]);
        fetches.note(&swap, 4);
        assert_eq!(all(&fetches, 3), [true, true, true, true, false, false, false]);
        assert_eq!(all(&fetches, 4), [false; 7]);
    }
}
