//! From descriptors to memory operations of one stream.

use super::doorbells::{DoorbellPath, Doorbells};
use super::post::{State, Stream};
use super::post_error::PostFailure;
use super::proxy::{self, Ring};
use crate::batch::{Cursor, Descriptor, Fate, Lowering, Owner, Step};
use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::timeline::TimelinePoint;
use crate::memory::{HostAddr, StreamAddr};
use crate::qp::QueuePair;
use crate::qp::prepared::PreparedSend;
use crate::queue::doorbell::Doorbell;
use crate::queue::error::QueueError;

impl<B: MemOpStream> Stream<B> {
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

    /// Marks descriptors as posted and appends their memory operations, those that are due at the end excepted. `end` is the last
    /// point of the submission.
    pub(super) fn lower<'a>(
        &self,
        state: &State,
        descriptors: impl Iterator<Item = (&'a mut Descriptor, Fate)>,
        end: TimelinePoint,
        cursor: &mut Cursor,
        ops: &mut Vec<MemOp>,
        rings: &mut Vec<Ring>,
    ) -> Result<(), PostFailure> {
        let lowering = self.lowering(state);
        for (descriptor, fate) in descriptors {
            descriptor.check_satisfiable().map_err(QueueError::from)?;
            let step = match descriptor {
                Descriptor::Send(send) => {
                    lowering.before_other(cursor, ops);
                    if let Some(doorbell) = send.commit(&self.timeline, end)?
                        && fate == Fate::Kept
                    {
                        self.lower_send(state, send, doorbell, ops, rings)?;
                    }
                    continue;
                }
                Descriptor::WaitCq(wait) => {
                    let point = lowering.before_completion(cursor, ops)?;
                    match fate {
                        Fate::Kept => {
                            let op = wait.commit(&self.timeline, point);
                            lowering.completion(cursor, op, ops)?;
                        }
                        Fate::Covered => wait.commit_covered(point),
                    }
                    continue;
                }
                Descriptor::Wait32(word, condition, value) => {
                    lowering.catch_up(cursor, ops)?;
                    Step::Wait32(self.site(word)?, *condition, *value)
                }
                Descriptor::Wait64(word, condition, value) => {
                    lowering.catch_up(cursor, ops)?;
                    Step::Wait64(self.site(word)?, *condition, *value)
                }
                Descriptor::Write32(word, value) => Step::Write32(self.site(word)?, *value),
                Descriptor::Write64(word, value) => Step::Write64(self.site(word)?, *value),
                Descriptor::Barrier => Step::Barrier,
                Descriptor::Flush => Step::Flush,
                Descriptor::Bytes(bytes) => {
                    lowering.before_other(cursor, ops);
                    let mut site = self.site(bytes.place())?;
                    for word in bytes.words(&self.caps)? {
                        lowering.lower(word.step(site), ops)?;
                        site = site.after(word.len());
                    }
                    continue;
                }
            };
            lowering.before_other(cursor, ops);
            lowering.lower(step, ops)?;
        }
        Ok(())
    }

    /// Appends what is due after the last descriptor.
    pub(super) fn finish(
        &self,
        state: &State,
        cursor: &mut Cursor,
        ops: &mut Vec<MemOp>,
    ) -> Result<(), StreamError> {
        self.lowering(state).catch_up(cursor, ops)
    }

    fn lowering<'a>(
        &'a self,
        state: &'a State,
    ) -> Lowering<'a, impl Fn(HostAddr, usize, Owner) -> Result<StreamAddr, StreamError>> {
        let translate = |addr, len, owner| match owner {
            Owner::Library => state.translations.translate(&self.backend, addr, len),
            Owner::Program => self.backend.translate(addr, len),
        };
        Lowering { caps: &self.caps, timeline: self.timeline.word(), translate }
    }

    /// A doorbell: to the card's register, or through the proxy.
    #[inline]
    pub(super) fn lower_send(
        &self,
        state: &State,
        send: &PreparedSend,
        doorbell: Doorbell,
        ops: &mut Vec<MemOp>,
        rings: &mut Vec<Ring>,
    ) -> Result<(), StreamError> {
        let lowering = self.lowering(state);
        if state.rings_itself() {
            let before = ops.len();
            match lowering.send(doorbell, ops) {
                Err(StreamError::Unreachable { addr, reason })
                    if self.path == DoorbellPath::Auto && doorbell.register == addr =>
                {
                    ops.truncate(before);
                    state.fall_back(reason);
                }
                other => return other,
            }
        }
        self.lower_through_proxy(state, send, doorbell, ops, rings)
    }

    #[cold]
    #[inline(never)]
    fn lower_through_proxy(
        &self,
        state: &State,
        send: &PreparedSend,
        doorbell: Doorbell,
        ops: &mut Vec<MemOp>,
        rings: &mut Vec<Ring>,
    ) -> Result<(), StreamError> {
        proxy::start()?;
        let ring = Ring::new(send.queue_pair(), &self.timeline)?;
        // Its mailbox may be where something else was.
        state.translations.refresh(&self.backend);
        self.lowering(state).send(ring.to_mailbox(doorbell), ops)?;
        rings.push(ring);
        Ok(())
    }

    /// Has the stream write a point.
    #[inline(never)]
    pub(super) fn write_point(
        &self,
        state: &State,
        point: TimelinePoint,
        ops: &mut Vec<MemOp>,
    ) -> Result<(), StreamError> {
        let lowering = self.lowering(state);
        lowering.lower(Step::Progress(point), ops)
    }

    /// Submits, with the proxy ready to ring: a backend may perform what it is given before it returns.
    pub(super) fn with_proxy<E>(
        state: &State,
        rings: Vec<Ring>,
        submit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let count = rings.len();
        if count > 0 {
            proxy::submit(&state.proxied, rings);
        }
        let result = submit();
        if result.is_err() && count > 0 {
            proxy::withdraw(&state.proxied, count);
        }
        result
    }
}

impl State {
    #[inline]
    pub(super) fn rings_itself(&self) -> bool {
        matches!(*self.doorbells.borrow(), Doorbells::Direct)
    }

    fn fall_back(&self, reason: String) {
        tracing::info!(reason, "the stream cannot reach the card's doorbells: a proxy thread rings them");
        *self.doorbells.borrow_mut() = Doorbells::Proxy { reason };
        self.plain.set(0);
    }
}
