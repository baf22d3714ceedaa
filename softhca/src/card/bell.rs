//! Which card a store to memory concerns: by the threads of this process that say what they have stored
//! ([`gdsync_sys::wake`]).

use gdsync_sys::prm::doorbell::UAR_PAGE;
use gdsync_sys::wake::{self, Bell};
use parking_lot::RwLock;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A card that threads of the process wake, or whose work they do.
pub(crate) trait Served: Send + Sync {
    /// The calling thread has stored to a doorbell register of this page, or to a word that the card waits for. Where it
    /// lends itself, it does the work at once.
    fn rung(&self, page: Option<u32>, lends_itself: bool);

    /// Does a bounded amount of work. `helps`: the calling thread is one of the card's helpers. Returns whether it is
    /// now; false if the card works on its own thread only, or has helpers enough.
    fn serve(&self, helps: bool) -> bool;

    /// The calling thread is a helper no more.
    fn leave(&self);
}

type Card = Weak<dyn Served>;

/// Most addresses that are known. A store to another one wakes no card, which then finds it after its nap.
const MOST: usize = 1 << 16;

/// The cards of this process, by the pages where their doorbell registers are mapped, and by the words that work
/// requests of theirs have waited for. An entry may outlive both: then a store to what is there now has a
/// card look for work, and find none.
static CARDS: RwLock<BTreeMap<usize, (Card, Option<u32>)>> = RwLock::new(BTreeMap::new());

/// The functions of this copy of the card.
static BELL: Bell = Bell { rung, serve, leave };

thread_local! {
    /// The card that this thread has rung last, while lending itself.
    static LAST: RefCell<Option<Card>> = const { RefCell::new(None) };
    /// This thread is one of that card's helpers.
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// The page of doorbell registers of that number is mapped at this address, or, without one, a work request of the card
/// waits for the word there.
pub(crate) fn hang(address: usize, card: Card, page: Option<u32>) {
    let mut cards = CARDS.write();
    if cards.len() >= MOST {
        cards.retain(|_, (card, _)| card.strong_count() > 0);
    }
    if cards.len() < MOST {
        cards.insert(address, (card, page));
    }
    drop(cards);
    if !wake::add_bell(&BELL) {
        tracing::warn!(
            "there are too many copies of the software card in this process: stores wake no card of this one"
        );
    }
}

extern "C" fn rung(address: usize, lends_itself: bool) {
    let cards = CARDS.read();
    let card = cards.get(&address).or_else(|| cards.get(&(address & !(UAR_PAGE - 1)))).cloned();
    drop(cards);
    let Some((card, page)) = card else { return };
    if let Some(served) = card.upgrade() {
        served.rung(page, lends_itself);
        if lends_itself {
            LAST.set(Some(card));
        }
    }
}

fn last() -> Option<Arc<dyn Served>> {
    LAST.with_borrow(|last| last.as_ref().and_then(Weak::upgrade))
}

extern "C" fn serve() -> bool {
    // Who helped a card that is gone helps none.
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
