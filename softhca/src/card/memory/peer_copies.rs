//! Copies of payload to peer memory: what the card does at once, and what a client has begun and ends later.

use crate::fabric::MAX_PAYLOAD;
use crate::peer_memory::{Begun, PeerFailure, PeerMapping};
use std::sync::Arc;

/// Bytes whose copies are under way before the card waits for them: enough to hide what it takes to begin
/// them and to wait (on an H200, 4 packets in a ring of 1 MiB allow 12 GB/s, and 8 in one of 2 MiB 15.5), and a
/// part of the fabric's room only.
pub(crate) const MOST_UNDER_WAY: usize = 8 * MAX_PAYLOAD;

/// Bytes from which on a client is asked to copy without a detour: fewer are there before such a copy has
/// begun.
pub(crate) const LEAST: usize = 16 << 10;

/// The packet for which a copy was begun: its queue pair, and its number.
pub(crate) type PacketName = (u32, u32);

/// A copy that a client has begun.
#[derive(Debug)]
struct Copying {
    packet: PacketName,
    memory: Arc<PeerMapping>,
}

/// Copies to peer memory of a card.
///
/// Between two steps of the engine none is under way, so it keeps no region alive.
#[derive(Debug, Default)]
pub(crate) struct PeerCopies {
    /// Collects payload for clients that take it as a slice; allocated for the first of them.
    pub(super) bounce: Vec<u8>,
    /// The packet that is being handled, if its copies may end later.
    later: Option<PacketName>,
    under_way: Vec<Copying>,
    bytes: usize,
}

impl PeerCopies {
    /// Says whether copies of the packet that is handled next may end later, by its name if so.
    pub(crate) fn end_later(&mut self, packet: Option<PacketName>) {
        self.later = packet;
    }

    /// Whether a copy is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether so much is under way that the card should wait for it.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= MOST_UNDER_WAY
    }

    /// Copies to peer memory without a detour, if its client does. False if it does not.
    ///
    /// # Errors
    /// The client cannot write the memory.
    ///
    /// # Safety
    /// The source is readable: while the packet is handled; and where [`Self::end_later`] has named that,
    /// until [`Self::finish`].
    pub(crate) unsafe fn write(
        &mut self,
        memory: &Arc<PeerMapping>,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<bool, PeerFailure> {
        // SAFETY: the caller's; it is waited for below, or by `finish`.
        if len < LEAST || unsafe { memory.begin_write(addr, from, len) }? == Begun::Not {
            return Ok(false);
        }
        match self.later {
            Some(packet) => {
                self.under_way.push(Copying { packet, memory: memory.clone() });
                self.bytes += len;
            }
            None => memory.finish()?,
        }
        Ok(true)
    }

    /// Waits for all copies that are under way. If one has failed, nothing says which, and a client may say it
    /// for one of several regions that it has waited for together. So all have: returns the first packet of each
    /// queue pair, and the first failure.
    pub(crate) fn finish(&mut self) -> Vec<(PacketName, PeerFailure)> {
        self.bytes = 0;
        let mut failure = None;
        for Copying { memory, .. } in &self.under_way {
            // Nothing is left to wait for after the first of a client's regions, as a rule.
            if let Err(one) = memory.finish() {
                failure.get_or_insert(one);
            }
        }
        let mut failed: Vec<(PacketName, PeerFailure)> = Vec::new();
        for Copying { packet, .. } in self.under_way.drain(..) {
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

    /// Memory whose next copies fail. The client says so once.
    #[derive(Debug, Default)]
    struct Failing(AtomicBool);

    impl PeerRegion for Failing {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), PeerMemoryError> {
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), PeerMemoryError> {
            Ok(())
        }

        unsafe fn begin_write(&self, _: u64, _: *const u8, _: usize) -> Result<Begun, PeerMemoryError> {
            Ok(Begun::Yes)
        }

        fn finish(&self) -> Result<(), PeerMemoryError> {
            if self.0.swap(false, Ordering::SeqCst) { Err(PeerMemoryError::new("lost")) } else { Ok(()) }
        }
    }

    #[test]
    fn a_copy_that_fails_is_every_queue_pairs() {
        let regions = [true, false].map(|fails| Arc::new(Failing(AtomicBool::new(fails))));
        let [failing, good] = regions.clone().map(|region| Arc::new(PeerMapping::new("client", region)));
        let (mut copies, bytes) = (PeerCopies::default(), vec![0; LEAST]);
        for (memory, packet) in [(&good, (1, 7)), (&failing, (2, 8)), (&failing, (1, 9)), (&failing, (3, 5))]
        {
            copies.end_later(Some(packet));
            // SAFETY: the bytes live to the end of the test.
            assert_eq!(unsafe { copies.write(memory, 0, bytes.as_ptr(), LEAST) }, Ok(true));
        }
        let failed = copies.finish();
        let packets: Vec<PacketName> = failed.iter().map(|(packet, _)| *packet).collect();
        assert_eq!(packets, [(1, 7), (2, 8), (3, 5)]);
        assert!(failed.iter().all(|(_, failure)| failure.error.reason == "lost"));
        assert!(!copies.is_under_way() && copies.finish().is_empty());
    }
}
