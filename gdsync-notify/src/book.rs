//! What is known of the requests of a queue pair: which have completed, and which may have to be posted again.

use crate::action::{Action, Fetches};
use crate::error::NotifyError;
use gdsync::queue::FailureCause;
use gdsync::verbs::DcAddress;
use std::collections::{BTreeMap, VecDeque};

/// Requests are numbered from 1, in the order of the queue, and complete in that order.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// The newest request.
    pub(crate) given: u64,
    /// The newest request that is sure to complete: the CPU has posted it, signaled.
    pub(crate) certain: u64,
    /// Every request up to this one has completed, or was given up.
    pub(crate) completed: u64,
    /// Those behind it, if the queue pair reaches several ranks.
    pub(crate) entries: VecDeque<Entry>,
    /// The rank whose request has failed the queue pair, and the failure.
    pub(crate) refused: Option<(u32, FailureCause)>,
    /// The queue pair has failed for another reason than a request, and stays so.
    pub(crate) lost: Option<FailureCause>,
    /// The ranks that it reaches.
    pub(crate) routes: BTreeMap<u32, Route>,
    pub(crate) fetches: Fetches,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    /// None of a request that only completes.
    pub(crate) to: Option<(u32, Action)>,
    pub(crate) signaled: bool,
    /// The CPU has posted it, or a stream was given it. Of what was only prepared for a stream, that shows
    /// when it is flushed.
    pub(crate) is_posted: bool,
    /// A stream waits for it, and may change then what it is written from.
    pub(crate) is_awaited: bool,
}

impl Entry {
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

impl Book {
    pub(crate) fn new(routes: impl Iterator<Item = (u32, Option<DcAddress>)>) -> Self {
        let routes = routes.map(|(rank, address)| (rank, Route::new(address, 0))).collect();
        Book { routes, ..Book::default() }
    }

    pub(crate) fn route(&mut self, rank: u32) -> Result<&mut Route, NotifyError> {
        let size = self.routes.len() as u32;
        self.routes.get_mut(&rank).ok_or(NotifyError::Rank { rank, size })
    }

    /// Keeps the newest request until it has completed.
    pub(crate) fn keep(&mut self, to: Option<(u32, Action)>, signaled: bool, is_posted: bool) {
        self.entries.push_back(Entry { number: self.given, to, signaled, is_posted, is_awaited: false });
    }

    pub(crate) fn complete(&mut self, number: u64) {
        self.completed = self.completed.max(number);
        while self.entries.front().is_some_and(|entry| entry.number <= number) {
            self.entries.pop_front();
        }
    }

    /// A request was flushed.
    pub(crate) fn flush(&mut self, number: u64, was_posted: bool) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.number == number) {
            entry.is_posted |= was_posted;
        }
    }

    /// A request has failed by itself; those before it have completed.
    pub(crate) fn refuse(&mut self, number: u64, cause: FailureCause) {
        self.complete(number - 1);
        match self.entries.front().and_then(Entry::rank) {
            Some(rank) => {
                self.refused = Some((rank, cause));
                if let Some(route) = self.routes.get_mut(&rank) {
                    route.failed = Some(cause);
                }
            }
            // The library's own, which no card refuses, or that of a connection, which stays failed.
            None => self.lost = Some(cause),
        }
    }
}
