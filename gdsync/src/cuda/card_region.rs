//! GPU memory as the payload of a card that is software in this process. The module of providers has the adapter.

use crate::cuda::copier::Copier;
use crate::cuda::peer_copies::PeerCopy;
use crate::cuda::{CudaError, GpuContext, GpuMemory};
use crate::memory::HostAddr;
use crate::memory::spans::{Span, SpanKind};
use gdsync_gdr::{Mapping, Stores};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Host memory that a card copies payload from and to.
///
/// # Safety
/// The memory at [`Self::addresses`] stays mapped while the value lives.
pub(crate) unsafe trait CardBuffer: Send + Sync {
    /// Its addresses, in whole pages.
    fn addresses(&self) -> Range<usize>;

    /// True while the card uses it.
    fn is_in_use(&self) -> bool;
}

/// GPU memory that a card has registered. It is kept until the card drops this.
#[derive(Debug)]
pub(crate) struct CardRegion {
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

impl CardRegion {
    /// The GPU memory that holds `len` bytes from `address` on: `Some(Err)` if it holds only some of them.
    pub(crate) fn find(address: u64, len: u64) -> Option<Result<Self, String>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let region = |memory: GpuMemory| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let stores = memory.mapping().map(Stores::new);
            CardRegion { number, has_copies: AtomicBool::new(false), stores, memory }
        };
        GpuMemory::find(address, len).map(|found| found.map(region))
    }

    fn offset(&self, address: u64) -> usize {
        address.wrapping_sub(self.memory.address()) as usize
    }

    /// Copies from the GPU memory at `address`. The error is the reason, in words.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), String> {
        let at = self.offset(address);
        Stores::await_copies(address, into.len());
        match &self.stores {
            Some(stores) if into.len() < Mapping::READ_BY_DRIVER => {
                stores.mapping().copy_from(at, into).map_err(|error| error.to_string())
            }
            _ => self.memory.read(at, into).map_err(|error| error.to_string()),
        }
    }

    /// Copies to the GPU memory at `address`. The error is the reason, in words.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), String> {
        let at = self.offset(address);
        if let Some(stores) = &self.stores {
            return stores.write(address, at, from).map_err(|error| error.to_string());
        }
        Stores::await_copies(address, from.len());
        self.start();
        self.memory.write(at, from).map_err(|error| error.to_string())
    }

    /// Adds a copy of `len` bytes, which [`Self::start`] or [`Self::finish`] gives to the driver; or, to GPU memory that
    /// the CPU has mapped, stores of the CPU, which have ended when [`Self::finish`] returns: then the card calls no
    /// function of the driver, in which a thread of the program may wait for what the card is to store. Returns false if
    /// the host memory is in none of the card's buffers or cannot be pinned, and if the mapping takes no such stores
    /// ([`Stores::begin`]).
    ///
    /// # Safety
    /// The bytes at `gpu` are in this region. Until [`Self::finish`] has returned or this is dropped, the `len` bytes
    /// at `host` are readable; if `is_read`, they are writable, and no other code accesses them.
    pub(crate) unsafe fn begin<B: CardBuffer + Clone + 'static>(
        &self,
        gpu: u64,
        host: usize,
        len: usize,
        is_read: bool,
        buffer: impl FnOnce(usize, usize) -> Option<B>,
    ) -> bool {
        let context = self.memory.context();
        if let (false, Some(stores)) = (is_read, &self.stores) {
            // SAFETY: the caller's. The memory is the card's, so it cannot vanish.
            return buffer(host, len).is_some()
                && unsafe { stores.begin(gpu, self.offset(gpu), host as *const u8, len) };
        }
        Stores::await_copies(gpu, len);
        let Some(range) = pinned(context, host, len, buffer) else { return false };
        context.peer_copies.lock().add(PeerCopy { region: self.number, gpu, range, host, len, is_read });
        self.has_copies.store(true, Ordering::Relaxed);
        true
    }

    /// Returns whether writes take effect in order: those of the driver's stream do, and [`Self::write`] comes after those
    /// that were begun before.
    pub(crate) fn keeps_order(&self) -> bool {
        self.stores.is_none()
    }

    /// Gives the copies that all regions have begun on the context to the driver: together, they take it less time.
    /// [`Self::finish`] reports a failure.
    pub(crate) fn start(&self) {
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

    fn start_by(&self, copier: &mut Copier) {
        // SAFETY: a region adds copies of the memory that it keeps, and waits for them before it reports their end; until
        // then, its card keeps the host memory usable (`begin`). A buffer stays pinned while in use.
        self.memory.context().peer_copies.lock().start(|copies| unsafe { copier.begin_strided(copies) });
    }

    /// Waits for the copies that all regions have begun on the context.
    ///
    /// # Errors
    /// A copy of this region has failed, or may have.
    pub(crate) fn finish(&self) -> Result<(), String> {
        let stored = self.stores.as_ref().map_or(Ok(()), Stores::finish).map_err(|error| error.to_string());
        let copied = self.wait(|copier| self.start_by(copier));
        copied.map_err(|error| error.to_string()).and(stored)
    }

    /// As [`Self::finish`], for the copies that the driver knows already.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub(crate) fn finish_started(&self) -> Result<(), String> {
        self.wait(|_| {}).map_err(|error| error.to_string())
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
    buffer: Box<dyn CardBuffer>,
    _span: Arc<Span>,
}

static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());

/// Returns the first address of the buffer that holds `len` bytes at `address`, if a card uses it and it is pinned
/// for the context. Pins it if necessary, which takes most of a millisecond.
fn pinned<B: CardBuffer + Clone + 'static>(
    context: &GpuContext,
    address: usize,
    len: usize,
    find: impl FnOnce(usize, usize) -> Option<B>,
) -> Option<usize> {
    let mut pinned = PINNED.lock();
    let known = pinned.range(..=address).next_back();
    let holds = |buffer: &dyn CardBuffer| address + len <= buffer.addresses().end && buffer.is_in_use();
    let base = match known.filter(|(_, known)| holds(&*known.buffer)) {
        Some((base, _)) => *base,
        None => {
            let buffer = find(address, len)?;
            // Buffers of cards that are gone need not stay pinned.
            pinned.retain(|_, known| known.buffer.is_in_use());
            let (Range { start, end }, keep) = (buffer.addresses(), buffer.clone());
            let unpinned = Box::new(move || drop(keep));
            let span = Span::announce(start as u64, (end - start) as u64, SpanKind::Whole, unpinned);
            pinned.insert(start, Pinned { buffer: Box::new(buffer), _span: span });
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
