//! Backends that perform a submission before they return, such as [`super::Cpu`]: one that has to
//! wait is performed without the lock on the stream's state.
//!
//! Other threads can then ask the stream what it waits for, and until when. They cannot post:
//! [`State::performing`] says whose turn it is, as the lock does otherwise.

use crate::batch::{Bytes, Descriptor, Points};
use crate::memop::{MemOp, MemOpStream, Place, Site, StreamError};
use crate::memory::{StreamAddr, TimelinePoint};
use crate::stream::in_flight::{Held, InFlight};
use crate::stream::post::{PROGRESS_EVERY, State};
use crate::stream::proxy::Ring;
use crate::stream::{PostFailure, Stream};
use parking_lot::{Condvar, MutexGuard};

impl<B: MemOpStream> Stream<B> {
    /// Waits until no other thread performs a submission.
    #[inline]
    pub(super) fn await_turn(&self, state: &mut MutexGuard<'_, State>) {
        while state.performing.is_some() {
            self.turn.wait(state);
        }
    }

    /// Submits operations of which one may wait, to a backend that performs them at once. The
    /// descriptors come back when it has.
    #[cold]
    #[inline(never)]
    pub(super) fn perform(
        &self,
        state: &mut MutexGuard<'_, State>,
        end: TimelinePoint,
        descriptors: &mut Vec<Descriptor>,
        ops: &[MemOp],
        rings: Vec<Ring>,
    ) -> Result<(), StreamError> {
        let held = Held::Many(std::mem::take(descriptors));
        state.performing = Some(InFlight { end, held });
        // Posting on the fast path takes a turn, too.
        state.fast_posts_left.set(0);
        let turn = Turn { state, over: &self.turn };
        let proxied = turn.state.proxied.clone();
        let result = MutexGuard::unlocked(turn.state, || {
            // SAFETY: as in `submit_lowered`; in the place of the lock, `performing` keeps other
            // threads from submitting.
            Self::with_proxy(&proxied, rings, || unsafe { self.backend.submit(ops) })
        });
        if let Some(InFlight { held: Held::Many(performed), .. }) = turn.state.performing.take() {
            *descriptors = performed;
        }
        result
    }

    /// Submits a write of bytes that is made by a copy.
    pub(super) fn post_bytes(&self, state: &mut State, bytes: &mut Bytes) -> Result<Points, PostFailure> {
        self.make_room_for_bytes(state)?;
        let to = self.address(&bytes.place, bytes.content.len())?;
        let points = Points::next(state.issued);
        self.timeline.expect(points.end);
        // SAFETY: the address is of this backend, and within one page of the host (`Bytes`). The
        // descriptor holds the memory, and what is staged, until the timeline has passed the
        // submission. The lock on the state keeps others from submitting.
        let staged = unsafe { self.backend.write_bytes(to, bytes.place.kind(), &bytes.content) }?;
        bytes.keep(staged);
        Ok(points)
    }

    /// A copy cannot write its point, so it leaves the last place to a submission that does. If
    /// that place is next, or the point is due, the stream writes it before.
    fn make_room_for_bytes(&self, state: &mut State) -> Result<(), PostFailure> {
        let limit = self.caps.max_outstanding;
        let due = state.unwritten >= PROGRESS_EVERY || state.weight.saturating_add(2) >= limit;
        if due && state.weight < limit {
            self.write_closing_point(state)?;
        }
        self.check_room(state, 2)
    }

    /// The stream's address of `len` bytes at a place.
    ///
    /// # Errors
    /// [`StreamError`] where the stream does not reach the place.
    #[inline]
    pub(super) fn address(&self, place: &Place, len: usize) -> Result<StreamAddr, StreamError> {
        if let Some(memory) = place.gpu_memory() {
            self.backend.reaches(memory)?;
        }
        match place.site() {
            Site::Host(addr) => self.backend.translate(addr, len),
            Site::Stream(addr) => Ok(addr),
        }
    }
}

/// The turn of the thread that performs. It ends also where the backend panics.
struct Turn<'a, 'b> {
    state: &'a mut MutexGuard<'b, State>,
    over: &'a Condvar,
}

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        self.state.performing = None;
        self.over.notify_all();
    }
}
