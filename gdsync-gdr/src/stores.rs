//! Long copies into mappings, by several threads. One thread stores 7 to 18 GB/s to an H200, and three store 32, which is
//! all that the bus takes. A thread that waits for copies performs those that no other thread has begun.

use crate::backend::MappingError;
use crate::mapping::{Mapping, fork_generation};
use gdsync_sys::host::cores;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Fewest bytes of a copy: another thread takes longer for fewer.
const MIN_LEN: usize = 32 << 10;

/// Bytes of a line of the cache, which is as much as the CPU combines stores to write-combining memory, and of a word.
const LINE: usize = 64;
const WORD: usize = 8;

/// Most threads of this module, and the number of cores for each.
const MOST_THREADS: usize = 3;
const CORES_PER_THREAD: usize = 4;

/// Copies that the threads leave to the one that waits: a short message wakes none of them.
const LEFT: usize = 1;

/// Time for which a thread looks for the next copy before it sleeps: a wake-up takes as long as a copy of 512 KiB.
const SPIN: Duration = Duration::from_micros(100);

/// Copies of all groups that have not ended.
struct Copies {
    /// Those that no thread has begun, oldest first.
    waiting: VecDeque<Copy>,
    /// Group and GPU memory of each, by its number.
    open: BTreeMap<u64, (u64, Range<u64>)>,
    /// The first failure of each group, until [`Stores::finish`] returns it.
    failed: BTreeMap<u64, MappingError>,
    /// Number of threads that sleep.
    asleep: usize,
}

struct Copy {
    number: u64,
    mapping: Arc<Mapping>,
    offset: usize,
    from: *const u8,
    len: usize,
}

// SAFETY: any thread may read the bytes until the copy has ended (`Stores::begin`).
unsafe impl Send for Copy {}

static COPIES: Mutex<Copies> = Mutex::new(Copies {
    waiting: VecDeque::new(),
    open: BTreeMap::new(),
    failed: BTreeMap::new(),
    asleep: 0,
});
static ADDED: Condvar = Condvar::new();
/// Lengths of [`Copies::waiting`] and [`Copies::open`], for looks without the lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// [`fork_generation`] of the process with the threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The next number of a copy or a group.
static NEXT: AtomicU64 = AtomicU64::new(0);

type Locked = MutexGuard<'static, Copies>;

fn lock() -> Locked {
    // Nothing panics under the lock.
    COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies to a mapping, which it keeps. Its drop waits for them.
///
/// Copies to overlapping GPU memory, also of several values, take effect in the order in which they were begun. Other
/// copies take effect in any order. So do the bytes of each copy.
#[derive(Debug)]
pub struct Stores {
    group: u64,
    mapping: Arc<Mapping>,
    /// True if copies were begun since the last [`Self::finish`]. Changed under the lock.
    has_begun: AtomicBool,
}

impl Stores {
    /// Prepares copies to a mapping. The first call starts the threads, and returns when they run.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        start_threads();
        Stores { group: NEXT.fetch_add(1, Ordering::Relaxed), mapping, has_begun: AtomicBool::new(false) }
    }

    /// Returns the mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Begins to copy `len` bytes from `from` to `offset` of the mapping, where the GPU's address is `gpu`. Returns false for
    /// few bytes (less than 32 KiB), if the mapping cannot be written ([`Mapping::copy_to`] says why not), and in a process
    /// that was forked after the first value was made, which has no threads for that.
    ///
    /// # Safety
    /// The bytes are readable until a later [`Self::finish`] has returned or the value is dropped. Another process may write
    /// them.
    pub unsafe fn begin(&self, gpu: u64, offset: usize, from: *const u8, len: usize) -> bool {
        if len < MIN_LEN || self.mapping.checked_address(offset, len).is_err() {
            return false;
        }
        let Some(copies) = await_those(overlapping(gpu, len)) else { return false };
        self.add(copies, gpu, offset, from, len);
        true
    }

    fn add(&self, mut copies: Locked, gpu: u64, offset: usize, from: *const u8, len: usize) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let copy = Copy { number, mapping: self.mapping.clone(), offset, from, len };
        self.has_begun.store(true, Ordering::Relaxed);
        copies.open.insert(copy.number, (self.group, gpu..gpu + copy.len as u64));
        copies.waiting.push_back(copy);
        copies.count();
        if copies.asleep > 0 && copies.waiting.len() > LEFT {
            ADDED.notify_one();
        }
    }

    /// Copies to `offset` of the mapping, where the GPU's address is `gpu`, after copies that overlap. The last word becomes
    /// visible after the rest, as programs poll it; but bytes of one line of 64 become visible together.
    ///
    /// # Errors
    /// As [`Mapping::copy_to`].
    pub fn write(&self, gpu: u64, offset: usize, from: &[u8]) -> Result<(), MappingError> {
        Self::await_copies(gpu, from.len());
        let is_one_line = offset % LINE + from.len() <= LINE;
        let (rest, last) = from.split_at(if is_one_line { 0 } else { from.len().saturating_sub(WORD) });
        if !rest.is_empty() {
            // It ends with a fence.
            self.mapping.copy_to(offset, rest)?;
        }
        self.mapping.copy_to(offset.saturating_add(rest.len()), last)
    }

    /// Waits for all copies that overlap this GPU memory, before it is accessed in another way. Copies that were begun
    /// before, by this thread or under a lock, are seen.
    pub fn await_copies(gpu: u64, len: usize) {
        if OPEN.load(Ordering::Relaxed) > 0 {
            drop(await_those(overlapping(gpu, len)));
        }
    }

    /// Waits for the copies: then the GPU sees their bytes.
    ///
    /// # Errors
    /// The first failure of one of them.
    pub fn finish(&self) -> Result<(), MappingError> {
        if !self.has_begun.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(mut copies) = await_those(|group, _| group == self.group) else { return Ok(()) };
        self.has_begun.store(false, Ordering::Relaxed);
        copies.failed.remove(&self.group).map_or(Ok(()), Err)
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        // The owner, which would ask for the outcome, is gone.
        let _ = self.finish();
    }
}

impl Copies {
    fn count(&self) {
        WAITING.store(self.waiting.len(), Ordering::Relaxed);
        OPEN.store(self.open.len(), Ordering::Relaxed);
    }

    /// Returns the next copy, unless no more than `left` wait.
    fn next(&mut self, left: usize) -> Option<Copy> {
        let next = if self.waiting.len() > left { self.waiting.pop_front() } else { None };
        self.count();
        next
    }
}

fn overlapping(gpu: u64, len: usize) -> impl Fn(u64, &Range<u64>) -> bool {
    move |_, to| to.start < gpu + len as u64 && gpu < to.end
}

/// Performs copies until none is open that is awaited. `None` in a child, where copies of its parent do not go on.
fn await_those(is_awaited: impl Fn(u64, &Range<u64>) -> bool) -> Option<Locked> {
    if PROCESS.load(Ordering::Relaxed) != fork_generation() {
        return None;
    }
    let mut copies = lock();
    while copies.open.values().any(|(group, to)| is_awaited(*group, to)) {
        match copies.next(0) {
            Some(copy) => copies = perform(copies, copy),
            None => {
                drop(copies);
                (0..64).for_each(|_| std::hint::spin_loop());
                // The thread that copies may wait for this core.
                thread::yield_now();
                copies = lock();
            }
        }
    }
    Some(copies)
}

fn perform(unlocked: Locked, copy: Copy) -> Locked {
    drop(unlocked);
    // SAFETY: the bytes are readable until the copy has ended (`Stores::begin`).
    let outcome = unsafe { copy.mapping.store(copy.offset, copy.from, copy.len) };
    let mut copies = lock();
    if let (Some((group, _)), Err(error)) = (copies.open.remove(&copy.number), outcome) {
        copies.failed.entry(group).or_insert(error);
    }
    copies.count();
    copies
}

/// Starts the threads, once. With few cores, or on a failure, those that wait for copies perform all of them.
fn start_threads() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PROCESS.store(fork_generation(), Ordering::Relaxed);
        let threads = if cfg!(test) { 2 } else { (cores() / CORES_PER_THREAD).min(MOST_THREADS) };
        for _ in 0..threads {
            let builder = thread::Builder::new().name("gdsync-stores".to_owned());
            if let Err(error) = gdsync_sys::thread::start(builder, serve) {
                tracing::debug!(%error, "fewer threads than usual copy to GPU memory");
            }
        }
    });
}

fn serve() {
    let mut copies = lock();
    loop {
        while let Some(copy) = copies.next(LEFT) {
            copies = perform(copies, copy);
        }
        drop(copies);
        let idle = Instant::now();
        while WAITING.load(Ordering::Relaxed) <= LEFT && idle.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        copies = lock();
        if copies.waiting.len() <= LEFT && idle.elapsed() >= SPIN {
            copies.asleep += 1;
            copies = ADDED.wait(copies).unwrap_or_else(PoisonError::into_inner);
            copies.asleep -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = MIN_LEN;

    /// Memory that is mapped twice, whose GPU address is that number times 1 TiB: tests run side by side.
    fn memory<const GROUPS: usize>(number: u64, len: usize) -> ([Stores; GROUPS], u64) {
        let mapping = Arc::new(Mapping::stand_in(len).unwrap());
        ([(); GROUPS].map(|()| Stores::new(mapping.clone())), number << 40)
    }

    #[test]
    fn copies_have_ended_when_they_are_finished_or_dropped() {
        let bytes = vec![7; 64 * PART];
        for finishes in [true, false] {
            let ([stores, other], gpu) = memory(1, 64 * PART);
            for at in (0..64).map(|part| part * PART) {
                // SAFETY: the bytes outlive the value.
                assert!(unsafe { stores.begin(gpu + at as u64, at, bytes[at..].as_ptr(), PART) });
            }
            if finishes {
                stores.finish().unwrap();
            } else {
                drop(stores);
            }
            let mut seen = vec![0; 64 * PART];
            other.mapping().copy_from(0, &mut seen).unwrap();
            assert!(seen == bytes, "finishes: {finishes}");
        }
    }

    #[test]
    fn overlapping_copies_take_effect_in_order() {
        let (groups, gpu) = memory::<2>(2, PART + 8);
        let contents: Vec<Vec<u8>> = (0..200).map(|number| vec![number; PART]).collect();
        for (number, content) in contents.iter().enumerate() {
            let at = number % 3 * 4;
            // SAFETY: the contents outlive the copies.
            assert!(unsafe { groups[number % 2].begin(gpu + at as u64, at, content.as_ptr(), PART) });
        }
        Stores::await_copies(gpu, PART + 8);
        let mut seen = [0; 1];
        for (offset, last) in [(PART / 2, 199), (0, 198), (PART + 3, 199), (PART + 7, 197)] {
            groups[0].mapping().copy_from(offset, &mut seen).unwrap();
            assert_eq!(seen, [last], "{offset}");
        }
        groups.iter().for_each(|group| group.finish().unwrap());
    }

    #[test]
    fn a_write_at_once_has_all_its_bytes() {
        let ([stores], gpu) = memory(6, 4096);
        let sent: Vec<u8> = (0..200).map(|i| i as u8 + 1).collect();
        for (at, len) in
            [(0, 0), (0, 1), (60, 4), (60, 5), (60, 68), (3, 64), (64, 64), (128, 200), (4088, 8)]
        {
            stores.write(gpu + at as u64, at, &sent[..len]).unwrap();
            let mut seen = vec![0; len];
            stores.mapping().copy_from(at, &mut seen).unwrap();
            assert_eq!(seen, sent[..len], "{len} bytes at {at}");
        }
        assert!(matches!(stores.write(gpu, 4000, &sent), Err(MappingError::OutOfBounds { .. })));
    }

    #[test]
    fn a_child_begins_none() {
        let ([stores], gpu) = memory(5, PART);
        let bytes = vec![7; PART];
        // SAFETY: the child exits without running the test harness.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Made before the fork, and after it.
            let own = Mapping::stand_in(PART).map(|mapping| Stores::new(Arc::new(mapping)));
            // SAFETY: the bytes outlive the values.
            let begun = |stores: &Stores| unsafe { stores.begin(gpu, 0, bytes.as_ptr(), PART) };
            let code = own.map_or(2, |own| i32::from(begun(&stores) || begun(&own)));
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "status {status:#x}");
    }

    #[test]
    fn what_cannot_be_written_or_is_short_is_not_begun() {
        let (([stores], gpu), bytes) = (memory(3, PART), vec![7; 2 * PART]);
        for (at, len) in [(1, PART), (0, PART - 1)] {
            // SAFETY: the bytes outlive the value.
            assert!(!unsafe { stores.begin(gpu, at, bytes.as_ptr(), len) });
        }
        stores.finish().unwrap();
    }

    #[test]
    fn a_failure_is_returned_once_and_to_its_group() {
        let (([fails, other], gpu), bytes) = (memory(4, 2 * PART), vec![7; PART]);
        // The second leaves the mapping.
        for (group, at) in [(&fails, 0), (&fails, PART + 1), (&other, PART)] {
            group.add(lock(), gpu, at, bytes.as_ptr(), PART);
        }
        assert!(matches!(fails.finish(), Err(MappingError::OutOfBounds { .. })));
        assert_eq!((fails.finish(), other.finish()), (Ok(()), Ok(())));
    }
}
