//! The null region: it reads as zeros, and forgets what is written.

use crate::peer_memory::{PeerMemoryError, PeerRegion};

/// The memory behind [`NULL_KEY`](crate::card::NULL_KEY).
#[derive(Debug)]
pub(super) struct Null;

impl PeerRegion for Null {
    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        into.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), PeerMemoryError> {
        Ok(())
    }
}
