//! Recording: the state of tracing, the buffers of threads, and their end.
//!
//! # Invariants
//! - [`STATE`] is `OFF` or `ON` after the first event has read the environment; it returns to `OFF` at the end of the
//!   process, and in the child of a `fork`.
//! - A buffer is locked by its thread alone, except at the end of the process. A thread that finds its buffer locked
//!   drops the event: it never waits, and functions that it calls may record, too.

// Lock order: the list of buffers, a buffer, the part.

use crate::destination::Destination;
use crate::part::PartWriter;
use crate::record::{EventKind, Record, text_words};
use gdsync_sys::contain::contain;
use gdsync_sys::host::monotonic;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The environment has not been read yet.
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static PART: Mutex<Option<PartWriter>> = Mutex::new(None);
static ALL_BUFFERS: Mutex<Vec<Arc<Buffer>>> = Mutex::new(Vec::new());
/// True in the child of a `fork`: part and buffers are copies of its parent's, which writes them.
static IS_FORKED: AtomicBool = AtomicBool::new(false);
/// Records that were not buffered.
static DROPPED: AtomicU64 = AtomicU64::new(0);

const CAPACITY: usize = 4096;

#[derive(Default)]
struct Buffer {
    records: Mutex<Vec<Record>>,
}

/// A thread's handle of its buffer. Dropping it, at the thread's end, writes the buffer.
struct ThreadBuffer {
    thread: u32,
    buffer: Arc<Buffer>,
}

thread_local! {
    static THREAD_BUFFER: ThreadBuffer = ThreadBuffer::new();
}

/// Returns true if events are recorded.
///
/// Costs one relaxed load and one branch if they are not. The first call reads
/// [`TRACE_VARIABLE`](crate::TRACE_VARIABLE).
#[inline(always)]
pub fn enabled() -> bool {
    STATE.load(Ordering::Relaxed) != OFF && is_on()
}

#[cold]
#[inline(never)]
fn is_on() -> bool {
    STATE.load(Ordering::Relaxed) == ON || start()
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC` for [`span_since`]; 0 while nothing is recorded.
#[inline(always)]
pub fn now() -> u64 {
    if enabled() { monotonic() } else { 0 }
}

/// Records a moment. Calls `words` only if events are recorded.
///
/// ```
/// use gdsync_trace::EventKind;
///
/// gdsync_trace::event(EventKind::Polled, || [0x41, 7, 0]);
/// ```
#[inline(always)]
pub fn event(kind: EventKind, words: impl FnOnce() -> [u64; 3]) {
    if enabled() {
        record_event(kind, words());
    }
}

#[cold]
#[inline(never)]
fn record_event(kind: EventKind, words: [u64; 3]) {
    let at = monotonic();
    record(kind, at, at, words);
}

/// Records a span that began when [`now`] returned `since`; nothing if that is 0.
#[inline(always)]
pub fn span_since(since: u64, kind: EventKind, words: impl FnOnce() -> [u64; 3]) {
    if since != 0 {
        record(kind, since, monotonic(), words());
    }
}

/// Records a span between two times in nanoseconds of `CLOCK_MONOTONIC`, measured by another clock.
///
/// ```
/// use gdsync_trace::{EventKind, now, span_of};
///
/// let at = now();
/// span_of(at, at + 1000, EventKind::Performed, || [1, 2, 3]);
/// ```
pub fn span_of(at: u64, until: u64, kind: EventKind, words: impl FnOnce() -> [u64; 3]) {
    if enabled() {
        record(kind, at, until, words());
    }
}

/// Records a span that lasts until the returned value is dropped.
///
/// ```
/// use gdsync_trace::{EventKind, span};
///
/// let _span = span(EventKind::Kernel, || [0; 3]);
/// ```
#[inline(always)]
#[must_use = "the span ends where this is dropped"]
pub fn span(kind: EventKind, words: impl FnOnce() -> [u64; 3]) -> Span {
    let range = Range::begin(kind);
    match now() {
        0 => Span { since: 0, kind, words: [0; 3], _range: range },
        since => Span { since, kind, words: words(), _range: range },
    }
}

/// A span that ends when the thread that created it drops it: [`span`].
#[derive(Debug)]
pub struct Span {
    /// 0 if nothing is recorded.
    since: u64,
    kind: EventKind,
    words: [u64; 3],
    _range: Range,
}

impl Span {
    /// Returns a span that is not recorded.
    #[inline(always)]
    pub fn none() -> Span {
        Span { since: 0, kind: EventKind::End, words: [0; 3], _range: Range::none() }
    }
}

impl Drop for Span {
    #[inline(always)]
    fn drop(&mut self) {
        span_since(self.since, self.kind, || self.words);
    }
}

/// Names the calling thread in the trace, by at most 16 bytes. The default is the system's name of the thread.
pub fn name_thread(name: impl FnOnce() -> String) {
    event(EventKind::ThreadName, || thread_name(&name(), true));
}

/// Returns the words of a thread's name. In a process with several copies of this crate, a name given by the program
/// in any of them takes precedence.
fn thread_name(name: &str, is_given: bool) -> [u64; 3] {
    let [first, second] = text_words(name);
    [first, second, is_given.into()]
}

/// Names the card at a node of the fabric, by at most 16 bytes.
pub fn name_card(node: u32, name: &str) {
    event(EventKind::CardName, || {
        let [first, second] = text_words(name);
        [node.into(), first, second]
    });
}

fn record(kind: EventKind, at: u64, until: u64, words: [u64; 3]) {
    // An ending thread has no buffer any more.
    let kept = THREAD_BUFFER.try_with(|own| {
        let record = Record { at, until, kind: kind as u32, thread: own.thread, words };
        own.buffer.push(record)
    });
    if !kept.unwrap_or(false) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

impl Buffer {
    /// Returns false if the buffer is locked or cannot be allocated.
    fn push(&self, record: Record) -> bool {
        let Some(mut records) = self.records.try_lock() else { return false };
        if records.capacity() == 0 && records.try_reserve_exact(CAPACITY).is_err() {
            return false;
        }
        records.push(record);
        if records.len() >= CAPACITY {
            flush(&mut records);
        }
        true
    }
}

fn flush(records: &mut Vec<Record>) {
    if let Some(part) = &mut *PART.lock() {
        part.append(records);
    }
    records.clear();
}

impl ThreadBuffer {
    fn new() -> ThreadBuffer {
        // SAFETY: the call has no preconditions. glibc has a function for it from 2.30 on, and a release runs on 2.28.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        let buffer = Arc::<Buffer>::default();
        ALL_BUFFERS.lock().push(buffer.clone());
        let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
        let (at, words) = (monotonic(), thread_name(name.trim_end(), false));
        buffer.push(Record { at, until: at, kind: EventKind::ThreadName as u32, thread, words });
        ThreadBuffer { thread, buffer }
    }
}

impl Drop for ThreadBuffer {
    fn drop(&mut self) {
        // In the child of a fork, a thread that does not exist there may hold a lock.
        if IS_FORKED.load(Ordering::Relaxed) {
            return;
        }
        // Flushed while still listed: the process may end meanwhile, and its handler writes the listed buffers.
        flush(&mut self.buffer.records.lock());
        ALL_BUFFERS.lock().retain(|other| !Arc::ptr_eq(other, &self.buffer));
    }
}

/// Reads the variable, and opens the part. Returns true if events are recorded.
#[cold]
fn start() -> bool {
    let mut part = PART.lock();
    // Another thread may have been faster.
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let opened = Destination::from_environment().and_then(|to| match PartWriter::open(to) {
            Ok(part) => Some(part),
            Err(error) => {
                tracing::warn!("nothing is traced: {error}");
                None
            }
        });
        let is_on = opened.is_some() && install_handlers();
        *part = opened.filter(|_| is_on);
        STATE.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed) == ON
}

/// Installs handlers that write the buffers at the end of the process, and stop recording in children.
fn install_handlers() -> bool {
    extern "C" fn end() {
        // A panic must not unwind into C.
        if let Err(message) = contain(finish) {
            tracing::warn!("the trace is not complete: {message}");
        }
    }
    extern "C" fn off() {
        IS_FORKED.store(true, Ordering::Relaxed);
        STATE.store(OFF, Ordering::Relaxed);
    }
    // SAFETY: both functions stay loaded as long as their library: `atexit` runs the first before the library is
    // unloaded. `off` only stores, which is allowed in the child of a process with threads.
    unsafe { libc::pthread_atfork(None, None, Some(off)) == 0 && libc::atexit(end) == 0 }
}

fn finish() {
    // In the child of a fork recording is off already.
    if STATE.swap(OFF, Ordering::Relaxed) != ON {
        return;
    }
    for buffer in &*ALL_BUFFERS.lock() {
        flush(&mut buffer.records.lock());
    }
    let Some(part) = PART.lock().take() else { return };
    if let Err(error) = part.finish(DROPPED.load(Ordering::Relaxed)) {
        tracing::warn!("the trace is not complete: {error}");
    }
}

/// A range of the calling thread. The same thread drops it to end the range.
#[derive(Debug)]
struct Range {
    #[cfg(feature = "nvtx")]
    _range: Option<nvtx::domain::LocalRange<'static>>,
}

impl Range {
    #[inline(always)]
    fn none() -> Self {
        Range {
            #[cfg(feature = "nvtx")]
            _range: None,
        }
    }

    /// Begins a range with the name of its kind, in the domain `gdsync`.
    #[cfg(feature = "nvtx")]
    fn begin(kind: EventKind) -> Self {
        Range { _range: names::of(kind).map(|name| names::domain().local_range(name)) }
    }

    /// Returns no range: the feature is disabled.
    #[cfg(not(feature = "nvtx"))]
    #[inline(always)]
    fn begin(_kind: EventKind) -> Self {
        Range::none()
    }
}

#[cfg(feature = "nvtx")]
mod names {
    use crate::record::EventKind;
    use nvtx::Domain;
    use nvtx::domain::RegisteredString;
    use std::ffi::CString;
    use std::sync::OnceLock;

    /// The domain and each name are registered once.
    pub(super) fn domain() -> &'static Domain {
        static DOMAIN: OnceLock<Domain> = OnceLock::new();
        DOMAIN.get_or_init(|| Domain::new(c"gdsync"))
    }

    pub(super) fn of(kind: EventKind) -> Option<RegisteredString<'static>> {
        static NAMES: OnceLock<Vec<Option<RegisteredString<'static>>>> = OnceLock::new();
        let register = |kind: &EventKind| {
            let name = CString::new(kind.name()).ok()?;
            Some(domain().register_string(name))
        };
        let names = NAMES.get_or_init(|| EventKind::ALL.iter().map(register).collect());
        // Numbers of kinds begin at 1.
        *names.get((kind as usize).checked_sub(1)?)?
    }
}

#[cfg(test)]
mod tests;
