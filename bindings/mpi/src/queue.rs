//! A queue: a stream, and which requests it was given.

use crate::device::{card_waits, domain};
use crate::error::{Class, Failure};
use crate::request::{Leg, Request, Work, abort, probe};
use crate::stream::{AnyStream, LAST, PROBE_AFTER, SLICE};
use crate::turn::Turns;
use crate::{progress, statistics};
use gdsync::{Trigger, persistent};
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a request may be locked: more than looking at it takes.
const BRIEFLY: Duration = Duration::from_secs(1);

/// A queue of the program.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) stream: AnyStream,
    /// Starts lists of transfers, where the card waits for them. Of the queue's own, as a ticket releases all below it.
    trigger: Option<Trigger>,
    lists: Mutex<Lists>,
    /// Of operations that the stream triggers; none before the first one.
    pub(crate) turns: Mutex<Option<Turns>>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Started, and the stream does not wait for them yet; and some that the CPU has completed since.
    pending: Vec<Arc<Request>>,
    /// From this many pending ones on, those that are completed are taken out.
    most: usize,
    /// The stream waits for them, and the CPU has not looked how they ended.
    awaited: HashMap<usize, Arc<Request>>,
}

impl Lists {
    /// Takes out pending requests that the CPU has completed, where there are many.
    fn sweep(&mut self) {
        const FEW: usize = 64;
        if self.pending.len() >= self.most.max(FEW) {
            // One that is locked is being used.
            let is_started = |request: &Arc<Request>| {
                request.state.try_lock().is_none_or(|state| state.started_on.is_some())
            };
            self.pending.retain(is_started);
            self.most = 2 * self.pending.len();
        }
    }
}

/// All queues, for the end of the program.
static QUEUES: Mutex<Vec<Weak<Queue>>> = Mutex::new(Vec::new());

impl Queue {
    /// A queue that the program finds by its name.
    ///
    /// # Errors
    /// Where the card waits for lists: it has no memory for the word, or cannot be opened.
    pub(crate) fn new(stream: AnyStream) -> Result<Arc<Self>, Failure> {
        // Before streams wait: the driver learns of the word now.
        let trigger = if card_waits()? { Some(Trigger::new(&domain()?.pd)?) } else { None };
        let queue = Arc::new(Queue { trigger, ..Self::of(stream) });
        let mut queues = QUEUES.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        drop(queues);
        Ok(queue)
    }

    /// A queue that is not found by its name, and for which the end of the program does not wait.
    pub(crate) fn unlisted(stream: AnyStream) -> Arc<Self> {
        Arc::new(Self::of(stream))
    }

    fn of(stream: AnyStream) -> Self {
        Queue { stream, trigger: None, lists: Mutex::default(), turns: Mutex::default() }
    }

    /// Starts a list, each request with its place in the program's: the transfers in one batch, and then the
    /// collectives. Waits for room.
    pub(crate) fn start(&self, requests: &[(usize, Arc<Request>)]) -> Result<(), Failure> {
        let mut lists = self.lists.lock();
        lists.sweep();
        let (mut states, mut seen) = (Vec::with_capacity(requests.len()), HashSet::new());
        for (index, request) in requests {
            let about = |text| Failure::new(Class::Request, format!("request {index} of the list {text}"));
            if !seen.insert(Arc::as_ptr(request)) {
                return Err(about("is in it twice"));
            }
            let state = request.state.try_lock_for(BRIEFLY);
            let state = state.ok_or_else(|| about("is being started by another thread"))?;
            if state.work.is_none() {
                return Err(about("is not matched: match it before it is started"));
            }
            if matches!(state.work, Some(Work::Partitioned(_))) {
                return Err(about("is partitioned, which the CPU starts"));
            }
            if matches!(state.work, Some(Work::Link(_))) {
                return Err(about("is a link, whose messages are enqueued"));
            }
            if state.started_on.is_some() {
                return Err(about("is started already: enqueue a wait for it, or wait for it, before"));
            }
            states.push(state);
        }
        // Refused before anything starts.
        for state in &states {
            if let Some(Work::Collective(chain)) = &state.work {
                chain.check(&self.stream)?;
            }
        }
        let (mut transfers, mut legs) = (Vec::<&mut dyn persistent::Request>::new(), Vec::new());
        for state in &mut states {
            let state = &mut **state;
            if let Some(Work::Transfer(parts)) = &mut state.work {
                parts.restart();
                transfers.extend(parts.all.iter_mut().map(|part| part.request()));
                legs.push(&mut state.legs);
            }
        }
        let mut meanwhile = || legs.iter_mut().for_each(|legs| probe(legs));
        if !transfers.is_empty() {
            self.stream.start(&mut transfers, self.trigger.as_ref(), &mut meanwhile)?;
        }
        let mut first = Ok(());
        for (state, (_, request)) in states.iter_mut().zip(requests) {
            let state = &mut **state;
            let legs = &mut state.legs;
            legs.iter_mut().for_each(Leg::count_start);
            if let Some(Work::Collective(chain)) = &mut state.work
                && let Err(failure) = chain.start(&self.stream, || probe(legs))
            {
                // The other ranks learn of it.
                abort(legs);
                first = first.and(Err(failure));
                continue;
            }
            state.started_on = Some(self.number());
            statistics::started(1);
            lists.pending.push(request.clone());
        }
        first
    }

    /// Has the stream wait for everything that was started on it, and that it does not wait for yet.
    pub(crate) fn enqueue_wait(&self) -> Result<(), Failure> {
        let mut lists = self.lists.lock();
        let (mut pending, mut seen) = (lists.pending.clone(), HashSet::new());
        pending.retain(|request| seen.insert(Arc::as_ptr(request)));
        // One that another thread starts, on another queue, is not to be waited for here.
        let states = pending.iter().filter_map(|request| request.state.try_lock_for(BRIEFLY));
        let mut states: Vec<_> = states.filter(|state| state.started_on == Some(self.number())).collect();
        let (mut transfers, mut legs) = (Vec::<&mut dyn persistent::Request>::new(), Vec::new());
        // What the CPU has completed since needs no wait.
        for state in &mut states {
            let state = &mut **state;
            match &mut state.work {
                Some(Work::Transfer(parts)) => {
                    let active = parts.all.iter_mut().filter(|part| part.is_awaited());
                    transfers.extend(active.map(|part| part.request()));
                    legs.push(&mut state.legs);
                }
                Some(Work::Collective(chain)) => chain.wait(&self.stream, || probe(&mut state.legs))?,
                Some(Work::Partitioned(_) | Work::Link(_)) | None => {}
            }
        }
        let mut meanwhile = || legs.iter_mut().for_each(|legs| probe(legs));
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

    /// Waits on the CPU until the stream has performed everything, and looks how that ended.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        let mut probe_at = Instant::now() + PROBE_AFTER;
        while !self.stream.synchronize(SLICE)? {
            progress::go_on();
            if Instant::now() >= probe_at {
                probe_at += PROBE_AFTER;
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

    /// What tells it from other queues, as long as it lives.
    fn number(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    fn requests(&self) -> Vec<Arc<Request>> {
        let lists = self.lists.lock();
        lists.pending.iter().chain(lists.awaited.values()).cloned().collect()
    }

    /// Forgets a request that the program frees. One that is freed while a thread waits in a start was never started.
    pub(crate) fn forget(&self, request: &Arc<Request>) {
        let Some(mut lists) = self.lists.try_lock() else { return };
        lists.pending.retain(|pending| !ptr::eq(Arc::as_ptr(pending), Arc::as_ptr(request)));
        lists.awaited.remove(&Arc::as_ptr(request).addr());
    }
}

/// How a request ended whose end the stream has passed. None where it was started again. The stream of a collective is
/// idle a moment after the queue's stream has passed its end.
fn outcome_of_awaited(request: &Request) -> Option<Result<u64, Failure>> {
    let mut pause = Pause::new();
    loop {
        let outcome = request.outcome();
        let is_started_again = || request.state.lock().started_on.is_some();
        if outcome.is_some() || is_started_again() || pause.elapsed() >= BRIEFLY {
            return outcome;
        }
        pause.pause();
    }
}

/// The queue that the program has by this name.
pub(crate) fn find(name: usize) -> Result<Arc<Queue>, Failure> {
    let found = QUEUES.lock().iter().find(|queue| queue.as_ptr().addr() == name).and_then(Weak::upgrade);
    let text = || {
        format!(
            "there is no queue or software stream {name:#x}: pass one that the library has made, until it is freed"
        )
    };
    found.ok_or_else(|| Failure::new(Class::Argument, text()))
}

/// All queues that the program has.
pub(crate) fn all() -> Vec<Arc<Queue>> {
    QUEUES.lock().iter().filter_map(Weak::upgrade).collect()
}

/// The end of the program: ends what streams still wait for, so that nothing of it runs on.
pub(crate) fn finish() {
    for queue in all() {
        if matches!(queue.stream.synchronize(LAST), Ok(false)) {
            tracing::warn!(
                wait = queue.stream.oldest_wait(),
                "MPI is finalized, and a queue has work: it is aborted"
            );
            queue.requests().iter().for_each(|request| {
                if let Some(state) = request.state.try_lock() {
                    abort(&state.legs);
                }
            });
            if let Err(error) = queue.stream.synchronize(LAST) {
                tracing::debug!(%error, "a stream has failed before the end");
            }
        }
    }
}
