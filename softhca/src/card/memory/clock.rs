//! The card's clock, and the two pages by which programs read it without a command: the counter itself, and the
//! conversion of its values to system time.
//!
//! A hardware counter changes when it is read. This one is memory, so it changes when the card writes it: with every
//! step of the engine, and with every completion entry before the entry is visible. So it never goes back, and a
//! program that has seen an entry reads no earlier time. While the card naps, the counter is up to 1 ms late.

use crate::os::clock;
use crate::os::memory::SharedMemory;
use gdsync_sys::shared::{self, SharedU64};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use zerocopy::{Immutable, IntoBytes};

/// The page of the counter, as an offset in the file of a card's pages: `MLX5_IB_MMAP_CORE_CLOCK` of `enum
/// mlx5_ib_mmap_cmd` << 8.
pub const CLOCK_PAGE: usize = 5 << 8;
/// The page that converts the counter's values: `MLX5_IB_MMAP_CLOCK_INFO` << 8.
pub const CLOCK_INFO_PAGE: usize = 7 << 8;

/// The significant bits of the clock's values, as the driver reports them (`mlx5_ib_query_device`).
pub const CLOCK_MASK: u64 = u64::MAX >> 1;

#[derive(Default)]
pub(crate) struct Clock {
    page: OnceLock<SharedMemory>,
}

impl Clock {
    /// Reads the time, and shows it to programs.
    pub(crate) fn read(&self) -> u64 {
        let now = clock::nanoseconds();
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
