//! Packets that leave together, when a client has copied their payloads from peer memory ([`super::batch`]).

use crate::card::memory::copy::MemoryFailure;
use crate::card::memory::peer_copies::{MAX_PENDING, PeerCopies};
use crate::card::transport::qp::Outgoing;
use crate::fabric::{Hole, MAX_PAYLOAD};
use crate::os::memory::SharedMemory;
use crate::peer_memory::PeerMapping;
use crate::staging::StagingMemory;
use std::sync::Arc;

/// Bytes of payload for this card that are read together, while those before them are delivered: a smaller section costs
/// more calls of a GPU's driver.
pub(crate) const SECTION: usize = 16 * MAX_PAYLOAD;

/// Bytes of the first section of a step, which is read while nothing else goes on.
pub(crate) const FIRST_SECTION: usize = SECTION / 2;

/// Packets for this card that one step sends for a queue pair, so that a long message overlaps with itself. Their bytes
/// exceed the private caches of the threads that store them: a GPU copies slowly to memory that such a cache holds.
pub(crate) const OWN_PACKETS: usize = 256;

/// Bytes of the card's own memory: the payloads of one step.
pub(super) const OWN_BYTES: usize = OWN_PACKETS * MAX_PAYLOAD;

/// Packets, each with its bytes of payload.
pub(super) type Packets = Vec<(Outgoing, usize)>;

/// Packets that have a place and whose payload is still being copied there.
#[derive(Default)]
pub(super) struct PeerBatch {
    /// Those that are added now.
    pub(super) packets: Packets,
    /// Those for this card that were added before, whose payloads are being read.
    pub(super) ahead: Packets,
    pub(super) reading: Vec<Arc<PeerMapping>>,
    pub(super) failure: Option<MemoryFailure>,
    pub(super) places: Vec<Hole>,
    /// Bytes of [`Self::packets`].
    pub(super) bytes: usize,
    /// Bytes of the card's own memory that have a payload, and of those whose packet was delivered.
    pub(super) used: usize,
    pub(super) delivered: usize,
    /// Payloads for this card, one behind the other; made for the first of them. `Some(None)` if there is no memory.
    own: Option<Option<StagingMemory>>,
}

// SAFETY: the places are used only while a batch is open, by the thread that holds the engine's lock.
unsafe impl Send for PeerBatch {}

impl PeerBatch {
    /// Returns the first payload for this card that was not delivered.
    pub(super) fn own_payloads(&self) -> Option<*const u8> {
        Some(self.own.as_ref()?.as_ref()?.base().wrapping_add(self.delivered).cast_const())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.ahead.is_empty()
    }

    /// Returns whether the packets are for this card.
    pub(super) fn is_own(&self) -> bool {
        self.used > 0
    }

    /// Returns whether the packets that are added have enough bytes to be read, or to leave.
    pub(super) fn is_full(&self) -> bool {
        let enough = match self.is_own() {
            true if self.used == self.bytes => FIRST_SECTION,
            true => SECTION,
            false => MAX_PENDING,
        };
        self.bytes >= enough
    }

    /// Returns whether a step that has sent `sent` packets of a queue pair goes on, so that those for this card overlap.
    pub(super) fn goes_on(&self, sent: usize) -> bool {
        self.is_own() && sent < OWN_PACKETS && self.used + MAX_PAYLOAD <= OWN_BYTES
    }

    /// Waits for all copies.
    pub(super) fn wait(&mut self, peers: &mut PeerCopies) {
        self.reading.drain(..).for_each(|memory| peers.read(memory, false));
        if let Err(failure) = peers.end_reads(false) {
            self.failure.get_or_insert(failure.into());
        }
    }

    /// Returns the address behind the payloads for this card, if there is room for `len` bytes.
    pub(super) fn own_place(&mut self, len: usize) -> Option<*mut u8> {
        let make = || {
            let memory = SharedMemory::create(OWN_BYTES);
            let memory =
                memory.inspect_err(|error| tracing::debug!(%error, "no memory for payloads to this card"));
            memory.ok().map(|(memory, _)| StagingMemory::new(memory))
        };
        let memory = self.own.get_or_insert_with(make).as_ref()?;
        (self.used + len <= memory.len()).then(|| memory.base().wrapping_add(self.used))
    }
}
