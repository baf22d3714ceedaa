//! Copies of payload to peer memory: synchronous ones, and those that a client starts and finishes later.

use crate::fabric::MAX_PAYLOAD;
use crate::peer_memory::{AsyncCopy, PeerFailure, PeerMapping};
use std::sync::Arc;

/// Maximum number of bytes whose copies are in progress before the card waits: enough to hide the cost of starting and
/// waiting (on an H200, 4 packets in a ring of 1 MiB allow 12 GB/s, and 8 in one of 2 MiB 15.5), and only a part of the
/// fabric's room.
pub(crate) const MAX_PENDING: usize = 8 * MAX_PAYLOAD;

/// Minimum number of bytes for a direct copy: fewer are copied before a direct copy has started.
pub(crate) const MIN_DIRECT: usize = 16 << 10;

/// The packet of a copy: its queue pair, and its PSN.
pub(crate) type PacketName = (u32, u32);

#[derive(Debug)]
struct Copying {
    packet: PacketName,
    memory: Arc<PeerMapping>,
}

/// Copies to peer memory of a card. Between two steps of the engine none is in progress, so it keeps no region alive.
#[derive(Debug, Default)]
pub(crate) struct PeerCopies {
    /// Collects payload for clients that take it as a slice; allocated for the first of them.
    pub(super) bounce: Vec<u8>,
    /// The packet that is being handled, if its copies may end later.
    later: Option<PacketName>,
    pending: Vec<Copying>,
    bytes: usize,
}

impl PeerCopies {
    /// Sets whether copies of the packet that is handled next may end later, by its name.
    pub(crate) fn end_later(&mut self, packet: Option<PacketName>) {
        self.later = packet;
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the number of bytes whose copies are in progress.
    pub(crate) fn under_way(&self) -> usize {
        self.bytes
    }

    /// Copies to peer memory directly. Returns false if the client does not do that.
    ///
    /// # Errors
    /// The client cannot write the memory.
    ///
    /// # Safety
    /// The source is readable while the packet is handled; if [`Self::end_later`] has named that packet, until
    /// [`Self::finish`].
    pub(crate) unsafe fn write(
        &mut self,
        memory: &Arc<PeerMapping>,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<bool, PeerFailure> {
        // SAFETY: the caller guarantees this; the copy is waited for below, or by `finish`.
        if len < MIN_DIRECT || unsafe { memory.begin_write(addr, from, len) }? == AsyncCopy::Unsupported {
            return Ok(false);
        }
        match self.later {
            Some(packet) => {
                self.pending.push(Copying { packet, memory: memory.clone() });
                self.bytes += len;
            }
            None => memory.finish()?,
        }
        Ok(true)
    }

    /// Waits for all copies in progress. A failure does not tell which copy failed, and a client may report it for one
    /// of several regions that it has waited for together. So it counts for all: returns the first packet of each queue
    /// pair, and the first failure.
    pub(crate) fn finish(&mut self) -> Vec<(PacketName, PeerFailure)> {
        self.bytes = 0;
        let mut failure = None;
        for Copying { memory, .. } in &self.pending {
            // After a client's first region, nothing is usually left to wait for.
            if let Err(one) = memory.finish() {
                failure.get_or_insert(one);
            }
        }
        let mut failed: Vec<(PacketName, PeerFailure)> = Vec::new();
        for Copying { packet, .. } in self.pending.drain(..) {
            if let Some(failure) = &failure
                && failed.iter().all(|((qpn, _), _)| *qpn != packet.0)
            {
                failed.push((packet, failure.clone()));
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer_memory::{PeerMemoryError, PeerRegion};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Memory whose next copies fail. The client reports that once.
    #[derive(Debug, Default)]
    struct Failing(AtomicBool);

    impl PeerRegion for Failing {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), PeerMemoryError> {
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), PeerMemoryError> {
            Ok(())
        }

        unsafe fn begin_write(&self, _: u64, _: *const u8, _: usize) -> Result<AsyncCopy, PeerMemoryError> {
            Ok(AsyncCopy::Started)
        }

        fn finish(&self) -> Result<(), PeerMemoryError> {
            if self.0.swap(false, Ordering::SeqCst) { Err(PeerMemoryError::new("lost")) } else { Ok(()) }
        }
    }

    #[test]
    fn a_copy_that_fails_is_every_queue_pairs() {
        let regions = [true, false].map(|fails| Arc::new(Failing(AtomicBool::new(fails))));
        let [failing, good] = regions.clone().map(|region| Arc::new(PeerMapping::new("client", region)));
        let (mut copies, bytes) = (PeerCopies::default(), vec![0; MIN_DIRECT]);
        for (memory, packet) in [(&good, (1, 7)), (&failing, (2, 8)), (&failing, (1, 9)), (&failing, (3, 5))]
        {
            copies.end_later(Some(packet));
            // SAFETY: the bytes live to the end of the test.
            assert_eq!(unsafe { copies.write(memory, 0, bytes.as_ptr(), MIN_DIRECT) }, Ok(true));
        }
        let failed = copies.finish();
        let packets: Vec<PacketName> = failed.iter().map(|(packet, _)| *packet).collect();
        assert_eq!(packets, [(1, 7), (2, 8), (3, 5)]);
        assert!(failed.iter().all(|(_, failure)| failure.error.reason == "lost"));
        assert!(!copies.is_pending() && copies.finish().is_empty());
    }
}
