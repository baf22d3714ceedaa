use super::*;
use crate::queue::test_ring;
use proptest::prelude::*;
use std::collections::VecDeque;

const ENTRIES: u32 = 8;
const STRIDE: usize = 64;

/// Makes a queue whose entries are linked as libmlx5 links them.
fn queue() -> SharedRecvState {
    let mut ring = test_ring(ENTRIES, STRIDE);
    (0..ENTRIES).for_each(|index| ring.write(index, &recv::link(index as u16 + 1)));
    SharedRecvState::new(ring, 0, ENTRIES as u16 - 1)
}

/// A card, which follows the list up to the posted receives.
struct Card {
    head: u16,
    taken: u16,
}

impl Card {
    fn take(&mut self, queue: &SharedRecvState) -> Option<(u16, Vec<DataSeg>)> {
        if doorbell::record_value(queue.ring.record().load(Ordering::Acquire)) == self.taken {
            return None;
        }
        let index = self.head;
        let words = (0..STRIDE / 4).map(|i| queue.ring.word(index.into(), i * 4).load(Ordering::Acquire));
        let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        let (next, segments) = recv::linked(&bytes);
        (self.head, self.taken) = (next, self.taken.wrapping_add(1));
        Some((index, segments.collect()))
    }
}

#[test]
fn as_many_receives_fit_as_there_are_entries_but_one() {
    let (mut queue, credits) = (queue(), Credits::new(ENTRIES - 1));
    assert_eq!(queue.capacity(), credits.capacity());
    for wr_id in 0..credits.capacity() {
        credits.take().unwrap();
        queue.post(&[], wr_id.into(), Vec::new());
    }
    let full = QueueError::Full(QueueFull::ReceiveQueue { capacity: ENTRIES - 1 });
    assert_eq!(credits.take(), Err(full));
    assert_eq!(queue.retire(ENTRIES as u16 - 1), None, "the last entry has none");
    assert_eq!(queue.retire(ENTRIES as u16), None, "no entry");
    assert_eq!((queue.retire(3), queue.retire(3)), (Some(3), None));
    credits.give_back();
    credits.take().unwrap();
    queue.post(&[], 77, Vec::new());
    assert_eq!(queue.retire(ENTRIES as u16 - 1), Some(77), "the entry that was the last");
}

proptest! {
    /// Receives are posted, taken by the card in order, and complete in any order, for many laps. The card finds
    /// each once, as it was posted, and its completion names it.
    #[test]
    fn the_card_finds_each_receive_once(steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..400)) {
        let (mut queue, credits) = (queue(), Credits::new(ENTRIES - 1));
        let mut card = Card { head: 0, taken: 0 };
        let (mut posted, mut taken, mut next) = (VecDeque::new(), Vec::new(), 0u64);
        for (step, choice) in steps {
            match step {
                0 if credits.take().is_ok() => {
                    let segments: Vec<_> = (0..next % 4).map(|i| DataSeg::new(8, 1, next * 4 + i)).collect();
                    queue.post(&segments, next, Vec::new());
                    posted.push_back((next, segments));
                    next += 1;
                }
                1 => match (card.take(&queue), posted.pop_front()) {
                    (Some((index, segments)), Some((wr_id, expected))) => {
                        prop_assert_eq!(segments, expected);
                        taken.push((index, wr_id));
                    }
                    (None, None) => {}
                    other => prop_assert!(false, "{other:?}"),
                },
                2 if !taken.is_empty() => {
                    let (index, wr_id) = taken.swap_remove(choice.index(taken.len()));
                    prop_assert_eq!(queue.retire(index), Some(wr_id));
                    credits.give_back();
                }
                _ => {}
            }
            prop_assert_eq!(credits.posted() as usize, posted.len() + taken.len());
        }
    }
}
