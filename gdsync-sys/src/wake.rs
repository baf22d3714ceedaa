//! Threads of this process that rest beside memory, and those that write it.
//!
//! A store to memory wakes no thread. A software card that polls doorbell registers, and a thread that polls a
//! completion entry, therefore rest in short naps, and what was stored is found when the nap ends. Where the writer
//! is another thread of the process, it can do better: it says here that it has written.
//!
//! - A thread that polls a word rests in [`rest`]; a card says [`wrote`] of each range that it has written.
//! - A card registers its *bell* by [`add_bell`], and says [`card_rests`] while its thread sleeps; what rings a
//!   doorbell register says [`rung`].
//!
//! All of this is about time alone: every rest has an end of its own, and who rests looks again. So a program that
//! says nothing, or a writer outside of the process, costs a nap and nothing else.
//!
//! The state is one of the whole process. A process may hold several copies of this crate (the software card's
//! preload library has one, the program another): each uses the table that a library exports under the name
//! [`EXPORTED`], or else its own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// The symbol by which a library exports the table of the process. It ends with the table's version: another layout,
/// or another meaning of a field, gets another name.
pub const EXPORTED: &str = "GDSYNC_WAKE_2";

/// What a copy of the software card answers.
#[repr(C)]
#[derive(Debug)]
pub struct Bell {
    /// A word was stored to ([`rung`]): its address, and whether the calling thread lends itself.
    pub rung: extern "C" fn(address: usize, lends_itself: bool),
    /// Does a bounded amount of work for the card that this thread has rung last, in the place of the card's own
    /// thread. False if there is no such card, or if it works on that thread only.
    pub serve: extern "C" fn() -> bool,
    /// The thread serves no more.
    pub leave: extern "C" fn(),
}

/// Most bells: one for each copy of the software card in a process.
const BELLS: usize = 4;
/// Places at which threads rest. A power of two.
const PLACES: usize = 4096;
/// Places are counted in groups of so many, so that few of them are looked at for a write of many lines.
const GROUP: usize = 64;
const GROUPS: usize = PLACES / GROUP;
/// Addresses of one place: a cache line, and a completion entry.
const LINE_SHIFT: usize = 6;
/// In the place of an address: threads rest beside several.
const SEVERAL: usize = 0;

/// Threads that rest beside some lines of memory.
#[repr(C, align(64))]
struct Place {
    resting: AtomicU32,
    /// Changes with every write that is said; a futex.
    turn: AtomicU32,
    /// The word beside which they rest, or [`SEVERAL`].
    beside: AtomicUsize,
}

impl Place {
    const fn new() -> Place {
        Place { resting: AtomicU32::new(0), turn: AtomicU32::new(0), beside: AtomicUsize::new(SEVERAL) }
    }

    /// Announces a thread.
    fn enter(&self, address: usize) {
        let others = self.resting.fetch_add(1, Ordering::AcqRel);
        if others == 0 || self.beside.load(Ordering::Relaxed) != address {
            self.beside.store(if others == 0 { address } else { SEVERAL }, Ordering::Release);
        }
    }

    /// Two threads that come and go at one moment may leave the word of one of them: the other one's rest then ends
    /// by itself.
    fn leave(&self) {
        self.resting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Wakes who rests beside what was written. Others of its memory, such as the entries of a completion queue that
    /// come before the one that is awaited, wake no thread.
    fn wrote(&self, first: usize, last: usize) {
        if self.resting.load(Ordering::Acquire) == 0 {
            return;
        }
        let beside = self.beside.load(Ordering::Relaxed);
        if beside == SEVERAL || (first..=last).contains(&beside) {
            self.turn.fetch_add(1, Ordering::Release);
            futex::wake(&self.turn);
        }
    }
}

/// The state of a process: who rests, and where.
#[repr(C)]
pub struct Table {
    bells: [AtomicPtr<Bell>; BELLS],
    cards_resting: AtomicU32,
    /// At all places together.
    resting: AtomicU32,
    /// At the places of each group.
    groups: [AtomicU32; GROUPS],
    places: [Place; PLACES],
}

impl Table {
    /// A table at which no thread rests.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Table {
        Table {
            bells: [const { AtomicPtr::new(std::ptr::null_mut()) }; BELLS],
            cards_resting: AtomicU32::new(0),
            resting: AtomicU32::new(0),
            groups: [const { AtomicU32::new(0) }; GROUPS],
            places: [const { Place::new() }; PLACES],
        }
    }

    /// The number of a line's place.
    fn place_of(line: usize) -> usize {
        // Fibonacci hashing: lines of one ring do not meet.
        line.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize) >> (usize::BITS - PLACES.ilog2())
    }

    fn bells(&self) -> impl Iterator<Item = &'static Bell> {
        // SAFETY: only `add_bell` stores there, and only such references. Libraries that have software cards are
        // never unloaded: the cards' threads run in them.
        self.bells.iter().map_while(|bell| unsafe { bell.load(Ordering::Acquire).as_ref() })
    }

    fn add_bell(&self, bell: &'static Bell) -> bool {
        let (none, new) = (std::ptr::null_mut(), std::ptr::from_ref(bell).cast_mut());
        self.bells.iter().any(|slot| {
            let swapped = slot.compare_exchange(none, new, Ordering::AcqRel, Ordering::Acquire);
            swapped.is_ok() || swapped == Err(new)
        })
    }

    fn wrote(&self, address: usize, len: usize) {
        // Before the look at who rests: the other half is in `rest`.
        fence(Ordering::SeqCst);
        if self.resting.load(Ordering::Relaxed) == 0 || len == 0 {
            return;
        }
        let (first, last) = (address, address + (len - 1));
        let lines = first >> LINE_SHIFT..=last >> LINE_SHIFT;
        if lines.end() - lines.start() >= GROUPS {
            let groups = self.groups.iter().zip(self.places.chunks(GROUP));
            let resting = groups.filter(|(resting, _)| resting.load(Ordering::Relaxed) != 0);
            resting.flat_map(|(_, places)| places).for_each(|place| place.wrote(first, last));
        } else {
            lines.for_each(|line| self.places[Self::place_of(line)].wrote(first, last));
        }
    }

    fn rest(&self, address: usize, longest: Duration, is_there: impl FnOnce() -> bool) -> bool {
        let at = Self::place_of(address >> LINE_SHIFT);
        let (place, group) = (&self.places[at], &self.groups[at / GROUP]);
        self.resting.fetch_add(1, Ordering::Relaxed);
        group.fetch_add(1, Ordering::Relaxed);
        place.enter(address);
        let turn = place.turn.load(Ordering::Acquire);
        // Either this look finds what was written, or the writer finds this thread resting: one fence comes between
        // its write and its look, this one between the announcement and this look. If the writer has changed the turn
        // since it was read, the futex does not sleep.
        fence(Ordering::SeqCst);
        let found = is_there();
        if !found {
            futex::wait(&place.turn, turn, longest);
        }
        place.leave();
        group.fetch_sub(1, Ordering::Relaxed);
        self.resting.fetch_sub(1, Ordering::Relaxed);
        found
    }
}

static OWN: Table = Table::new();

/// The table that [`rung`] looks at: this copy's own, until [`find`] has looked for another.
static CURRENT: AtomicPtr<Table> = AtomicPtr::new((&raw const OWN).cast_mut());

/// The table of this process.
fn table() -> &'static Table {
    static FOUND: OnceLock<&'static Table> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = exported().unwrap_or(&OWN);
        CURRENT.store(std::ptr::from_ref(found).cast_mut(), Ordering::Release);
        found
    })
}

/// Looks for the table that another library of the process exports. Before that, [`rung`] reaches cards of this copy
/// alone. Every other function here does it first.
pub fn find() {
    table();
}

/// The table that a library of the process exports.
fn exported() -> Option<&'static Table> {
    let name = std::ffi::CString::new(EXPORTED).ok()?;
    // SAFETY: a name that ends with 0; the default scope.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the name has the version of this layout, so who exports it exports such a table, a static. Its fields
    // are atomics. The library stays loaded, as it has a software card (`Table::rung`).
    unsafe { found.cast::<Table>().as_ref() }
}

/// The calling thread has stored to a word that may be a doorbell register. A card that rests is woken.
///
/// With `lends_itself`, the thread holds no lock, and may be kept for some microseconds: the card may do its work on
/// this thread at once, instead of waking its own.
///
/// Where no card rests this is two loads ([`find`]). It has no fence: a card that falls asleep at this moment may
/// miss the store, and finds it after its nap.
#[inline]
pub fn rung(address: usize, lends_itself: bool) {
    // SAFETY: a static of this library, or of another one (`exported`).
    let table = unsafe { &*CURRENT.load(Ordering::Acquire) };
    if lends_itself || table.cards_resting.load(Ordering::Relaxed) != 0 {
        table.bells().for_each(|bell| (bell.rung)(address, lends_itself));
    }
}

/// A thread that waits for what a card does, and may do its work meanwhile. It ends when this is dropped.
#[derive(Debug, Default)]
pub struct Helper {
    /// The bell of the card that it serves.
    serves: Option<&'static Bell>,
    /// There was no card to serve: it does not ask again.
    refused: bool,
}

impl Helper {
    /// Does some work of the card that this thread has rung last ([`rung`]). False if there is no such card, or if it
    /// works on its own thread only; then it is false from there on.
    pub fn serve(&mut self) -> bool {
        if self.refused {
            return false;
        }
        let serves = table().bells().find(|bell| (bell.serve)());
        if serves.is_none() {
            self.leave();
            self.refused = true;
        }
        self.serves = serves;
        serves.is_some()
    }

    /// Leaves the card to its own thread.
    pub fn leave(&mut self) {
        if let Some(bell) = self.serves.take() {
            (bell.leave)();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Has [`rung`] ask a copy of the card. False if there is no room: a process holds four copies at most.
pub fn add_bell(bell: &'static Bell) -> bool {
    table().add_bell(bell)
}

/// A card's thread goes to sleep (`true`), or has woken.
pub fn card_rests(rests: bool) {
    let resting = &table().cards_resting;
    if rests {
        resting.fetch_add(1, Ordering::SeqCst)
    } else {
        resting.fetch_sub(1, Ordering::SeqCst)
    };
}

/// A card has written `len` bytes from `address` on. Threads that rest beside them wake.
#[inline]
pub fn wrote(address: usize, len: usize) {
    table().wrote(address, len);
}

/// Rests until a card of this process writes to `address`, for `longest` at most; not at all if `is_there`, which
/// looks at the memory once more. Returns what that found.
///
/// It may return early for no reason, as [`std::thread::park`] does.
pub fn rest(address: usize, longest: Duration, is_there: impl FnOnce() -> bool) -> bool {
    table().rest(address, longest, is_there)
}

mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while the word is `value`, for `longest` at most.
    pub(super) fn wait(word: &AtomicU32, value: u32, longest: Duration) {
        let time = libc::timespec {
            tv_sec: longest.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a word that lives during the call, and a valid time. Whatever ends the sleep, the caller looks
        // again.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const time) };
    }

    /// Wakes all that sleep on the word.
    pub(super) fn wake(word: &AtomicU32) {
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a word that lives during the call; it has no effect but to wake.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(600);

    /// Rests beside `beside` until `wake` has been called often enough to end that. True if it was the wake-up that
    /// ended it.
    fn woken(table: &Table, beside: usize, wake: impl Fn()) -> bool {
        let (ended, started) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                table.rest(beside, LONG, || false);
                ended.store(true, Ordering::Release);
            });
            while !ended.load(Ordering::Acquire) && started.elapsed() < LONG {
                wake();
                std::thread::yield_now();
            }
        });
        assert_eq!(table.resting.load(Ordering::Relaxed), 0);
        assert!(table.groups.iter().all(|group| group.load(Ordering::Relaxed) == 0));
        started.elapsed() < LONG
    }

    #[test]
    fn a_write_ends_a_rest_beside_it() {
        let table = Table::new();
        for at in [8, 0x1000, 0x7fff_1234_5678] {
            assert!(woken(&table, at, || table.wrote(at, 1)));
            // A range that ends there, one that begins there, and one of more lines than there are places.
            assert!(woken(&table, at + 9000, || table.wrote(at, 9001)));
            assert!(woken(&table, at, || table.wrote(at, 9001)));
            assert!(woken(&table, at + (1 << 20), || table.wrote(at, 1 << 21)));
        }
    }

    #[test]
    fn threads_that_share_a_place_all_wake() {
        let table = Table::new();
        let place = &table.places[Table::place_of(0x1000 >> LINE_SHIFT)];
        place.enter(0x1008);
        place.enter(0x1010);
        assert!(woken(&table, 0x1000, || table.wrote(0x1000, 8)), "beside others");
        place.leave();
        assert!(woken(&table, 0x1000, || table.wrote(0x1000, 8)));
        place.leave();
        assert!(woken(&table, 0x1000, || table.wrote(0x1000, 8)), "alone again");
    }

    #[test]
    fn what_is_written_elsewhere_wakes_no_thread() {
        let table = Table::new();
        let at = Table::place_of(0x1000 >> LINE_SHIFT);
        let place = &table.places[at];
        table.resting.fetch_add(1, Ordering::Relaxed);
        table.groups[at / GROUP].fetch_add(1, Ordering::Relaxed);
        place.enter(0x1008);
        let turn = || place.turn.load(Ordering::Relaxed);
        let before = turn();
        table.wrote(0x1000, 8);
        table.wrote(0x1009, 100_000);
        table.wrote(0, 0x1008);
        assert_eq!(turn(), before);
        table.wrote(0x1000, 9);
        assert_ne!(turn(), before);
        // More lines than there are groups.
        let before = turn();
        table.wrote(0x1000, 100_000);
        assert_ne!(turn(), before);
        place.leave();
    }

    #[test]
    fn a_rest_has_an_end_and_looks_once_more() {
        let table = Table::new();
        assert!(table.rest(0x1000, LONG, || true));
        assert!(!table.rest(0x1000, Duration::from_micros(50), || false));
        // A write between that look and the sleep: the futex finds another turn.
        assert!(!table.rest(0x1000, LONG, || {
            table.wrote(0xf00, 0x200);
            false
        }));
        table.wrote(0x1000, 0);
        assert_eq!(table.resting.load(Ordering::Relaxed), 0);
    }

    extern "C" fn rung(_: usize, _: bool) {}
    extern "C" fn serves() -> bool {
        true
    }
    extern "C" fn leave() {}

    #[test]
    fn a_bell_is_added_once_and_there_is_room_for_some() {
        static BELLS_OF_TEST: [Bell; BELLS + 1] = [const { Bell { rung, serve: serves, leave } }; BELLS + 1];
        let table = Table::new();
        assert_eq!(table.bells().count(), 0);
        for (before, bell) in BELLS_OF_TEST[..BELLS].iter().enumerate() {
            assert_eq!(table.bells().count(), before);
            assert!(table.add_bell(bell) && table.add_bell(bell));
        }
        assert!(!table.add_bell(&BELLS_OF_TEST[BELLS]));
        assert!(table.bells().zip(&BELLS_OF_TEST).all(|(bell, expected)| std::ptr::eq(bell, expected)));
    }
}
