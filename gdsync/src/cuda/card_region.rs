//! GPU memory as the payload of the software card in this process: the card's client of peer memory.

use crate::cuda::copier::Copier;
use crate::cuda::peer_copies::PeerCopy;
use crate::cuda::{CudaError, GpuContext, GpuMemory};
use crate::memory::HostAddr;
use crate::memory::spans::{Span, SpanKind};
use gdsync_gdr::{Mapping, Stores};
use parking_lot::Mutex;
use softhca::{AsyncCopy, HostRange, PeerMemory, PeerMemoryError, PeerRegion};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// Gives the process's software cards access to the library's GPU memory.
pub(crate) fn share() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| softhca::register_peer_memory(Arc::new(Client)));
}

struct Client;

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
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(memory) = GpuMemory::find(addr, len).transpose().map_err(PeerMemoryError::new)? else {
            return Ok(None);
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let stores = memory.mapping().map(Stores::new);
        Ok(Some(Arc::new(CardRegion { number, has_copies: AtomicBool::new(false), stores, memory })))
    }
}

/// GPU memory that a card has registered. It is kept until the card drops this.
#[derive(Debug)]
struct CardRegion {
    /// Unique, as the regions of all cards copy on the same context.
    number: u64,
    /// True if the region may have copies of the driver, or a failure of one. Without them, no lock of theirs is taken:
    /// another card's thread may have it, and wait in the driver.
    has_copies: AtomicBool,
    // Dropped in this order.
    /// Stores of the CPU, if it has mapped the memory.
    stores: Option<Stores>,
    memory: GpuMemory,
}

impl PeerRegion for CardRegion {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        let at = self.offset(addr);
        Stores::await_copies(addr, into.len());
        match &self.stores {
            Some(stores) if into.len() < Mapping::READ_BY_DRIVER => {
                stores.mapping().copy_from(at, into).map_err(failure)
            }
            _ => self.memory.read(at, into).map_err(failure),
        }
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
        let at = self.offset(addr);
        if let Some(stores) = &self.stores {
            return stores.write(addr, at, from).map_err(failure);
        }
        Stores::await_copies(addr, from.len());
        self.start();
        self.memory.write(at, from).map_err(failure)
    }

    unsafe fn begin_read(&self, addr: u64, into: *mut u8, len: usize) -> Result<AsyncCopy, PeerMemoryError> {
        Stores::await_copies(addr, len);
        // SAFETY: the card keeps the memory writable, and uses it for nothing else, until `finish` has returned.
        Ok(unsafe { self.begin(addr, into.expose_provenance(), len, true) })
    }

    /// Begins stores of the CPU to mapped memory: then the card calls no function of the driver, in which a thread of the
    /// program may wait for what the card is to store.
    unsafe fn begin_write(
        &self,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<AsyncCopy, PeerMemoryError> {
        if let Some(stores) = &self.stores {
            // Only memory of cards cannot vanish meanwhile.
            // SAFETY: the card keeps it readable and unchanged until `finish` has returned.
            let begun = HostRange::of(from.addr(), len).is_some()
                && unsafe { stores.begin(addr, self.offset(addr), from, len) };
            return Ok(if begun { AsyncCopy::Started } else { AsyncCopy::Unsupported });
        }
        Stores::await_copies(addr, len);
        // SAFETY: the card keeps the memory readable until `finish` has returned.
        Ok(unsafe { self.begin(addr, from.expose_provenance(), len, false) })
    }

    /// The copies of the driver's stream take effect in order, and [`Self::write`] comes after those begun before.
    fn keeps_order(&self) -> bool {
        self.stores.is_none()
    }

    /// Gives the copies that all regions have begun on the context to the driver: together, they take it less time.
    /// [`Self::finish`] reports a failure.
    fn start(&self) {
        let context = self.memory.context();
        if self.has_copies.load(Ordering::Relaxed) && context.peer_copies.lock().begun(self.number) {
            let started = context.with_copier(|copier| {
                self.start_by(copier);
                Ok(())
            });
            if let Err(error) = started {
                // The context does not answer. The copies have failed, as `finish_started` starts none.
                context.peer_copies.lock().start(|_| Err(error));
            }
        }
    }

    /// Waits for the copies that all regions have begun on the context.
    fn finish(&self) -> Result<(), PeerMemoryError> {
        let stored = self.stores.as_ref().map_or(Ok(()), Stores::finish).map_err(failure);
        self.wait(|copier| self.start_by(copier)).map_err(failure).and(stored)
    }

    fn finish_started(&self) -> Result<(), PeerMemoryError> {
        self.wait(|_| {}).map_err(failure)
    }
}

fn failure(error: impl ToString) -> PeerMemoryError {
    PeerMemoryError::new(error.to_string())
}

impl CardRegion {
    fn offset(&self, address: u64) -> usize {
        address.wrapping_sub(self.memory.address()) as usize
    }

    /// Adds a copy of `len` bytes, which [`PeerRegion::start`] or [`PeerRegion::finish`] gives to the driver, unless the
    /// host memory is in none of the card's buffers, or cannot be pinned.
    ///
    /// # Safety
    /// The bytes at `gpu` are in this region. Until `finish` has returned or this is dropped, the `len` bytes at `host` are
    /// readable; if `is_read`, they are writable, and no other code accesses them.
    unsafe fn begin(&self, gpu: u64, host: usize, len: usize, is_read: bool) -> AsyncCopy {
        let context = self.memory.context();
        let Some(range) = pinned(context, host, len) else { return AsyncCopy::Unsupported };
        context.peer_copies.lock().add(PeerCopy { region: self.number, gpu, range, host, len, is_read });
        self.has_copies.store(true, Ordering::Relaxed);
        AsyncCopy::Started
    }

    fn start_by(&self, copier: &mut Copier) {
        // SAFETY: a region adds copies of the memory that it keeps, and waits for them before it reports their end; until
        // then, its card keeps the host memory usable (`begin`). A buffer stays pinned while in use.
        self.memory.context().peer_copies.lock().start(|copies| unsafe { copier.begin_strided(copies) });
    }

    fn wait(&self, start: impl FnOnce(&mut Copier)) -> Result<(), CudaError> {
        let context = self.memory.context();
        if !self.has_copies.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !context.peer_copies.lock().concerns(self.number) {
            self.has_copies.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let performed = context.with_copier(|copier| {
            start(copier);
            if context.peer_copies.lock().is_started() {
                // No copy starts meanwhile, without the copier.
                let outcome = copier.synchronize();
                context.peer_copies.lock().end(outcome);
            }
            Ok(())
        });
        let mut pending = context.peer_copies.lock();
        if performed.is_err() {
            // The context does not answer. The copies must not run later, when the card has reused their memory.
            pending.remove(self.number);
        }
        let outcome = performed.and(pending.take_failure(self.number));
        self.has_copies.store(pending.concerns(self.number), Ordering::Relaxed);
        outcome
    }
}

impl Drop for CardRegion {
    fn drop(&mut self) {
        // The card dropped the region, and needs no outcome.
        if *self.has_copies.get_mut() {
            self.memory.context().peer_copies.lock().remove(self.number);
        }
    }
}

/// A buffer, and its span in the address spaces of GPUs, which unpin it when they forget the span.
struct Pinned {
    buffer: HostRange,
    _span: Arc<Span>,
}

static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());

/// Returns the first address of the buffer that holds `len` bytes at `address`, if a card uses it and it is pinned
/// for the context. Pins it if necessary, which takes most of a millisecond.
fn pinned(context: &GpuContext, address: usize, len: usize) -> Option<usize> {
    let mut pinned = PINNED.lock();
    let known = pinned.range(..=address).next_back();
    let holds = |buffer: &HostRange| address + len <= buffer.address() + buffer.len() && buffer.is_in_use();
    let base = match known.filter(|(_, known)| holds(&known.buffer)) {
        Some((base, _)) => *base,
        None => {
            let buffer = HostRange::of(address, len)?;
            // Buffers of cards that are gone need not stay pinned.
            pinned.retain(|_, known| known.buffer.is_in_use());
            let (start, keep) = (buffer.address(), buffer.clone());
            let unpinned = Box::new(move || drop(keep));
            let span = Span::announce(start as u64, buffer.len() as u64, SpanKind::Whole, unpinned);
            pinned.insert(start, Pinned { buffer, _span: span });
            start
        }
    };
    drop(pinned);
    match context.look_up(HostAddr(address as u64), 1) {
        Ok(_) => Some(base),
        Err(error) => {
            tracing::debug!(?error, address, len, "memory of a card is not pinned");
            None
        }
    }
}
