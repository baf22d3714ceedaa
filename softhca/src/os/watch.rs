//! Memory that a program must not read yet: its pages are protected, so that a thread which touches them faults.
//!
//! The handler that guards the card's accesses asks [`on_fault`] about faults that are not the card's. It opens the pages at once, tells the
//! thread that has called [`next_touch`] who it was, and lets the faulting thread go on when that has been reported, or
//! after a second. The card itself reaches protected pages by way of the kernel.
//!
//! Only private, writable memory is protected. Memory that may be a stack is left out: the system could not call the handler
//! on it.

use super::maps::mappings;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;

// States of a slot.
const FREE: u32 = 0;
const CLOSED: u32 = 1;
const OPEN: u32 = 2;

/// A watched range. The handler reads it at any time.
struct Slot {
    state: AtomicU32,
    /// First and end of the pages. They stay when the slot is free again: a fault may be older than that.
    pages: [AtomicUsize; 2],
    bytes: [AtomicUsize; 2],
    id: AtomicU64,
}

/// Maximum number of ranges at a time.
const MOST: usize = 128;

static SLOTS: [Slot; MOST] = [const {
    Slot {
        state: AtomicU32::new(FREE),
        pages: [const { AtomicUsize::new(0) }; 2],
        bytes: [const { AtomicUsize::new(0) }; 2],
        id: AtomicU64::new(0),
    }
}; MOST];

impl Slot {
    fn covers(&self, addr: usize) -> bool {
        load(&self.pages).contains(&addr)
    }

    /// Returns whether its pages are protected.
    fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CLOSED
    }
}

fn load(range: &[AtomicUsize; 2]) -> Range<usize> {
    range[0].load(Ordering::SeqCst)..range[1].load(Ordering::SeqCst)
}

fn store(range: &[AtomicUsize; 2], value: &Range<usize>) {
    range[0].store(value.start, Ordering::SeqCst);
    range[1].store(value.end, Ordering::SeqCst);
}

/// Index of the slot that is tried first. The lock orders changes of the protection.
static NEXT: Mutex<usize> = Mutex::new(0);

/// A watched range, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watched(&'static Slot);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x?}", load(&self.bytes))
    }
}

/// Protects the pages of a range. `None` if they cannot be watched: because of what they are, or because there are too
/// many.
pub(crate) fn watch(bytes: Range<usize>, id: u64) -> Option<Watched> {
    let pages = bytes.start / PAGE * PAGE..bytes.end.checked_next_multiple_of(PAGE)?;
    let mut next = NEXT.lock();
    if bytes.is_empty() || !is_watchable(&pages, &std::fs::read_to_string("/proc/self/maps").ok()?) {
        return None;
    }
    let is_free = |index: &usize| SLOTS[*index].state.load(Ordering::SeqCst) == FREE;
    let index = (*next..*next + MOST).map(|index| index % MOST).find(is_free)?;
    *next = index + 1;
    let slot = &SLOTS[index];
    store(&slot.pages, &pages);
    store(&slot.bytes, &bytes);
    slot.id.store(id, Ordering::SeqCst);
    slot.state.store(CLOSED, Ordering::SeqCst);
    protect(&pages, libc::PROT_NONE);
    Some(Watched(slot))
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _order = NEXT.lock();
        self.0.state.store(FREE, Ordering::SeqCst);
        for page in load(&self.0.pages).step_by(PAGE) {
            if !SLOTS.iter().any(|slot| slot.is_closed() && slot.covers(page)) {
                protect(&(page..page + PAGE), libc::PROT_READ | libc::PROT_WRITE);
            }
        }
    }
}

fn protect(pages: &Range<usize>, rights: libc::c_int) {
    // SAFETY: the pages were private and writable when they were first watched; what they contain does not change. Who
    // touches them meanwhile faults, and the handler opens them. On failure nothing changes.
    unsafe { libc::mprotect(pages.start as *mut libc::c_void, pages.len(), rights) };
}

/// Returns whether all pages of a range may be protected: private, writable, and no stack.
fn is_watchable(pages: &Range<usize>, maps: &str) -> bool {
    let is_ours = |range: &Range<u64>| {
        (range.start..range.end)
            .step_by(PAGE)
            .all(|page| SLOTS.iter().any(|slot| slot.is_closed() && slot.covers(page as usize)))
    };
    let (mut left, mut guard) = (pages.start as u64, None);
    for (range, rest) in mappings(maps) {
        let is_none = rest.starts_with("---p");
        if range.end > left && left < pages.end as u64 {
            // Below a thread's stack is a page without rights.
            let is_stack = rest.contains("[stack") || guard == Some(range.start);
            let part = range.start.max(left)..range.end.min(pages.end as u64);
            let is_allowed = rest.starts_with("rw-p") && !is_stack || is_none && is_ours(&part);
            if range.start > left || !is_allowed {
                return false;
            }
            left = range.end;
        }
        let last = range.end.wrapping_sub(PAGE as u64)..range.end;
        guard = (is_none && !is_ours(&last)).then_some(range.end);
    }
    left >= pages.end as u64
}

/// A touch of a watched range by the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// Address of the instruction.
    pub(crate) code: usize,
    /// The address that it touched.
    pub(crate) addr: usize,
    pub(crate) thread: i32,
    /// The id that [`watch`] was given.
    pub(crate) id: u64,
    index: usize,
}

// States of a record.
const EMPTY: u32 = 0;
const FILLING: u32 = 1;
const FULL: u32 = 2;

struct Record {
    state: AtomicU32,
    code: AtomicUsize,
    addr: AtomicUsize,
    thread: AtomicI32,
    id: AtomicU64,
}

static RECORDS: [Record; 16] = [const {
    Record {
        state: AtomicU32::new(EMPTY),
        code: AtomicUsize::new(0),
        addr: AtomicUsize::new(0),
        thread: AtomicI32::new(0),
        id: AtomicU64::new(0),
    }
}; 16];

/// The process whose thread reports touches, and its descriptor of an eventfd(2).
static REPORTER: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// Pause between two looks of a thread that waits until its touch is reported, and their number.
const PAUSE: Duration = Duration::from_micros(50);
const LOOKS: u32 = 20_000;
/// How often a thread repeats an access to a page that another one is about to open.
const REPEATS: u32 = 100_000;

/// Number of repetitions in a row.
static REPEATED: AtomicU32 = AtomicU32::new(0);

/// Handles a fault of the program, in a handler of signals. Returns whether the access is to be repeated.
pub(super) fn on_fault(addr: usize, code: usize) -> bool {
    // SAFETY: the thread's own word.
    let errno = unsafe { *libc::__errno_location() };
    let (mut is_known, mut is_opened, mut touched) = (false, false, None);
    for slot in SLOTS.iter().filter(|slot| slot.covers(addr)) {
        is_known = true;
        if slot.state.compare_exchange(CLOSED, OPEN, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            is_opened = true;
            if load(&slot.bytes).contains(&addr) {
                touched = Some(slot.id.load(Ordering::SeqCst));
            }
            protect(&load(&slot.pages), libc::PROT_READ | libc::PROT_WRITE);
        }
    }
    if let Some(id) = touched {
        tell(addr, code, id);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    let repeated = if is_opened { 0 } else { REPEATED.load(Ordering::Relaxed) + 1 };
    REPEATED.store(repeated, Ordering::Relaxed);
    // A page that another thread has opened meanwhile is accessible. If it stays so, the fault is the program's own.
    is_known && repeated < REPEATS
}

/// Passes a touch to the thread that reports it, and waits for that.
fn tell(addr: usize, code: usize, id: u64) {
    let [process, descriptor] = &REPORTER;
    // SAFETY: the calls access no memory but their arguments, and a handler of signals may make them.
    unsafe {
        if process.load(Ordering::SeqCst) != libc::getpid() {
            return;
        }
        let take = |record: &&Record| {
            record.state.compare_exchange(EMPTY, FILLING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let Some(record) = RECORDS.iter().find(take) else { return };
        record.code.store(code, Ordering::SeqCst);
        record.addr.store(addr, Ordering::SeqCst);
        record.thread.store(libc::syscall(libc::SYS_gettid) as i32, Ordering::SeqCst);
        record.id.store(id, Ordering::SeqCst);
        record.state.store(FULL, Ordering::SeqCst);
        let one = 1u64;
        libc::write(descriptor.load(Ordering::SeqCst), (&raw const one).cast(), size_of::<u64>());
        let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
        for _ in 0..LOOKS {
            if record.state.load(Ordering::SeqCst) != FULL {
                break;
            }
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
        }
    }
}

/// Makes the calling thread the one that reports touches of this process. Returns false if there is one.
pub(crate) fn become_reporter() -> bool {
    // SAFETY: no memory is involved; the descriptor is used by this module only.
    unsafe {
        let process = libc::getpid();
        if REPORTER[0].load(Ordering::SeqCst) == process {
            return false;
        }
        let descriptor = libc::eventfd(0, libc::EFD_CLOEXEC);
        REPORTER[1].store(descriptor, Ordering::SeqCst);
        REPORTER[0].store(if descriptor < 0 { -1 } else { process }, Ordering::SeqCst);
        descriptor >= 0
    }
}

/// Waits for a touch, which lasts until [`reported`] is called. `None` if there will be no more.
pub(crate) fn next_touch() -> Option<Touch> {
    loop {
        let full = |record: &&Record| record.state.load(Ordering::SeqCst) == FULL;
        if let Some(record) = RECORDS.iter().find(full) {
            return Some(Touch {
                code: record.code.load(Ordering::SeqCst),
                addr: record.addr.load(Ordering::SeqCst),
                thread: record.thread.load(Ordering::SeqCst),
                id: record.id.load(Ordering::SeqCst),
                index: RECORDS.iter().position(|other| std::ptr::eq(other, record))?,
            });
        }
        let mut count = 0u64;
        // SAFETY: reads into a local.
        let read = unsafe {
            libc::read(REPORTER[1].load(Ordering::SeqCst), (&raw mut count).cast(), size_of::<u64>())
        };
        if read < 0 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            REPORTER[0].store(-1, Ordering::SeqCst);
            return None;
        }
    }
}

/// Lets the thread of a touch go on.
pub(crate) fn reported(touch: Touch) {
    RECORDS[touch.index].state.store(EMPTY, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{guard, host};

    /// Maps private pages that are never unmapped, between two that may only be read: without these, the kernel may place
    /// the mapping above memory without rights, such as the unused part of an arena of malloc, where it looks like a stack.
    fn pages(count: usize) -> usize {
        let (len, flags) = ((count + 2) * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let pages = base as usize + PAGE..base as usize + (count + 1) * PAGE;
        protect(&pages, libc::PROT_READ | libc::PROT_WRITE);
        pages.start
    }

    /// Reads a byte as a program does.
    fn touch(at: usize) -> u8 {
        // SAFETY: inside a mapping of this test.
        unsafe { (at as *const u8).read_volatile() }
    }

    #[test]
    fn who_reads_what_is_watched_is_told_and_goes_on() {
        guard::install();
        let base = pages(2);
        // Neighbours on the page open it without a report.
        let watched = watch(base + 64..base + 128, 7).unwrap();
        // SAFETY: inside the mapping.
        unsafe { host::write((base + 64) as *mut u8, &[5; 64]) }.unwrap();
        assert!(watched.0.is_closed(), "the card opens nothing");
        assert_eq!((touch(base), watched.0.is_closed()), (0, false));
        drop(watched);
        assert!(become_reporter() && !become_reporter());
        let watched = watch(base + 64..base + PAGE + 8, 8).unwrap();
        let reader = std::thread::spawn(move || touch(base + PAGE));
        let told = next_touch().unwrap();
        assert_eq!((told.id, told.addr), (8, base + PAGE));
        assert!(told.code != 0 && told.thread > 0 && !watched.0.is_closed());
        reported(told);
        assert_eq!(reader.join().unwrap(), 0);
        // Of two watches on a page, the end of one does not open the other.
        let [first, second] =
            [64..72, 72..80].map(|part| watch(base + part.start..base + part.end, 9).unwrap());
        drop((watched, first));
        let reader = std::thread::spawn(move || touch(base + 72));
        let told = next_touch().unwrap();
        assert_eq!((told.id, told.addr), (9, base + 72));
        reported(told);
        assert_eq!(reader.join().unwrap(), 5);
        drop(second);
        assert_eq!((touch(base + 64), touch(base + PAGE)), (5, 0));
    }

    #[test]
    fn stacks_and_memory_of_others_are_left_out() {
        let local = [0u8; 64];
        let start = local.as_ptr() as usize;
        // AddressSanitizer has locals in other memory.
        assert!(cfg!(gdsync_sanitize) || watch(start..start + 64, 1).is_none());
        assert!(watch(64..64, 1).is_none() && watch(64..128, 1).is_none());
        let maps = "1000-2000 ---p 0 00:00 0\n2000-4000 rw-p 0 00:00 0\n5000-6000 rw-s 0 00:00 0\n6000-8000 rw-p 0 x\n8000-9000 rw-p 0 00:00 0 [stack]";
        assert!(is_watchable(&(0x6000..0x8000), maps) && is_watchable(&(0x7000..0x8000), maps));
        for pages in
            [0x1000..0x2000, 0x2000..0x3000, 0x3000..0x5000, 0x5000..0x7000, 0x8000..0x9000, 0x9000..0xa000]
        {
            assert!(!is_watchable(&pages, maps), "{pages:x?}");
        }
    }
}
