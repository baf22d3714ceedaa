//! Status words as kernels on a stream see them.

use super::Stream;
use crate::memop::{MemOpStream, StreamError};
use crate::memory::StreamAddr;
use crate::queue::Status;

impl Status {
    /// The address of the word, 4 bytes, for kernels on a stream: on a GPU's, in the GPU's address
    /// space, of which the word's page becomes part now if it is not yet. It is for reading only. Where
    /// what was waited for is a [`CheckedWait`](crate::qp::CheckedWait), a kernel behind the wait finds the
    /// word written; behind another wait it may be written a little later, as [`Self::word`] says.
    ///
    /// The address holds as long as this status or a clone of it lives, and on a GPU's stream until
    /// the kernels that were enqueued before are through.
    ///
    /// # Errors
    /// [`StreamError`] where the stream cannot reach the word.
    pub fn address_on<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<StreamAddr, StreamError> {
        stream.backend.translate(self.word().addr(), size_of::<u32>())
    }
}
