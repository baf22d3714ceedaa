//! A peer-memory client for tests: its addresses are unmapped, so that the CPU faults when it dereferences one, and its
//! bytes are kept elsewhere. Its regions count accesses, and fail on demand.
//!
//! It is one of the card's unit tests, which a packaged crate runs. `gdsync-test-support` offers the same file to
//! integration tests.

#![allow(dead_code, unreachable_pub, reason = "the unit tests do not use the whole")]

use super::{AsyncCopy, PeerMemory, PeerMemoryError, PeerRegion, register_peer_memory};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// The client's name.
pub const NAME: &str = "fake-gpu";
const RESERVED: usize = 1 << 36;
/// More calls than any test makes.
const ALWAYS: i64 = i64::MAX;

/// The one fake GPU of this process, a registered client.
struct FakeGpu {
    base: u64,
    allocations: Mutex<Vec<Arc<Buffer>>>,
}

/// An allocation that is never freed.
#[derive(Debug)]
pub struct Buffer {
    /// Its first address.
    pub addr: u64,
    /// Its size in bytes.
    pub len: usize,
    bytes: Mutex<Vec<u8>>,
    /// Number of its registered regions.
    pub regions: AtomicUsize,
    /// Number of reads by the card, including failed ones.
    pub reads: AtomicUsize,
    /// Number of writes by the card, including failed ones.
    pub writes: AtomicUsize,
    /// Number of reads that still succeed.
    pub reads_left: AtomicI64,
    /// Number of writes that still succeed.
    pub writes_left: AtomicI64,
    /// True if copies start in one call and end in another. They count as reads and writes at the start.
    pub begins: AtomicBool,
    /// True if copies that were begun take effect in any order.
    pub unordered: AtomicBool,
    /// Number of waits for copies that still succeed.
    pub finishes_left: AtomicI64,
    under_way: Mutex<Vec<Copying>>,
    calls: Mutex<Vec<(usize, Call)>>,
}

/// A call of the card that begins, starts or waits for copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read begins.
    BeginRead,
    /// A write begins.
    BeginWrite,
    /// A write begins and ends.
    Write,
    /// Collected copies start.
    Start,
    /// Copies in progress end: all of them, or those that have started.
    Wait,
}

/// A copy in progress, between these bytes of the host and those from an index on.
#[derive(Debug)]
struct Copying {
    is_read: bool,
    is_started: bool,
    host: *mut u8,
    range: std::ops::Range<usize>,
}

// SAFETY: the card keeps the bytes usable until it has waited, from any thread.
unsafe impl Send for Copying {}

fn gpu() -> &'static Arc<FakeGpu> {
    static GPU: OnceLock<Arc<FakeGpu>> = OnceLock::new();
    GPU.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), RESERVED, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let gpu = Arc::new(FakeGpu { base: base as u64, allocations: Mutex::default() });
        register_peer_memory(gpu.clone());
        gpu
    })
}

/// Allocates fake GPU memory, all zero, with a gap after it.
pub fn allocate(len: usize) -> Arc<Buffer> {
    let gpu = gpu();
    let mut allocations = gpu.allocations.lock();
    let end = allocations.last().map_or(gpu.base, |last| last.addr + last.len as u64);
    let addr = end.next_multiple_of(4096) + 4096;
    assert!(addr + (len as u64) < gpu.base + RESERVED as u64);
    let buffer = Arc::new(Buffer {
        addr,
        len,
        bytes: Mutex::new(vec![0; len]),
        regions: AtomicUsize::new(0),
        reads: AtomicUsize::new(0),
        writes: AtomicUsize::new(0),
        reads_left: AtomicI64::new(ALWAYS),
        writes_left: AtomicI64::new(ALWAYS),
        begins: AtomicBool::new(false),
        unordered: AtomicBool::new(false),
        finishes_left: AtomicI64::new(ALWAYS),
        under_way: Mutex::default(),
        calls: Mutex::default(),
    });
    allocations.push(buffer.clone());
    buffer
}

impl Buffer {
    /// Returns a copy of its bytes.
    pub fn get(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }

    /// Replaces its bytes.
    pub fn set(&self, bytes: &[u8]) {
        self.bytes.lock().copy_from_slice(bytes);
    }

    /// Returns the number of calls of either kind.
    pub fn calls(&self) -> usize {
        self.reads.load(SeqCst) + self.writes.load(SeqCst)
    }

    /// Returns the number of waits for copies in progress, if none may fail.
    pub fn waits(&self) -> i64 {
        ALWAYS - self.finishes_left.load(SeqCst)
    }

    /// Returns the number of copies in progress.
    pub fn under_way(&self) -> usize {
        self.under_way.lock().len()
    }

    /// Returns the calls since the last time, each with its place in the order of all calls.
    pub fn take_calls(&self) -> Vec<(usize, Call)> {
        std::mem::take(&mut *self.calls.lock())
    }

    fn note(&self, call: Call) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        self.calls.lock().push((NEXT.fetch_add(1, SeqCst), call));
    }

    fn begin(
        &self,
        is_read: bool,
        addr: u64,
        host: *mut u8,
        len: usize,
    ) -> Result<AsyncCopy, PeerMemoryError> {
        if !self.begins.load(SeqCst) {
            return Ok(AsyncCopy::Unsupported);
        }
        let range = self.at(addr, len);
        let (count, left) =
            if is_read { (&self.reads, &self.reads_left) } else { (&self.writes, &self.writes_left) };
        count.fetch_add(1, SeqCst);
        if left.fetch_sub(1, SeqCst) <= 0 {
            return Err(PeerMemoryError::new("the copy has not begun"));
        }
        self.note(if is_read { Call::BeginRead } else { Call::BeginWrite });
        self.under_way.lock().push(Copying { is_read, is_started: false, host, range });
        Ok(AsyncCopy::Started)
    }

    /// Copies as late as allowed, the last first.
    fn finish(&self, copies: Vec<Copying>) -> Result<(), PeerMemoryError> {
        if copies.is_empty() {
            return Ok(());
        }
        self.note(Call::Wait);
        if self.finishes_left.fetch_sub(1, SeqCst) <= 0 {
            return Err(PeerMemoryError::new("a copy has failed"));
        }
        let mut bytes = self.bytes.lock();
        for Copying { is_read, host, range, .. } in copies.into_iter().rev() {
            let (place, len) = (bytes[range.clone()].as_mut_ptr(), range.len());
            // SAFETY: the card keeps the bytes of the host usable until this returns; those of the buffer are locked.
            unsafe {
                if is_read {
                    place.copy_to_nonoverlapping(host, len);
                } else {
                    place.copy_from_nonoverlapping(host, len);
                }
            }
        }
        Ok(())
    }

    fn at(&self, addr: u64, len: usize) -> std::ops::Range<usize> {
        assert!(len > 0, "a copy is never empty");
        let start = addr.checked_sub(self.addr).expect("the card checks bounds") as usize;
        assert!(start + len <= self.len, "the card checks bounds");
        start..start + len
    }
}

impl PeerMemory for FakeGpu {
    fn name(&self) -> &str {
        NAME
    }

    fn acquire(
        &self,
        addr: u64,
        len: u64,
        _writable: bool,
    ) -> Result<Option<Arc<dyn PeerRegion>>, PeerMemoryError> {
        if !(self.base..self.base + RESERVED as u64).contains(&addr) {
            return Ok(None);
        }
        let allocations = self.allocations.lock();
        let inside = |buffer: &&Arc<Buffer>| {
            addr >= buffer.addr
                && addr.checked_add(len).is_some_and(|end| end <= buffer.addr + buffer.len as u64)
        };
        let buffer = allocations.iter().find(inside);
        let buffer = buffer.ok_or_else(|| PeerMemoryError::new("the range leaves its allocation"))?.clone();
        buffer.regions.fetch_add(1, SeqCst);
        Ok(Some(Arc::new(FakeRegion { buffer })))
    }
}

#[derive(Debug)]
struct FakeRegion {
    buffer: Arc<Buffer>,
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        self.buffer.regions.fetch_sub(1, SeqCst);
    }
}

impl PeerRegion for FakeRegion {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        let range = self.buffer.at(addr, into.len());
        self.buffer.reads.fetch_add(1, SeqCst);
        if self.buffer.reads_left.fetch_sub(1, SeqCst) <= 0 {
            return Err(PeerMemoryError::new("the read has failed"));
        }
        into.copy_from_slice(&self.buffer.bytes.lock()[range]);
        Ok(())
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
        let range = self.buffer.at(addr, from.len());
        self.buffer.writes.fetch_add(1, SeqCst);
        self.buffer.note(Call::Write);
        if self.buffer.writes_left.fetch_sub(1, SeqCst) <= 0 {
            return Err(PeerMemoryError::new("the write has failed"));
        }
        self.buffer.bytes.lock()[range].copy_from_slice(from);
        Ok(())
    }

    unsafe fn begin_read(&self, addr: u64, into: *mut u8, len: usize) -> Result<AsyncCopy, PeerMemoryError> {
        self.buffer.begin(true, addr, into, len)
    }

    unsafe fn begin_write(
        &self,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<AsyncCopy, PeerMemoryError> {
        self.buffer.begin(false, addr, from.cast_mut(), len)
    }

    fn keeps_order(&self) -> bool {
        !self.buffer.unordered.load(SeqCst)
    }

    fn start(&self) {
        self.buffer.note(Call::Start);
        self.buffer.under_way.lock().iter_mut().for_each(|copy| copy.is_started = true);
    }

    fn finish(&self) -> Result<(), PeerMemoryError> {
        let copies = std::mem::take(&mut *self.buffer.under_way.lock());
        self.buffer.finish(copies)
    }

    fn finish_started(&self) -> Result<(), PeerMemoryError> {
        let started = self.buffer.under_way.lock().extract_if(.., |copy| copy.is_started).collect();
        self.buffer.finish(started)
    }
}
