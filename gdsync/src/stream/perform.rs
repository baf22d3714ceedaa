//! Backends that perform a submission before they return, such as [`super::Cpu`]: one that has to
//! wait is performed without the lock on the stream's state.
//!
//! Other threads can then ask the stream what it waits for, and until when. They cannot post:
//! [`State::performing`] says whose turn it is, as the lock does otherwise.

use super::in_flight::{Held, InFlight};
use super::post::{State, Stream};
use super::proxy::Ring;
use crate::batch::Descriptor;
use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::TimelinePoint;
use parking_lot::{Condvar, MutexGuard};

impl<B: MemOpStream> Stream<B> {
    /// Locks the state, once no other thread performs a submission.
    #[inline]
    pub(super) fn lock_to_post(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        self.await_turn(&mut state);
        state
    }

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
