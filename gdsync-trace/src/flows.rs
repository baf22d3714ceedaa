//! Which post a message is of, and where it arrives.
//!
//! Events are seen in the order of time. A doorbell announces all WQEs up to its own; the card names the WQE of a
//! message that leaves, and the packet by which its arrival is known. Indices of WQEs have 16 bits, and PSNs 24: the
//! newest event with a number is meant.

use crate::chrome::Track;
use gdsync_sys::prm::doorbell::{Doorbell, UAR_PAGE};
use std::collections::{HashMap, VecDeque};

/// A queue pair of a process: the place of the process, the low 16 bits of its card's node, its number.
///
/// The library knows a card by the end of its GID, which has these bits. Cards of one process differ in them.
type Queue = (usize, u16, u32);

/// A point of an arrow.
pub(crate) type Point = (Track, u64);

/// WQEs that a doorbell announces: up to the one with this index.
#[derive(Debug)]
struct Posting {
    until: u16,
    posted: Point,
    /// Where a stream has stored the doorbell; of a GPU's stream, the end of its submission.
    rung: Option<Point>,
}

#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// The card of a queue pair, by the process, the page of its doorbell register, and its number.
    cards: HashMap<(usize, u64, u32), u16>,
    /// The card of a queue pair, by the process and its number; none where several cards have such a one.
    only_cards: HashMap<(usize, u32), Option<u16>>,
    postings: HashMap<Queue, VecDeque<Posting>>,
    /// Messages on their way: by the source's node and queue pair, and the PSN.
    under_way: HashMap<(u64, u32), Vec<Point>>,
}

/// A doorbell that is known: its queue pair, and the index of its WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) queue: Queue,
    pub(crate) index: u16,
}

fn page(register: u64) -> u64 {
    register & !(UAR_PAGE as u64 - 1)
}

/// Whether index `a` is before `b`, modulo 2^16.
fn is_before(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) < 0
}

impl Flows {
    /// A queue pair was made. `queue`: the low bits of its node, and its number.
    pub(crate) fn made(&mut self, process: usize, register: u64, queue: u64) {
        let (card, qpn) = ((queue >> 32) as u16, queue as u32);
        self.cards.insert((process, page(register), qpn), card);
        let only = self.only_cards.entry((process, qpn)).or_insert(Some(card));
        *only = only.filter(|other| *other == card);
        self.postings.remove(&(process, card, qpn));
    }

    /// The doorbell that a store was, if it was one.
    pub(crate) fn known(&self, process: usize, register: u64, value: u64) -> Option<Known> {
        let doorbell = Doorbell::from_raw(value);
        let card = *self.cards.get(&(process, page(register), doorbell.qpn()))?;
        Some(Known { queue: (process, card, doorbell.qpn()), index: doorbell.index() })
    }

    /// The doorbell that an operation of a batch is, if it is one. A GPU may know the register by another address:
    /// then the number of the queue pair decides.
    pub(crate) fn known_of_batch(&self, process: usize, register: u64, value: u64) -> Option<Known> {
        let by_number = || {
            let doorbell = Doorbell::from_raw(value);
            let card = (*self.only_cards.get(&(process, doorbell.qpn()))?)?;
            Some(Known { queue: (process, card, doorbell.qpn()), index: doorbell.index() })
        };
        self.known(process, register, value).or_else(by_number)
    }

    /// The CPU has posted or rung.
    pub(crate) fn posted(&mut self, known: Known, posted: Point) {
        let posting = Posting { until: known.index, posted, rung: None };
        self.postings.entry(known.queue).or_default().push_back(posting);
    }

    /// A stream has rung.
    pub(crate) fn rung(&mut self, known: Known, rung: Point) {
        let postings = self.postings.get_mut(&known.queue).into_iter().flatten();
        if let Some(posting) = postings.rev().find(|posting| posting.until == known.index) {
            posting.rung = Some(rung);
        }
    }

    /// A message has left. `queue`: its node and its number.
    pub(crate) fn sent(&mut self, process: usize, queue: u64, index: u16, psn: u32, sent: Point) {
        let mut points = Vec::with_capacity(4);
        if let Some(postings) = self.postings.get_mut(&(process, (queue >> 32) as u16, queue as u32)) {
            while postings.front().is_some_and(|posting| is_before(posting.until, index)) {
                postings.pop_front();
            }
            if let Some(posting) = postings.front() {
                points.push(posting.posted);
                // The rest of a GPU's submission may last longer than the card needs.
                points.extend(posting.rung.map(|(row, at)| (row, at.min(sent.1).max(posting.posted.1))));
            }
        }
        points.push(sent);
        self.under_way.insert((queue, psn), points);
    }

    /// A message has arrived. Returns where it was before, unless that is not known.
    pub(crate) fn arrived(&mut self, source: u64, psn: u32, arrived: Point) -> Option<Vec<Point>> {
        let mut points = self.under_way.remove(&(source, psn))?;
        points.push(arrived);
        Some(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTER: u64 = 0x7000_0800;
    const QUEUE: u64 = 3 << 32 | 0x41;

    fn point(at: u64) -> Point {
        (Track { pid: 1, tid: 2 }, at)
    }

    fn doorbell(index: u16, qpn: u32) -> u64 {
        Doorbell::without_record(index, qpn).raw()
    }

    #[test]
    fn an_arrow_begins_at_the_doorbell_that_covers_the_message() {
        let mut flows = Flows::default();
        flows.made(0, REGISTER, QUEUE);
        // Two sends of a merged batch, and one of the next.
        for (index, at) in [(0xffff, 10), (0, 20)] {
            let known = flows.known(0, REGISTER, doorbell(index, 0x41)).unwrap();
            flows.posted(known, point(at));
            flows.rung(known, point(at + 5));
        }
        for (index, psn, at) in [(0xfffe, 1, 30), (0xffff, 2, 31), (0, 3, 32)] {
            flows.sent(0, QUEUE, index, psn, point(at));
        }
        let begins = |psn: u32, flows: &mut Flows| {
            let points = flows.arrived(QUEUE, psn, point(40)).unwrap();
            points.into_iter().map(|(_, at)| at).collect::<Vec<_>>()
        };
        assert_eq!(begins(1, &mut flows), [10, 15, 30, 40]);
        assert_eq!(begins(2, &mut flows), [10, 15, 31, 40]);
        assert_eq!(begins(3, &mut flows), [20, 25, 32, 40]);
        assert_eq!(flows.arrived(QUEUE, 3, point(50)), None, "it has arrived");
    }

    #[test]
    fn stores_elsewhere_and_queues_of_others_are_no_doorbells() {
        let mut flows = Flows::default();
        flows.made(0, REGISTER, QUEUE);
        assert!(
            flows.known(0, REGISTER + 0x100, doorbell(1, 0x41)).is_some(),
            "another register of the page"
        );
        assert!(flows.known(1, REGISTER, doorbell(1, 0x41)).is_none(), "another process");
        assert!(flows.known(0, REGISTER, doorbell(1, 0x42)).is_none(), "another queue pair");
        assert!(flows.known(0, REGISTER + 0x1000, doorbell(1, 0x41)).is_none(), "another page");
        assert!(flows.known_of_batch(0, 5, doorbell(1, 0x41)).is_some(), "a GPU's address of the register");
        flows.made(0, 0x8000_0800, 4 << 32 | 0x41);
        assert!(flows.known_of_batch(0, 5, doorbell(1, 0x41)).is_none(), "of which card?");
        // A message that no library has posted begins where it leaves.
        flows.sent(0, QUEUE, 1, 9, point(5));
        assert_eq!(flows.arrived(QUEUE, 9, point(6)), Some(vec![point(5), point(6)]));
    }
}
