//! The card's clock, and the two pages by which programs read it without a command: the counter itself, and the
//! conversion of its values to system time.
//!
//! A hardware counter changes when it is read. This one is memory, so it changes when the card writes it: with every
//! step of the engine, and with every completion entry before the entry is visible. So it never goes back, and a
//! program that has seen an entry reads no earlier time. While the card naps, the counter is up to 1 ms late.
//!
//! The clock is also the source of the time that the engine and its commands work with: the system's or, in a
//! simulation, one that only the simulation moves.

use crate::os::clock;
use crate::os::memory::SharedMemory;
use gdsync_sys::shared::{self, SharedU64};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use zerocopy::{Immutable, IntoBytes};

/// The page of the counter, as an offset in the file of a card's pages: `MLX5_IB_MMAP_CORE_CLOCK` of `enum
/// mlx5_ib_mmap_cmd` << 8.
pub const CLOCK_PAGE: usize = 5 << 8;
/// The page that converts the counter's values: `MLX5_IB_MMAP_CLOCK_INFO` << 8.
pub const CLOCK_INFO_PAGE: usize = 7 << 8;

/// The significant bits of the clock's values, as the driver reports them (`mlx5_ib_query_device`).
pub const CLOCK_MASK: u64 = u64::MAX >> 1;

/// Time that stands still until it is moved.
#[derive(Debug)]
pub(crate) struct SimulatedTime {
    start: Instant,
    nanoseconds: AtomicU64,
}

impl SimulatedTime {
    /// The time at the start: not 0, as times on the wire are not.
    const FIRST: u64 = 1_000_000_000;

    pub(crate) fn new() -> SimulatedTime {
        SimulatedTime { start: Instant::now(), nanoseconds: AtomicU64::new(Self::FIRST) }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed) - Self::FIRST)
    }

    pub(crate) fn now(&self) -> Instant {
        self.start + self.elapsed()
    }

    /// Moves the time to an instant, unless it is past it.
    pub(crate) fn move_to(&self, instant: Instant) {
        let since = instant.saturating_duration_since(self.start).as_nanos() as u64;
        self.nanoseconds.fetch_max(Self::FIRST + since, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct Clock {
    page: OnceLock<SharedMemory>,
    /// The time of a simulation, instead of the system's.
    pub(crate) simulated: Option<Arc<SimulatedTime>>,
}

impl Clock {
    pub(crate) fn simulated(time: Arc<SimulatedTime>) -> Clock {
        Clock { page: OnceLock::new(), simulated: Some(time) }
    }

    /// Returns the time by which the engine's timers run.
    pub(crate) fn now(&self) -> Instant {
        self.simulated.as_ref().map_or_else(Instant::now, |time| time.now())
    }

    /// Returns the time as programs see it, in nanoseconds.
    pub(crate) fn nanoseconds(&self) -> u64 {
        let simulated = self.simulated.as_ref().map(|time| time.nanoseconds.load(Ordering::Relaxed));
        simulated.unwrap_or_else(clock::nanoseconds)
    }

    /// Returns a number that increases over time, in microseconds, also from one process to the next.
    pub(crate) fn microseconds(&self) -> u64 {
        match &self.simulated {
            Some(_) => self.nanoseconds() / 1000,
            None => SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64),
        }
    }

    /// Reads the time, and shows it to programs.
    pub(crate) fn read(&self) -> u64 {
        let now = self.nanoseconds();
        if let Some(page) = self.page.get() {
            // SAFETY: aligned, and in the page, which is mapped as long as `self`; programs only read it. An entry that
            // the card writes later with Release is visible later.
            unsafe { SharedU64::from_ptr(page.base().cast()) }.store(now.to_be(), Ordering::Relaxed);
        }
        now
    }

    /// Updates the time shown to programs, if there is a page.
    pub(crate) fn tick(&self) {
        if self.page.get().is_some() {
            self.read();
        }
    }

    /// Shows the time on a page from now on.
    pub(crate) fn show(&self, page: SharedMemory) {
        if self.page.set(page).is_ok() {
            self.read();
        }
    }
}

/// `struct mlx5_ib_clock_info`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Information {
    /// Odd during an update. There are none: one pair of times stays right.
    sign: u32,
    reserved: u32,
    nsec: u64,
    cycles: u64,
    frac: u64,
    mult: u32,
    shift: u32,
    mask: u64,
    overflow_period: u64,
}

/// Fills the information page: the system time (`CLOCK_REALTIME`) at a value of the counter. Like hardware, the card's
/// clock does not follow later changes of the system time.
pub(crate) fn inform(page: &SharedMemory) {
    let (cycles, nsec) = clock::pair();
    let information = Information {
        sign: 0,
        reserved: 0,
        nsec,
        cycles,
        // A count is a nanosecond.
        frac: 0,
        mult: 1,
        shift: 0,
        mask: CLOCK_MASK,
        // The product of `mult` and half of `mask`, the largest difference, fits in 64 bits.
        overflow_period: CLOCK_MASK >> 1,
    };
    let bytes = information.as_bytes();
    // SAFETY: the page has more bytes, and no program has it yet.
    unsafe { shared::copy(page.base(), bytes.as_ptr(), bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!((size_of::<Information>(), offset_of!(Information, nsec)), (56, 8));
        assert_eq!((offset_of!(Information, mult), offset_of!(Information, mask)), (32, 40));
    }

    #[test]
    fn simulated_time_moves_only_forward_and_only_when_it_is_moved() {
        let time = Arc::new(SimulatedTime::new());
        let clock = Clock::simulated(time.clone());
        let (start, first) = (clock.now(), clock.read());
        assert_eq!((clock.now(), clock.read()), (start, first));
        let later = start + Duration::from_micros(7);
        time.move_to(later);
        time.move_to(start);
        assert_eq!((clock.now(), clock.read() - first), (later, 7_000));
        assert_eq!((time.elapsed(), clock.microseconds()), (Duration::from_micros(7), first / 1000 + 7));
    }

    #[test]
    fn the_page_shows_what_was_read_last() {
        let (clock, (page, _file)) = (Clock::default(), SharedMemory::create(4096).unwrap());
        let first = page.base() as usize;
        assert!(clock.read() > 0);
        clock.show(page);
        // SAFETY: the clock has the page.
        let shown =
            || u64::from_be(unsafe { SharedU64::from_ptr(first as *mut u64) }.load(Ordering::Relaxed));
        let before = shown();
        let now = clock.read();
        assert!(before > 0 && now >= before && shown() == now);
        while clock::nanoseconds() == now {}
        clock.tick();
        assert!(shown() > now);
    }
}
