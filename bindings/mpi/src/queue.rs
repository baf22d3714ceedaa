//! A queue: a stream and the requests that were started on it.

use crate::connection::Peer;
use crate::device::{card_waits, domain};
use crate::error::{Class, Failure};
use crate::operation::Sequence;
use crate::request::{Request, Work, abort, probe};
use crate::statistics;
use crate::stream::{AnyStream, FINALIZE_TIMEOUT, PROBE_INTERVAL, WAIT_SLICE, progress_matches};
use gdsync::{Trigger, persistent};
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a queue pair outlives its request: a peer whose acknowledgement was lost sends again.
const GRACE: Duration = Duration::from_secs(2);
/// How long a request may stay locked: longer than any check of its state takes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) stream: AnyStream,
    /// Starts lists of transfers, if the card waits for them. A ticket releases all lower ones, so each queue has a trigger.
    trigger: Option<Trigger>,
    lists: Mutex<Lists>,
    /// The numbers of the operations that the stream triggers; none before the first one.
    pub(crate) sequence: Mutex<Option<Sequence>>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Requests that were started and for which the stream does not wait yet. The CPU may have completed some since.
    pending: Vec<Arc<Request>>,
    /// The number of pending requests from which on the completed ones are removed.
    prune_at: usize,
    /// Requests for which the stream waits and whose outcome the CPU has not read, by address.
    awaited: HashMap<usize, Arc<Request>>,
}

impl Lists {
    /// Removes pending requests that the CPU has completed, once there are many.
    fn prune(&mut self) {
        const FEW: usize = 64;
        if self.pending.len() >= self.prune_at.max(FEW) {
            // A locked request is in use.
            let is_started = |request: &Arc<Request>| {
                request.state.try_lock().is_none_or(|state| state.started_on.is_some())
            };
            self.pending.retain(is_started);
            self.prune_at = 2 * self.pending.len();
        }
    }
}

static QUEUES: Mutex<Vec<Weak<Queue>>> = Mutex::new(Vec::new());

impl Queue {
    /// A queue that [`find`] returns.
    ///
    /// # Errors
    /// If the card waits for lists: it cannot be opened, or there is no memory for the trigger's word.
    pub(crate) fn new(stream: AnyStream) -> Result<Arc<Self>, Failure> {
        // The driver maps the word before any stream waits.
        let trigger = if card_waits()? { Some(Trigger::new(&domain()?.pd)?) } else { None };
        let queue = Arc::new(Queue { trigger, ..Self::of(stream) });
        let mut queues = QUEUES.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        drop(queues);
        Ok(queue)
    }

    /// A queue that [`find`] does not return, and for which [`finish`] does not wait.
    pub(crate) fn unlisted(stream: AnyStream) -> Arc<Self> {
        Arc::new(Self::of(stream))
    }

    fn of(stream: AnyStream) -> Self {
        Queue { stream, trigger: None, lists: Mutex::default(), sequence: Mutex::default() }
    }

    /// Starts a list of requests, each with its index in the program's list: the transfers in one batch, and then the
    /// collectives. Waits until the stream and the queue pairs have room.
    pub(crate) fn start(&self, requests: &[(usize, Arc<Request>)]) -> Result<(), Failure> {
        let mut lists = self.lists.lock();
        lists.prune();
        let (mut states, mut seen) = (Vec::with_capacity(requests.len()), HashSet::new());
        for (index, request) in requests {
            let about = |text| Failure::new(Class::Request, format!("request {index} of the list {text}"));
            if !seen.insert(Arc::as_ptr(request)) {
                return Err(about("is in it twice"));
            }
            let state = request.state.try_lock_for(LOCK_TIMEOUT);
            let state = state.ok_or_else(|| about("is being started by another thread"))?;
            state.check_startable().map_err(about)?;
            states.push(state);
        }
        // A refusal comes before anything starts.
        for state in &states {
            if let Some(Work::Collective(collective)) = &state.work {
                collective.check(&self.stream)?;
            }
        }
        let (mut transfers, mut peers) = (Vec::<&mut dyn persistent::Request>::new(), Vec::new());
        for state in &mut states {
            let state = &mut **state;
            if let Some(Work::Transfer(group)) = &mut state.work {
                transfers.extend(group.restart());
                peers.push(&mut state.peers);
            }
        }
        let mut meanwhile = || peers.iter_mut().for_each(|peers| probe(peers));
        if !transfers.is_empty() {
            self.stream.start(&mut transfers, self.trigger.as_ref(), &mut meanwhile)?;
        }
        let mut first = Ok(());
        for (state, (_, request)) in states.iter_mut().zip(requests) {
            let state = &mut **state;
            let peers = &mut state.peers;
            peers.iter_mut().for_each(Peer::count_start);
            if let Some(Work::Collective(collective)) = &mut state.work
                && let Err(failure) = collective.start(&self.stream, || probe(peers))
            {
                // The other ranks' requests fail, too.
                abort(peers);
                first = first.and(Err(failure));
                continue;
            }
            state.started_on = Some(self.id());
            statistics::started(1);
            lists.pending.push(request.clone());
        }
        first
    }

    /// Makes the stream wait for all requests that were started on it and for which it does not wait yet.
    pub(crate) fn enqueue_wait(&self) -> Result<(), Failure> {
        let mut lists = self.lists.lock();
        let (mut pending, mut seen) = (lists.pending.clone(), HashSet::new());
        pending.retain(|request| seen.insert(Arc::as_ptr(request)));
        // A request that another thread starts on another queue is not this queue's to wait for.
        let states = pending.iter().filter_map(|request| request.state.try_lock_for(LOCK_TIMEOUT));
        let mut states: Vec<_> = states.filter(|state| state.started_on == Some(self.id())).collect();
        let (mut transfers, mut peers) = (Vec::<&mut dyn persistent::Request>::new(), Vec::new());
        for state in &mut states {
            let state = &mut **state;
            match &mut state.work {
                Some(Work::Transfer(group)) => {
                    transfers.extend(group.awaited());
                    peers.push(&mut state.peers);
                }
                Some(Work::Collective(collective)) => {
                    collective.wait(&self.stream, || probe(&mut state.peers))?;
                }
                Some(Work::Partitioned(_) | Work::Link(_)) | None => {}
            }
        }
        let mut meanwhile = || peers.iter_mut().for_each(|peers| probe(peers));
        if !transfers.is_empty() {
            self.stream.wait(&mut transfers, &mut meanwhile)?;
        }
        statistics::awaited(states.len());
        states.iter_mut().for_each(|state| state.started_on = None);
        drop(states);
        lists.pending.clear();
        lists.awaited.extend(pending.into_iter().map(|request| (Arc::as_ptr(&request).addr(), request)));
        Ok(())
    }

    /// Waits on the CPU until the stream has performed everything. Returns the first failure.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        let mut probe_at = Instant::now() + PROBE_INTERVAL;
        while !self.stream.synchronize(WAIT_SLICE)? || !self.stream.is_empty()? {
            progress_matches();
            if Instant::now() >= probe_at {
                probe_at += PROBE_INTERVAL;
                self.requests().iter().for_each(|request| request.probe());
            }
        }
        let awaited: Vec<_> = self.lists.lock().awaited.values().cloned().collect();
        let mut first = Ok(());
        for request in awaited {
            let Some(outcome) = outcome_of_awaited(&request) else { continue };
            self.lists.lock().awaited.remove(&Arc::as_ptr(&request).addr());
            first = first.and(outcome.map(drop));
        }
        first
    }

    /// Identifies the queue for as long as it lives.
    fn id(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    fn requests(&self) -> Vec<Arc<Request>> {
        let lists = self.lists.lock();
        lists.pending.iter().chain(lists.awaited.values()).cloned().collect()
    }

    /// Forgets a request that the program frees. Does nothing while a start holds the lists: a request that is freed meanwhile was
    /// never started.
    fn forget(&self, request: &Arc<Request>) {
        let Some(mut lists) = self.lists.try_lock() else { return };
        lists.pending.retain(|pending| !ptr::eq(Arc::as_ptr(pending), Arc::as_ptr(request)));
        lists.awaited.remove(&Arc::as_ptr(request).addr());
    }
}

/// Returns the outcome of a request whose end the stream has passed; none if it was started again. A collective's stream
/// becomes idle a moment after the queue's stream has passed the end.
fn outcome_of_awaited(request: &Request) -> Option<Result<u64, Failure>> {
    let mut pause = Pause::new();
    loop {
        let outcome = request.outcome();
        let is_started_again = || request.state.lock().started_on.is_some();
        if outcome.is_some() || is_started_again() || pause.elapsed() >= LOCK_TIMEOUT {
            return outcome;
        }
        pause.pause();
    }
}

/// Returns the queue with this address, if the program has made it.
pub(crate) fn find(name: usize) -> Result<Arc<Queue>, Failure> {
    let found = QUEUES.lock().iter().find(|queue| queue.as_ptr().addr() == name).and_then(Weak::upgrade);
    let text = || {
        format!(
            "there is no queue or software stream {name:#x}: pass one that the library has made, until it is freed"
        )
    };
    found.ok_or_else(|| Failure::new(Class::Argument, text()))
}

/// All queues that the program has made and not freed.
fn all() -> Vec<Arc<Queue>> {
    QUEUES.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Requests that the program has freed.
static FREED: Mutex<VecDeque<(Instant, Arc<Request>)>> = Mutex::new(VecDeque::new());

/// Frees a request, but keeps it until its work has ended, and its queue pairs for [`GRACE`]. The program gets its memory back as
/// soon as the work has ended.
pub(crate) fn free_request(request: Arc<Request>) {
    all().iter().for_each(|queue| queue.forget(&request));
    let mut freed = FREED.lock();
    freed.push_back((Instant::now(), request));
    freed.retain(|(since, request)| {
        let is_done = request.outcome().is_some();
        if is_done {
            request.state.lock().release_memory();
        }
        !is_done || since.elapsed() < GRACE
    });
}

/// Aborts, at the end of the program, the work for which streams still wait.
pub(crate) fn finish() {
    for queue in all() {
        if matches!(queue.stream.synchronize(FINALIZE_TIMEOUT), Ok(false)) {
            tracing::warn!(
                wait = queue.stream.explain_wait(),
                "MPI is finalized, and a queue has work: it is aborted"
            );
            queue.requests().iter().for_each(|request| {
                if let Some(state) = request.state.try_lock() {
                    abort(&state.peers);
                }
            });
            if let Err(error) = queue.stream.synchronize(FINALIZE_TIMEOUT) {
                tracing::debug!(%error, "a stream has failed before the end");
            }
        }
    }
}
