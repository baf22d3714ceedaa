//! Sends that a master has not released. Pure.

use std::collections::VecDeque;

/// A slave's send that a master is to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingSend {
    pub(super) ticket: u64,
    pub(super) slave: u32,
    /// The block after it in the slave's ring.
    pub(super) until: u16,
    /// Block of the release in the master's ring.
    pub(super) block: u32,
}

/// Sends that are not known to be released, oldest first, by block and by ticket.
#[derive(Debug, Default)]
pub(super) struct PendingSends {
    sends: VecDeque<PendingSend>,
    /// True once the card has reported where it stopped: it executes none of these.
    stopped: bool,
}

impl PendingSends {
    pub(super) fn len(&self) -> usize {
        self.sends.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    pub(super) fn push(&mut self, pending: PendingSend) {
        self.sends.push_back(pending);
    }

    pub(super) fn has(&self, slave: u32) -> bool {
        self.sends.iter().any(|pending| pending.slave == slave)
    }

    pub(super) fn remove(&mut self, slaves: &[u32]) {
        self.sends.retain(|pending| !slaves.contains(&pending.slave));
    }

    pub(super) fn slaves(&self) -> Vec<u32> {
        let mut slaves: Vec<u32> = self.sends.iter().map(|pending| pending.slave).collect();
        slaves.sort_unstable();
        slaves.dedup();
        slaves
    }

    /// Handles an entry of the master's completion queue. The card executes requests in order, so it has executed
    /// all before that block. After an error, it executes no more.
    pub(super) fn completed(&mut self, counter: u16, is_error: bool) {
        // Outstanding requests span less than half of the numbers (`super::MOST_SENDS`).
        let executed = |pending: &PendingSend| counter.wrapping_sub(pending.block as u16) as i16 > 0;
        while !self.stopped && self.sends.front().is_some_and(executed) {
            self.sends.pop_front();
        }
        self.stopped |= is_error;
    }

    /// Takes all sends, for a queue that is restarted.
    pub(super) fn take(&mut self) -> VecDeque<PendingSend> {
        self.stopped = false;
        std::mem::take(&mut self.sends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks each, from that block on.
    fn pending(from: u32, count: u32) -> PendingSends {
        let mut pending = PendingSends::default();
        for i in 0..count {
            let block = from.wrapping_add(2 * i + 1);
            pending.push(PendingSend { ticket: u64::from(i) + 1, slave: i % 3, until: i as u16, block });
        }
        pending
    }

    fn tickets(pending: &PendingSends) -> Vec<u64> {
        pending.sends.iter().map(|pending| pending.ticket).collect()
    }

    #[test]
    fn what_stands_before_a_completed_request_was_executed() {
        // Around the wrap of 16 bits, and of 32.
        for from in [0, 65_530, u32::MAX - 3] {
            let at = |block: u32| from.wrapping_add(block) as u16;
            let mut pending = pending(from, 4);
            pending.completed(at(0), false);
            pending.completed(at(1), false);
            assert_eq!(tickets(&pending), [1, 2, 3, 4], "its own WAIT, and itself");
            pending.completed(at(2), false);
            assert_eq!(tickets(&pending), [2, 3, 4]);
            pending.completed(at(8), false);
            assert!(pending.is_empty());
        }
    }

    #[test]
    fn the_first_error_says_where_the_card_has_stopped() {
        // At a WAIT, and at a release.
        for (block, left) in [(2, vec![2, 3, 4]), (3, vec![2, 3, 4]), (4, vec![3, 4])] {
            let mut pending = pending(0, 4);
            pending.completed(block, true);
            assert_eq!(tickets(&pending), left);
            // The rest is flushed, and not executed.
            (block + 1..8).for_each(|flushed| pending.completed(flushed, true));
            assert_eq!(tickets(&pending), left);
        }
    }

    #[test]
    fn a_slaves_are_taken_out_and_the_others_stay_in_their_order() {
        let mut pending = pending(0, 7);
        assert!(pending.has(1) && !pending.has(3));
        assert_eq!(pending.slaves(), [0, 1, 2]);
        pending.remove(&[1]);
        assert_eq!(tickets(&pending), [1, 3, 4, 6, 7]);
        pending.completed(6, true);
        let taken = pending.take();
        assert_eq!(taken.iter().map(|pending| pending.ticket).collect::<Vec<_>>(), [4, 6, 7]);
        // Started again.
        taken.into_iter().for_each(|send| pending.push(send));
        pending.completed(u16::MAX, false);
        pending.completed(8, false);
        assert_eq!(tickets(&pending), [6, 7]);
    }
}
