//! How the software cards of this process reach GPU memory.

use super::context::lock;
use super::lent;
use super::memory::GpuMemory;
use super::rows::Piece;
use gdsync_gdr::Mapping;
use softhca::{Begun, PeerMemory, PeerMemoryError, PeerRegion};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

struct Client;

/// Bytes from which on the driver reads GPU memory faster than the CPU does through a mapping,
/// which takes a microsecond for about 780 of them (docs/gpu-results.md) and the driver six to
/// begin with. The CPU's stores are always faster.
const READ_BY_DRIVER: usize = 4096;

/// Holds the memory until the card has dropped this region, and the CPU's mapping of the memory,
/// where there is one.
#[derive(Debug)]
struct Region {
    /// Never used again: other cards, and other regions, copy on the same context.
    number: u64,
    // In the order in which they go.
    mapping: Option<Arc<Mapping>>,
    memory: GpuMemory,
}

impl PeerMemory for Client {
    fn name(&self) -> &str {
        "CUDA"
    }

    fn acquire(
        &self,
        addr: u64,
        len: u64,
        _writable: bool,
    ) -> Result<Option<Arc<dyn PeerRegion>>, PeerMemoryError> {
        match GpuMemory::find(addr, len) {
            None => Ok(None),
            Some(Ok(memory)) => Ok(Some(Arc::new(Region::of(memory)))),
            Some(Err(reason)) => Err(PeerMemoryError::new(reason)),
        }
    }
}

impl Region {
    fn of(memory: GpuMemory) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Region { number, mapping: memory.mapping(), memory }
    }

    /// Notes a copy, which [`PeerRegion::finish`] performs.
    ///
    /// # Safety
    /// The pinned side is the caller's, as [`PeerRegion::begin_read`] and [`PeerRegion::begin_write`] ask. The
    /// card has checked that the GPU's side is of this memory.
    unsafe fn begin(&self, gpu: u64, host: usize, len: usize, is_read: bool) -> Begun {
        let context = self.memory.context();
        let Some(range) = lent::pinned(context, host, len) else { return Begun::Not };
        lock(&context.noted).note(Piece { region: self.number, gpu, range, host, len, is_read });
        Begun::Yes
    }

    fn offset(&self, addr: u64) -> usize {
        addr.wrapping_sub(self.memory.address()) as usize
    }
}

fn failed(error: impl ToString) -> PeerMemoryError {
    PeerMemoryError::new(error.to_string())
}

impl PeerRegion for Region {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        let at = self.offset(addr);
        match &self.mapping {
            Some(mapping) if into.len() < READ_BY_DRIVER => mapping.copy_from(at, into).map_err(failed),
            _ => self.memory.read(at, into).map_err(failed),
        }
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
        let at = self.offset(addr);
        match &self.mapping {
            Some(mapping) => mapping.copy_to(at, from).map_err(failed),
            None => self.memory.write(at, from).map_err(failed),
        }
    }

    unsafe fn begin_read(&self, addr: u64, into: *mut u8, len: usize) -> Result<Begun, PeerMemoryError> {
        // SAFETY: the caller's.
        Ok(unsafe { self.begin(addr, into as usize, len, true) })
    }

    unsafe fn begin_write(&self, addr: u64, from: *const u8, len: usize) -> Result<Begun, PeerMemoryError> {
        // SAFETY: the caller's.
        Ok(unsafe { self.begin(addr, from as usize, len, false) })
    }

    /// Performs what every region has noted on the context: together, that takes the driver less time.
    fn finish(&self) -> Result<(), PeerMemoryError> {
        let context = self.memory.context();
        if !lock(&context.noted).concerns(self.number) {
            return Ok(());
        }
        let performed = context.with_copier(|copier| {
            // SAFETY: each region has noted copies of its own memory, which lives until the region is dropped, and
            // forgets them before it says that they have ended: until then, its card keeps the pinned side usable
            // (`begin`). What is lent stays pinned while a card uses it.
            lock(&context.noted).perform(|rows| unsafe { copier.copy_rows(rows) });
            Ok(())
        });
        // Where the context does not answer, none of its copies is performed later: the card uses their memory again.
        let outcome = lock(&context.noted).forget(self.number);
        performed.and(outcome).map_err(failed)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The card of a dropped region asks no more.
        let _ = lock(&self.memory.context().noted).forget(self.number);
    }
}

/// Makes GPU memory known to the software cards of this process, once.
pub(super) fn register_client() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| softhca::register_peer_memory(Arc::new(Client)));
}
