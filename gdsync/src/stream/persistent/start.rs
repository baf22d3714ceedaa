//! Starting a list of requests, all or none, and making a stream wait for it.

use crate::batch::{Batch, Descriptor};
use crate::memop::{Condition, MemOpStream, Named};
use crate::memory::Timeline;
use crate::qp::{PreparedReceives, PreparedSend, PreparedWait, QueuePairInner};
use crate::queue::send::{PostMode, WaitRequest};
use crate::queue::{Claim, OrderError, QueueError, StateError, Status, Syndrome, WorkError, Writer};
use crate::stream::persistent::request::Progress;
use crate::stream::persistent::request::sealed::Work;
use crate::stream::persistent::{ListError, PersistentError, Request};
use crate::stream::{PostError, PostFailure, Posted, Stream};
use crate::verbs::Slice;
use gdsync_sys::pause::Pause;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Starts all requests of a list on a stream, in one batch: receives first, or with the last send of their queue
/// pair, and sends in order. Requests of one queue pair share a doorbell. Waits on the CPU up to `timeout` while a
/// queue or the stream has no room.
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
/// On an idle stream (other than a borrowed one), a list of receives alone is posted now, without the stream. Returns
/// the stream's share.
///
/// # Errors
/// [`ListError`], which names the request; nothing was started then, and nothing is lost. If a list needs several
/// submissions to the stream and a queue pair fails between them, all is started, and the statuses of the remaining
/// work are a flush, or syndrome 0.
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
    start_now: impl Fn(&[&mut dyn Request], &mut Prepared, &Stream<B>) -> Result<Posted, ListError>,
) -> Result<Posted, ListError> {
    for (index, request) in requests.iter_mut().enumerate() {
        request.core_mut().check_start(&stream.engine.timeline).map_err(ListError::of(index))?;
    }
    let mut pause = Pause::new();
    loop {
        let mut prepared = Prepared::of(requests)?;
        let error = match start_now(requests, &mut prepared, stream) {
            Ok(posted) => {
                let started = requests.iter_mut().zip(std::mem::take(&mut prepared.claims));
                started.for_each(|(request, claim)| request.core_mut().started(claim));
                return Ok(posted);
            }
            Err(error) => error,
        };
        prepared.take_back(requests);
        if !error.source.is_lack_of_room() || pause.elapsed() >= timeout {
            return Err(error);
        }
        requests.iter_mut().for_each(|request| request.core_mut().progress());
        pause.pause();
    }
}

fn start_now<B: MemOpStream>(
    requests: &[&mut dyn Request],
    prepared: &mut Prepared,
    stream: &Stream<B>,
) -> Result<Posted, ListError> {
    prepared.fill(requests, By::Stream(&stream.engine.timeline))?;
    prepared.post(requests, stream)
}

/// The requests of a list that are in queues, and for which the card was not rung.
pub(super) struct Prepared {
    pub(super) work: Vec<Descriptor>,
    /// The claim of each request, and the index of its work.
    pub(super) claims: Vec<Arc<Claim>>,
    places: Vec<usize>,
}

/// The one who rings the card for a list.
#[derive(Clone, Copy)]
pub(super) enum By<'a> {
    Stream(&'a Arc<Timeline>),
    /// The CPU, for sends behind a WAIT.
    Cpu(&'a WaitRequest),
}

/// Receives of one queue pair, with their positions in the list.
type Group<'a> = (&'a Arc<QueuePairInner>, Vec<usize>, Vec<(&'a [Slice], Arc<Claim>)>);

impl Prepared {
    /// Makes the claims of a list.
    fn of(requests: &mut [&mut dyn Request]) -> Result<Self, ListError> {
        let claim = |(index, request): (usize, &mut &mut dyn Request)| {
            request.core_mut().claim().map_err(ListError::of(index))
        };
        let claims = requests.iter_mut().enumerate().map(claim).collect::<Result<_, _>>()?;
        Ok(Prepared { claims, places: vec![0; requests.len()], work: Vec::new() })
    }

    /// Takes the work out of the queues. The requests use their claims again.
    fn take_back(mut self, requests: &mut [&mut dyn Request]) {
        let claims = std::mem::take(&mut self.claims);
        drop(self);
        let again = requests.iter_mut().zip(claims);
        again.for_each(|(request, claim)| request.core_mut().used = Some(claim));
    }

    pub(super) fn fill(&mut self, requests: &[&mut dyn Request], by: By<'_>) -> Result<(), ListError> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut known = BTreeMap::new();
        for (index, (request, claim)) in requests.iter().zip(&self.claims).enumerate() {
            let core = request.core();
            let Work::Receive(slices) = core.work() else { continue };
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
            By::Cpu(wait) => (None, Some(wait), BTreeMap::new()),
        };
        let mut together = BTreeMap::new();
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
            let core = request.core();
            let Work::Send(work) = core.work() else { continue };
            let waits = [in_front.cloned(), core.wait_of_next()].into_iter().flatten();
            let mode = PostMode::Later { claim: Some(claim.clone()), waits };
            let send = PreparedSend::new(core.queue_pair.clone(), &work, mode);
            let mut send = send.map_err(|error| ListError::of(index)(error.into()))?;
            let (indices, receives) = together.remove(&index).unzip();
            send.receives = receives;
            let with_it = indices.into_iter().flatten().chain([index]);
            with_it.for_each(|index| self.places[index] = self.work.len());
            self.work.push(Descriptor::Send(send));
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
        // Whether the program's own work on a borrowed stream, which has a probe, has ended is not known.
        let is_idle = || stream.end_probe().is_none() && matches!(stream.wait_idle(Duration::ZERO), Ok(true));
        if only_receives && is_idle() {
            self.ring(requests);
            return Ok(done);
        }
        let batch = Batch { descriptors: std::mem::take(&mut self.work), unmerged: false };
        let Err(PostError { batch, posted, source }) = stream.post_parts(batch, &mut done, true) else {
            return Ok(done);
        };
        self.work = batch.descriptors;
        if posted == 0 {
            let index = queue_pair_of(&source)
                .and_then(|qpn| requests.iter().position(|request| request.core().queue_pair.number == qpn));
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

    /// Completes the claims of work that did not reach the card, while other work of the list did.
    fn give_up(&self, requests: &[&mut dyn Request], places: std::ops::Range<usize>, why: &PostFailure) {
        tracing::warn!(%why, "persistent requests were started and not handed over");
        let error = match why {
            PostFailure::Queue(QueueError::State(StateError::Failed { cause, .. })) => {
                WorkError::new(Syndrome::WrFlush as u8, 0).after(*cause, Duration::ZERO)
            }
            _ => WorkError::new(0, 0),
        };
        for ((request, claim), place) in requests.iter().zip(&self.claims).zip(&self.places) {
            if places.contains(place) {
                let core = request.core();
                claim.finish_unposted(core.queue_pair.number, core.work_kind(), error);
            }
        }
    }
}

/// Returns the last request that each queue pair sends, if the list rings its doorbell. That send announces the
/// queue pair's receives.
fn last_sends(requests: &[&mut dyn Request]) -> BTreeMap<*const QueuePairInner, usize> {
    let sends = requests.iter().enumerate().filter_map(|(index, request)| {
        let core = request.core();
        let rings = core.sending.is_some() && core.queue_pair.trigger.is_none();
        rings.then_some((Arc::as_ptr(&core.queue_pair), index))
    });
    sends.collect()
}

impl Drop for Prepared {
    /// Takes the newest work out of the queues first.
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
    /// Returns true if waiting may help.
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

/// Returns the queue pair that a stream's refusal concerns.
fn queue_pair_of(failure: &PostFailure) -> Option<u32> {
    let PostFailure::Queue(error) = failure else { return None };
    match error {
        QueueError::Order(
            OrderError::OutOfOrder { qpn, .. }
            | OrderError::Stale { qpn, .. }
            | OrderError::OtherStream { qpn, .. }
            | OrderError::SendAfterOwnWait { qpn, .. },
        )
        | QueueError::State(
            StateError::Failed { qpn, .. }
            | StateError::NotConnected { qpn }
            | StateError::DeviceAttached { qpn },
        ) => Some(*qpn),
        _ => None,
    }
}

/// Makes a stream wait, in one batch, until the newest start of each request of a list has completed or failed. A
/// failed one ends the wait for itself, and for others of its queue pair, whose work is flushed. After successful
/// receives, later operations of the stream find the messages in the buffers. Waits on the CPU up to `timeout`
/// while the stream has no room. Returns the stream's share.
///
/// # Errors
/// [`ListError`], which names the request, with [`PersistentError::Inactive`]; [`PersistentError::Post`]. The
/// requests do not count as waited for then.
pub fn wait_all<B: MemOpStream>(
    requests: &mut [&mut dyn Request],
    stream: &Stream<B>,
    timeout: Duration,
) -> Result<Posted, ListError> {
    let mut pause = Pause::new();
    let posted = loop {
        match wait_now(requests, stream) {
            Ok(posted) => break posted,
            Err(error) if error.source.is_lack_of_room() && pause.elapsed() < timeout => pause.pause(),
            Err(error) => return Err(error),
        }
    };
    for request in requests {
        request.core_mut().awaited_on = Some(stream.engine.timeline.clone());
    }
    Ok(posted)
}

fn wait_now<B: MemOpStream>(requests: &[&mut dyn Request], stream: &Stream<B>) -> Result<Posted, ListError> {
    let mut batch = Batch::with_capacity(requests.len());
    let mut words = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let core = request.core();
        let claim = core.active.back().ok_or(PersistentError::Inactive).map_err(ListError::of(index))?;
        // For completed work, the word is written.
        let wait = match claim.completion() {
            Some(_) => None,
            None => PreparedWait::of_claim(&core.queue_pair, &core.queue, claim),
        };
        match wait {
            Some(wait) => batch.push(Descriptor::WaitCq(wait)),
            None => {
                let location = claim.status().word().location();
                words.push(Descriptor::Wait32(location, Condition::And, Status::OK | Status::FAILED));
                // Before the post, which returns only after the wait if the CPU is the stream.
                if claim.completion().is_none() {
                    Arc::new(Progress::new(&core.queue, &core.queue_pair, claim)).watch();
                }
            }
        }
    }
    // After the others, which are one run.
    batch.descriptors.extend(words);
    let mut done = Posted { operations: 0, submissions: 0 };
    let posted = stream.post_parts(batch, &mut done, true);
    posted.map_err(|error| ListError { index: None, source: error.source.into() })?;
    Ok(done)
}
