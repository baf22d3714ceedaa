//! Wake-ups for threads that sleep until a memory word changes.
//!
//! A store to memory wakes no thread. A software card that polls doorbell registers, and a thread that polls a
//! completion entry, therefore sleep in short intervals and find a store when the interval ends. A writer in the same
//! process can end the sleep early by reporting its write here:
//!
//! - A thread that polls a word sleeps in `wait_for_write`; a card calls [`report_write`] for each range that it wrote.
//! - A card registers [`CardCallbacks`] with [`register_card`], and calls [`report_card_sleep`] around its thread's
//!   sleep; a thread that rings a doorbell register calls [`report_doorbell`].
//!
//! Correctness does not depend on these calls: every sleep is bounded, and the sleeper re-checks the word. A program
//! that reports nothing, or a writer in another process, costs one interval.
//!
//! The state is per process. A process may contain several copies of this crate (one in the software card's preload
//! library, one in the program): each copy uses the table that a library exports under the name [`EXPORTED`], or its
//! own if there is none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// The symbol under which a library exports the process's table. The name ends with the table's version: a change of
/// the layout or of a field's meaning changes the name.
pub const EXPORTED: &str = "GDSYNC_WAKE_2";

/// Entry points of a copy of the software card.
#[repr(C)]
#[derive(Debug)]
pub struct CardCallbacks {
    /// Handles [`report_doorbell`]: the address of the word, and whether the calling thread may do the card's work.
    pub doorbell: extern "C" fn(address: usize, may_serve: bool),
    /// Does a bounded amount of work for the card that this thread rang last, instead of the card's thread. Returns
    /// false if there is no such card, or if the card works on its own thread only.
    pub serve: extern "C" fn() -> bool,
    /// Ends the calling thread's work for the card.
    pub leave: extern "C" fn(),
}

/// Maximum number of copies of the software card in the process.
const MAX_CARDS: usize = 4;
/// Buckets of sleeping threads. A power of two.
const BUCKETS: usize = 4096;
/// Buckets of a group. Groups count their sleepers, so that a write of many lines need not check every bucket.
const GROUP_BUCKETS: usize = 64;
const GROUPS: usize = BUCKETS / GROUP_BUCKETS;
/// Log2 of the bytes that map to one bucket: a cache line, and a completion entry.
const LOG_LINE: usize = 6;
/// Stored instead of an address: the bucket's threads sleep on several words.
const SEVERAL_WORDS: usize = 0;

/// Threads that sleep on words of some cache lines.
#[repr(C, align(64))]
struct Bucket {
    sleepers: AtomicU32,
    /// Incremented by every reported write; a futex.
    generation: AtomicU32,
    /// The word that they sleep on, or [`SEVERAL_WORDS`].
    address: AtomicUsize,
}

impl Bucket {
    const fn new() -> Bucket {
        Bucket {
            sleepers: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            address: AtomicUsize::new(SEVERAL_WORDS),
        }
    }

    /// Registers a sleeping thread.
    fn enter(&self, address: usize) {
        let others = self.sleepers.fetch_add(1, Ordering::AcqRel);
        if others == 0 || self.address.load(Ordering::Relaxed) != address {
            self.address.store(if others == 0 { address } else { SEVERAL_WORDS }, Ordering::Release);
        }
    }

    /// If two threads enter and leave at the same time, the address of one of them may remain: the other thread then
    /// sleeps until its time-out.
    fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Wakes the threads that sleep on a word of the range. A write to other words of the same lines, such as the
    /// completion entries before the awaited one, wakes no thread.
    fn report_write(&self, first: usize, last: usize) {
        if self.sleepers.load(Ordering::Acquire) == 0 {
            return;
        }
        let address = self.address.load(Ordering::Relaxed);
        if address == SEVERAL_WORDS || (first..=last).contains(&address) {
            self.generation.fetch_add(1, Ordering::Release);
            futex::wake(&self.generation);
        }
    }
}

/// The sleeping threads and the cards of a process.
#[repr(C)]
pub struct Table {
    cards: [AtomicPtr<CardCallbacks>; MAX_CARDS],
    sleeping_cards: AtomicU32,
    /// Sleepers of all buckets.
    sleepers: AtomicU32,
    /// Sleepers of each group.
    groups: [AtomicU32; GROUPS],
    buckets: [Bucket; BUCKETS],
}

impl Table {
    /// An empty table.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Table {
        Table {
            cards: [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_CARDS],
            sleeping_cards: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            groups: [const { AtomicU32::new(0) }; GROUPS],
            buckets: [const { Bucket::new() }; BUCKETS],
        }
    }

    fn bucket_of(line: usize) -> usize {
        // Fibonacci hashing spreads the lines of a ring over different buckets.
        line.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize) >> (usize::BITS - BUCKETS.ilog2())
    }

    fn cards(&self) -> impl Iterator<Item = &'static CardCallbacks> {
        // SAFETY: only `register_card` stores there, and only `'static` references. Libraries with software cards are
        // never unloaded, because the cards' threads run in them.
        self.cards.iter().map_while(|card| unsafe { card.load(Ordering::Acquire).as_ref() })
    }

    fn register_card(&self, card: &'static CardCallbacks) -> bool {
        let (none, new) = (std::ptr::null_mut(), std::ptr::from_ref(card).cast_mut());
        self.cards.iter().any(|slot| {
            let swapped = slot.compare_exchange(none, new, Ordering::AcqRel, Ordering::Acquire);
            swapped.is_ok() || swapped == Err(new)
        })
    }

    fn report_write(&self, address: usize, len: usize) {
        // Orders the write before the check for sleepers. The other half is in `wait_for_write`.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) == 0 || len == 0 {
            return;
        }
        let (first, last) = (address, address + (len - 1));
        let lines = first >> LOG_LINE..=last >> LOG_LINE;
        if lines.end() - lines.start() >= GROUPS {
            let groups = self.groups.iter().zip(self.buckets.chunks(GROUP_BUCKETS));
            let occupied = groups.filter(|(sleepers, _)| sleepers.load(Ordering::Relaxed) != 0);
            occupied.flat_map(|(_, buckets)| buckets).for_each(|bucket| bucket.report_write(first, last));
        } else {
            lines.for_each(|line| self.buckets[Self::bucket_of(line)].report_write(first, last));
        }
    }

    fn wait_for_write(&self, address: usize, timeout: Duration, is_there: impl FnOnce() -> bool) -> bool {
        let at = Self::bucket_of(address >> LOG_LINE);
        let (bucket, group) = (&self.buckets[at], &self.groups[at / GROUP_BUCKETS]);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        group.fetch_add(1, Ordering::Relaxed);
        bucket.enter(address);
        let generation = bucket.generation.load(Ordering::Acquire);
        // Either this check sees the write, or the writer sees this thread registered: the writer's fence is between
        // its write and its check, this fence is between the registration and this check. If the writer has
        // incremented the generation since it was read, the futex does not sleep.
        fence(Ordering::SeqCst);
        let found = is_there();
        if !found {
            futex::wait(&bucket.generation, generation, timeout);
        }
        bucket.leave();
        group.fetch_sub(1, Ordering::Relaxed);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }
}

static LOCAL: Table = Table::new();

/// The table that [`report_doorbell`] uses: this copy's own until [`find`] has looked for an exported one.
static CURRENT: AtomicPtr<Table> = AtomicPtr::new((&raw const LOCAL).cast_mut());

fn table() -> &'static Table {
    static FOUND: OnceLock<&'static Table> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = exported().unwrap_or(&LOCAL);
        CURRENT.store(std::ptr::from_ref(found).cast_mut(), Ordering::Release);
        found
    })
}

/// Looks for the table that another library of the process exports. Until then, [`report_doorbell`] reaches only cards
/// of this copy. Every other function here calls it first.
pub fn find() {
    table();
}

/// Returns the table that a library of the process exports.
fn exported() -> Option<&'static Table> {
    let name = std::ffi::CString::new(EXPORTED).ok()?;
    // SAFETY: the name is zero-terminated; `RTLD_DEFAULT` is a valid scope.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the name contains the version of this layout, so the symbol is a static [`Table`], whose fields are
    // atomics. The library stays loaded because it contains a software card (`Table::cards`).
    unsafe { found.cast::<Table>().as_ref() }
}

/// Reports that the calling thread has stored to a word that may be a doorbell register. Wakes a sleeping card.
///
/// With `may_serve`, the caller holds no lock and can be delayed by some microseconds: the card may do its work on
/// this thread at once, instead of waking its own.
///
/// If no card sleeps this costs two loads ([`find`]). There is no fence: a card that falls asleep concurrently may
/// miss the store and finds it after its interval.
#[inline]
pub fn report_doorbell(address: usize, may_serve: bool) {
    // SAFETY: a static of this library, or of the one that exports the table (`exported`).
    let table = unsafe { &*CURRENT.load(Ordering::Acquire) };
    if may_serve || table.sleeping_cards.load(Ordering::Relaxed) != 0 {
        table.cards().for_each(|card| (card.doorbell)(address, may_serve));
    }
}

/// A thread that does a card's work while it waits for the card, until this value is dropped.
#[derive(Debug, Default)]
pub struct Helper {
    /// The copy of the card that the thread works for.
    serves: Option<&'static CardCallbacks>,
    /// True once no card could be served; the thread does not ask again.
    refused: bool,
}

impl Helper {
    /// Does some work of the card that this thread rang last ([`report_doorbell`]). Returns false, from then on, if
    /// there is no such card or if it works on its own thread only.
    pub fn serve(&mut self) -> bool {
        if self.refused {
            return false;
        }
        let serves = table().cards().find(|card| (card.serve)());
        if serves.is_none() {
            self.leave();
            self.refused = true;
        }
        self.serves = serves;
        serves.is_some()
    }

    /// Leaves the work to the card's own thread.
    pub fn leave(&mut self) {
        if let Some(card) = self.serves.take() {
            (card.leave)();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Registers a copy of the card for [`report_doorbell`]. Returns false if all four slots of the process are taken.
pub fn register_card(card: &'static CardCallbacks) -> bool {
    table().register_card(card)
}

/// Reports that a card's thread goes to sleep (`true`), or has woken up (`false`).
pub fn report_card_sleep(sleeps: bool) {
    let sleeping = &table().sleeping_cards;
    if sleeps {
        sleeping.fetch_add(1, Ordering::SeqCst)
    } else {
        sleeping.fetch_sub(1, Ordering::SeqCst)
    };
}

/// Reports that a card has written `len` bytes at `address`. Wakes the threads that sleep on them.
#[inline]
pub fn report_write(address: usize, len: usize) {
    table().report_write(address, len);
}

/// Sleeps until a card of this process writes to `address`, but at most `timeout`. Does not sleep if `is_there`,
/// which checks the memory once more, returns true. Returns the result of `is_there`.
///
/// May return early without a reason, like [`std::thread::park`].
pub(crate) fn wait_for_write(address: usize, timeout: Duration, is_there: impl FnOnce() -> bool) -> bool {
    table().wait_for_write(address, timeout, is_there)
}

mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while the word is `value`, but at most `timeout`.
    pub(super) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
        let time = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word outlives the call, and the time is valid. Whatever ends the sleep, the caller re-checks.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const time) };
    }

    pub(super) fn wake(word: &AtomicU32) {
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word outlives the call, which has no effect but to wake.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(600);

    /// Sleeps on `address` while the calling thread repeats `wake`. Returns true if a wake-up ended the sleep.
    fn woken(table: &Table, address: usize, wake: impl Fn()) -> bool {
        let (ended, started) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                table.wait_for_write(address, LONG, || false);
                ended.store(true, Ordering::Release);
            });
            while !ended.load(Ordering::Acquire) && started.elapsed() < LONG {
                wake();
                std::thread::yield_now();
            }
        });
        assert_eq!(table.sleepers.load(Ordering::Relaxed), 0);
        assert!(table.groups.iter().all(|group| group.load(Ordering::Relaxed) == 0));
        started.elapsed() < LONG
    }

    #[test]
    fn a_write_ends_a_rest_beside_it() {
        let table = Table::new();
        for at in [8, 0x1000, 0x7fff_1234_5678] {
            assert!(woken(&table, at, || table.report_write(at, 1)));
            // Ranges that end and begin at the word, and one with more lines than there are buckets.
            assert!(woken(&table, at + 9000, || table.report_write(at, 9001)));
            assert!(woken(&table, at, || table.report_write(at, 9001)));
            assert!(woken(&table, at + (1 << 20), || table.report_write(at, 1 << 21)));
        }
    }

    #[test]
    fn threads_that_share_a_place_all_wake() {
        let table = Table::new();
        let bucket = &table.buckets[Table::bucket_of(0x1000 >> LOG_LINE)];
        bucket.enter(0x1008);
        bucket.enter(0x1010);
        assert!(woken(&table, 0x1000, || table.report_write(0x1000, 8)), "beside others");
        bucket.leave();
        assert!(woken(&table, 0x1000, || table.report_write(0x1000, 8)));
        bucket.leave();
        assert!(woken(&table, 0x1000, || table.report_write(0x1000, 8)), "alone again");
    }

    #[test]
    fn what_is_written_elsewhere_wakes_no_thread() {
        let table = Table::new();
        let at = Table::bucket_of(0x1000 >> LOG_LINE);
        let bucket = &table.buckets[at];
        table.sleepers.fetch_add(1, Ordering::Relaxed);
        table.groups[at / GROUP_BUCKETS].fetch_add(1, Ordering::Relaxed);
        bucket.enter(0x1008);
        let generation = || bucket.generation.load(Ordering::Relaxed);
        let before = generation();
        table.report_write(0x1000, 8);
        table.report_write(0x1009, 100_000);
        table.report_write(0, 0x1008);
        assert_eq!(generation(), before);
        table.report_write(0x1000, 9);
        assert_ne!(generation(), before);
        // More lines than there are groups.
        let before = generation();
        table.report_write(0x1000, 100_000);
        assert_ne!(generation(), before);
        bucket.leave();
    }

    #[test]
    fn a_rest_has_an_end_and_looks_once_more() {
        let table = Table::new();
        assert!(table.wait_for_write(0x1000, LONG, || true));
        assert!(!table.wait_for_write(0x1000, Duration::from_micros(50), || false));
        // A write between that check and the sleep: the futex finds another generation.
        assert!(!table.wait_for_write(0x1000, LONG, || {
            table.report_write(0xf00, 0x200);
            false
        }));
        table.report_write(0x1000, 0);
        assert_eq!(table.sleepers.load(Ordering::Relaxed), 0);
    }

    extern "C" fn doorbell(_: usize, _: bool) {}
    extern "C" fn serves() -> bool {
        true
    }
    extern "C" fn leave() {}

    #[test]
    fn a_card_is_registered_once_and_there_is_room_for_some() {
        const CARD: CardCallbacks = CardCallbacks { doorbell, serve: serves, leave };
        static TEST_CARDS: [CardCallbacks; MAX_CARDS + 1] = [CARD; MAX_CARDS + 1];
        let table = Table::new();
        assert_eq!(table.cards().count(), 0);
        for (before, card) in TEST_CARDS[..MAX_CARDS].iter().enumerate() {
            assert_eq!(table.cards().count(), before);
            assert!(table.register_card(card) && table.register_card(card));
        }
        assert!(!table.register_card(&TEST_CARDS[MAX_CARDS]));
        assert!(table.cards().zip(&TEST_CARDS).all(|(card, expected)| std::ptr::eq(card, expected)));
    }
}
