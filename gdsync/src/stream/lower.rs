//! The driver with which a stream lowers descriptors: with queues, addresses, and doorbells that the proxy may ring.

use crate::batch::{Bytes, Descriptor, Driver, Fate, Lowering, Points, Words};
use crate::memop::{Location, MemOp, MemOpStream, StreamError};
use crate::memory::{HostAddr, StreamAddr, TimelinePoint};
use crate::qp::{
    CompletionQueueInner, PreparedReceives, PreparedSend, PreparedTicket, PreparedWait, QueuePair,
    QueuePairInner,
};
use crate::queue::{Doorbell, PeerOp, QueueError, Release};
use crate::stream::proxy::{self, ProxiedDoorbell, ProxyQueue};
use crate::stream::state::{Stream, StreamState};
use crate::stream::{DoorbellPath, Doorbells, PostFailure};
use std::cell::RefCell;
use std::sync::Arc;

pub(super) struct Posting<'a, B: MemOpStream> {
    stream: &'a Stream<B>,
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
        self.state.translations.translate(&self.stream.backend, addr, len)
    }

    #[inline]
    fn address(&self, location: &Location, len: usize) -> Result<StreamAddr, StreamError> {
        self.stream.address(location, len)
    }

    fn words<'b>(&self, bytes: &'b Bytes) -> Result<(StreamAddr, Words<'b>), PostFailure> {
        Ok((self.stream.address(&bytes.location, bytes.content.len())?, bytes.words(&self.stream.caps)?))
    }

    #[inline]
    fn commit_send(&self, send: &mut PreparedSend) -> Result<Option<Release>, PostFailure> {
        Ok(send.commit(&self.stream.timeline, self.sends)?)
    }

    fn trigger(&self, send: &PreparedSend) -> Result<StreamAddr, StreamError> {
        match send.trigger() {
            Some(trigger) => self.stream.address(&trigger.location(), size_of::<u64>()),
            None => Err(StreamError::Unsupported { what: "triggers of queue pairs without one" }),
        }
    }

    #[inline]
    fn commit_wait(&self, wait: &mut PreparedWait, fate: Fate, point: TimelinePoint) -> Option<PeerOp> {
        match fate {
            Fate::Kept => wait.commit(&self.stream.timeline, point),
            Fate::Covered => {
                wait.commit_covered(point);
                None
            }
            Fate::Collected => {
                let collector = self.state.collector.collector();
                let arrival = collector.map(|collector| collector.word().clone());
                wait.commit_collected(&self.stream.timeline, point, arrival);
                let (queue, index, queue_pairs) = wait.entry();
                self.collected.borrow_mut().push((queue.clone(), index, queue_pairs.to_vec()));
                None
            }
        }
    }

    fn commit_receives(&self, receives: &mut PreparedReceives) -> Result<PeerOp, PostFailure> {
        Ok(receives.commit(&self.stream.timeline)?)
    }

    fn commit_ticket(&self, ticket: &mut PreparedTicket) -> Result<(StreamAddr, u64), PostFailure> {
        let number = ticket.commit(&self.stream.timeline, self.sends)?;
        Ok((self.stream.address(&ticket.location(), size_of::<u64>())?, number))
    }

    #[inline]
    fn commit_announced(&self, send: &mut PreparedSend) -> Result<Option<PeerOp>, PostFailure> {
        let Some(receives) = &mut send.receives else { return Ok(None) };
        Ok(Some(receives.commit(&self.stream.timeline)?))
    }

    fn collect(&self) -> Result<(StreamAddr, u64), PostFailure> {
        let waits = self.collected.take();
        let entries: Vec<_> =
            waits.iter().map(|(queue, index, queue_pairs)| (queue, *index, &queue_pairs[..])).collect();
        let collector =
            self.state.collector.collector().ok_or(StreamError::Unsupported { what: "collectors" })?;
        let number = collector.inner.collect(&entries)?;
        Ok((self.stream.address(&collector.inner.location(), size_of::<u64>())?, number))
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
                    if lowering.driver.stream.path == DoorbellPath::Auto && doorbell.register == addr =>
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
        let Posting { stream, state, .. } = lowering.driver;
        proxy::start()?;
        let ring = ProxiedDoorbell::new(&send.queue_pair, &stream.timeline)?;
        // The mailbox may reuse memory with an outdated translation.
        state.translations.refresh(&stream.backend);
        lowering.doorbell(ring.to_mailbox(doorbell), None)?;
        lowering.driver.rings.push(ring);
        Ok(())
    }
}

impl<B: MemOpStream> Stream<B> {
    /// Returns how the doorbells of a queue pair reach its card. Decides it if necessary, so that the first send
    /// does not.
    ///
    /// # Errors
    /// [`StreamError::NoThread`]; [`StreamError`] if the stream cannot reach the doorbell register and
    /// [`DoorbellPath::Direct`] requires it.
    pub fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError> {
        let state = self.lock();
        if state.rings_itself() {
            let register = queue_pair.inner.send().register;
            match self.backend.translate(register, size_of::<u64>()) {
                Err(StreamError::Unreachable { reason, .. }) if self.path == DoorbellPath::Auto => {
                    state.fall_back(reason);
                    proxy::start()?;
                }
                other => drop(other?),
            }
        }
        let doorbells = state.doorbells.borrow().clone();
        Ok(doorbells)
    }

    #[inline]
    pub(super) fn lowering<'a>(
        &'a self,
        state: &'a StreamState,
        points: Points,
        merged: bool,
        ops: &'a mut Vec<MemOp>,
    ) -> Lowering<'a, Posting<'a, B>> {
        let driver = Posting {
            stream: self,
            state,
            sends: points.sends,
            rings: Vec::new(),
            collected: RefCell::default(),
        };
        Lowering::new(driver, &self.caps, self.timeline.word(), merged, points.before, ops)
    }

    /// Marks descriptors as posted and appends their operations.
    #[inline]
    pub(super) fn lower<'d>(
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

    /// Submits with the proxy ready to ring, as a backend may perform operations before it returns.
    pub(super) fn with_proxy<E>(
        proxied: &Arc<ProxyQueue>,
        rings: Vec<ProxiedDoorbell>,
        submit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let count = rings.len();
        if count > 0 {
            proxy::submit(proxied, rings);
        }
        let result = submit();
        if result.is_err() && count > 0 {
            proxy::withdraw(proxied, count);
        }
        result
    }
}
