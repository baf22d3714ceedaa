//! What one side of an exchange does, whichever interface it does it by.

use gdsync_cli::failure::Failure;
use serde::Serialize;
use std::time::Duration;

/// Exchanges that are enqueued at a time, without the CPU looking at any of them: three submissions each are
/// few enough for a driver, which blocks the caller when about 1000 wait.
pub(super) const CHUNK: usize = 64;
/// Bytes of a message: a number.
pub(super) const MESSAGE: usize = 8;
/// For a chunk. A side that waits longer has lost the other one.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How an exchange is handed over: a send, a wait for its completion, and a wait for the other side's
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Shape {
    /// Each in a call of its own, prepared in that call.
    Calls,
    /// Each in a call of its own, all prepared before: only posting is measured.
    Prepared,
    /// All in one call, prepared before.
    Batch,
}

impl Shape {
    pub(super) const ALL: [Shape; 3] = [Shape::Calls, Shape::Prepared, Shape::Batch];

    pub(super) fn name(self) -> &'static str {
        match self {
            Shape::Calls => "three calls, which prepare",
            Shape::Prepared => "three calls, prepared before",
            Shape::Batch => "one call, prepared before",
        }
    }
}

/// One side, by one interface: a queue pair, a place for each message of a chunk in both directions, and a
/// stream.
pub(super) trait Way {
    /// What the other side needs to connect.
    fn address(&self) -> Result<String, Failure>;
    fn connect(&mut self, other: &str) -> Result<(), Failure>;

    /// Writes the number that a place sends.
    fn write(&mut self, place: usize, number: u64);
    /// The number that a place has received.
    fn read(&self, place: usize) -> u64;

    /// Posts the receives of a chunk.
    fn receive(&mut self, count: usize) -> Result<(), Failure>;
    /// Prepares what the shape has prepared before.
    fn prepare(&mut self, shape: Shape, count: usize) -> Result<(), Failure>;
    /// Hands the chunk over to the stream.
    fn post(&mut self, shape: Shape, count: usize) -> Result<(), Failure>;
    /// Waits until the stream has performed it.
    fn synchronize(&mut self) -> Result<(), Failure>;
    /// Takes the completions of the chunk.
    fn collect(&mut self, count: usize) -> Result<(), Failure>;

    /// Memory operations so far.
    fn operations(&self) -> usize;
}

pub(super) fn late() -> Failure {
    format!("the stream has not come to its end within {PATIENCE:?}: the other side is gone, or the card is")
        .into()
}
