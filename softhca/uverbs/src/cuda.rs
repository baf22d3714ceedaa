//! GPU memory for the card, as nvidia-peermem has it for the kernel: programs register it by its address (`ibv_reg_mr`).
//!
//! CUDA's driver is never loaded from here: what a program registers is a GPU's only where the program has loaded the driver
//! itself. Copies go through pinned memory and a stream of our own that waits for none of the program's, so a kernel or a
//! stream that waits for the card does not stop it.

mod driver;
#[cfg(test)]
mod tests;

use driver::{CuContext, CuStream, Driver, memory_type};
use parking_lot::Mutex;
use softhca::{PeerMemory, PeerMemoryError, PeerRegion};
use std::collections::HashMap;
use std::sync::{Arc, Once, OnceLock};

/// Bytes of the pinned buffer: the card asks for no more at once.
const STAGING: usize = softhca::fabric::MAX_PAYLOAD;

/// Makes GPU memory known to the cards of this process, once.
pub(crate) fn tell_cards() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        softhca::register_peer_memory(Arc::new(Client { driver: Driver::loaded, state: OnceLock::new() }))
    });
}

/// Memory that CUDA's driver knows.
struct Client {
    /// The driver, if the program has loaded it.
    driver: fn() -> Option<Driver>,
    state: OnceLock<Arc<State>>,
}

/// The driver, and the copiers of its contexts. They stay: to free them would wait for streams that wait for the card.
#[derive(Debug)]
struct State {
    driver: Driver,
    copiers: Mutex<HashMap<Key, Arc<Mutex<Copier>>>>,
}

/// A context, and the driver's number of it: another one may come to the same address.
type Key = (usize, u64);

impl Client {
    fn state(&self) -> Option<&Arc<State>> {
        if self.state.get().is_none() {
            let driver = (self.driver)()?;
            // Whoever comes second drops an equal one.
            let _ = self.state.set(Arc::new(State { driver, copiers: Mutex::default() }));
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
        // The CPU reaches pinned and managed memory by itself.
        if pointer.kind != memory_type::DEVICE || pointer.managed {
            return Ok(None);
        }
        let context = match pointer.context {
            // Memory of the virtual memory management belongs to a GPU, not to a context.
            context if context.is_null() => state.driver.primary_context(pointer.ordinal)?,
            context => context,
        };
        let copier = state.driver.within(context, || {
            let (base, size) = state.driver.range(addr)?;
            if addr.checked_add(len).is_none_or(|end| end > base.saturating_add(size)) {
                let reason =
                    format!("{len} bytes at {addr:#x} leave the {size} bytes of GPU memory at {base:#x}");
                return Err(PeerMemoryError::new(reason));
            }
            let key = (context.address(), state.driver.context_number(context));
            let mut copiers = state.copiers.lock();
            if let Some(copier) = copiers.get(&key) {
                return Ok(copier.clone());
            }
            let copier = Arc::new(Mutex::new(Copier::new(&state.driver)?));
            copiers.insert(key, copier.clone());
            Ok(copier)
        })?;
        Ok(Some(Arc::new(Region { state: state.clone(), context, copier })))
    }
}

/// A stream that copies, and the buffer that it copies from and to.
#[derive(Debug)]
struct Copier {
    stream: CuStream,
    staging: *mut u8,
}

// SAFETY: the driver takes a stream from any thread; the buffer is used by whoever has the copier's lock.
unsafe impl Send for Copier {}

impl Copier {
    /// Where the context is current.
    fn new(driver: &Driver) -> Result<Self, PeerMemoryError> {
        Ok(Copier { stream: driver.stream()?, staging: driver.pinned(STAGING)? })
    }
}

/// Memory that is registered. The program keeps it; the driver refuses to copy where it does not.
#[derive(Debug)]
struct Region {
    state: Arc<State>,
    context: CuContext,
    copier: Arc<Mutex<Copier>>,
}

impl PeerRegion for Region {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        let (driver, copier) = (&self.state.driver, self.copier.lock());
        driver.within(self.context, || {
            let mut at = addr;
            for chunk in into.chunks_mut(STAGING) {
                // SAFETY: the buffer is STAGING bytes long, and ours while we have the lock.
                unsafe { driver.copy_out(copier.staging, at, chunk.len(), copier.stream) }?;
                // SAFETY: the copy is done; the buffer is as long as the chunk at least.
                unsafe { copier.staging.copy_to_nonoverlapping(chunk.as_mut_ptr(), chunk.len()) };
                at += chunk.len() as u64;
            }
            Ok(())
        })
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
        let (driver, copier) = (&self.state.driver, self.copier.lock());
        driver.within(self.context, || {
            let mut at = addr;
            for chunk in from.chunks(STAGING) {
                // SAFETY: the last copy is done; the buffer is as long as the chunk at least, and ours while we have the lock.
                unsafe { copier.staging.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
                // SAFETY: the buffer is STAGING bytes long, and ours while we have the lock.
                unsafe { driver.copy_in(at, copier.staging, chunk.len(), copier.stream) }?;
                at += chunk.len() as u64;
            }
            Ok(())
        })
    }
}
