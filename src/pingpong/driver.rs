//! The trait of what performs a side's work: a software stream, the calling thread, or a GPU.

use crate::cli::PingpongOptions;
use crate::failure::Failure;
use gdsync::memop::{MemOpStream, StreamError};
use gdsync::stream::{Doorbells, PostError, PostFailure, Posted, StreamOptions};
use gdsync::{Batch, QueuePair, RemoteMemory, Slice, Stream};
use std::time::Duration;

/// Chunks that are enqueued at a time: while one is performed, the CPU prepares the next.
pub(super) const CHUNKS: u64 = 2;

/// Where a side's messages are. The slices keep the memory.
pub(super) struct Messages {
    /// The message that is sent.
    pub(super) source: Slice,
    /// Where messages arrive.
    pub(super) target: Slice,
    /// Where messages arrive, for the other side.
    pub(super) remote: RemoteMemory,
}

/// Holds a side's messages, and performs its work in the order of the calls: at once, or later.
///
/// Work comes in *chunks* of exchanges, of which [`CHUNKS`] may be under way.
pub(super) trait Driver {
    fn messages(&self) -> &Messages;

    /// The first exchange begins here.
    fn begin(&mut self) -> Result<(), Failure>;
    /// Fills the message that is sent, where messages are checked.
    fn produce(&mut self, sequence: u64) -> Result<(), Failure>;
    /// Rings cards, and waits for what they do. Takes its time where as much is outstanding as the
    /// stream takes.
    fn post(&mut self, batch: Batch) -> Result<Posted, Failure>;
    /// Checks the message that arrived, where messages are checked, and takes the time of the
    /// exchange on the first side.
    fn consume(&mut self, sequence: u64) -> Result<(), Failure>;

    /// The chunk ends here, after `count` exchanges.
    fn mark(&mut self, count: u64) -> Result<(), Failure>;
    /// Waits until the oldest chunk under way has been performed; what its kernels found is then in
    /// the findings. The CPU sleeps meanwhile.
    fn pass(&mut self) -> Result<(), Failure>;
    /// Waits until everything has been performed.
    fn synchronize(&mut self) -> Result<(), Failure>;

    /// How the doorbells of a queue pair reach the card.
    fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError>;
}

/// A stream on a backend, with the options that concern it.
pub(super) fn stream<B: MemOpStream>(backend: B, options: &PingpongOptions) -> Result<Stream<B>, Failure> {
    Ok(Stream::with_options(backend, StreamOptions::default().doorbells(options.doorbells.into()))?)
}

/// Posts a batch; waits, where the stream has as many outstanding as it takes.
pub(super) fn post<B: MemOpStream>(stream: &Stream<B>, batch: Batch) -> Result<Posted, Failure> {
    let mut batch = batch;
    loop {
        match stream.post(batch) {
            Ok(posted) => return Ok(posted),
            // Each of these batches is one submission, so nothing of it was posted.
            Err(PostError { batch: rest, source: PostFailure::WouldBlock { .. }, .. }) => batch = rest,
            Err(error) => return Err(error.to_string().into()),
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}
