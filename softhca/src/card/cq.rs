//! Completion queues, the card's side.

use super::dma::{CqRing, Record};
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::prm::doorbell;

/// The queue was full: the program has not made room in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overrun {
    /// This is the first time: whoever must know is told now.
    pub(super) first: bool,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    ring: CqRing,
    consumer: Record,
    produced: u32,
    dead: bool,
    /// Queue pairs that complete here, counted once for each of their two queues.
    pub(super) users: u32,
}

impl Cq {
    pub(super) fn new(ring: CqRing, consumer: Record) -> Self {
        Cq { ring, consumer, produced: 0, dead: false, users: 0 }
    }

    /// Writes the next entry.
    pub(super) fn write(&mut self, cqe: Cqe64) -> Result<(), Overrun> {
        let consumed = doorbell::ci_value(self.consumer.load());
        let used = self.produced.wrapping_sub(consumed) & 0xff_ffff;
        if self.dead || used >= self.ring.entries() {
            let first = !self.dead;
            self.dead = true;
            return Err(Overrun { first });
        }
        let owner = (self.produced >> self.ring.entries().trailing_zeros()) & 1 == 1;
        self.ring.write(self.produced, &cqe.with_owner(owner));
        self.produced = self.produced.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::wqe::Opcode;

    #[test]
    fn the_owner_bit_changes_with_every_lap_until_the_queue_overruns() {
        let mut ring = vec![0u64; 4 * 8];
        let mut record = [0u32; 2];
        let (base, word) = (ring.as_mut_ptr().cast::<u8>(), record.as_mut_ptr());
        // SAFETY: both arrays outlive the queue, and nobody else uses them meanwhile but through the same pointers.
        let mut cq = unsafe { Cq::new(CqRing::new(base, 4), Record::new(word)) };
        for n in 0..20u32 {
            cq.write(Cqe64::requester(Opcode::Send, 5, n as u16, 0)).unwrap();
            // SAFETY: inside the ring.
            let op_own = unsafe { base.add((n as usize % 4) * 64 + 63).read() };
            assert_eq!(u32::from(op_own), n / 4 % 2, "entry {n}");
            // SAFETY: our own record.
            unsafe { word.write(doorbell::ci_record(n + 1)) };
        }
        for _ in 0..4 {
            cq.write(Cqe64::requester(Opcode::Send, 5, 0, 0)).unwrap();
        }
        assert_eq!(cq.write(Cqe64::requester(Opcode::Send, 5, 0, 0)), Err(Overrun { first: true }));
        // SAFETY: our own record.
        unsafe { word.write(doorbell::ci_record(24)) };
        assert_eq!(
            cq.write(Cqe64::requester(Opcode::Send, 5, 0, 0)),
            Err(Overrun { first: false }),
            "dead is dead"
        );
    }
}
