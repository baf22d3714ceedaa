//! Management datagrams of a card's queue pair 1. The card passes them between the management agents of two processes
//! without interpreting them. As on a wire, they may be lost.

use crate::card::memory::copy::collect;
use crate::fabric::{Node, PayloadPart};
use std::collections::VecDeque;

/// Maximum length of a management datagram in bytes. (A MAD has 256; these also hold both ends' addresses.)
pub const MAX_MANAGEMENT: usize = 1024;
/// Queue pair number of the general services interface (IB specification, 3.9.5).
pub(crate) const MANAGEMENT_QPN: u32 = 1;
/// Maximum number of datagrams that wait for the agent.
const WAITING: usize = 1024;

/// A management datagram that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagementDatagram {
    /// The node that sent it.
    pub source: Node,
    /// The index of its partition key in the table of the receiving port.
    pub pkey_index: u16,
    /// Its content, at most [`MAX_MANAGEMENT`] bytes.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Inbox(VecDeque<ManagementDatagram>);

impl Inbox {
    /// Adds a datagram. Returns false if it is lost, because it is too long or too many wait.
    ///
    /// # Safety
    /// The parts are readable.
    pub(crate) unsafe fn push(&mut self, source: Node, pkey_index: u16, payload: &[PayloadPart]) -> bool {
        let length: usize = payload.iter().map(|part| part.1).sum();
        if length > MAX_MANAGEMENT || self.0.len() >= WAITING {
            return false;
        }
        // SAFETY: the caller guarantees this.
        let Ok(bytes) = (unsafe { collect(payload) }) else { return false };
        self.0.push_back(ManagementDatagram { source, pkey_index, bytes });
        true
    }

    pub(crate) fn take(&mut self) -> Vec<ManagementDatagram> {
        self.0.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_keep_their_order_and_an_agent_that_does_not_look_loses_some() {
        let mut inbox = Inbox::default();
        let bytes = [7u8; MAX_MANAGEMENT + 1];
        // SAFETY: the parts are in `bytes`.
        let mut push = |len| unsafe { inbox.push(3, 0, &[(bytes.as_ptr(), len)]) };
        assert!(!push(MAX_MANAGEMENT + 1));
        assert!((0..WAITING).all(|i| push(i % MAX_MANAGEMENT)));
        assert!(!push(1), "too many wait");
        let taken = inbox.take();
        assert_eq!((taken.len(), taken[5].bytes.len(), taken[5].source), (WAITING, 5, 3));
        assert!(inbox.take().is_empty());
    }
}
