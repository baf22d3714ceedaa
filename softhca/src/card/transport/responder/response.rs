//! Answers that wait to be sent, and results that may be asked for again.

use crate::card::config::LIMITS;
use crate::card::memory::entry::Entry;
use crate::card::queue::receive::Home;
use crate::packet::NakCode;
use std::collections::VecDeque;

/// An answer that waits to be sent.
#[derive(Debug)]
pub(super) enum Response {
    /// Everything up to this packet has arrived. The completion of a receive becomes visible when
    /// the acknowledgement has left: a peer that exits after that completion must not leave the
    /// requester without its acknowledgement.
    Ack {
        psn: u32,
        completion: Option<(Home, Entry)>,
    },
    Nak {
        psn: u32,
        code: NakCode,
    },
    /// Data of an RDMA read, of which `sent` packets have left.
    Read {
        psn: u32,
        pdn: u32,
        addr: u64,
        rkey: u32,
        length: u32,
        sent: u32,
        /// The request is a duplicate.
        again: bool,
    },
    /// The result of an atomic operation.
    Atomic {
        psn: u32,
        original: Original,
        /// The request is a duplicate.
        again: bool,
    },
}

impl Response {
    /// Whether it counts against `max_dest_rd_atomic`. Answers to duplicates do not: a requester
    /// that sends its requests again has no more of them in flight.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Response::Read { again: false, .. } | Response::Atomic { again: false, .. })
    }
}

/// The original value that an atomic operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) value: u64,
    /// Bytes that the operation changed.
    pub(super) bytes: u32,
}

/// Results of the last atomic operations, by packet number. A duplicate request is answered from
/// them and not executed again.
#[derive(Debug, Default)]
pub(super) struct Results {
    kept: VecDeque<(u32, Original)>,
}

impl Results {
    /// Keeps a result. As many are kept as a requester may have in flight.
    pub(super) fn remember(&mut self, psn: u32, original: Original) {
        if self.kept.len() >= usize::from(LIMITS.max_rd_atomic) {
            self.kept.pop_front();
        }
        self.kept.push_back((psn, original));
    }

    /// The newest result with that packet number; numbers repeat after 2^24 packets.
    pub(super) fn find(&self, psn: u32) -> Option<Original> {
        self.kept.iter().rev().find(|(known, _)| *known == psn).map(|(_, original)| *original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_results_are_kept() {
        let mut results = Results::default();
        let of = |value| Original { value, bytes: 8 };
        (0..20u32).for_each(|psn| results.remember(psn, of(u64::from(psn) + 100)));
        let found = (results.find(3), results.find(4), results.find(19));
        assert_eq!(found, (None, Some(of(104)), Some(of(119))));
        results.remember(5, of(7));
        assert_eq!(results.find(5), Some(of(7)), "the newest of that number");
    }
}
