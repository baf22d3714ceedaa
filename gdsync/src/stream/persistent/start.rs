//! Starting a list of requests: all of them, or none.

use super::request::sealed::Work;
use super::{ListError, PersistentError, Request};
use crate::batch::{Batch, Descriptor};
use crate::memop::MemOpStream;
use crate::memory::timeline::Timeline;
use crate::qp::{PreparedReceives, PreparedSend, QueuePairInner};
use crate::queue::send::Hold;
use crate::queue::{Claim, OrderError, QueueError, StateError, Syndrome};
use crate::stream::{PostError, PostFailure, Posted, Stream};
use crate::verbs::Slice;
use gdsync_sys::pause::Pause;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Starts all requests of a list on a stream, in one batch: receives first, or with the last send of their
/// queue pair, and sends in their order. What goes through one queue pair shares a doorbell. Waits on the CPU
/// up to `timeout` while a queue or the stream has no room.
///
/// The list may mix kinds, queue pairs and domains. A request is in it once:
///
/// ```compile_fail,E0499
/// # use gdsync::persistent::{PersistentSend, start_all};
/// # fn f(mut send: PersistentSend, stream: gdsync::Stream<gdsync::SoftStream>) {
/// start_all(&mut [&mut send, &mut send], &stream, std::time::Duration::ZERO);
/// # }
/// ```
///
/// On an idle stream, a list of receives alone is posted now, without the stream. Returns what the
/// stream was given.
///
/// # Errors
/// [`ListError`], which names the request; nothing was started then, and nothing is lost. Where a list
/// needs several submissions to the stream and a queue pair fails between them, all is started, and the
/// statuses of what was not handed over any more say so: a flush, or syndrome 0.
pub fn start_all<B: MemOpStream>(
    requests: &mut [&mut dyn Request],
    stream: &Stream<B>,
    timeout: Duration,
) -> Result<Posted, ListError> {
    start(requests, stream, timeout, start_now)
}

/// Starts a list by `start_now`, and waits for room.
pub(super) fn start<B: MemOpStream>(
    requests: &mut [&mut dyn Request],
    stream: &Stream<B>,
    timeout: Duration,
    start_now: impl Fn(&[&mut dyn Request], &Stream<B>) -> Result<Started, ListError>,
) -> Result<Posted, ListError> {
    for (index, request) in requests.iter_mut().enumerate() {
        request.core().check_start(&stream.timeline).map_err(ListError::of(index))?;
    }
    let mut pause = Pause::new();
    loop {
        let error = match start_now(requests, stream) {
            Ok((claims, posted)) => {
                let started = requests.iter_mut().zip(claims);
                started.for_each(|(request, claim)| {
                    request.core().started(claim);
                    request.counted();
                });
                return Ok(posted);
            }
            Err(error) => error,
        };
        if !error.source.is_lack_of_room() || pause.elapsed() >= timeout {
            return Err(error);
        }
        requests.iter_mut().for_each(|request| request.core().progress());
        pause.pause();
    }
}

/// The claims of a list's starts, and what they took.
pub(super) type Started = (Vec<Arc<Claim>>, Posted);

fn start_now<B: MemOpStream>(
    requests: &[&mut dyn Request],
    stream: &Stream<B>,
) -> Result<Started, ListError> {
    let mut prepared = Prepared::default();
    prepared.fill(requests, By::Stream(&stream.timeline))?;
    let posted = prepared.post(requests, stream)?;
    Ok((std::mem::take(&mut prepared.claims), posted))
}

/// What a list has in queues, and the card was not rung for.
#[derive(Default)]
pub(super) struct Prepared {
    /// Dropped newest first: so everything leaves its queue.
    pub(super) work: Vec<Descriptor>,
    /// By request: its claim, and which of the work is its.
    pub(super) claims: Vec<Arc<Claim>>,
    places: Vec<usize>,
}

/// What rings the card for a list.
#[derive(Clone, Copy)]
pub(super) enum By<'a> {
    Stream(&'a Arc<Timeline>),
    /// The CPU, for sends behind a WAIT.
    Cpu(&'a Hold),
}

/// Receives of one queue pair: which of the list, and what they are.
type Group<'a> = (&'a Arc<QueuePairInner>, Vec<usize>, Vec<(&'a [Slice], Arc<Claim>)>);

impl Prepared {
    pub(super) fn fill(&mut self, requests: &[&mut dyn Request], by: By<'_>) -> Result<(), ListError> {
        for index in 0..requests.len() {
            self.claims.push(Claim::new().map_err(|error| ListError::of(index)(error.into()))?);
        }
        self.places = vec![0; requests.len()];
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut known = HashMap::new();
        for (index, (request, claim)) in requests.iter().zip(&self.claims).enumerate() {
            let (core, Work::Receive(slices), _) = request.parts() else { continue };
            let group = *known.entry(Arc::as_ptr(&core.queue_pair)).or_insert(groups.len());
            if group == groups.len() {
                groups.push((&core.queue_pair, Vec::new(), Vec::new()));
            }
            if let Some((_, indices, receives)) = groups.get_mut(group) {
                indices.push(index);
                receives.push((slices, claim.clone()));
            }
        }
        let (timeline, in_front, last_sends) = match by {
            By::Stream(timeline) => (Some(timeline), None, last_sends(requests)),
            By::Cpu(hold) => (None, Some(hold), HashMap::new()),
        };
        let mut together = HashMap::new();
        for (queue_pair, indices, receives) in groups {
            let prepared = PreparedReceives::new(queue_pair, &receives, timeline);
            let prepared =
                prepared.map_err(|(position, error)| ListError::of(indices[position])(error.into()))?;
            match last_sends.get(&Arc::as_ptr(queue_pair)) {
                Some(send) => drop(together.insert(*send, (indices, prepared))),
                None => {
                    indices.iter().for_each(|index| self.places[*index] = self.work.len());
                    self.work.push(Descriptor::Receives(prepared));
                }
            }
        }
        for (index, (request, claim)) in requests.iter().zip(&self.claims).enumerate() {
            let (core, Work::Send(work), _) = request.parts() else { continue };
            let (queue_pair, holds) = (core.queue_pair.clone(), [in_front.cloned(), core.hold_of_next()]);
            let send = PreparedSend::claimed(queue_pair, work, claim.clone(), holds);
            let send = send.map_err(|error| ListError::of(index)(error.into()))?;
            let (indices, receives) = together.remove(&index).unzip();
            let with_it = indices.into_iter().flatten().chain([index]);
            with_it.for_each(|index| self.places[index] = self.work.len());
            self.work.push(Descriptor::Send(send.with_receives(receives)));
        }
        Ok(())
    }

    fn post<B: MemOpStream>(
        &mut self,
        requests: &[&mut dyn Request],
        stream: &Stream<B>,
    ) -> Result<Posted, ListError> {
        let mut done = Posted { operations: 0, submissions: 0 };
        let only_receives = self.work.iter().all(|work| matches!(work, Descriptor::Receives(_)));
        if only_receives && matches!(stream.backend.wait_idle(Duration::ZERO), Ok(true)) {
            self.ring(requests);
            return Ok(done);
        }
        let batch = Batch { descriptors: std::mem::take(&mut self.work), unmerged: false };
        let Err(PostError { batch, posted, source }) = stream.post_whole(batch, &mut done) else {
            return Ok(done);
        };
        self.work = batch.descriptors;
        if posted == 0 {
            let index = queue_pair_of(&source).and_then(|qpn| {
                requests.iter().position(|request| request.parts().0.queue_pair.number == qpn)
            });
            return Err(ListError { index, source: source.into() });
        }
        self.give_up(requests, posted..posted + self.work.len(), &source);
        Ok(done)
    }

    /// Rings the card for everything, by the CPU.
    pub(super) fn ring(&mut self, requests: &[&mut dyn Request]) {
        for (place, work) in std::mem::take(&mut self.work).into_iter().enumerate() {
            let rung = match work {
                Descriptor::Receives(receives) => receives.announce(),
                Descriptor::Send(send) => send.ring(),
                // A list has no others.
                _ => Ok(()),
            };
            if let Err(error) = rung {
                self.give_up(requests, place..place + 1, &error.into());
            }
        }
    }

    /// Completes the claims of work that was not handed over, while other work of the list was.
    fn give_up(&self, requests: &[&mut dyn Request], places: std::ops::Range<usize>, why: &PostFailure) {
        tracing::warn!(%why, "persistent requests were started and not handed over");
        let is_flush = matches!(why, PostFailure::Queue(QueueError::State(StateError::Failed { .. })));
        let syndrome = if is_flush { Syndrome::WrFlush as u8 } else { 0 };
        for ((request, claim), place) in requests.iter().zip(&self.claims).zip(&self.places) {
            if places.contains(place) {
                let (core, _, kind) = request.parts();
                claim.finish_unposted(core.queue_pair.number, kind, syndrome);
            }
        }
    }
}

/// Of each queue pair whose doorbell the list rings: which request is the last that it sends. That send
/// announces the queue pair's receives.
fn last_sends(requests: &[&mut dyn Request]) -> HashMap<*const QueuePairInner, usize> {
    let sends = requests.iter().enumerate().filter_map(|(index, request)| {
        let (core, work, _) = request.parts();
        let rings = matches!(work, Work::Send(_)) && core.queue_pair.trigger.is_none();
        rings.then_some((Arc::as_ptr(&core.queue_pair), index))
    });
    sends.collect()
}

impl Drop for Prepared {
    fn drop(&mut self) {
        while self.work.pop().is_some() {}
    }
}

impl ListError {
    pub(super) fn of(index: usize) -> impl Fn(PersistentError) -> ListError {
        move |source| ListError { index: Some(index), source }
    }
}

impl PersistentError {
    /// Waiting may help.
    pub(super) fn is_lack_of_room(&self) -> bool {
        matches!(
            self,
            PersistentError::Queue(QueueError::Full(_))
                | PersistentError::Post(
                    PostFailure::Queue(QueueError::Full(_)) | PostFailure::WouldBlock { .. }
                )
        )
    }
}

/// The queue pair that a stream's refusal is about.
fn queue_pair_of(failure: &PostFailure) -> Option<u32> {
    let PostFailure::Queue(error) = failure else { return None };
    match error {
        QueueError::Order(
            OrderError::OutOfOrder { qpn, .. }
            | OrderError::Stale { qpn, .. }
            | OrderError::OtherStream { qpn, .. }
            | OrderError::BehindOwnWait { qpn, .. },
        )
        | QueueError::State(
            StateError::Failed { qpn, .. }
            | StateError::NotConnected { qpn }
            | StateError::DeviceAttached { qpn },
        ) => Some(*qpn),
        _ => None,
    }
}
