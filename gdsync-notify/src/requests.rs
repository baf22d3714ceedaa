//! Requests of a queue pair: what each does, which of them need a fence, and which have completed or may have to be posted again.

use crate::error::NotifyError;
use gdsync::queue::FailureCause;
use gdsync::verbs::DcAddress;
use gdsync::{RemoteMemory, Slice, WorkRequest};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Writes a slice.
    Write(Slice, RemoteMemory),
    /// Sets a notification.
    Set([u8; 4], RemoteMemory),
    /// Reads into a slice.
    Read(Slice, RemoteMemory),
    /// Adds a number, and fetches the old one.
    FetchAdd(Slice, RemoteMemory, u64),
    /// Replaces a number where it is the first of these by the second, and fetches the old one.
    CompareSwap(Slice, RemoteMemory, [u64; 2]),
    /// Asks whether the card answers: an empty write.
    Probe,
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
            Request::Probe => WorkRequest::write_inline(&[], RemoteMemory { addr: 0, len: 0, rkey: 0 }),
        }
    }
}

/// The newest requests that later ones may overtake.
///
/// A card keeps the order of requests, but for what stands behind a read or an atomic (IB specification, 10.8.3.3,
/// ordering of work requests): a write and a change by an atomic may be performed before a read in front of them is,
/// and may be taken from memory that the read has still to fill. Such a request is given a fence: it starts when reads
/// and atomics before it have finished. Reads are not held up, nor atomics by atomics.
///
/// Numbers of requests are compared with what has completed, and nothing is noted of fences: one that was
/// prepared may never be posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewestFetches {
    read: u64,
    atomic: u64,
}

impl NewestFetches {
    /// Whether the next request needs a fence, where those up to `completed` have completed. None is one
    /// that only completes, and does so behind all others.
    pub(crate) fn need_fence(&self, request: Option<&Request>, completed: u64) -> bool {
        let newest = match request {
            Some(Request::Read(..)) => 0,
            Some(Request::FetchAdd(..) | Request::CompareSwap(..)) => self.read,
            Some(Request::Write(..) | Request::Set(..) | Request::Probe) | None => self.read.max(self.atomic),
        };
        newest > completed
    }

    /// A request was given a number.
    pub(crate) fn note(&mut self, request: &Request, number: u64) {
        match request {
            Request::Read(..) => self.read = number,
            Request::FetchAdd(..) | Request::CompareSwap(..) => self.atomic = number,
            Request::Write(..) | Request::Set(..) | Request::Probe => {}
        }
    }
}

/// The request, with a fence where it needs one.
pub(crate) fn fenced(request: WorkRequest<'_>, is_needed: bool) -> WorkRequest<'_> {
    if is_needed { request.fence() } else { request }
}

/// Requests are numbered from 1, in the order of the queue, and complete in that order.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The newest request.
    pub(crate) last_number: u64,
    /// The newest request that is sure to complete: the CPU has posted it, signaled.
    pub(crate) certain: u64,
    /// Every request up to this one has completed, or was given up.
    pub(crate) completed: u64,
    /// Those behind it, if the queue pair reaches several ranks.
    pub(crate) pending: VecDeque<Pending>,
    /// The rank whose request has failed the queue pair, and the failure.
    pub(crate) failed_rank: Option<(u32, FailureCause)>,
    /// The queue pair has failed for another reason than a request, and stays so.
    pub(crate) fatal: Option<FailureCause>,
    /// The ranks that it reaches.
    pub(crate) routes: BTreeMap<u32, Route>,
    pub(crate) fetches: NewestFetches,
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) number: u64,
    /// None of a request that only completes.
    pub(crate) to: Option<(u32, Request)>,
    pub(crate) signaled: bool,
    /// The CPU has posted it, or a stream was given it. Of what was only prepared for a stream, that shows
    /// when it is flushed.
    pub(crate) is_posted: bool,
    /// A stream waits for it, and may change then what it is written from.
    pub(crate) is_awaited: bool,
}

impl Pending {
    pub(crate) fn rank(&self) -> Option<u32> {
        self.to.as_ref().map(|(rank, _)| *rank)
    }
}

/// The way to a rank.
#[derive(Debug)]
pub(crate) struct Route {
    /// The rank's target; none where the queue pair is connected to the rank.
    pub(crate) address: Option<DcAddress>,
    /// Its newest request.
    pub(crate) newest: u64,
    /// A request to it has failed.
    pub(crate) failed: Option<FailureCause>,
    /// Something for it was lost, as that rank's request had failed.
    pub(crate) lost: Option<(u32, FailureCause)>,
}

impl Route {
    /// On which nothing has failed, with the number of its newest request.
    pub(crate) fn new(address: Option<DcAddress>, newest: u64) -> Self {
        Route { address, newest, failed: None, lost: None }
    }
}

impl Requests {
    pub(crate) fn new(routes: impl Iterator<Item = (u32, Option<DcAddress>)>) -> Self {
        let routes = routes.map(|(rank, address)| (rank, Route::new(address, 0))).collect();
        Requests { routes, ..Requests::default() }
    }

    pub(crate) fn route(&mut self, rank: u32) -> Result<&mut Route, NotifyError> {
        let size = self.routes.len() as u32;
        self.routes.get_mut(&rank).ok_or(NotifyError::Rank { rank, size })
    }

    /// Keeps the newest request until it has completed.
    pub(crate) fn push(&mut self, to: Option<(u32, Request)>, signaled: bool, is_posted: bool) {
        self.pending.push_back(Pending {
            number: self.last_number,
            to,
            signaled,
            is_posted,
            is_awaited: false,
        });
    }

    pub(crate) fn complete(&mut self, number: u64) {
        self.completed = self.completed.max(number);
        while self.pending.front().is_some_and(|one| one.number <= number) {
            self.pending.pop_front();
        }
    }

    /// A request was flushed.
    pub(crate) fn note_flushed(&mut self, number: u64, was_posted: bool) {
        if let Some(one) = self.pending.iter_mut().find(|one| one.number == number) {
            one.is_posted |= was_posted;
        }
    }

    /// A request has failed by itself; those before it have completed.
    pub(crate) fn fail(&mut self, number: u64, cause: FailureCause) {
        self.complete(number - 1);
        match self.pending.front().and_then(Pending::rank) {
            Some(rank) => {
                self.failed_rank = Some((rank, cause));
                if let Some(route) = self.routes.get_mut(&rank) {
                    route.failed = Some(cause);
                }
            }
            // The library's own, which no card refuses, or that of a connection, which stays failed.
            None => self.fatal = Some(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::{Access, Device, MemoryRegion, ProtectionDomain};

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
