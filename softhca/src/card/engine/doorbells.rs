//! Doorbells: the pages of their registers, and how the card polls them.

use crate::card::memory::clock::Clock;
use crate::card::memory::uar::{Register, RegisterWord, UarPage, UarPages};
use gdsync_sys::prm::doorbell::Doorbell;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of pages that a step polls besides the announced ones. A program with hundreds of connections has
/// thousands of pages, and polling all takes as long as many messages. Threads announce every doorbell to a card with
/// more pages, even while its thread is awake.
pub(super) const PAGES: usize = 256;

/// Time between two such polls of a card with more pages.
const TURN: Duration = Duration::from_micros(50);

pub(super) const PAGES_BEFORE_SLEEP: usize = 4096;

/// A page of doorbell registers, and the queue pairs that it rings.
pub(crate) struct Uar {
    pub(crate) page: UarPage,
    pub(crate) registers: Vec<Register>,
    pub(crate) qps: BTreeSet<u32>,
}

/// A register that is polled.
struct Polled {
    page: u32,
    offset: usize,
    word: RegisterWord,
}

pub(super) struct Rung {
    pub(super) page: u32,
    /// Offset of its register.
    pub(super) offset: usize,
    pub(super) bell: Doorbell,
}

/// The pages of doorbell registers of a card, and the state of their polling.
pub(crate) struct Doorbells {
    /// Changed by [`Self::insert`], [`Self::remove`] and [`Self::poll_also`].
    pub(crate) uars: BTreeMap<u32, Uar>,
    /// The registers of all pages in `uars`, unless there are many; none since a change. With the addresses side by side,
    /// the CPU loads several registers at a time, which are all in the same set of its cache.
    polled: Option<Vec<Polled>>,
    /// The memory of the pages in `uars`; declared after them, so that it is dropped later.
    pub(crate) memory: UarPages,
    /// Pages on which completion queues are armed.
    pub(crate) arming: BTreeSet<u32>,
    /// Pages that threads have announced as rung: the next poll begins with them.
    pub(crate) announced: Arc<RungPages>,
    /// Buffer for the pages taken from `announced`.
    taken: Vec<u32>,
    /// Time before which steps poll no doorbells, because of a liberty.
    pub(super) next_poll: Option<Instant>,
    /// The page at which the next poll in turn begins.
    next_page: u32,
    /// When a card with many pages next polls pages in turn.
    next_turn: Option<Instant>,
}

impl Doorbells {
    pub(super) fn new(clock: Arc<Clock>) -> Self {
        Doorbells {
            uars: BTreeMap::new(),
            polled: None,
            memory: UarPages::showing(clock),
            arming: BTreeSet::new(),
            announced: Arc::default(),
            taken: RungPages::list(),
            next_poll: None,
            next_page: 0,
            next_turn: None,
        }
    }

    pub(crate) fn insert(&mut self, id: u32, uar: Uar) {
        self.uars.insert(id, uar);
        self.polled = None;
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Uar> {
        self.polled = None;
        self.uars.remove(&id)
    }

    /// Adds a register to those of a page that are polled.
    pub(crate) fn poll_also(&mut self, id: u32, register: Register) {
        if let Some(uar) = self.uars.get_mut(&id).filter(|uar| !uar.registers.contains(&register)) {
            uar.registers.push(register);
            self.polled = None;
        }
    }

    /// Returns the doorbells that have rung on announced pages, and on the next `pages` of all others in turn; none
    /// before `next_poll`.
    pub(super) fn poll(&mut self, pages: usize, now: Instant) -> Vec<Rung> {
        let mut rung = Vec::new();
        self.next_poll.take_if(|at| *at <= now);
        if self.next_poll.is_some() {
            return rung;
        }
        self.announced.take(&mut self.taken);
        for id in &self.taken {
            self.collect(*id, &mut rung);
        }
        if !self.has_many_pages() {
            self.poll_all(&mut rung);
        } else if self.is_turn(pages, now) {
            let in_turn = self.uars.range(self.next_page..).chain(self.uars.range(..self.next_page));
            let mut last = None;
            for (&id, uar) in in_turn.take(pages) {
                collect(id, uar, &mut rung);
                last = Some(id);
            }
            self.next_page = last.map_or(0, |id| id + 1);
        }
        rung
    }

    /// Returns whether there are more pages than one step polls.
    pub(crate) fn has_many_pages(&self) -> bool {
        self.uars.len() > PAGES
    }

    fn poll_all(&mut self, rung: &mut Vec<Rung>) {
        let polled = self.polled.get_or_insert_with(|| {
            let mut polled = Vec::new();
            for (&page, Uar { page: of, registers, .. }) in &self.uars {
                let of_register = |one: &Register| Polled { page, offset: one.offset(), word: of.word(*one) };
                polled.extend(registers.iter().map(of_register));
            }
            polled
        });
        rung.extend(polled.iter().filter_map(|Polled { page, offset, word }| {
            let bell = Doorbell::from_raw(word.take()?);
            Some(Rung { page: *page, offset: *offset, bell })
        }));
    }

    /// Returns whether it is time to poll some of many pages that were not announced.
    fn is_turn(&mut self, pages: usize, now: Instant) -> bool {
        let is_turn = pages > PAGES || self.next_turn.is_none_or(|at| now >= at);
        if is_turn {
            self.next_turn = Some(now + TURN);
        }
        is_turn
    }

    /// Adds the doorbells that have rung on a page.
    pub(super) fn collect(&self, page: u32, rung: &mut Vec<Rung>) {
        if let Some(uar) = self.uars.get(&page) {
            collect(page, uar, rung);
        }
    }
}

fn collect(page: u32, uar: &Uar, rung: &mut Vec<Rung>) {
    for &register in &uar.registers {
        if let Some(raw) = uar.page.word(register).take() {
            rung.push(Rung { page, offset: register.offset(), bell: Doorbell::from_raw(raw) });
        }
    }
}

/// Maximum number of pages in the list. The engine finds others when it polls all pages in turn.
const MOST: usize = 1 << 16;

/// Pages for which memory is allocated in advance, so that a ringing thread rarely allocates.
const USUAL: usize = 64;

/// Announced pages. The list has its own lock, so that a ringing thread does not wait for the engine.
#[derive(Debug)]
pub(crate) struct RungPages {
    pages: Mutex<Vec<u32>>,
    /// True if the list is not empty.
    any: AtomicBool,
}

impl Default for RungPages {
    fn default() -> Self {
        RungPages { pages: Mutex::new(Vec::with_capacity(USUAL)), any: AtomicBool::new(false) }
    }
}

impl RungPages {
    /// Returns an empty list for [`Self::take`].
    pub(crate) fn list() -> Vec<u32> {
        Vec::with_capacity(USUAL)
    }

    pub(crate) fn push(&self, page: u32) {
        let mut pages = self.pages.lock();
        if pages.len() < MOST {
            pages.push(page);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Replaces the contents of `list` by the announced pages, in order and possibly with duplicates. The allocations
    /// of both lists are swapped, and so reused.
    pub(crate) fn take(&self, list: &mut Vec<u32>) {
        list.clear();
        if self.any.load(Ordering::Acquire) {
            let mut pages = self.pages.lock();
            self.any.store(false, Ordering::Release);
            std::mem::swap(&mut *pages, list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_once_and_the_list_has_an_end() {
        let (rung, mut list) = (RungPages::default(), RungPages::list());
        let mut take = || {
            rung.take(&mut list);
            list.clone()
        };
        assert!(take().is_empty());
        [3, 1, 3].into_iter().for_each(|page| rung.push(page));
        assert_eq!((take(), take()), (vec![3, 1, 3], vec![]));
        (0..2 * MOST as u32).for_each(|page| rung.push(page));
        assert_eq!(take().len(), MOST);
        assert!(take().is_empty());
    }

    #[test]
    fn memory_goes_to_and_fro() {
        let (rung, mut list) = (RungPages::default(), RungPages::list());
        for _ in 0..100 {
            (0..USUAL as u32).for_each(|page| rung.push(page));
            rung.take(&mut list);
            assert_eq!((list.len(), list.capacity()), (USUAL, USUAL));
        }
    }
}
