//! The cards of this process as listeners, by the addresses that threads store to. A thread that announces a store
//! ([`gdsync_sys::wake`]) wakes the card behind the address, or does its work.

use gdsync_sys::prm::doorbell::UAR_PAGE;
use gdsync_sys::wake::{self, CardCallbacks};
use parking_lot::RwLock;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
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

type Card = Weak<dyn Listener>;

/// Maximum number of registered addresses. A store to any other address wakes no card; the card finds it after its nap.
const MOST_ADDRESSES: usize = 1 << 16;

/// The cards of this process, by the addresses of their doorbell pages and of words that their WAITs have waited for. A
/// stale entry only makes a card look for work that is not there.
static CARDS: RwLock<BTreeMap<usize, (Card, Option<u32>)>> = RwLock::new(BTreeMap::new());

/// The callbacks of this copy of the card.
static CALLBACKS: CardCallbacks = CardCallbacks { doorbell, serve, leave };

thread_local! {
    /// The card that this thread has rung last and may serve.
    static LAST: RefCell<Option<Card>> = const { RefCell::new(None) };
    /// True if this thread is one of that card's helpers.
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// Registers the address of a mapped doorbell page, or, without a page, of a word that a WAIT of the card waits for.
pub(crate) fn register(address: usize, card: Card, page: Option<u32>) {
    let mut cards = CARDS.write();
    if cards.len() >= MOST_ADDRESSES {
        cards.retain(|_, (card, _)| card.strong_count() > 0);
    }
    if cards.len() < MOST_ADDRESSES {
        cards.insert(address, (card, page));
    }
    drop(cards);
    if !wake::register_card(&CALLBACKS) {
        tracing::warn!(
            "there are too many copies of the software card in this process: stores wake no card of this one"
        );
    }
}

extern "C" fn doorbell(address: usize, may_serve: bool) {
    let cards = CARDS.read();
    let card = cards.get(&address).or_else(|| cards.get(&(address & !(UAR_PAGE - 1)))).cloned();
    drop(cards);
    let Some((card, page)) = card else { return };
    if let Some(listener) = card.upgrade() {
        listener.doorbell(page, may_serve);
        if may_serve {
            LAST.set(Some(card));
        }
    }
}

fn last() -> Option<Arc<dyn Listener>> {
    LAST.with_borrow(|last| last.as_ref().and_then(Weak::upgrade))
}

extern "C" fn serve() -> bool {
    // A thread whose card is gone helps no card.
    let helps = last().is_some_and(|card| card.serve(HELPS.get()));
    HELPS.set(helps);
    helps
}

extern "C" fn leave() {
    if HELPS.take()
        && let Some(card) = last()
    {
        card.leave();
    }
}

/// Maximum number of remembered words. A store to any other word wakes no card.
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
