//! GPU memory, which programs register by its address (`ibv_reg_mr`): the part of nvidia-peermem.
//!
//! This module never loads the CUDA driver: memory can be a GPU's only if the program has loaded the driver.
//!
//! Where the CPU can map the memory (`gdsync-gdr`: without a kernel module, memory that was allocated exportable, such as that of
//! NVSHMEM and NCCL), the card stores to it, and loads little of it, by the mapping. Other copies go through pinned
//! memory and a non-blocking stream per CUDA context, so a kernel or a stream that waits for the card does not block the card. The card
//! waits once for several that it has begun together.
//!
//! A dma-buf of GPU memory is reached in the same way, by the address that this process has exported.

pub(crate) mod driver;
mod exports;
mod pinned;
pub(crate) mod symbols;
#[cfg(test)]
mod tests;

pub(crate) use exports::{exported, note};
pub(crate) use symbols::real_dlsym;

use driver::{CuContext, CuStream, Driver, memory_type};
use gdsync_gdr::{GpuRange, Mapping, Stores};
use parking_lot::Mutex;
use pinned::Pinned;
use softhca::{AsyncCopy, HostRange, PeerMemory, PeerMemoryError, PeerRegion};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// Bytes of the pinned buffer: the largest payload of a packet.
const STAGING: usize = softhca::fabric::MAX_PAYLOAD;

/// Bytes of a page of GPU memory (NVIDIA's GPUDirect RDMA documentation: 64 KiB).
const GPU_PAGE: u64 = 64 << 10;

/// Registers GPU memory with the cards of this process, once.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        softhca::register_peer_memory(Arc::new(Client { driver: Driver::loaded, state: OnceLock::new() }))
    });
}

/// The peer-memory client for memory of the CUDA driver.
struct Client {
    /// Returns the driver if the program has loaded it.
    driver: fn() -> Option<Driver>,
    state: OnceLock<Arc<ClientState>>,
}

/// The driver, and the copiers of its contexts. Copiers are never freed: freeing one would wait for streams
/// that may wait for the card.
#[derive(Debug)]
struct ClientState {
    driver: Driver,
    copiers: Mutex<HashMap<Key, Arc<Mutex<Copier>>>>,
    pinned: Pinned,
}

/// A context's address and its ID in the driver: a later context may get the same address.
type Key = (usize, u64);

impl Client {
    fn state(&self) -> Option<&Arc<ClientState>> {
        if self.state.get().is_none() {
            let driver = (self.driver)()?;
            // If another thread was first, its equal state stays.
            let _ = self.state.set(Arc::new(ClientState {
                driver,
                copiers: Mutex::default(),
                pinned: Pinned::default(),
            }));
        }
        self.state.get()
    }
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
        let Some(state) = self.state() else { return Ok(None) };
        let Some(pointer) = state.driver.attributes(addr) else { return Ok(None) };
        // The CPU can access pinned and managed memory.
        if pointer.kind != memory_type::DEVICE || pointer.managed {
            return Ok(None);
        }
        let context = match pointer.context {
            // Memory of the virtual memory management API belongs to a GPU, not to a context.
            context if context.is_null() => state.driver.primary_context(pointer.ordinal)?,
            context => context,
        };
        let (copier, mapping) = state.driver.within(context, || {
            let (base, size) = state.driver.range(addr)?;
            // Programs round such memory to the GPU's pages, by which it is registered.
            let end = base.saturating_add(size);
            let end_of_pages = end.next_multiple_of(GPU_PAGE);
            if addr.checked_add(len).is_none_or(|end| end > end_of_pages) {
                let reason =
                    format!("{len} bytes at {addr:#x} leave the {size} bytes of GPU memory at {base:#x}");
                return Err(PeerMemoryError::new(reason));
            }
            let mapping = map(addr, len.min(end.saturating_sub(addr)));
            let key = (context.address(), state.driver.context_number(context));
            let mut copiers = state.copiers.lock();
            if let Some(copier) = copiers.get(&key) {
                return Ok((copier.clone(), mapping));
            }
            let copier = Arc::new(Mutex::new(Copier::new(&state.driver)?));
            copiers.insert(key, copier.clone());
            Ok((copier, mapping))
        })?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Some(Arc::new(Region {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            state: state.clone(),
            context,
            copier,
            has_copies: AtomicBool::new(false),
            stores: mapping.map(|one| (addr, Stores::new(Arc::new(one)))),
        })))
    }
}

/// Maps memory of the current context for the CPU, if a backend can.
fn map(addr: u64, len: u64) -> Option<Mapping> {
    // SAFETY: the driver knows the address, and the context is current. A program keeps memory that it has registered.
    let range = unsafe { GpuRange::from_current(addr, usize::try_from(len).ok()?) };
    let mapping = range.map_err(|error| error.to_string());
    let mapping = mapping.and_then(|range| Mapping::pin(&range).map_err(|error| error.to_string()));
    mapping
        .inspect_err(|error| tracing::debug!(addr, len, %error, "GPU memory is not mapped for the card"))
        .ok()
}

/// A stream for copies, and their pinned buffer.
#[derive(Debug)]
struct Copier {
    stream: CuStream,
    staging: *mut u8,
    copies: Copies,
}

/// Copies on a stream that have begun: the numbers of their regions, and the failures that regions do not know yet.
#[derive(Debug, Default)]
struct Copies {
    begun: BTreeSet<u64>,
    failed: BTreeMap<u64, PeerMemoryError>,
}

impl Copies {
    /// Ends a region's copies: waits for all by `wait`, whose error does not tell which one has failed.
    fn end(
        &mut self,
        region: u64,
        wait: impl FnOnce() -> Result<(), PeerMemoryError>,
    ) -> Result<(), PeerMemoryError> {
        if self.begun.contains(&region) {
            let outcome = wait();
            for one in std::mem::take(&mut self.begun) {
                if let Err(error) = &outcome {
                    self.failed.entry(one).or_insert_with(|| error.clone());
                }
            }
        }
        self.failed.remove(&region).map_or(Ok(()), Err)
    }
}

// SAFETY: the driver accepts a stream from any thread, and the mutex around each copier restricts the buffer
// to one thread at a time.
unsafe impl Send for Copier {}

impl Copier {
    fn new(driver: &Driver) -> Result<Self, PeerMemoryError> {
        Ok(Copier { stream: driver.stream()?, staging: driver.pinned(STAGING)?, copies: Copies::default() })
    }
}

/// Registered GPU memory. The program must keep it allocated; the driver refuses to copy freed memory.
#[derive(Debug)]
struct Region {
    number: u64,
    state: Arc<ClientState>,
    context: CuContext,
    copier: Arc<Mutex<Copier>>,
    /// True if copies of the driver were begun and not waited for.
    has_copies: AtomicBool,
    /// Stores to a mapping, and the address of its first byte.
    stores: Option<(u64, Stores)>,
}

impl Region {
    /// Returns the mapping and the place in it, if it holds these bytes.
    fn mapped(&self, addr: u64, len: usize) -> Option<(&Stores, usize)> {
        let (first, stores) = self.stores.as_ref()?;
        let at = usize::try_from(addr.checked_sub(*first)?).ok()?;
        at.checked_add(len).filter(|end| *end <= stores.mapping().len())?;
        Some((stores, at))
    }

    /// Begins a copy between GPU memory and memory of the card, if the driver has pinned that.
    fn begin(
        &self,
        card: *const u8,
        len: usize,
        copy: impl FnOnce(&Driver, CuStream) -> Result<(), PeerMemoryError>,
    ) -> Result<AsyncCopy, PeerMemoryError> {
        let (driver, mut copier) = (&self.state.driver, self.copier.lock());
        driver.within(self.context, || {
            if !self.state.pinned.holds(driver, card.addr(), len) {
                return Ok(AsyncCopy::Unsupported);
            }
            copy(driver, copier.stream)?;
            copier.copies.begun.insert(self.number);
            self.has_copies.store(true, Ordering::Relaxed);
            Ok(AsyncCopy::Started)
        })
    }
}

impl PeerRegion for Region {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        Stores::await_copies(addr, into.len());
        if into.len() < Mapping::READ_BY_DRIVER
            && let Some((stores, at)) = self.mapped(addr, into.len())
        {
            return stores
                .mapping()
                .copy_from(at, into)
                .map_err(|error| PeerMemoryError::new(error.to_string()));
        }
        let (driver, copier) = (&self.state.driver, self.copier.lock());
        driver.within(self.context, || {
            let mut at = addr;
            for chunk in into.chunks_mut(STAGING) {
                // SAFETY: the buffer is STAGING bytes long, and the lock excludes other users.
                unsafe { driver.copy_out(copier.staging, at, chunk.len(), copier.stream) }?;
                driver.synchronize(copier.stream)?;
                // SAFETY: the copy has ended; the chunk is at most STAGING bytes long.
                unsafe { copier.staging.copy_to_nonoverlapping(chunk.as_mut_ptr(), chunk.len()) };
                at += chunk.len() as u64;
            }
            Ok(())
        })
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
        if let Some((stores, at)) = self.mapped(addr, from.len()) {
            return stores.write(addr, at, from).map_err(|error| PeerMemoryError::new(error.to_string()));
        }
        Stores::await_copies(addr, from.len());
        let (driver, copier) = (&self.state.driver, self.copier.lock());
        driver.within(self.context, || {
            let mut at = addr;
            for chunk in from.chunks(STAGING) {
                // SAFETY: the last copy has ended; the chunk is at most STAGING bytes long, and the lock excludes other
                // users.
                unsafe { copier.staging.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
                // SAFETY: the buffer is STAGING bytes long, and the lock excludes other users.
                unsafe { driver.copy_in(at, copier.staging, chunk.len(), copier.stream) }?;
                driver.synchronize(copier.stream)?;
                at += chunk.len() as u64;
            }
            Ok(())
        })
    }

    unsafe fn begin_read(&self, addr: u64, into: *mut u8, len: usize) -> Result<AsyncCopy, PeerMemoryError> {
        Stores::await_copies(addr, len);
        // SAFETY: the memory is pinned; the card uses it for nothing else until `finish` has returned.
        self.begin(into, len, |driver, stream| unsafe { driver.copy_out(into, addr, len, stream) })
    }

    unsafe fn begin_write(
        &self,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<AsyncCopy, PeerMemoryError> {
        if let Some((stores, at)) = self.mapped(addr, len) {
            // No call of the driver delays the CPU's stores. Only memory of cards cannot vanish meanwhile.
            // SAFETY: the card keeps it readable and unchanged until `finish` has returned.
            let begun =
                HostRange::of(from.addr(), len).is_some() && unsafe { stores.begin(addr, at, from, len) };
            return Ok(if begun { AsyncCopy::Started } else { AsyncCopy::Unsupported });
        }
        Stores::await_copies(addr, len);
        // SAFETY: the memory is pinned; the card keeps it readable until `finish` has returned.
        self.begin(from, len, |driver, stream| unsafe { driver.copy_in(addr, from, len, stream) })
    }

    fn keeps_order(&self) -> bool {
        self.stores.is_none()
    }

    fn finish(&self) -> Result<(), PeerMemoryError> {
        let stored = self.stores.as_ref().map_or(Ok(()), |(_, stores)| stores.finish());
        self.finish_started().and(stored.map_err(|error| PeerMemoryError::new(error.to_string())))
    }

    /// The driver's copies alone: the CPU's stores may go on while the card has more read.
    fn finish_started(&self) -> Result<(), PeerMemoryError> {
        // The thread of another card may have the copier, and wait in the driver for a message that this card has yet to deliver.
        if !self.has_copies.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let (driver, mut copier) = (&self.state.driver, self.copier.lock());
        let Copier { stream, copies, .. } = &mut *copier;
        copies.end(self.number, || driver.within(self.context, || driver.synchronize(*stream)))
    }
}
