//! Packets that leave together, when a client has copied their payloads from peer memory ([`super::batch`]).

use crate::card::memory::copy::MemoryFailure;
use crate::card::memory::peer_copies::MAX_PENDING;
use crate::card::transport::qp::Outgoing;
use crate::fabric::Hole;
use crate::os::memory::SharedMemory;
use crate::peer_memory::PeerMapping;
use crate::staging::StagingMemory;
use std::sync::Arc;

/// Bytes of the card's own memory: the payloads of one step of a queue pair.
pub(super) const OWN_BYTES: usize = 2 * MAX_PENDING;

/// Packets that have a place and whose payload is still being copied there.
#[derive(Default)]
pub(super) struct PeerBatch {
    /// The packets, each with its bytes of payload.
    pub(super) packets: Vec<(Outgoing, usize)>,
    pub(super) reading: Vec<Arc<PeerMapping>>,
    pub(super) failure: Option<MemoryFailure>,
    pub(super) places: Vec<Hole>,
    pub(super) bytes: usize,
    /// Payloads for this card, one behind the other; made for the first of them. `Some(None)` if there is no memory.
    own: Option<Option<StagingMemory>>,
}

// SAFETY: the places are used only while a batch is open, by the thread that holds the engine's lock.
unsafe impl Send for PeerBatch {}

impl PeerBatch {
    /// Returns the first payload for this card.
    pub(super) fn own_payloads(&self) -> Option<*const u8> {
        Some(self.own.as_ref()?.as_ref()?.base().cast_const())
    }

    /// Returns whether the batch is large enough to leave.
    pub(super) fn is_full(&self, is_for_this_card: bool) -> bool {
        self.bytes >= if is_for_this_card { OWN_BYTES } else { MAX_PENDING }
    }

    /// Waits for all copies.
    pub(super) fn wait(&mut self) {
        for memory in self.reading.drain(..) {
            if let Err(failure) = memory.finish() {
                self.failure.get_or_insert(failure.into());
            }
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
        (self.bytes + len <= memory.len()).then(|| memory.base().wrapping_add(self.bytes))
    }
}
