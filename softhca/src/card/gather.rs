//! The payload of a packet that is being made.

use super::context::MTU;
use super::dma::{Part, Place};
use crate::peer_memory::{PeerFailure, PeerMapping};
use std::sync::Arc;

/// A piece that is still in peer memory.
#[derive(Debug)]
struct Waiting {
    /// Its place among the parts.
    index: usize,
    len: usize,
    memory: Arc<PeerMapping>,
    addr: u64,
}

/// Pieces of payload, in order. Those of peer memory are read into a buffer of the card when the packet can leave: then all
/// of it is memory that the CPU reads.
///
/// Between packets nothing is waiting, so that it keeps no region alive.
#[derive(Debug, Default)]
pub(super) struct Gather {
    parts: Vec<Part>,
    waiting: Vec<Waiting>,
    /// What was read from peer memory; made when it is needed first, and kept.
    bounce: Vec<u8>,
    /// What the card itself puts before the program's data.
    prefix: Vec<u8>,
}

impl Gather {
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.waiting.clear();
    }

    pub(super) fn push(&mut self, place: Place<'_>, len: usize) {
        match place {
            Place::Host(at) => self.parts.push((at.cast_const(), len)),
            Place::Peer(memory, addr) => {
                let index = self.parts.len();
                self.waiting.push(Waiting { index, len, memory: memory.clone(), addr });
                self.parts.push((std::ptr::null(), len));
            }
        }
    }

    /// Bytes of the card's own, before the data: at most once for a packet.
    pub(super) fn push_prefix(&mut self, bytes: &[u8]) {
        self.prefix.clear();
        self.prefix.extend_from_slice(bytes);
        self.parts.push((self.prefix.as_ptr(), bytes.len()));
    }

    /// Whether pieces are still in peer memory.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes of all pieces.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.1).sum()
    }

    /// Reads what is in peer memory, each piece with one call. On failure there is no payload.
    pub(super) fn fetch(&mut self) -> Result<(), PeerFailure> {
        let fetched = self.read_waiting();
        if fetched.is_err() {
            self.clear();
        }
        fetched
    }

    fn read_waiting(&mut self) -> Result<(), PeerFailure> {
        let total: usize = self.waiting.iter().map(|piece| piece.len).sum();
        if self.bounce.len() < total {
            self.bounce.resize(total.max(MTU as usize), 0);
        }
        let mut rest = &mut self.bounce[..];
        for piece in &self.waiting {
            let (into, behind) = rest.split_at_mut(piece.len);
            piece.memory.read(piece.addr, into)?;
            rest = behind;
        }
        let mut at = self.bounce.as_ptr();
        for piece in self.waiting.drain(..) {
            self.parts[piece.index].0 = at;
            at = at.wrapping_add(piece.len);
        }
        Ok(())
    }

    /// Lends the list of pieces out. Those that were fetched are valid until the next are.
    ///
    /// The rest of the card can be used while it is read.
    pub(super) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }

    /// Takes the list back, to make it once only.
    pub(super) fn give_back(&mut self, parts: Vec<Part>) {
        self.parts = parts;
    }
}
