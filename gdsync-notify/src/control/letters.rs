//! Memory of messages that are sent: one copy of a message for all ranks to which it goes.

use crate::error::NotifyError;
use gdsync::{Access, MemoryRegion, ProtectionDomain, Slice};
use std::sync::Arc;

/// A message, encoded, for one rank or several.
pub(super) type Letter = Arc<Vec<u8>>;

#[derive(Debug)]
pub(super) struct Letters {
    memory: MemoryRegion,
    slot_bytes: usize,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    /// What it holds; it stays when nothing of it is under way any more.
    letter: Option<Letter>,
    /// Sends from it that have not completed.
    under_way: u32,
}

impl Letters {
    pub(super) fn new(pd: &ProtectionDomain, slots: usize, slot_bytes: usize) -> Result<Self, NotifyError> {
        let memory = MemoryRegion::allocate(pd, slots * slot_bytes, Access::LOCAL_WRITE)?;
        Ok(Letters { memory, slot_bytes, slots: (0..slots).map(|_| Slot::default()).collect() })
    }

    /// The memory from which a letter is sent, and its slot; `None` while others are under way from all slots.
    pub(super) fn place(&mut self, letter: &Letter) -> Result<Option<(usize, Slice)>, NotifyError> {
        let holds = |slot: &Slot| slot.letter.as_ref().is_some_and(|known| Arc::ptr_eq(known, letter));
        let Some(at) = self
            .slots
            .iter()
            .position(holds)
            .or_else(|| self.slots.iter().position(|slot| slot.under_way == 0))
        else {
            return Ok(None);
        };
        let (slot, start) = (&mut self.slots[at], at * self.slot_bytes);
        if !holds(slot) {
            self.memory.write(start, letter);
            slot.letter = Some(letter.clone());
        }
        Ok(Some((at, self.memory.slice(start..start + letter.len())?)))
    }

    /// A send from the slot has been posted.
    pub(super) fn posted(&mut self, slot: usize) {
        self.slots[slot].under_way += 1;
    }

    /// A send from the slot has completed, or its queue pair is gone.
    pub(super) fn done(&mut self, slot: usize) {
        self.slots[slot].under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_test_support::pair;

    fn content(slice: &Slice, letters: &Letters, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; slice.len()];
        letters.memory.read(slot * letters.slot_bytes, &mut bytes);
        bytes
    }

    #[test]
    fn a_letter_has_one_place_and_keeps_it_while_it_is_under_way() {
        let pd = ProtectionDomain::new(&pair::device()).unwrap();
        let mut letters = Letters::new(&pd, 2, 64).unwrap();
        let [one, two, three] = [b"one", b"two", b"3ee"].map(|text| Letter::new(text.to_vec()));
        let mut send = |letter: &Letter| {
            let (slot, slice) = letters.place(letter).unwrap()?;
            letters.posted(slot);
            assert_eq!(content(&slice, &letters, slot), **letter);
            Some(slot)
        };
        let first = send(&one).unwrap();
        assert_eq!(send(&one), Some(first));
        let second = send(&two).unwrap();
        assert_ne!(first, second);
        assert_eq!(send(&three), None, "there is no room");
        letters.done(first);
        assert!(letters.place(&three).unwrap().is_none(), "one is under way still");
        letters.done(first);
        let (slot, slice) = letters.place(&three).unwrap().unwrap();
        assert_eq!((slot, content(&slice, &letters, slot)), (first, b"3ee".to_vec()));
        assert!(letters.place(&two).unwrap().is_some_and(|(slot, _)| slot == second));
    }
}
