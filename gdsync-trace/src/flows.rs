//! Arrows of messages: from the post to the arrival.
//!
//! Events are processed in the order of time. A doorbell announces all WQEs up to its own; the card reports the WQE
//! of a departing message, and the packet that identifies its arrival. WQE indices have 16 bits and PSNs 24, so the
//! newest event with a number is used.

use crate::chrome::Track;
use gdsync_sys::prm::doorbell::{Doorbell, UAR_PAGE};
use std::collections::{HashMap, VecDeque};

/// A queue pair of a process: the process's index, the low 16 bits of its card's node, its number.
///
/// The library identifies a card by the end of its GID, which contains these bits. They differ among the cards of a
/// process.
type Queue = (usize, u16, u32);

pub(crate) type Point = (Track, u64);

/// WQEs announced by a doorbell: up to the one with this index.
#[derive(Debug)]
struct Posting {
    until: u16,
    posted: Point,
    /// The stream's store of the doorbell; for a GPU's stream, the end of its submission.
    rung: Option<Point>,
}

#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// A queue pair's card, by process, page of its doorbell register, and number.
    cards: HashMap<(usize, u64, u32), u16>,
    /// A queue pair's card, by process and number; `None` if several cards have that number.
    only_cards: HashMap<(usize, u32), Option<u16>>,
    postings: HashMap<Queue, VecDeque<Posting>>,
    /// Messages in flight, by [`sender`] and the PSN.
    under_way: HashMap<(u64, u32), Vec<Point>>,
}

/// A recognised doorbell: its queue pair, and the index of its WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueDoorbell {
    pub(crate) queue: Queue,
    pub(crate) index: u16,
}

/// Returns what identifies a queue pair among those of all processes: on one host its number, on several also the node.
fn sender(queue: u64) -> u64 {
    if u16::try_from(queue >> 32).is_ok() { queue & 0xffff_ffff } else { queue }
}

fn page(register: u64) -> u64 {
    register & !(UAR_PAGE as u64 - 1)
}

/// Returns true if index `a` is before `b`, modulo 2^16.
fn is_before(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) < 0
}

impl Flows {
    /// Records the creation of a queue pair. `queue` consists of the low bits of its node, and its number.
    pub(crate) fn created(&mut self, process: usize, register: u64, queue: u64) {
        let (card, qpn) = ((queue >> 32) as u16, queue as u32);
        self.cards.insert((process, page(register), qpn), card);
        let only = self.only_cards.entry((process, qpn)).or_insert(Some(card));
        *only = only.filter(|other| *other == card);
        self.postings.remove(&(process, card, qpn));
    }

    /// Returns the doorbell of a store, if it is one.
    pub(crate) fn doorbell(&self, process: usize, register: u64, value: u64) -> Option<QueueDoorbell> {
        let doorbell = Doorbell::from_raw(value);
        let card = *self.cards.get(&(process, page(register), doorbell.qpn()))?;
        Some(QueueDoorbell { queue: (process, card, doorbell.qpn()), index: doorbell.index() })
    }

    /// Returns the doorbell of a batch's operation, if it is one. A GPU may know the register by another address: the
    /// queue pair's number then decides.
    pub(crate) fn doorbell_in_batch(
        &self,
        process: usize,
        register: u64,
        value: u64,
    ) -> Option<QueueDoorbell> {
        let by_number = || {
            let doorbell = Doorbell::from_raw(value);
            let card = (*self.only_cards.get(&(process, doorbell.qpn()))?)?;
            Some(QueueDoorbell { queue: (process, card, doorbell.qpn()), index: doorbell.index() })
        };
        self.doorbell(process, register, value).or_else(by_number)
    }

    /// Records a post or a doorbell of the CPU.
    pub(crate) fn posted(&mut self, known: QueueDoorbell, posted: Point) {
        let posting = Posting { until: known.index, posted, rung: None };
        self.postings.entry(known.queue).or_default().push_back(posting);
    }

    /// Records a stream's doorbell.
    pub(crate) fn rung(&mut self, known: QueueDoorbell, rung: Point) {
        let postings = self.postings.get_mut(&known.queue).into_iter().flatten();
        if let Some(posting) = postings.rev().find(|posting| posting.until == known.index) {
            posting.rung = Some(rung);
        }
    }

    /// Records the departure of a message. `queue` consists of its node and its number.
    pub(crate) fn sent(&mut self, process: usize, queue: u64, index: u16, psn: u32, sent: Point) {
        let mut points = Vec::with_capacity(4);
        if let Some(postings) = self.postings.get_mut(&(process, (queue >> 32) as u16, queue as u32)) {
            while postings.front().is_some_and(|posting| is_before(posting.until, index)) {
                postings.pop_front();
            }
            if let Some(posting) = postings.front() {
                points.push(posting.posted);
                // The rest of a GPU's submission may take longer than the card.
                points.extend(posting.rung.map(|(row, at)| (row, at.min(sent.1).max(posting.posted.1))));
            }
        }
        points.push(sent);
        self.under_way.insert((sender(queue), psn), points);
    }

    /// Records the arrival of a message. Returns its earlier points, if known.
    pub(crate) fn arrived(&mut self, source: u64, psn: u32, arrived: Point) -> Option<Vec<Point>> {
        let mut points = self.under_way.remove(&(sender(source), psn))?;
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
        flows.created(0, REGISTER, QUEUE);
        // Two sends of a merged batch, and one of the next batch.
        for (index, at) in [(0xffff, 10), (0, 20)] {
            let known = flows.doorbell(0, REGISTER, doorbell(index, 0x41)).unwrap();
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
        flows.created(0, REGISTER, QUEUE);
        assert!(
            flows.doorbell(0, REGISTER + 0x100, doorbell(1, 0x41)).is_some(),
            "another register of the page"
        );
        assert!(flows.doorbell(1, REGISTER, doorbell(1, 0x41)).is_none(), "another process");
        assert!(flows.doorbell(0, REGISTER, doorbell(1, 0x42)).is_none(), "another queue pair");
        assert!(flows.doorbell(0, REGISTER + 0x1000, doorbell(1, 0x41)).is_none(), "another page");
        assert!(
            flows.doorbell_in_batch(0, 5, doorbell(1, 0x41)).is_some(),
            "a GPU's address of the register"
        );
        flows.created(0, 0x8000_0800, 4 << 32 | 0x41);
        assert!(flows.doorbell_in_batch(0, 5, doorbell(1, 0x41)).is_none(), "of which card?");
        // The arrow of a message that no library posted begins at its departure.
        flows.sent(0, QUEUE, 1, 9, point(5));
        assert_eq!(flows.arrived(QUEUE, 9, point(6)), Some(vec![point(5), point(6)]));
    }
}
