//! The cards of this process as listeners, by the addresses that threads store to. A thread that announces a store
//! ([`gdsync_sys::wake`]) wakes the card behind the address, or does its work.

use gdsync_sys::prm::doorbell::UAR_PAGE;
use gdsync_sys::wake::{self, CardCallbacks};
use parking_lot::RwLock;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A card that threads of this process wake or help.
pub(crate) trait Listener: Send + Sync {
    /// Handles a store of the calling thread to a doorbell register on `page`, or, without a page, to a word that the
    /// card waits for. If `may_serve`, the calling thread does the card's work at once.
    fn doorbell(&self, page: Option<u32>, may_serve: bool);

    /// Does a bounded amount of work. `helps`: the calling thread is already one of the card's helpers. Returns whether
    /// it is one now: false if only the card's own thread may work, or if the card has enough helpers.
    fn serve(&self, helps: bool) -> bool;

    /// Removes the calling thread from the card's helpers.
    fn leave(&self);
}

/// A card, and the page of its registers that an address is on, if any.
type Place = (Weak<dyn Listener>, Option<u32>);

/// Maximum number of registered addresses. A store to any other address wakes no card; the card finds it after its nap.
const MOST_ADDRESSES: usize = 1 << 16;

/// The cards of this process, by the addresses of their doorbell pages and of words that their WAITs have waited for. A
/// stale entry only makes a card look for work that is not there.
static CARDS: RwLock<BTreeMap<usize, Place>> = RwLock::new(BTreeMap::new());
/// Counts the changes of [`CARDS`].
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// The callbacks of this copy of the card.
static CALLBACKS: CardCallbacks = CardCallbacks { doorbell, serve, leave };

thread_local! {
    /// What is at the addresses of this thread's stores, as of that change. The map keeps its memory: posts allocate nothing.
    static FOUND: RefCell<(usize, HashMap<usize, Option<Place>>)> = RefCell::default();
    /// The card that this thread has rung last and may serve.
    static LAST: RefCell<Option<Weak<dyn Listener>>> = const { RefCell::new(None) };
    /// True if this thread is one of that card's helpers.
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// Registers the address of a mapped doorbell page, or, without a page, of a word that a WAIT of the card waits for.
pub(crate) fn register(address: usize, card: Weak<dyn Listener>, page: Option<u32>) {
    let mut cards = CARDS.write();
    if cards.len() >= MOST_ADDRESSES {
        cards.retain(|_, (card, _)| card.strong_count() > 0);
    }
    if cards.len() < MOST_ADDRESSES {
        cards.insert(address, (card, page));
        CHANGES.fetch_add(1, Ordering::Release);
    }
    drop(cards);
    if !wake::register_card(&CALLBACKS) {
        tracing::warn!(
            "there are too many copies of the software card in this process: stores wake no card of this one"
        );
    }
}

extern "C" fn doorbell(address: usize, may_serve: bool) {
    // A thread that ends, and has no such variables any more, leaves the store to be found.
    let rung = FOUND.try_with(|found| {
        let (as_of, found) = &mut *found.borrow_mut();
        let changes = CHANGES.load(Ordering::Acquire);
        if *as_of != changes || found.len() >= MOST_WORDS {
            found.clear();
            *as_of = changes;
        }
        let place = found.entry(address).or_insert_with(|| {
            let cards = CARDS.read();
            cards.get(&address).or_else(|| cards.get(&(address & !(UAR_PAGE - 1)))).cloned()
        });
        let (card, page) = place.as_ref()?;
        if may_serve {
            let _ = LAST.try_with(|last| {
                if !last.borrow().as_ref().is_some_and(|last| last.ptr_eq(card)) {
                    last.replace(Some(card.clone()));
                }
            });
        }
        Some((card.upgrade()?, *page))
    });
    if let Ok(Some((listener, page))) = rung {
        listener.doorbell(page, may_serve);
    }
}

fn last() -> Option<Arc<dyn Listener>> {
    LAST.try_with(|last| last.borrow().as_ref().and_then(Weak::upgrade)).ok().flatten()
}

extern "C" fn serve() -> bool {
    // A thread whose card is gone helps no card.
    let helps = last().is_some_and(|card| card.serve(HELPS.get()));
    HELPS.set(helps);
    helps
}

extern "C" fn leave() {
    if HELPS.take() {
        last().into_iter().for_each(|card| card.leave());
    }
}

/// Maximum number of words that a card, or a thread, remembers. A store to a word that a card does not remember does not wake it.
const MOST_WORDS: usize = 4096;

/// Addresses of words in host memory.
#[derive(Debug, Default)]
pub(crate) struct AwaitedWords {
    seen: HashSet<usize>,
    new: Vec<usize>,
}

impl AwaitedWords {
    pub(crate) fn add(&mut self, word: usize) {
        if self.seen.len() < MOST_WORDS && self.seen.insert(word) {
            self.new.push(word);
        }
    }

    /// Takes the words added since the last call.
    pub(crate) fn take_new(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Rings(Mutex<Vec<Option<u32>>>);

    impl Listener for Rings {
        fn doorbell(&self, page: Option<u32>, _may_serve: bool) {
            self.0.lock().push(page);
        }

        fn serve(&self, _helps: bool) -> bool {
            false
        }

        fn leave(&self) {}
    }

    #[test]
    fn a_thread_that_remembers_addresses_finds_the_cards_that_come_and_go() {
        const PAGE: usize = 0x7a << 40;
        let ring = || doorbell(PAGE + 0x800, true);
        ring();
        for page in [3, 4] {
            let card = Arc::new(Rings::default());
            let weak: Weak<Rings> = Arc::downgrade(&card);
            register(PAGE, weak, Some(page));
            // More addresses than a thread remembers.
            (0..2 * MOST_WORDS).for_each(|word| doorbell(8 * word, true));
            ring();
            ring();
            assert_eq!(*card.0.lock(), [Some(page); 2]);
            assert!(!serve());
            drop(card);
            ring();
            assert!(last().is_none());
        }
    }

    /// A variable of a thread that is destroyed after those of this module.
    struct Late;

    impl Drop for Late {
        fn drop(&mut self) {
            doorbell(8, true);
            assert!(!serve());
            leave();
        }
    }

    #[test]
    fn a_thread_may_ring_while_it_ends() {
        thread_local!(static LATE: Late = const { Late });
        let ending = std::thread::spawn(|| {
            LATE.with(|_| ());
            doorbell(8, true);
        });
        ending.join().unwrap();
    }

    #[test]
    fn a_word_is_new_once_and_there_is_an_end() {
        let mut awaited = AwaitedWords::default();
        [8, 16, 8].iter().for_each(|word| awaited.add(*word));
        assert_eq!(awaited.take_new(), [8, 16]);
        awaited.add(8);
        assert!(awaited.take_new().is_empty());
        (0..2 * MOST_WORDS).for_each(|word| awaited.add(word));
        assert_eq!(awaited.take_new().len(), MOST_WORDS - 2);
    }
}
