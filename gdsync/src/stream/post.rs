//! Posting batches on a backend, and knowing how far it has come.

use super::doorbells::{DoorbellPath, Doorbells, StreamOptions};
use super::flight::{self, InFlight};
use super::pause::Pause;
use super::post_error::{PostError, PostFailure, Posted};
use super::proxy::{self, Ring};
use super::translations::Translations;
use super::{MemOp, MemOpCaps, MemOpStream, StreamError};
use crate::batch::{Batch, Descriptor, Lowering, Owner, Step};
use crate::error::Error;
use crate::lane::{Lane, Ticket};
use crate::memory::{HostAddr, StreamAddr};
use crate::peer::PeerOp;
use crate::prepared::PreparedSend;
use crate::qp::QueuePair;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A batch whose end nobody has a wait for writes its progress only once in so many batches.
const PROGRESS_EVERY: u32 = 64;
/// Submissions in flight are looked through when there are so many: most posts then touch no memory that the stream writes.
const REAP_FROM: usize = 32;
/// How often a waiting host thread looks after queue pairs that failed meanwhile.
const LOOK_AFTER: Duration = Duration::from_millis(20);
/// How often a waiting host thread names the wait that a stream hangs at.
const STALL: Duration = Duration::from_secs(10);

/// A backend on which batches are posted. Dereferences to the backend.
///
/// Dropping it does not wait for the work that it has accepted; what that work names stays alive until it is past.
pub struct Stream<B: MemOpStream> {
    backend: B,
    caps: MemOpCaps,
    path: DoorbellPath,
    pub(super) lane: Arc<Lane>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// The last ticket handed out.
    issued: Ticket,
    /// Submissions since the last one whose end ticket the stream writes.
    unwritten: u32,
    in_flight: VecDeque<InFlight>,
    /// What they count for together.
    weight: usize,
    doorbells: RefCell<Doorbells>,
    pub(super) translations: Translations,
    /// Doorbells that the proxy has to ring for this stream.
    proxied: Arc<proxy::Queue>,
    /// Memory operations of the batch that is being posted; kept to be used again.
    ops: Vec<MemOp>,
}

/// Tickets of a submission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tickets {
    /// The last one before.
    pub(super) before: Ticket,
    /// Its own last one.
    pub(super) end: Ticket,
    /// The stream must be told to write it: its last descriptor is not a wait, which does.
    pub(super) open: bool,
}

impl<B: MemOpStream> Stream<B> {
    /// A stream on a backend.
    ///
    /// # Errors
    /// [`Error::Memory`] where its lane cannot be had.
    pub fn new(backend: B) -> Result<Self, Error> {
        Self::with_options(backend, StreamOptions::default())
    }

    /// A stream on a backend, with options.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_options(backend: B, options: StreamOptions) -> Result<Self, Error> {
        let lane =
            Lane::new(backend.device()).map_err(|source| Error::Memory { len: size_of::<u32>(), source })?;
        let state = State {
            issued: Ticket::default(),
            unwritten: 0,
            in_flight: VecDeque::new(),
            weight: 0,
            doorbells: RefCell::new(Doorbells::at_first(options.doorbells)),
            translations: Translations::default(),
            proxied: Arc::default(),
            ops: Vec::new(),
        };
        Ok(Stream { caps: backend.caps(), backend, path: options.doorbells, lane, state: Mutex::new(state) })
    }

    /// Posts a batch: the backend will perform its descriptors in order. Does not wait for that (unless the backend is
    /// [`super::Cpu`], which performs it before this returns).
    ///
    /// A batch that needs more operations than one submission takes is split between descriptors.
    ///
    /// # Errors
    /// [`PostError`], with the part of the batch that was not posted. Where the backend itself has failed, the queue
    /// pairs of that part's sends and waits are moved to the error state, because what was rung is not known.
    pub fn post(&self, batch: Batch) -> Result<Posted, PostError> {
        let mut done = Posted { operations: 0, submissions: 0 };
        self.post_counting(batch, &mut done).map(|()| done)
    }

    /// As [`Self::post`], but waits up to `timeout` while the stream has as many submissions outstanding as it takes.
    ///
    /// # Errors
    /// As [`Self::post`]; [`PostFailure::WouldBlock`] where that took longer.
    pub fn post_timeout(&self, mut batch: Batch, timeout: Duration) -> Result<Posted, PostError> {
        let mut pause = Pause::new();
        let mut done = Posted { operations: 0, submissions: 0 };
        let mut before = 0;
        loop {
            match self.post_counting(batch, &mut done) {
                Err(PostError { batch: rest, posted, source: PostFailure::WouldBlock { .. } })
                    if pause.elapsed() < timeout =>
                {
                    before += posted;
                    batch = rest;
                    pause.pause();
                }
                Err(error) => return Err(PostError { posted: before + error.posted, ..error }),
                Ok(()) => return Ok(done),
            }
        }
    }

    fn post_counting(&self, mut batch: Batch, done: &mut Posted) -> Result<(), PostError> {
        let _span = tracing::trace_span!("post", descriptors = batch.len()).entered();
        // Dropped after the lock: anything may hang on it.
        let mut past = Vec::new();
        let mut state = self.lock();
        let mut posted = 0;
        while !batch.is_empty() {
            if state.in_flight.len() >= REAP_FROM {
                past.extend(self.reap(&mut state));
            }
            let chunk = self.take_chunk(&mut batch.descriptors);
            let count = chunk.len();
            match self.post_chunk(&mut state, chunk) {
                Ok(operations) => {
                    posted += count;
                    done.operations += operations;
                    done.submissions += 1;
                }
                Err((mut chunk, source)) => {
                    if matches!(source, PostFailure::Stream(StreamError::Failed { .. })) {
                        self.abandon(state);
                        flight::abort(&chunk);
                    }
                    chunk.extend(batch.descriptors);
                    return Err(PostError { batch: Batch { descriptors: chunk }, posted, source });
                }
            }
        }
        Ok(())
    }

    /// How the doorbells of a queue pair reach its card. Decides it, where that is still open.
    ///
    /// # Errors
    /// [`StreamError`] where the stream cannot reach the doorbell register and was told to.
    pub fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError> {
        let state = self.lock();
        if state.rings_itself() {
            let register = queue_pair.inner.send().register();
            match self.backend.translate(register, size_of::<u64>()) {
                Err(StreamError::Unreachable { reason, .. }) if self.path == DoorbellPath::Auto => {
                    state.fall_back(reason);
                }
                other => drop(other?),
            }
        }
        let doorbells = state.doorbells.borrow().clone();
        Ok(doorbells)
    }

    /// Waits until the stream has performed everything.
    ///
    /// # Errors
    /// [`StreamError::Failed`].
    pub fn synchronize(&self) -> Result<(), StreamError> {
        while !self.synchronize_timeout(STALL)? {
            if let Some(wait) = self.oldest_wait() {
                tracing::warn!(%wait, "a stream has not come further than this wait for {STALL:?}");
            }
        }
        Ok(())
    }

    /// Waits until the stream has performed everything; false where that took longer than `timeout`.
    ///
    /// # Errors
    /// [`StreamError::Failed`]; or another [`StreamError`] where the backend cannot tell.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool, StreamError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            let idle = self.backend.wait_idle(left.min(LOOK_AFTER));
            let mut state = self.lock();
            // Asked again under the lock: nothing of ours can be posted meanwhile.
            match idle.and_then(|idle| if idle { self.backend.wait_idle(Duration::ZERO) } else { Ok(false) })
            {
                Ok(idle) => {
                    if idle {
                        self.lane.declare_passed(state.issued);
                        state.unwritten = 0;
                    }
                    let past = self.reap(&mut state);
                    drop(state);
                    drop(past);
                    if idle {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    if matches!(error, StreamError::Failed { .. }) {
                        self.abandon(state);
                    }
                    return Err(error);
                }
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Submissions that the stream is not known to have passed. A graph counts for as many as it has batch nodes.
    pub fn outstanding(&self) -> usize {
        let mut state = self.lock();
        let past = self.reap(&mut state);
        let outstanding = state.weight;
        drop(state);
        drop(past);
        outstanding
    }

    /// The oldest wait that the stream is not known to have passed, in words: what it hangs at, if it hangs.
    pub fn oldest_wait(&self) -> Option<String> {
        self.lock().in_flight.iter().find_map(|submission| submission.oldest_wait(&self.lane))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held left lists that are consistent after each single step.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// As many descriptors as fit one submission, with one operation kept for the closing ticket. At least one.
    fn take_chunk(&self, descriptors: &mut VecDeque<Descriptor>) -> VecDeque<Descriptor> {
        let mut cost = 1usize;
        let fits = |descriptor: &&Descriptor| {
            cost = cost.saturating_add(descriptor.cost(&self.caps));
            cost <= self.caps.max_ops
        };
        let count = descriptors.iter().take_while(fits).count().max(1);
        if count >= descriptors.len() {
            return std::mem::take(descriptors);
        }
        let rest = descriptors.split_off(count);
        std::mem::replace(descriptors, rest)
    }

    fn post_chunk(
        &self,
        state: &mut State,
        mut chunk: VecDeque<Descriptor>,
    ) -> Result<usize, (VecDeque<Descriptor>, PostFailure)> {
        let mut ops = std::mem::take(&mut state.ops);
        ops.clear();
        let result = self.try_post(state, &mut chunk, &mut ops);
        let count = ops.len();
        state.ops = ops;
        match result {
            Ok(tickets) => {
                state.accept(tickets, chunk, 1);
                Ok(count)
            }
            Err(failure) => {
                chunk.iter_mut().rev().for_each(Descriptor::undo);
                Err((chunk, failure))
            }
        }
    }

    fn try_post(
        &self,
        state: &mut State,
        chunk: &mut VecDeque<Descriptor>,
        ops: &mut Vec<MemOp>,
    ) -> Result<Tickets, PostFailure> {
        self.check_room(state, 1)?;
        state.translations.refresh(&self.backend);
        let mut tickets = state.tickets(chunk.iter());
        let mut rings = Vec::new();
        let mut ticket = tickets.before;
        self.lower(state, chunk.iter_mut(), tickets.end, &mut ticket, ops, &mut rings)?;
        // The last submission that there is room for always writes it, so that a full stream needs no other to be through.
        let last = state.weight + 1 >= self.caps.max_outstanding;
        if tickets.open && (state.unwritten + 1 >= PROGRESS_EVERY || last) {
            self.write_ticket(state, tickets.end, ops)?;
            tickets.open = false;
        }
        // SAFETY: every address was translated by this backend. Rings, records and registers belong to queues that the
        // submission in flight holds until the lane has passed `end`, which the backend writes (or is declared to have
        // written once it is idle) only after these operations; words belong to memory that it holds likewise; the lane's
        // own word goes with the lane, which `ORPHANS` holds for as long; mailboxes belong to the proxy until they were
        // written. The library computes aligned addresses.
        Self::with_proxy(state, rings, || unsafe { self.backend.submit(ops) })?;
        Ok(tickets)
    }

    /// Submits, with the proxy ready to ring: a backend may perform what it is given before it returns.
    pub(super) fn with_proxy<E>(
        state: &State,
        rings: Vec<Ring>,
        submit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let count = rings.len();
        if count == 0 {
            return submit();
        }
        proxy::submit(&state.proxied, rings);
        submit().inspect_err(|_| proxy::withdraw(&state.proxied, count))
    }

    /// Marks descriptors as posted and appends their memory operations. `ticket` is the last one before them, and after them;
    /// `end` the last one of the submission.
    pub(super) fn lower<'a>(
        &self,
        state: &State,
        descriptors: impl Iterator<Item = &'a mut Descriptor>,
        end: Ticket,
        ticket: &mut Ticket,
        ops: &mut Vec<MemOp>,
        rings: &mut Vec<Ring>,
    ) -> Result<(), PostFailure> {
        let lowering = self.lowering(state);
        for descriptor in descriptors {
            descriptor.check_satisfiable()?;
            let step = match descriptor {
                Descriptor::Send(send) => {
                    if let Some(doorbell) = send.commit(&self.lane, end)? {
                        self.lower_send(state, send, doorbell, ops, rings)?;
                    }
                    continue;
                }
                Descriptor::WaitCq(wait) => {
                    *ticket = ticket.next();
                    Step::WaitCq(wait.commit(&self.lane, *ticket), *ticket)
                }
                Descriptor::Wait32(word, condition, value) => Step::Wait32(word.addr(), *condition, *value),
                Descriptor::Wait64(word, condition, value) => Step::Wait64(word.addr(), *condition, *value),
                Descriptor::Write32(word, value) => Step::Write32(word.addr(), *value),
                Descriptor::Write64(word, value) => Step::Write64(word.addr(), *value),
            };
            lowering.lower(step, ops)?;
        }
        Ok(())
    }

    fn lowering<'a>(
        &'a self,
        state: &'a State,
    ) -> Lowering<'a, impl Fn(HostAddr, usize, Owner) -> Result<StreamAddr, StreamError>> {
        let translate = |addr, len, owner| match owner {
            Owner::Library => state.translations.translate(&self.backend, addr, len),
            Owner::Program => self.backend.translate(addr, len),
        };
        Lowering { caps: &self.caps, lane: self.lane.word(), translate }
    }

    /// A doorbell: to the card's register, or through the proxy.
    fn lower_send(
        &self,
        state: &State,
        send: &PreparedSend,
        doorbell: [PeerOp; 4],
        ops: &mut Vec<MemOp>,
        rings: &mut Vec<Ring>,
    ) -> Result<(), StreamError> {
        let lowering = self.lowering(state);
        if state.rings_itself() {
            let before = ops.len();
            match lowering.lower(Step::Send(doorbell), ops) {
                Err(StreamError::Unreachable { addr, reason })
                    if self.path == DoorbellPath::Auto && doorbell[3].addr() == Some(addr) =>
                {
                    ops.truncate(before);
                    state.fall_back(reason);
                }
                other => return other,
            }
        }
        proxy::start()?;
        let ring = Ring::new(send.queue_pair(), &self.lane)?;
        // Its mailbox may be where something else was.
        state.translations.refresh(&self.backend);
        lowering.lower(Step::Send(ring.to_mailbox(doorbell)), ops)?;
        rings.push(ring);
        Ok(())
    }

    /// Has the stream write a ticket.
    pub(super) fn write_ticket(
        &self,
        state: &State,
        ticket: Ticket,
        ops: &mut Vec<MemOp>,
    ) -> Result<(), StreamError> {
        let lowering = self.lowering(state);
        lowering.lower(Step::Progress(ticket), ops)
    }

    /// Takes out the submissions that the stream has passed, to be dropped by the caller, and looks after queue pairs that
    /// have failed. Then does the same for streams that are gone.
    pub(super) fn reap(&self, state: &mut State) -> Vec<InFlight> {
        let mut past = Vec::new();
        while let Some(oldest) = state.in_flight.front() {
            if !self.lane.has_passed(oldest.end) {
                break;
            }
            if let Some(passed) = state.in_flight.pop_front() {
                state.weight -= passed.weight;
                past.push(passed);
            }
        }
        if let Some(oldest) = state.in_flight.front() {
            oldest.flush_failed();
        }
        flight::reap_orphans();
        past
    }

    /// Whether there is room for a submission that counts for `weight`.
    pub(super) fn check_room(&self, state: &mut State, weight: usize) -> Result<(), PostFailure> {
        let limit = self.caps.max_outstanding;
        match state.in_flight.front() {
            Some(oldest) if state.weight + weight > limit => Err(PostFailure::WouldBlock {
                outstanding: state.weight,
                limit,
                blocked: self.lane.blocked_on(oldest.end),
            }),
            _ => Ok(()),
        }
    }

    /// The backend has failed: it will touch nothing any more, and nobody knows what it rang.
    pub(super) fn abandon(&self, mut state: MutexGuard<'_, State>) {
        self.lane.kill();
        let lost = std::mem::take(&mut state.in_flight);
        state.weight = 0;
        drop(state);
        lost.iter().for_each(InFlight::abort);
    }
}

impl State {
    pub(super) fn tickets<'a>(&self, descriptors: impl Iterator<Item = &'a Descriptor>) -> Tickets {
        let (mut end, mut open) = (self.issued, true);
        for descriptor in descriptors {
            open = !matches!(descriptor, Descriptor::WaitCq(_));
            if !open {
                end = end.next();
            }
        }
        // A ticket is written right after its wait: whatever comes after the last wait needs another.
        Tickets { before: self.issued, end: if open { end.next() } else { end }, open }
    }

    /// The backend has taken a submission.
    pub(super) fn accept(&mut self, tickets: Tickets, descriptors: VecDeque<Descriptor>, weight: usize) {
        self.issued = tickets.end;
        self.unwritten = if tickets.open { self.unwritten + 1 } else { 0 };
        self.weight += weight;
        self.in_flight.push_back(InFlight { end: tickets.end, weight, descriptors });
        tracing::trace!(ticket = tickets.end.0, "posted");
    }

    fn rings_itself(&self) -> bool {
        matches!(*self.doorbells.borrow(), Doorbells::Direct)
    }

    fn fall_back(&self, reason: String) {
        tracing::info!(reason, "the stream cannot reach the card's doorbells: a proxy thread rings them");
        *self.doorbells.borrow_mut() = Doorbells::Proxy { reason };
    }
}

impl<B: MemOpStream> Deref for Stream<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.backend
    }
}

impl<B: MemOpStream> fmt::Debug for Stream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Stream")
            .field("issued", &state.issued.0)
            .field("progress", &self.lane.progress().0)
            .field("in_flight", &state.in_flight.len())
            .field("doorbells", &*state.doorbells.borrow())
            .field("proxied", &state.proxied)
            .finish()
    }
}

impl<B: MemOpStream> Drop for Stream<B> {
    fn drop(&mut self) {
        let mut state = self.lock();
        let past = self.reap(&mut state);
        if state.in_flight.is_empty() {
            return drop((state, past));
        }
        let closed =
            self.backend.wait_idle(Duration::ZERO).and_then(|_| self.write_closing_ticket(&mut state));
        if let Err(StreamError::Failed { .. }) = closed {
            return self.abandon(state);
        }
        let in_flight = std::mem::take(&mut state.in_flight);
        drop((state, past));
        if let Err(error) = closed {
            tracing::error!(%error, "a stream cannot be told to say when it is through: what it names stays for ever");
        }
        flight::leave_behind(&self.lane, in_flight);
    }
}

impl<B: MemOpStream> Stream<B> {
    /// Has the stream say when it is through, unless its last submission does.
    fn write_closing_ticket(&self, state: &mut State) -> Result<(), StreamError> {
        if state.unwritten == 0 {
            return Ok(());
        }
        // A ticket of its own: the lane must stay until this very write is past.
        let end = state.issued.next();
        let mut ops = Vec::with_capacity(1);
        state.translations.refresh(&self.backend);
        self.write_ticket(state, end, &mut ops)?;
        // SAFETY: the lane's word, translated by this backend, lives in the lane, which `ORPHANS` keeps until it says `end`.
        unsafe { self.backend.submit(&ops) }?;
        state.accept(Tickets { before: end, end, open: false }, VecDeque::new(), 1);
        Ok(())
    }
}
