//! The payload of a packet that is being built.

use super::copy::Location;
use crate::fabric::{Hole, MAX_PAYLOAD, PayloadPart};
use crate::peer_memory::{AsyncCopy, PeerFailure, PeerMapping};
use std::sync::Arc;

/// A piece that has not been read from peer memory yet.
#[derive(Debug)]
struct Waiting {
    index: usize,
    len: usize,
    memory: Arc<PeerMapping>,
    addr: u64,
}

/// Pieces of payload, in order. Pieces in peer memory are read into a buffer of the card when the packet can be sent,
/// so that the CPU can read the whole payload. Between packets no piece waits, so it keeps no region alive.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    parts: Vec<PayloadPart>,
    waiting: Vec<Waiting>,
    /// Bytes read from peer memory; allocated for the first of them, and kept.
    bounce: Vec<u8>,
    /// Bytes that the card puts before the program's data.
    prefix: Vec<u8>,
}

// SAFETY: its addresses are used only while a packet is built, by the thread that holds the engine's lock.
unsafe impl Send for Gather {}

impl Gather {
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.waiting.clear();
    }

    pub(crate) fn push(&mut self, location: Location<'_>, len: usize) {
        match location {
            Location::Host(at) => self.parts.push((at.cast_const(), len)),
            Location::Peer(memory, addr) => {
                let index = self.parts.len();
                self.waiting.push(Waiting { index, len, memory: memory.clone(), addr });
                self.parts.push((std::ptr::null(), len));
            }
        }
    }

    /// Puts bytes of the card before the data, at most once per packet.
    pub(crate) fn push_prefix(&mut self, bytes: &[u8]) {
        self.prefix.clear();
        self.prefix.extend_from_slice(bytes);
        self.parts.push((self.prefix.as_ptr(), bytes.len()));
    }

    /// Returns whether pieces have not been read from peer memory yet.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether no piece has been read from peer memory yet, and all are there.
    pub(crate) fn is_in_peer_memory(&self) -> bool {
        self.waiting.len() == self.parts.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.1).sum()
    }

    /// Reads the pieces in peer memory, each with one call. On failure the payload is cleared.
    pub(crate) fn fetch(&mut self) -> Result<(), PeerFailure> {
        let fetched = self.read_waiting();
        if fetched.is_err() {
            self.clear();
        }
        fetched
    }

    fn read_waiting(&mut self) -> Result<(), PeerFailure> {
        let total: usize = self.waiting.iter().map(|piece| piece.len).sum();
        if self.bounce.len() < total {
            self.bounce.resize(total.max(MAX_PAYLOAD), 0);
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

    /// Starts reading the pieces in peer memory to their places in the fabric. Adds the memory that is being read to
    /// `reading`. Returns false if a client does not copy directly; other reads may have started then.
    ///
    /// # Errors
    /// A client cannot read its memory. Other reads may have started.
    ///
    /// # Safety
    /// The places are writable, and no other code uses them before [`PeerMapping::finish`] has returned for everything
    /// added to `reading`.
    pub(crate) unsafe fn begin(
        &self,
        places: &[Hole],
        reading: &mut Vec<Arc<PeerMapping>>,
    ) -> Result<bool, PeerFailure> {
        for (piece, parts) in self.waiting.iter().zip(places) {
            let mut addr = piece.addr;
            for (into, len) in parts.iter().copied().filter(|part| part.1 > 0) {
                // SAFETY: the caller guarantees this.
                if unsafe { piece.memory.begin_read(addr, into, len) }? == AsyncCopy::Unsupported {
                    return Ok(false);
                }
                if !reading.last().is_some_and(|last| Arc::ptr_eq(last, &piece.memory)) {
                    reading.push(piece.memory.clone());
                }
                addr = addr.wrapping_add(len as u64);
            }
        }
        Ok(true)
    }

    /// Returns the list of pieces; those in peer memory have the null address.
    pub(crate) fn parts(&self) -> &[PayloadPart] {
        &self.parts
    }

    /// Takes the list of pieces, so that the rest of the card can be used while it is read. Pieces from peer memory are
    /// valid until the next call of [`Self::fetch`].
    pub(crate) fn take(&mut self) -> Vec<PayloadPart> {
        std::mem::take(&mut self.parts)
    }

    /// Returns the list to reuse its allocation.
    pub(crate) fn give_back(&mut self, parts: Vec<PayloadPart>) {
        self.parts = parts;
    }
}
