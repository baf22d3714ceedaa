//! Long copies into mappings, by several threads. One thread stores 7 to 18 GB/s to an H200, and three store 32, which is
//! all that the bus takes. A thread that waits for copies performs those that no other thread has begun.
//!
//! A copy of 64 KiB takes 5 µs, so what threads share is short: a queue of copies, locked for a few instructions by a thread
//! that does not sleep for it, and a flag for each copy's end. Only those that begin copies, or wait for some, lock the list of all.

use crate::backend::MappingError;
use crate::mapping::{Mapping, fork_generation};
use gdsync_sys::host::cores;
use spin::mutex::SpinMutex;
use spin::relax::Yield;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
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

struct Copy {
    mapping: *const Mapping,
    offset: usize,
    from: *const u8,
    len: usize,
    end: Arc<End>,
}

// SAFETY: until the copy has ended, any thread may use the mapping, which its group keeps (`Stores::finish`, also by its drop),
// and read the bytes (`Stores::begin`).
unsafe impl Send for Copy {}

/// A value with lines of the cache for itself, so that threads that poll it do not delay accesses to other values.
#[repr(align(128))]
struct Alone<T>(T);

#[derive(Default)]
struct End {
    failure: OnceLock<MappingError>,
    /// Set when nothing of the copy is used any more.
    has_come: AtomicBool,
}

/// A copy whose group was not finished: its group, GPU memory and end.
type OpenCopy = (u64, Range<u64>, Arc<End>);
type Open = MutexGuard<'static, Vec<OpenCopy>>;

/// Copies that no thread has begun, oldest first.
static WAITING: Alone<SpinMutex<VecDeque<Copy>, Yield>> = Alone(SpinMutex::new(VecDeque::new()));
/// Length of [`WAITING`], for looks without the lock. `used` keeps the compiler from placing the number without its lines.
#[used]
static LEN: Alone<AtomicUsize> = Alone(AtomicUsize::new(0));

static OPEN: Mutex<Vec<OpenCopy>> = Mutex::new(Vec::new());
/// Length of [`OPEN`], for looks without the lock.
static OPEN_LEN: AtomicUsize = AtomicUsize::new(0);

/// Wake-ups that no thread has taken.
static WAKES: Mutex<usize> = Mutex::new(0);
static WOKEN: Condvar = Condvar::new();
/// Numbers of all threads, and of those that sleep and have no wake-up.
static THREADS: AtomicUsize = AtomicUsize::new(0);
static ASLEEP: AtomicUsize = AtomicUsize::new(0);

/// [`fork_generation`] of the process with the threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The next number of a group.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    // Nothing panics under the locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies to a mapping, which it keeps. Its drop waits for them.
///
/// Copies to overlapping GPU memory, also of several values, take effect in the order in which they were begun. Other
/// copies take effect in any order. So do the bytes of each copy.
#[derive(Debug)]
pub struct Stores {
    group: u64,
    mapping: Arc<Mapping>,
    /// True if copies were begun since the last [`Self::finish`]. Changed under the lock of [`OPEN`].
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
        let Some(open) = await_those(overlapping(gpu, len)) else { return false };
        self.add(open, gpu, offset, from, len);
        true
    }

    fn add(&self, mut open: Open, gpu: u64, offset: usize, from: *const u8, len: usize) {
        let end = Arc::<End>::default();
        self.has_begun.store(true, Ordering::Relaxed);
        open.push((self.group, gpu..gpu + len as u64, end.clone()));
        OPEN_LEN.store(open.len(), Ordering::Release);
        drop(open);
        let mut waiting = WAITING.0.lock();
        waiting.push_back(Copy { mapping: Arc::as_ptr(&self.mapping), offset, from, len, end });
        LEN.0.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        // One that is awake wakes the others.
        if ASLEEP.load(Ordering::Relaxed) == THREADS.load(Ordering::Relaxed) {
            wake();
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
        if OPEN_LEN.load(Ordering::Acquire) > 0 {
            drop(await_those(overlapping(gpu, len)));
        }
    }

    /// Waits for the copies: then the GPU sees their bytes.
    ///
    /// # Errors
    /// The first failure of one of them.
    pub fn finish(&self) -> Result<(), MappingError> {
        if !self.has_begun.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_own = |(group, _, _): &OpenCopy| *group == self.group;
        let Some(mut open) = await_those(is_own) else { return Ok(()) };
        self.has_begun.store(false, Ordering::Release);
        let failure = |copy: &OpenCopy| if is_own(copy) { copy.2.failure.get().cloned() } else { None };
        let outcome = open.iter().find_map(failure).map_or(Ok(()), Err);
        open.retain(|copy| !is_own(copy));
        OPEN_LEN.store(open.len(), Ordering::Release);
        outcome
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        // The owner, which would ask for the outcome, is gone.
        let _ = self.finish();
    }
}

fn overlapping(gpu: u64, len: usize) -> impl Fn(&OpenCopy) -> bool {
    move |(_, to, _)| to.start < gpu + len as u64 && gpu < to.end
}

/// Performs copies until none is open that is awaited. `None` in a child, where copies of its parent do not go on.
fn await_those(is_awaited: impl Fn(&OpenCopy) -> bool) -> Option<Open> {
    if PROCESS.load(Ordering::Relaxed) != fork_generation() {
        return None;
    }
    let mut open = lock(&OPEN);
    // What a copy stored and its failure are older than its end.
    while open.iter().any(|copy| is_awaited(copy) && !copy.2.has_come.load(Ordering::Acquire)) {
        drop(open);
        match next(0) {
            Some(copy) => perform(copy),
            None => {
                (0..64).for_each(|_| std::hint::spin_loop());
                // The thread that copies may wait for this core.
                thread::yield_now();
            }
        }
        open = lock(&OPEN);
    }
    Some(open)
}

/// Returns the next copy, unless no more than `left` wait, or another thread is taking one.
fn next(left: usize) -> Option<Copy> {
    // A failed attempt to lock would take the line from the thread that adds copies.
    if LEN.0.load(Ordering::Relaxed) <= left || WAITING.0.is_locked() {
        return None;
    }
    let mut waiting = WAITING.0.try_lock()?;
    let next = if waiting.len() > left { waiting.pop_front() } else { None };
    LEN.0.store(waiting.len(), Ordering::Relaxed);
    next
}

fn perform(Copy { mapping, offset, from, len, end }: Copy) {
    // SAFETY: the copy has not ended, so that its group keeps the mapping, and the bytes are readable (`Stores::begin`).
    if let Err(failure) = unsafe { (*mapping).store(offset, from, len) } {
        let _ = end.failure.set(failure);
    }
    end.has_come.store(true, Ordering::Release);
}

/// Starts the threads, once. With few cores, or on a failure, those that wait for copies perform all of them.
fn start_threads() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PROCESS.store(fork_generation(), Ordering::Relaxed);
        let threads = if cfg!(test) { 2 } else { (cores() / CORES_PER_THREAD).min(MOST_THREADS) };
        for _ in 0..threads {
            let builder = thread::Builder::new().name("gdsync-stores".to_owned());
            match gdsync_sys::thread::start(builder, serve) {
                Ok(_) => _ = THREADS.fetch_add(1, Ordering::Relaxed),
                Err(error) => tracing::debug!(%error, "fewer threads than usual copy to GPU memory"),
            }
        }
    });
}

fn serve() {
    let mut idle = Instant::now();
    loop {
        if let Some(copy) = next(LEFT) {
            wake();
            perform(copy);
        } else if idle.elapsed() < SPIN {
            std::hint::spin_loop();
            continue;
        } else {
            sleep();
        }
        idle = Instant::now();
    }
}

/// Wakes a thread, if there are copies for it and one sleeps.
fn wake() {
    if LEN.0.load(Ordering::Relaxed) > LEFT && ASLEEP.load(Ordering::Relaxed) > 0 {
        let mut wakes = lock(&WAKES);
        // Two that wake find one thread asleep.
        if ASLEEP.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |asleep| asleep.checked_sub(1)).is_ok() {
            *wakes += 1;
            WOKEN.notify_one();
        }
    }
}

/// Sleeps until a wake-up, unless there are copies.
fn sleep() {
    let wakes = lock(&WAKES);
    ASLEEP.fetch_add(1, Ordering::Relaxed);
    if LEN.0.load(Ordering::Relaxed) > LEFT {
        ASLEEP.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    // One that is not seen here is not missed: those that wait perform the copies.
    let woken = WOKEN.wait_while(wakes, |wakes| *wakes == 0);
    *woken.unwrap_or_else(PoisonError::into_inner) -= 1;
}

#[cfg(test)]
mod tests;
