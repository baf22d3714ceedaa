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

/// Copies of packets that follow each other to the same memory.
#[derive(Debug)]
struct Copying {
    /// The first packet; `None` if its copies end with it.
    packet: Option<PacketName>,
    memory: Arc<PeerMapping>,
}

/// Copies to peer memory of a card, and reads that go on meanwhile. Between two steps of the engine none is in progress,
/// so it keeps no region alive.
#[derive(Debug, Default)]
pub(crate) struct PeerCopies {
    /// Collects payload for clients that take it as a slice; allocated for the first of them.
    pub(super) bounce: Vec<u8>,
    /// The packet that is being handled, if its copies may end later.
    later: Option<PacketName>,
    pending: Vec<Copying>,
    bytes: usize,
    /// True if clients were not asked to start all of them.
    collects: bool,
    /// A failure to start copies in progress.
    failure: Option<PeerFailure>,
    /// Memory that is being read.
    reading: Vec<Arc<PeerMapping>>,
    read_failure: Option<PeerFailure>,
}

impl PeerCopies {
    /// Sets whether copies of the packet that is handled next may end later, by its name.
    pub(crate) fn end_later(&mut self, packet: Option<PacketName>) {
        self.later = packet;
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns whether all copies in progress are of packets for that queue pair.
    pub(crate) fn are_all_of(&self, qpn: u32) -> bool {
        self.pending.iter().all(|copying| copying.packet.is_some_and(|(of, _)| of == qpn))
    }

    /// Returns the number of bytes whose copies are in progress.
    pub(crate) fn under_way(&self) -> usize {
        self.bytes
    }

    /// Asks clients to start the copies in progress, which they may have collected.
    pub(crate) fn start(&mut self) {
        if !std::mem::take(&mut self.collects) {
            return;
        }
        for Copying { memory, .. } in &self.pending {
            if let Err(failure) = memory.start() {
                self.failure.get_or_insert(failure);
            }
        }
    }

    /// Adds memory whose reads have begun. Asks its client to start them if the card does other work meanwhile.
    pub(crate) fn read(&mut self, memory: Arc<PeerMapping>, starts: bool) {
        if starts && let Err(failure) = memory.start() {
            self.read_failure.get_or_insert(failure);
        }
        self.reading.push(memory);
    }

    /// Waits for the reads that were added; with `only_started`, not for those that have begun since.
    ///
    /// # Errors
    /// One of them has failed.
    pub(crate) fn end_reads(&mut self, only_started: bool) -> Result<(), PeerFailure> {
        let mut outcome = self.read_failure.take().map_or(Ok(()), Err);
        for memory in self.reading.drain(..) {
            outcome = outcome.and(if only_started { memory.finish_started() } else { memory.finish() });
        }
        outcome
    }

    /// Begins to copy to peer memory directly. Returns false if the client does not do that.
    ///
    /// # Errors
    /// The client cannot write the memory.
    ///
    /// # Safety
    /// The source is readable until [`Self::end_packet`]; if [`Self::end_later`] has named the packet that is handled,
    /// until [`Self::finish`].
    pub(crate) unsafe fn write(
        &mut self,
        memory: &Arc<PeerMapping>,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<bool, PeerFailure> {
        // SAFETY: the caller guarantees this; the copy is waited for by `end_packet` or `finish`.
        if len < MIN_DIRECT || unsafe { memory.begin_write(addr, from, len) }? == AsyncCopy::Unsupported {
            return Ok(false);
        }
        let packet = self.later;
        let is_next = |last: &Copying| {
            last.packet.map(|(qpn, _)| qpn) == packet.map(|(qpn, _)| qpn) && Arc::ptr_eq(&last.memory, memory)
        };
        if !self.pending.last().is_some_and(is_next) {
            self.pending.push(Copying { packet, memory: memory.clone() });
        }
        (self.bytes, self.collects) = (self.bytes + len, true);
        Ok(true)
    }

    /// Returns whether bytes for that memory may overtake others of the packet that is handled or of those before, while a
    /// program polls the last one: the packet ends with its copies, and nothing orders them. A client orders copies to the
    /// same memory at most.
    pub(crate) fn overtakes(&self, memory: &Arc<PeerMapping>) -> bool {
        let is_alone = || self.pending.iter().all(|copying| Arc::ptr_eq(&copying.memory, memory));
        self.later.is_none() && !(memory.keeps_order() && is_alone())
    }

    /// Ends the copies of the packet that is handled: waits for all copies in progress, those of earlier packets included,
    /// unless they may end later.
    ///
    /// # Errors
    /// One of them has failed. The packet counts for all: [`Self::finish`] does not return the others.
    pub(crate) fn end_packet(&mut self) -> Result<(), PeerFailure> {
        if self.later.is_some() {
            return Ok(());
        }
        let failure = self.wait();
        self.pending.clear();
        failure.map_or(Ok(()), Err)
    }

    /// Waits for all copies in progress. Returns the first failure.
    fn wait(&mut self) -> Option<PeerFailure> {
        (self.bytes, self.collects) = (0, false);
        let mut failure = self.failure.take();
        for Copying { memory, .. } in &self.pending {
            // After a client's first region, nothing is usually left to wait for.
            if let Err(one) = memory.finish() {
                failure.get_or_insert(one);
            }
        }
        failure
    }

    /// Waits for all copies in progress. A failure does not tell which copy failed, so it counts for all: returns the
    /// first packet of each queue pair, and the first failure.
    pub(crate) fn finish(&mut self) -> Vec<(PacketName, PeerFailure)> {
        let failure = self.wait();
        let mut failed: Vec<(PacketName, PeerFailure)> = Vec::new();
        for packet in self.pending.drain(..).filter_map(|copying| copying.packet) {
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

        fn start(&self) {
            assert!(!self.0.load(Ordering::SeqCst), "it cannot start");
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
    #[test]
    fn copies_of_a_client_that_panics_when_it_starts_them_have_failed() {
        let region = Arc::new(Failing(AtomicBool::new(true)));
        let memory = Arc::new(PeerMapping::new("client", region.clone()));
        let (mut copies, bytes) = (PeerCopies::default(), vec![0; MIN_DIRECT]);
        copies.end_later(Some((1, 7)));
        // SAFETY: the bytes live to the end of the test.
        assert_eq!(unsafe { copies.write(&memory, 0, bytes.as_ptr(), MIN_DIRECT) }, Ok(true));
        copies.start();
        copies.read(memory, true);
        // The client has no other failure to report.
        region.0.store(false, Ordering::SeqCst);
        for failure in [copies.end_reads(true).unwrap_err(), copies.finish().remove(0).1] {
            assert!(failure.error.reason.contains("it cannot start"), "{failure}");
        }
        assert!(copies.end_reads(true).is_ok() && copies.finish().is_empty());
    }
}
