//! The driver with which a stream lowers descriptors: with queues, addresses, and doorbells that the proxy may ring.

use crate::batch::{Bytes, Descriptor, Driver, Fate, Lowering, Points, Words};
use crate::memop::{Location, MemOp, MemOpStream, StreamError};
use crate::memory::{HostAddr, StreamAddr, TimelinePoint};
use crate::qp::{
    CompletionQueueInner, PreparedReceives, PreparedSend, PreparedTicket, PreparedWait, QueuePairInner,
};
use crate::queue::{Doorbell, PeerOp, QueueError, Release};
use crate::stream::proxy::{self, ProxiedDoorbell};
use crate::stream::state::{Engine, PROGRESS_EVERY, StreamState};
use crate::stream::{DoorbellPath, PostFailure};
use std::cell::RefCell;
use std::sync::Arc;

pub(super) struct Posting<'a, B: MemOpStream> {
    engine: &'a Engine<B>,
    state: &'a StreamState,
    /// The point after the submission's sends.
    sends: TimelinePoint,
    pub(super) rings: Vec<ProxiedDoorbell>,
    /// Entries for a collector to wait for.
    collected: RefCell<Vec<CollectedWait>>,
}

/// A completion queue, an index there, and the queue pairs that it may belong to.
type CollectedWait = (Arc<CompletionQueueInner>, u32, Vec<Arc<QueuePairInner>>);

impl<B: MemOpStream> Driver for Posting<'_, B> {
    type Send = PreparedSend;
    type Wait = PreparedWait;
    type ProgramWord = Location;
    type Bytes = Bytes;
    type Receives = PreparedReceives;
    type Ticket = PreparedTicket;
    type Error = PostFailure;

    #[inline]
    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.state.translations.translate(&self.engine.backend, addr, len)
    }

    #[inline]
    fn address(&self, location: &Location, len: usize) -> Result<StreamAddr, StreamError> {
        self.engine.address(location, len)
    }

    fn words<'b>(&self, bytes: &'b Bytes) -> Result<(StreamAddr, Words<'b>), PostFailure> {
        Ok((self.engine.address(&bytes.location, bytes.content.len())?, bytes.words(&self.engine.caps)?))
    }

    #[inline]
    fn commit_send(&self, send: &mut PreparedSend) -> Result<Option<Release>, PostFailure> {
        Ok(send.commit(&self.engine.timeline, self.sends)?)
    }

    fn trigger(&self, send: &PreparedSend) -> Result<StreamAddr, StreamError> {
        match send.trigger() {
            Some(trigger) => self.engine.address(&trigger.location(), size_of::<u64>()),
            None => Err(StreamError::Unsupported { what: "triggers of queue pairs without one" }),
        }
    }

    #[inline]
    fn commit_wait(&self, wait: &mut PreparedWait, fate: Fate, point: TimelinePoint) -> Option<PeerOp> {
        match fate {
            Fate::Kept => wait.commit(&self.engine.timeline, point),
            Fate::Covered => {
                wait.commit_covered(point);
                None
            }
            Fate::Collected => {
                let collector = self.state.collector.collector();
                let arrival = collector.map(|collector| collector.word().clone());
                wait.commit_collected(&self.engine.timeline, point, arrival);
                let (queue, index, queue_pairs) = wait.entry();
                self.collected.borrow_mut().push((queue.clone(), index, queue_pairs.to_vec()));
                None
            }
        }
    }

    fn commit_receives(&self, receives: &mut PreparedReceives) -> Result<PeerOp, PostFailure> {
        Ok(receives.commit(&self.engine.timeline)?)
    }

    fn commit_ticket(&self, ticket: &mut PreparedTicket) -> Result<(StreamAddr, u64), PostFailure> {
        let number = ticket.commit(&self.engine.timeline, self.sends)?;
        Ok((self.engine.address(&ticket.location(), size_of::<u64>())?, number))
    }

    #[inline]
    fn commit_announced(&self, send: &mut PreparedSend) -> Result<Option<PeerOp>, PostFailure> {
        let Some(receives) = &mut send.receives else { return Ok(None) };
        Ok(Some(receives.commit(&self.engine.timeline)?))
    }

    fn collect(&self) -> Result<(StreamAddr, u64), PostFailure> {
        let waits = self.collected.take();
        let entries: Vec<_> =
            waits.iter().map(|(queue, index, queue_pairs)| (queue, *index, &queue_pairs[..])).collect();
        let collector =
            self.state.collector.collector().ok_or(StreamError::Unsupported { what: "collectors" })?;
        let number = collector.inner.collect(&entries)?;
        Ok((self.engine.address(&collector.inner.location(), size_of::<u64>())?, number))
    }

    /// Rings by the card's register, or through the proxy.
    #[inline]
    fn ring(
        lowering: &mut Lowering<'_, Self>,
        send: &PreparedSend,
        doorbell: Doorbell,
        receives: Option<PeerOp>,
    ) -> Result<(), StreamError> {
        let state = lowering.driver.state;
        if state.rings_itself() {
            let before = lowering.ops.len();
            match lowering.doorbell(doorbell, receives) {
                Err(StreamError::Unreachable { addr, reason })
                    if lowering.driver.engine.path == DoorbellPath::Auto && doorbell.register == addr =>
                {
                    lowering.ops.truncate(before);
                    state.fall_back(reason);
                }
                other => return other,
            }
        }
        // The stream stores that record itself, as it does without a send.
        lowering.announce(receives)?;
        Self::ring_through_proxy(lowering, send, doorbell)
    }
}

impl<B: MemOpStream> Posting<'_, B> {
    #[cold]
    #[inline(never)]
    fn ring_through_proxy(
        lowering: &mut Lowering<'_, Self>,
        send: &PreparedSend,
        doorbell: Doorbell,
    ) -> Result<(), StreamError> {
        let Posting { engine, state, .. } = lowering.driver;
        proxy::start()?;
        let ring = ProxiedDoorbell::new(&send.queue_pair, &engine.timeline)?;
        // The mailbox may reuse memory with an outdated translation.
        state.translations.refresh(&engine.backend);
        lowering.doorbell(ring.to_mailbox(doorbell), None)?;
        lowering.driver.rings.push(ring);
        Ok(())
    }
}

#[inline]
pub(super) fn lowering<'a, B: MemOpStream>(
    engine: &'a Engine<B>,
    state: &'a StreamState,
    points: Points,
    merged: bool,
    ops: &'a mut Vec<MemOp>,
) -> Lowering<'a, Posting<'a, B>> {
    let driver =
        Posting { engine, state, sends: points.sends, rings: Vec::new(), collected: RefCell::default() };
    Lowering::new(driver, &engine.caps, engine.timeline.word(), merged, points.before, ops)
}

/// Marks descriptors as posted and appends their operations.
#[inline]
pub(super) fn lower<'d, B: MemOpStream>(
    lowering: &mut Lowering<'_, Posting<'_, B>>,
    descriptors: impl Iterator<Item = (&'d mut Descriptor, Fate)>,
) -> Result<(), PostFailure> {
    let mut rest = descriptors.peekable();
    while let Some((descriptor, fate)) = rest.next() {
        descriptor.check_satisfiable().map_err(QueueError::from)?;
        if rest.peek().is_none() {
            lowering.before_last(descriptor)?;
        }
        lowering.lower(descriptor, fate)?;
    }
    Ok(())
}

/// The points of a submission, and the doorbells that the proxy will ring.
pub(super) type Lowered = (Points, Vec<ProxiedDoorbell>);

/// Makes the operations of a submission, `state.ops`: those that `lower` appends, and a point if one is due.
pub(super) fn lower_submission<B: MemOpStream>(
    engine: &Engine<B>,
    state: &mut StreamState,
    mut points: Points,
    merged: bool,
    lower: impl FnOnce(&mut Lowering<'_, Posting<'_, B>>) -> Result<(), PostFailure>,
) -> Result<Lowered, PostFailure> {
    engine.check_room(state, 1)?;
    state.translations.refresh(&engine.backend);
    let mut ops = std::mem::take(&mut state.ops);
    ops.clear();
    let mut lowering = lowering(engine, state, points, merged, &mut ops);
    // The last submission with room always writes a point, so that a full stream drains without another one.
    let last = state.weight + 1 >= engine.caps.max_outstanding;
    let is_due = points.open && (state.reports || state.unwritten + 1 >= PROGRESS_EVERY || last);
    let mut result = Ok(());
    if is_due && !state.reports && !points.has_own && state.unwritten > 0 {
        // Before: the program may ask whether the stream is idle as soon as it sees its last write.
        result = lowering.progress(points.before).map_err(PostFailure::from);
        points.has_own = true;
    }
    result = result.and_then(|()| lower(&mut lowering));
    if is_due && state.reports && result.is_ok() {
        result = lowering.progress(points.end).map_err(PostFailure::from);
        points.open = false;
    }
    let rings = lowering.driver.rings;
    state.ops = ops;
    result.map(|()| (points, rings))
}
