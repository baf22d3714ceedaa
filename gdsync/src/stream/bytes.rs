//! Writes of bytes, which a stream performs as submissions of their own.

use super::post::{PROGRESS_EVERY, Points, State, Stream};
use super::post_error::PostFailure;
use crate::batch::Bytes;
use crate::memop::{MemOpStream, Place, Site, StreamError};

impl<B: MemOpStream> Stream<B> {
    /// Submits a write of bytes that is made by a copy.
    pub(super) fn post_bytes(&self, state: &mut State, bytes: &mut Bytes) -> Result<Points, PostFailure> {
        self.make_room_for_bytes(state)?;
        let to = match self.site(bytes.place())? {
            Site::Host(addr) => self.backend.translate(addr, bytes.content().len())?,
            Site::Stream(addr) => addr,
        };
        let points = state.next_point();
        self.timeline.expect(points.end);
        // SAFETY: the address is of this backend, and within one page of the host (`Bytes`). The descriptor holds the memory, and what
        // is staged, until the timeline has passed the submission. The lock on the state keeps others from submitting.
        let staged = unsafe { self.backend.write_bytes(to, bytes.place().kind(), bytes.content()) }?;
        bytes.keep(staged);
        Ok(points)
    }

    /// A copy cannot write its point, so it leaves the last place to what does; or has it written, if it is that late.
    fn make_room_for_bytes(&self, state: &mut State) -> Result<(), PostFailure> {
        let limit = self.caps.max_outstanding;
        let late = state.unwritten >= PROGRESS_EVERY || state.weight.saturating_add(2) >= limit;
        if late && state.weight < limit {
            self.write_closing_point(state)?;
        }
        self.check_room(state, 2)
    }

    /// Where a stream finds a place: refused where it does not reach it.
    #[inline]
    pub(super) fn site(&self, place: &Place) -> Result<Site, StreamError> {
        if let Some(memory) = place.gpu_memory() {
            self.backend.reaches(memory)?;
        }
        Ok(place.site())
    }
}
