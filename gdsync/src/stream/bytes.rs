//! Writes of bytes, which a stream performs as submissions of their own.

use super::post::{PROGRESS_EVERY, State, Stream};
use super::post_error::PostFailure;
use crate::batch::{Bytes, Points};
use crate::memop::{MemOpStream, Place, Site, StreamError};
use crate::memory::StreamAddr;

impl<B: MemOpStream> Stream<B> {
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
