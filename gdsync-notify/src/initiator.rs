//! A queue's queue pair: an RC connection to one rank, or a DC queue pair that reaches several.
//!
//! A failed RC connection stays failed until another process takes the rank's place
//! ([`Initiator::release_for_replacement`]).
//!
//! A failed request (mostly to a dead rank) fails its DC queue pair, and the card flushes later requests, those
//! for other ranks included. The card has begun none of them, because it connects to the next target only after earlier
//! requests have completed. So the library resets the queue pair, gives up the failed rank's requests, and reposts
//! those for other ranks by the CPU in their order, streams' requests included: sources do not change before a flush,
//! and destinations are not used. If a stream has waited for such a request, its source may have changed; the request
//! is then lost, and the next flush of its rank reports that, unless the team has dropped the failed rank.
//!
//! No atomic is executed twice: the failed rank's atomic, which the card may have executed, is given up, and the card
//! had not begun one for another rank.

use crate::error::{NotifyError, Result};
use crate::liveness::{Liveness, RankState};
use crate::requests::{Pending, Request, Requests, Route, fenced};
use gdsync::qp::ResetError;
use gdsync::queue::{FailureCause, OrderError, StateError};
use gdsync::verbs::DcAddress;
use gdsync::{ConnectOptions, Endpoint, PreparedSend, PreparedWait, QueueError, QueuePair, WorkRequest};
use gdsync_sys::pause::Pause;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Initiator {
    queue_pair: QueuePair,
    /// The connected rank; `None` for a DC queue pair.
    peer: Option<u32>,
    is_aborted: AtomicBool,
    liveness: Arc<Liveness>,
    requests: Mutex<Requests>,
    /// True if requests that streams had waited for were lost.
    has_lost: AtomicBool,
    /// True if the queue pair places messages out of order.
    pub(crate) is_out_of_order: bool,
}

impl Initiator {
    /// Wraps a queue pair that is connected to `peer`, or a DC queue pair that reaches the ranks with these addresses.
    pub(crate) fn new(
        queue_pair: QueuePair,
        peer: Option<u32>,
        routes: impl Iterator<Item = (u32, Option<DcAddress>)>,
        liveness: Arc<Liveness>,
    ) -> Self {
        // The network decides for both sides, and where programs do, they ask for the same on both.
        let is_out_of_order = queue_pair.places_out_of_order().unwrap_or_else(|error| {
            tracing::debug!(%error, "the card does not tell in which order messages reach memory");
            false
        });
        let requests = Mutex::new(Requests::new(routes, is_out_of_order));
        let [is_aborted, has_lost] = Default::default();
        Initiator { queue_pair, peer, is_aborted, liveness, requests, has_lost, is_out_of_order }
    }

    pub(crate) fn queue_pair(&self, rank: u32) -> Result<&QueuePair> {
        self.peer.map(|_| &self.queue_pair).ok_or(NotifyError::NoQueuePair { rank })
    }

    /// Returns why the connection to one rank has failed. DC queue pairs recover, and receive nothing.
    pub(crate) fn failure(&self) -> Option<FailureCause> {
        self.peer.and_then(|_| self.queue_pair.failure())
    }

    /// Refuses a rank that is dead or to which a request has failed.
    fn check_usable(&self, requests: &mut Requests, rank: u32) -> Result<()> {
        self.liveness.check_alive(rank)?;
        let lost = requests.fatal;
        match requests.route(rank)?.failed.or(lost) {
            Some(cause) => Err(self.liveness.failure_error(rank, cause)),
            None => Ok(()),
        }
    }

    fn queue_error(&self, rank: u32, error: QueueError) -> NotifyError {
        match error {
            QueueError::State(StateError::Failed { cause, .. }) => self.liveness.failure_error(rank, cause),
            source => NotifyError::Post { rank, source },
        }
    }

    /// Returns true if a refused request may be accepted later, after the next poll has recovered a failed DC queue pair.
    fn is_recoverable(&self, error: &QueueError) -> bool {
        matches!(error, QueueError::State(StateError::Failed { .. })) && self.peer.is_none()
    }

    /// Polls completions. Returns an error if an RC connection has failed, and recovers a DC queue pair.
    fn poll(&self, requests: &mut Requests, rank: u32) -> Result<()> {
        let queue = self.queue_pair.send_cq();
        while let Some(done) = queue.poll().map_err(|error| self.queue_error(rank, error.into()))? {
            match done.status {
                Ok(()) => requests.complete(done.wr_id),
                Err(error) if error.is_flush() => requests.note_flushed(done.wr_id, done.was_posted),
                Err(error) => requests.fail(done.wr_id, FailureCause::Work(error)),
            }
        }
        match self.queue_pair.failure() {
            None => Ok(()),
            Some(cause) if self.peer.is_some() => Err(self.liveness.failure_error(rank, cause)),
            Some(cause) => self.recover(requests, cause),
        }
    }

    fn recover(&self, requests: &mut Requests, cause: FailureCause) -> Result<()> {
        let Some((rank, refusal)) = requests.failed_rank else {
            if !matches!(cause, FailureCause::Work(_)) {
                // A card event or an abort: it is unknown which requests were executed.
                requests.fatal = Some(cause);
            }
            // Otherwise the failed request's completion has not been polled yet.
            return Ok(());
        };
        match self.queue_pair.reset() {
            Ok(()) => {}
            // Streams have not passed all their waits, or completions are outstanding.
            Err(ResetError::Blocked { .. }) => return Ok(()),
            Err(source) => return Err(NotifyError::Reset { rank, source }),
        }
        tracing::debug!(rank, cause = %refusal, "a queue goes on without a rank");
        requests.failed_rank = None;
        self.repost(requests, (rank, refusal));
        Ok(())
    }

    /// Reposts flushed requests, except those to ranks that have failed.
    fn repost(&self, requests: &mut Requests, refused: (u32, FailureCause)) {
        let (mut posted, mut without) = (VecDeque::new(), BTreeSet::new());
        requests.certain = 0;
        for one in std::mem::take(&mut requests.pending) {
            let Some((rank, request)) = &one.to else { continue };
            let Some(route) = requests.routes.get_mut(rank).filter(|route| route.failed.is_none()) else {
                continue;
            };
            // It was never posted and never will be.
            if !one.is_posted {
                continue;
            }
            // A write must not become visible without the earlier ones to that rank.
            let fence = requests.fetches.need_fence(Some(request), requests.completed);
            let may_post = !one.is_awaited && !without.contains(rank);
            if may_post && self.repost_one(&one, fenced(request.work_request(), fence), route) {
                requests.certain = if one.signaled { one.number } else { requests.certain };
                posted.push_back(one);
            } else {
                route.lost = Some(refused);
                without.insert(*rank);
            }
        }
        self.has_lost.fetch_or(!without.is_empty(), Ordering::Relaxed);
        let before = posted.front().map_or(requests.last_number, |one: &Pending| one.number - 1);
        requests.completed = requests.completed.max(before);
        (requests.pending, requests.certain) = (posted, requests.certain.max(requests.completed));
    }

    fn repost_one(&self, one: &Pending, request: WorkRequest<'_>, route: &Route) -> bool {
        match self.queue_pair.post_send(addressed(request, one.number, one.signaled, route)) {
            Ok(()) => true,
            // If the queue pair has failed again, its next recovery posts this request.
            Err(error) if self.is_recoverable(&error) => true,
            Err(error) => {
                tracing::error!(%error, rank = one.rank(), "a request cannot be posted again");
                false
            }
        }
    }

    /// Returns and clears whether requests were lost.
    pub(crate) fn take_lost(&self) -> bool {
        self.has_lost.swap(false, Ordering::Relaxed)
    }

    /// Recovers a failed DC queue pair, unless a caller holds it and will do so.
    pub(crate) fn recover_if_failed(&self) {
        // Polling detects the failure.
        if self.peer.is_none()
            && let Some(mut requests) = self.requests.try_lock()
            && let Some(rank) = requests.pending.iter().find_map(Pending::rank)
            && let Err(error) = self.poll(&mut requests, rank)
        {
            tracing::debug!(%error, "a queue cannot be brought back");
        }
    }

    /// Locks the queue pair so that one caller's requests follow each other. Each waits for room for up to `timeout`.
    pub(crate) fn lock(&self, rank: u32, timeout: Duration) -> Posting<'_> {
        Posting { initiator: self, rank, requests: self.requests.lock(), timeout }
    }

    /// Prepares a stream's waits for all requests that no stream waits for yet.
    pub(crate) fn prepare_waits(&self, rank: u32) -> Result<Vec<PreparedWait>> {
        self.requests.lock().pending.iter_mut().for_each(|one| one.is_awaited = true);
        let (queue, mut waits) = (self.queue_pair.send_cq(), Vec::new());
        loop {
            match queue.prepare_wait() {
                Ok(wait) => waits.push(wait),
                Err(QueueError::Order(OrderError::NothingToWaitFor { .. })) => return Ok(waits),
                Err(error) => return Err(self.queue_error(rank, error)),
            }
        }
    }

    /// Returns whether requests to the rank have not completed, as far as polls have found.
    pub(crate) fn has_uncompleted(&self, rank: u32) -> bool {
        let mut requests = self.requests.lock();
        let completed = requests.completed;
        requests.route(rank).is_ok_and(|route| route.newest > completed)
    }

    pub(crate) fn number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// Returns when all earlier requests to the rank have completed, so that their data have arrived there.
    pub(crate) fn flush(&self, rank: u32, timeout: Duration) -> Result<()> {
        let mut pause = Pause::new();
        let until = self.requests.lock().route(rank)?.newest;
        loop {
            let mut requests = self.requests.lock();
            self.poll(&mut requests, rank)?;
            self.check_usable(&mut requests, rank)?;
            // After the team has dropped the failed rank, survivors restart without what was under way.
            if let Some((other, cause)) = requests.route(rank)?.lost.take()
                && !matches!(self.liveness.state(other), RankState::Dropped(_))
            {
                return Err(self.liveness.failure_error(other, cause));
            }
            if requests.completed >= until {
                return Ok(());
            }
            // A prepared send that was dropped never completes; a later NOP does.
            let mut in_the_way = None;
            if requests.certain < until {
                let number = requests.last_number + 1;
                let fence = requests.fetches.need_fence(None, requests.completed);
                match self.queue_pair.post_send(fenced(WorkRequest::nop(), fence).wr_id(number)) {
                    Ok(()) => {
                        (requests.last_number, requests.certain) = (number, number);
                        self.record(&mut requests, None, true, true);
                    }
                    Err(error) if self.is_recoverable(&error) => {}
                    Err(source @ QueueError::State(StateError::Failed { .. })) => {
                        return Err(self.queue_error(rank, source));
                    }
                    Err(source) => in_the_way = Some(NotifyError::Post { rank, source }),
                }
            }
            drop(requests);
            if pause.elapsed() >= timeout {
                return Err(in_the_way.unwrap_or(NotifyError::TimedOut { what: "flushing a queue", timeout }));
            }
            pause.pause();
        }
    }

    /// Keeps the newest request until it completes, if it may have to be reposted.
    fn record(&self, requests: &mut Requests, to: Option<(u32, Request)>, signaled: bool, is_posted: bool) {
        if self.peer.is_none() {
            requests.push(to, signaled, is_posted);
        }
    }

    /// Aborts the connection to a rank that is dead or has lost it: nothing more arrives from it, and waits for it end. For DC, the card gives
    /// up requests to the rank, and [`Self::check_usable`] refuses new ones.
    pub(crate) fn abort(&self) {
        if self.peer.is_none() || self.is_aborted.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.queue_pair.abort() {
            tracing::error!(%error, rank = self.peer, "a connection could not be ended");
        }
    }

    /// Makes the queue pair usable for another process in a dead rank's place, which may take up to `timeout`. Returns
    /// the endpoint that the process connects to, if the queue pair is RC.
    pub(crate) fn release_for_replacement(&self, rank: u32, timeout: Duration) -> Result<Option<Endpoint>> {
        match self.peer {
            Some(_) => self.reset(rank, timeout).map(Some),
            None => self.drain(rank, timeout).map(|()| None),
        }
    }

    /// Resets an RC queue pair, once streams have passed their waits, and discards its completions.
    fn reset(&self, rank: u32, timeout: Duration) -> Result<Endpoint> {
        let mut requests = self.requests.lock();
        let mut pause = Pause::new();
        loop {
            for queue in [self.queue_pair.send_cq(), self.queue_pair.recv_cq()] {
                while queue.poll().map_err(|error| self.queue_error(rank, error.into()))?.is_some() {}
            }
            match self.queue_pair.reset() {
                Ok(()) => break,
                Err(ResetError::Blocked { .. }) if pause.elapsed() < timeout => pause.pause(),
                Err(source) => return Err(NotifyError::Reset { rank, source }),
            }
        }
        *requests = Requests::new([(rank, None)].into_iter(), self.is_out_of_order);
        self.is_aborted.store(false, Ordering::Relaxed);
        Ok(self.queue_pair.endpoint()?)
    }

    fn drain(&self, rank: u32, timeout: Duration) -> Result<()> {
        let mut pause = Pause::new();
        loop {
            let mut requests = self.requests.lock();
            self.poll(&mut requests, rank)?;
            if !requests.pending.iter().any(|one| one.rank() == Some(rank)) {
                return Ok(());
            }
            drop(requests);
            if pause.elapsed() >= timeout {
                return Err(NotifyError::TimedOut { what: "giving up a dead rank's requests", timeout });
            }
            pause.pause();
        }
    }

    pub(crate) fn connect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<()> {
        Ok(self.queue_pair.connect(remote, options)?)
    }

    /// Redirects a rank's requests to the DC target of the process in its place.
    pub(crate) fn redirect(&self, rank: u32, address: DcAddress) -> Result<()> {
        let mut requests = self.requests.lock();
        let newest = requests.completed;
        *requests.route(rank)? = Route::new(Some(address), newest);
        Ok(())
    }
}

fn addressed<'a>(request: WorkRequest<'a>, number: u64, signaled: bool, route: &'a Route) -> WorkRequest<'a> {
    let request = request.wr_id(number);
    let request = if signaled { request } else { request.unsignaled() };
    match &route.address {
        Some(address) => request.to_target(address),
        None => request,
    }
}

pub(crate) struct Posting<'a> {
    initiator: &'a Initiator,
    rank: u32,
    requests: MutexGuard<'a, Requests>,
    timeout: Duration,
}

impl Posting<'_> {
    /// Posts a request. A signaled request's completion covers those before it.
    pub(crate) fn post(&mut self, request: Request, signaled: bool) -> Result<()> {
        self.submit(&request, signaled, QueuePair::post_send, |_| Ok(()))?;
        if signaled {
            self.requests.certain = self.requests.last_number;
        }
        self.initiator.record(&mut self.requests, Some((self.rank, request)), signaled, true);
        Ok(())
    }

    /// Prepares a request for a stream. Refuses while any rank is dead and not dropped: a stream does not notice that
    /// its waits were released, and would write data that it has not received.
    pub(crate) fn prepare(&mut self, request: Request, signaled: bool) -> Result<PreparedSend> {
        self.initiator.liveness.check_alive(self.rank)?;
        self.initiator.liveness.check_none_dead()?;
        let prepared = self.submit(&request, signaled, QueuePair::prepare, Liveness::check_none_dead)?;
        self.initiator.record(&mut self.requests, Some((self.rank, request)), signaled, false);
        Ok(prepared)
    }

    /// Returns true if the next request needs a [`Request::Order`] before it.
    ///
    /// # Errors
    /// As [`Initiator::poll`].
    pub(crate) fn needs_order(&mut self, request: &Request) -> Result<bool> {
        let Posting { initiator, rank, .. } = *self;
        let needs = |requests: &mut Requests| {
            let completed = requests.completed;
            requests.writes.need_order(rank, request, completed)
        };
        if !needs(&mut self.requests) {
            return Ok(false);
        }
        // Writes may have completed since.
        initiator.poll(&mut self.requests, rank)?;
        Ok(needs(&mut self.requests))
    }

    /// Submits the next request to the queue pair. Waits for room, or for recovery, as long as `may_wait` permits.
    fn submit<T>(
        &mut self,
        request: &Request,
        signaled: bool,
        act: impl for<'b> Fn(&QueuePair, WorkRequest<'b>) -> Result<T, QueueError>,
        may_wait: impl Fn(&Liveness) -> Result<()>,
    ) -> Result<T> {
        let Posting { initiator, rank, timeout, .. } = *self;
        let mut pause = Pause::new();
        loop {
            initiator.check_usable(&mut self.requests, rank)?;
            let number = self.requests.last_number + 1;
            let fence = self.requests.need_fence(request);
            let route = self.requests.route(rank)?;
            let wqe = addressed(fenced(request.work_request(), fence), number, signaled, route);
            match act(&initiator.queue_pair, wqe) {
                Ok(done) => {
                    (route.newest, self.requests.last_number) = (number, number);
                    self.requests.fetches.note(request, number);
                    self.requests.writes.note(rank, request, number);
                    return Ok(done);
                }
                Err(QueueError::Full(_)) => {}
                Err(error) if initiator.is_recoverable(&error) => {}
                Err(error) => return Err(initiator.queue_error(rank, error)),
            }
            if pause.elapsed() >= timeout {
                return Err(NotifyError::TimedOut { what: "waiting for room in a queue", timeout });
            }
            may_wait(&initiator.liveness)?;
            let before = self.requests.completed;
            initiator.poll(&mut self.requests, rank)?;
            if self.requests.completed == before {
                pause.pause();
            }
        }
    }
}
