//! What a card has placed in the fabric, and not given to it yet.

use crate::card::memory::peer_copies::MOST_UNDER_WAY;
use crate::card::transport::qp::Outgoing;
use crate::fabric::Hole;
use crate::peer_memory::{PeerFailure, PeerMapping};
use std::sync::Arc;

/// Packets that have a place in the fabric, and whose payload is being copied there.
#[derive(Default)]
pub(super) struct Ahead {
    /// Each with its bytes of payload.
    pub(super) packets: Vec<(Outgoing, usize)>,
    /// The memory that is being read.
    pub(super) reading: Vec<Arc<PeerMapping>>,
    /// The first failure of a copy.
    pub(super) failure: Option<PeerFailure>,
    pub(super) places: Vec<Hole>,
    pub(super) bytes: usize,
}

// SAFETY: the places are used only while packets are made ahead, by the thread that holds the engine's
// lock.
unsafe impl Send for Ahead {}

impl Ahead {
    /// Whether so much is under way that it should leave.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MOST_UNDER_WAY
    }

    /// Waits for all copies.
    pub(super) fn wait(&mut self) {
        for memory in self.reading.drain(..) {
            if let Err(failure) = memory.finish() {
                self.failure.get_or_insert(failure);
            }
        }
    }
}
