//! Sends that are dropped before they are posted.

use super::{Handover, Removed, SendState, State};
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode, SEGMENT};
use std::sync::atomic::Ordering;

impl SendState {
    /// Takes a prepared send back: out of the ring where it is the newest, a NOP in its place
    /// otherwise.
    ///
    /// A wait that was prepared for its completion must still be satisfied: then it stays as a NOP,
    /// too (`awaited`); and so does a send that the card has already. Returns what was taken out of
    /// the ring.
    pub(crate) fn cancel(&mut self, serial: u64, awaited: impl Fn(u32) -> bool) -> Removed {
        let mut removed = Removed::default();
        let Some(position) = self.position(serial) else { return removed };
        if self.entries[position].state != State::Prepared {
            return removed;
        }
        self.entries[position].state = State::Hidden;
        self.claims.forget(serial);
        // What the card has stays.
        while self.handover == Handover::Doorbells
            && let Some(newest) = self.entries.back()
        {
            if newest.state != State::Hidden || (newest.signaled && awaited(removed.signaled)) {
                break;
            }
            removed.entries += 1;
            removed.signaled += u32::from(newest.signaled);
            self.head = newest.first;
            self.entries.pop_back();
        }
        if let Some(position) = self.position(serial) {
            self.write_nop(position);
            // So are the WAITs in front of it that a stream would have rung for: what follows does not wait in its place.
            // (Further ones are of sends that were dropped, and NOPs already.)
            if self.handover == Handover::Doorbells {
                let hidden = |before: &usize| self.entries[*before].state == State::Hidden;
                let first = (0..position).rev().take_while(hidden).last().unwrap_or(position);
                (first..position).for_each(|before| self.write_nop(before));
            }
        }
        // A serial number that went with its entry comes again.
        self.next_to_post = self.next_to_post.min(self.first_serial + self.entries.len() as u64);
        self.skip_unprepared();
        removed
    }

    /// Turns an entry into a NOP where it stands: only opcode and opmod change, so that size and
    /// completion stay (libmlx5's `mlx5dv_qp_cancel_posted_send_wrs` does the same).
    fn write_nop(&mut self, position: usize) {
        let first = self.entries[position].first;
        let ctrl = CtrlSeg::new(Opcode::Nop, first as u16, 0, 0, CtrlFlags::empty(), [0; 4]);
        let [word, ..]: [u32; SEGMENT / 4] = zerocopy::transmute!(ctrl);
        // In one piece: the card may have been rung for it, and may be looking.
        self.ring.word(first, 0).store(word, Ordering::Release);
        self.ring.drain();
    }
}
