//! A DC queue pair that reaches several ranks, and what has become of its requests.
//!
//! A request that fails (mostly because its rank is dead) fails the queue pair, and the card flushes what
//! stands behind it, for other ranks, too. It has not begun any of that: a card connects to the next
//! target when the requests before have completed. So the queue pair is reset, the rank's requests are
//! given up, and those for other ranks are posted again by the CPU, in their order, those of streams, too:
//! what they are written from does not change before a flush, and what they are read into is not used. But
//! where a stream has waited for them, it may have; so these are lost, and the next flush of their ranks says
//! so, until the team has dropped the failed one.
//!
//! So an atomic is never executed twice: that of the failed rank, which the card may have executed, is given up
//! with it, and one for another rank was not begun.

use crate::action::{Action, Fetches, fenced};
use crate::error::NotifyError;
use crate::life::{Life, State};
use crate::peer::all_waits;
use gdsync::qp::ResetError;
use gdsync::queue::{FailureCause, StateError};
use gdsync::verbs::DcAddress;
use gdsync::{PreparedSend, PreparedWait, QueueError, QueuePair, WorkRequest};
use gdsync_sys::pause::Pause;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Initiator {
    queue_pair: QueuePair,
    life: Arc<Life>,
    book: Mutex<Book>,
    /// Something that streams had waited for was lost.
    has_lost: AtomicBool,
}

/// Requests are numbered from 1, in the order of the queue, and complete in that order.
#[derive(Debug, Default)]
struct Book {
    /// The newest request.
    given: u64,
    /// The newest request that is sure to complete: the CPU has posted it, signaled.
    certain: u64,
    /// Every request up to this one has completed, or was given up.
    completed: u64,
    /// Those behind it.
    entries: VecDeque<Entry>,
    /// The rank whose request has failed the queue pair, and the failure.
    refused: Option<(u32, FailureCause)>,
    /// The queue pair has failed for another reason than a request, and stays so.
    lost: Option<FailureCause>,
    /// The ranks that it reaches.
    routes: BTreeMap<u32, Route>,
    fetches: Fetches,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// None of a request that only completes.
    to: Option<(u32, Action)>,
    signaled: bool,
    /// The CPU has posted it, or a stream was given it. Of what was only prepared for a stream, that shows
    /// when it is flushed.
    is_posted: bool,
    /// A stream waits for it, and may change then what it is written from.
    is_awaited: bool,
}

impl Entry {
    fn rank(&self) -> Option<u32> {
        self.to.as_ref().map(|(rank, _)| *rank)
    }
}

/// The way to a rank.
#[derive(Debug)]
struct Route {
    address: DcAddress,
    /// Its newest request.
    newest: u64,
    /// A request to it has failed.
    failed: Option<FailureCause>,
    /// Something for it was lost, as that rank's request had failed.
    lost: Option<(u32, FailureCause)>,
}

impl Book {
    fn route(&mut self, rank: u32) -> Result<&mut Route, NotifyError> {
        let size = self.routes.len() as u32;
        self.routes.get_mut(&rank).ok_or(NotifyError::Rank { rank, size })
    }

    /// Keeps the newest request until it has completed.
    fn keep(&mut self, to: Option<(u32, Action)>, signaled: bool, is_posted: bool) {
        self.entries.push_back(Entry { number: self.given, to, signaled, is_posted, is_awaited: false });
    }

    fn complete(&mut self, number: u64) {
        self.completed = self.completed.max(number);
        while self.entries.front().is_some_and(|entry| entry.number <= number) {
            self.entries.pop_front();
        }
    }

    /// A request was flushed.
    fn flush(&mut self, number: u64, was_posted: bool) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.number == number) {
            entry.is_posted |= was_posted;
        }
    }

    /// A request has failed by itself; those before it have completed.
    fn refuse(&mut self, number: u64, cause: FailureCause) {
        self.complete(number - 1);
        match self.entries.front().and_then(Entry::rank) {
            Some(rank) => {
                self.refused = Some((rank, cause));
                if let Some(route) = self.routes.get_mut(&rank) {
                    route.failed = Some(cause);
                }
            }
            // The library's own, which no card refuses.
            None => self.lost = Some(cause),
        }
    }
}

impl Initiator {
    /// With the addresses of the ranks that it is to reach.
    pub(crate) fn new(
        queue_pair: QueuePair,
        routes: impl Iterator<Item = (u32, DcAddress)>,
        life: Arc<Life>,
    ) -> Self {
        let route = |(rank, address)| (rank, Route { address, newest: 0, failed: None, lost: None });
        let book = Book { routes: routes.map(route).collect(), ..Book::default() };
        Initiator { queue_pair, life, book: Mutex::new(book), has_lost: AtomicBool::new(false) }
    }

    /// Refuses a rank that is dead, or to which a request has failed.
    fn check(&self, book: &mut Book, rank: u32) -> Result<(), NotifyError> {
        self.life.check(rank)?;
        let lost = book.lost;
        match book.route(rank)?.failed.or(lost) {
            Some(cause) => Err(self.life.of_failure(rank, cause)),
            None => Ok(()),
        }
    }

    /// Takes completions. Where the queue pair has failed, tries to bring it back.
    fn poll(&self, book: &mut Book, rank: u32) -> Result<(), NotifyError> {
        let queue = self.queue_pair.send_cq();
        loop {
            match queue.poll() {
                Ok(None) => break,
                Err(error) => return Err(NotifyError::Post { rank, source: error.into() }),
                Ok(Some(done)) => match done.status {
                    Ok(()) => book.complete(done.wr_id),
                    Err(error) if error.is_flush() => book.flush(done.wr_id, done.was_posted),
                    Err(error) => book.refuse(done.wr_id, FailureCause::Work(error)),
                },
            }
        }
        match self.queue_pair.failure() {
            None => Ok(()),
            Some(cause) => self.bring_back(book, cause),
        }
    }

    fn bring_back(&self, book: &mut Book, cause: FailureCause) -> Result<(), NotifyError> {
        let Some((rank, refusal)) = book.refused else {
            if !matches!(cause, FailureCause::Work(_)) {
                // An event of the card, or an abort: nothing says what was executed.
                book.lost = Some(cause);
            }
            // Else the failed request is not polled yet.
            return Ok(());
        };
        match self.queue_pair.reset() {
            Ok(()) => {}
            // Streams have still to pass what they were given, and entries to come.
            Err(ResetError::Blocked { .. }) => return Ok(()),
            Err(source) => return Err(NotifyError::Reset { rank, source }),
        }
        tracing::debug!(rank, cause = %refusal, "a queue goes on without a rank");
        book.refused = None;
        self.post_again(book, (rank, refusal));
        Ok(())
    }

    /// Posts again what was flushed, but for ranks that have failed.
    fn post_again(&self, book: &mut Book, refused: (u32, FailureCause)) {
        let (mut posted, mut without) = (VecDeque::new(), BTreeSet::new());
        book.certain = 0;
        for entry in std::mem::take(&mut book.entries) {
            let Some((rank, action)) = &entry.to else { continue };
            let Some(route) = book.routes.get_mut(rank).filter(|route| route.failed.is_none()) else {
                continue;
            };
            // Never given, and never will be.
            if !entry.is_posted {
                continue;
            }
            // Nothing is seen without what was written before it.
            let fence = book.fetches.need_fence(Some(action), book.completed);
            let may_post = !entry.is_awaited && !without.contains(rank);
            if may_post && self.post_one(&entry, fenced(action.request(), fence), &route.address) {
                book.certain = if entry.signaled { entry.number } else { book.certain };
                posted.push_back(entry);
            } else {
                route.lost = Some(refused);
                without.insert(*rank);
            }
        }
        self.has_lost.fetch_or(!without.is_empty(), Ordering::Relaxed);
        let before = posted.front().map_or(book.given, |entry: &Entry| entry.number - 1);
        book.completed = book.completed.max(before);
        (book.entries, book.certain) = (posted, book.certain.max(book.completed));
    }

    fn post_one(&self, entry: &Entry, request: WorkRequest<'_>, address: &DcAddress) -> bool {
        let request = request.wr_id(entry.number).to_target(address);
        let request = if entry.signaled { request } else { request.unsignaled() };
        match self.queue_pair.post_send(request) {
            // Where it has failed again, this is posted when it is back.
            Ok(()) | Err(QueueError::State(StateError::Failed { .. })) => true,
            Err(error) => {
                tracing::error!(%error, rank = entry.rank(), "a request cannot be posted again");
                false
            }
        }
    }

    /// Whether something was lost since this was asked last.
    pub(crate) fn take_lost(&self) -> bool {
        self.has_lost.swap(false, Ordering::Relaxed)
    }

    /// Goes on with what the failure of a request has stopped, unless a caller is about to.
    pub(crate) fn look(&self) {
        // A failure is known once it is polled.
        if let Some(mut book) = self.book.try_lock()
            && let Some(rank) = book.entries.iter().find_map(Entry::rank)
            && let Err(error) = self.poll(&mut book, rank)
        {
            tracing::debug!(%error, "a queue cannot be brought back");
        }
    }

    /// Locks the queue pair for one caller, so that requests that belong together follow each other.
    /// Each request waits for room for up to `timeout`.
    pub(crate) fn lock(&self, rank: u32, timeout: Duration) -> Posting<'_> {
        Posting { initiator: self, rank, book: self.book.lock(), timeout }
    }

    /// Waits of a stream for every request that no stream waits for yet.
    pub(crate) fn prepare_waits(&self, rank: u32) -> Result<Vec<PreparedWait>, NotifyError> {
        self.book.lock().entries.iter_mut().for_each(|entry| entry.is_awaited = true);
        all_waits(&self.queue_pair, |source| NotifyError::Post { rank, source })
    }

    /// Returns when every request to the rank given before has completed.
    pub(crate) fn flush(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        let mut pause = Pause::new();
        let until = self.book.lock().route(rank)?.newest;
        loop {
            let mut book = self.book.lock();
            self.poll(&mut book, rank)?;
            self.check(&mut book, rank)?;
            // A team that has dropped the other begins anew, without what was under way.
            if let Some((other, cause)) = book.route(rank)?.lost.take()
                && !matches!(self.life.state(other), State::Dropped(_))
            {
                return Err(self.life.of_failure(other, cause));
            }
            if book.completed >= until {
                return Ok(());
            }
            // A prepared send that was dropped never completes. A request behind it does.
            let mut in_the_way = None;
            if book.certain < until {
                let number = book.given + 1;
                let fence = book.fetches.need_fence(None, book.completed);
                match self.queue_pair.post_send(fenced(WorkRequest::nop(), fence).wr_id(number)) {
                    Ok(()) => {
                        (book.given, book.certain) = (number, number);
                        book.keep(None, true, true);
                    }
                    // It is brought back by the next look.
                    Err(QueueError::State(StateError::Failed { .. })) => {}
                    // The stream has not reached its sends, or the program holds a prepared one.
                    Err(error) => in_the_way = Some(error),
                }
            }
            drop(book);
            if pause.elapsed() >= timeout {
                return Err(match in_the_way {
                    Some(source) => NotifyError::Post { rank, source },
                    None => NotifyError::TimedOut { what: "flushing a queue", timeout },
                });
            }
            pause.pause();
        }
    }

    /// Waits until nothing is under way to a dead rank, for another process in its place.
    pub(crate) fn leave(&self, rank: u32, timeout: Duration) -> Result<(), NotifyError> {
        let mut pause = Pause::new();
        loop {
            let mut book = self.book.lock();
            self.poll(&mut book, rank)?;
            if !book.entries.iter().any(|entry| entry.rank() == Some(rank)) {
                return Ok(());
            }
            drop(book);
            if pause.elapsed() >= timeout {
                return Err(NotifyError::TimedOut { what: "giving up a dead rank's requests", timeout });
            }
            pause.pause();
        }
    }

    /// Another process is in the place of a rank.
    pub(crate) fn redirect(&self, rank: u32, address: DcAddress) -> Result<(), NotifyError> {
        let mut book = self.book.lock();
        let newest = book.completed;
        *book.route(rank)? = Route { address, newest, failed: None, lost: None };
        Ok(())
    }
}

/// A locked queue pair, which takes requests to one rank.
pub(crate) struct Posting<'a> {
    initiator: &'a Initiator,
    rank: u32,
    book: MutexGuard<'a, Book>,
    timeout: Duration,
}

impl Posting<'_> {
    /// Posts a request whose completion says that those before it have completed, too.
    pub(crate) fn post(&mut self, action: Action) -> Result<(), NotifyError> {
        self.give(&action, true, QueuePair::post_send, |_| Ok(()))?;
        self.book.certain = self.book.given;
        self.keep(action, true, true);
        Ok(())
    }

    /// Posts a request that a later one completes.
    pub(crate) fn post_unsignaled(&mut self, action: Action) -> Result<(), NotifyError> {
        self.give(&action, false, QueuePair::post_send, |_| Ok(()))?;
        self.keep(action, false, true);
        Ok(())
    }

    /// Prepares a request for a stream. Refused while any rank is dead and not dropped, as with
    /// connections of their own.
    pub(crate) fn prepare(&mut self, action: Action, signaled: bool) -> Result<PreparedSend, NotifyError> {
        self.initiator.life.check_all()?;
        let prepared = self.give(&action, signaled, QueuePair::prepare, Life::check_all)?;
        self.keep(action, signaled, false);
        Ok(prepared)
    }

    /// Keeps the newest request until it has completed.
    fn keep(&mut self, action: Action, signaled: bool, is_posted: bool) {
        self.book.keep(Some((self.rank, action)), signaled, is_posted);
    }

    /// Gives the next request to the queue pair, and waits for room while it is full or is being
    /// brought back, as long as `may_wait` says so.
    fn give<T>(
        &mut self,
        action: &Action,
        signaled: bool,
        act: impl for<'b> Fn(&QueuePair, WorkRequest<'b>) -> Result<T, QueueError>,
        may_wait: impl Fn(&Life) -> Result<(), NotifyError>,
    ) -> Result<T, NotifyError> {
        let Posting { initiator, rank, timeout, .. } = *self;
        let mut pause = Pause::new();
        loop {
            initiator.check(&mut self.book, rank)?;
            let number = self.book.given + 1;
            let fence = self.book.fetches.need_fence(Some(action), self.book.completed);
            let route = self.book.route(rank)?;
            let request = fenced(action.request(), fence).wr_id(number).to_target(&route.address);
            let request = if signaled { request } else { request.unsignaled() };
            match act(&initiator.queue_pair, request) {
                Ok(done) => {
                    (route.newest, self.book.given) = (number, number);
                    self.book.fetches.note(action, number);
                    return Ok(done);
                }
                Err(QueueError::Full(_) | QueueError::State(StateError::Failed { .. })) => {}
                Err(source) => return Err(NotifyError::Post { rank, source }),
            }
            if pause.elapsed() >= timeout {
                return Err(NotifyError::TimedOut { what: "waiting for room in a queue", timeout });
            }
            may_wait(&initiator.life)?;
            let before = self.book.completed;
            initiator.poll(&mut self.book, rank)?;
            if self.book.completed == before {
                pause.pause();
            }
        }
    }
}
