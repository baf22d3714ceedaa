//! Peer memory: memory that the CPU cannot dereference, such as a GPU's.
//!
//! The design follows the Linux kernel's peer-memory clients. At every memory registration the card asks the
//! clients, in the order of their registration, to claim the range. If one does, the card reaches the
//! region's bytes through that client only, and never dereferences an address in it.

use gdsync_sys::contain::contain;
use parking_lot::RwLock;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// A peer-memory client: it reaches memory that the CPU cannot dereference.
///
/// A card calls its clients from the thread that registers memory and from its own thread, mostly with its lock held. A
/// function of a client or of its regions, `drop` included, must therefore not call a card or wait for a thread that
/// does: that would deadlock. A copy that panics counts as failed. While a function of a client runs, its card does
/// nothing else.
pub trait PeerMemory: Send + Sync {
    /// Its name, for diagnostics.
    fn name(&self) -> &str;

    /// Claims the range `addr..addr + len`. `len` is not 0; otherwise the range is arbitrary and may exceed the address
    /// space. Returns `None` for a range of other memory. A claimed range stays valid until the region is dropped,
    /// after the memory is deregistered and no longer used. The card writes only if `writable` is set.
    ///
    /// # Errors
    /// The range is this client's and cannot be registered, for example because it exceeds its allocation.
    /// The card asks no further client; to programs, the memory is not mapped.
    fn acquire(
        &self,
        addr: u64,
        len: u64,
        writable: bool,
    ) -> Result<Option<Arc<dyn PeerRegion>>, PeerMemoryError>;
}

/// A range of peer memory that is registered with a card.
///
/// The card has checked keys, bounds and rights: all addresses are in the acquired range. A copy has 1 to
/// [`MAX_PAYLOAD`](crate::fabric::MAX_PAYLOAD) bytes. If it fails, the work request and its queue pair fail
/// as with a wrong key.
///
/// A large copy may begin in one call and end in another ([`Self::begin_read`], [`Self::begin_write`],
/// [`Self::finish`]), so that several overlap. A client may collect them until [`Self::start`].
pub trait PeerRegion: Send + Sync + fmt::Debug {
    /// Copies from the peer memory at `addr` to `into`, and writes every byte of `into` before it returns.
    ///
    /// # Errors
    /// The memory cannot be read.
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError>;

    /// Copies `from` to the peer memory at `addr`, the last bytes last. When it returns, the bytes are visible to a program
    /// that sees the message's completion.
    ///
    /// # Errors
    /// The memory cannot be written.
    fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError>;

    /// Begins to copy `len` bytes from the peer memory at `addr` to `into`, which may be staging memory of a card
    /// ([`HostRange`](crate::HostRange)). If it returns [`AsyncCopy::Unsupported`], the card calls [`Self::read`].
    ///
    /// # Errors
    /// The memory cannot be read. Nothing was begun.
    ///
    /// # Safety
    /// If it returns [`AsyncCopy::Started`], `into..into + len` is writable until [`Self::finish`] has returned, and
    /// no other code accesses it before.
    unsafe fn begin_read(&self, addr: u64, into: *mut u8, len: usize) -> Result<AsyncCopy, PeerMemoryError> {
        let _ = (addr, into, len);
        Ok(AsyncCopy::Unsupported)
    }

    /// Begins to copy `len` bytes at `from` to the peer memory at `addr`. If it returns [`AsyncCopy::Unsupported`], the
    /// card calls [`Self::write`].
    ///
    /// # Errors
    /// The memory cannot be written. Nothing was begun.
    ///
    /// # Safety
    /// If it returns [`AsyncCopy::Started`], `from..from + len` is readable until [`Self::finish`] has returned.
    unsafe fn begin_write(
        &self,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<AsyncCopy, PeerMemoryError> {
        let _ = (addr, from, len);
        Ok(AsyncCopy::Unsupported)
    }

    /// Returns whether copies that were begun on this region take effect in the order in which they were begun, and before
    /// a later [`Self::write`] of it. If they do not, the card ends them before it writes the last bytes of a message, which
    /// programs poll.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Asks a client that collects copies to start those begun on this region, while the card does other work. A failure
    /// shows in [`Self::finish`].
    fn start(&self) {}

    /// Waits for every copy begun on this region: then the bytes read are in place, and the bytes written are
    /// visible to a program that sees the message's completion. No copy continues after an error either.
    ///
    /// # Errors
    /// One of the copies has failed, without telling which; or one of another region, for which the client has waited
    /// together with them. It reports a failure once to each region that it may concern. The card takes the copies of the
    /// region that it has begun and not yet waited for as failed.
    fn finish(&self) -> Result<(), PeerMemoryError> {
        Ok(())
    }

    /// As [`Self::finish`], for copies that [`Self::start`] has started: others need not end.
    ///
    /// # Errors
    /// As [`Self::finish`].
    fn finish_started(&self) -> Result<(), PeerMemoryError> {
        self.finish()
    }
}

/// Whether a client has started an asynchronous copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncCopy {
    /// The copy continues until [`PeerRegion::finish`].
    Started,
    /// The client cannot begin this copy.
    Unsupported,
}

/// Reason for which peer memory cannot be registered or reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct PeerMemoryError {
    /// The reason, in words.
    pub reason: String,
}

impl PeerMemoryError {
    /// An error with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        PeerMemoryError { reason: reason.into() }
    }
}

static CLIENTS: RwLock<Vec<Arc<dyn PeerMemory>>> = RwLock::new(Vec::new());

/// Adds a client for all cards of this process. It is never removed. Memory registered earlier is not affected.
pub fn register_peer_memory(client: Arc<dyn PeerMemory>) {
    tracing::debug!(name = client.name(), "a peer-memory client");
    CLIENTS.write().push(client);
}

thread_local! {
    static CLAIMED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a client has claimed memory for this thread since the last call.
pub(crate) fn take_claimed() -> bool {
    CLAIMED.take()
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{client}: {error}")]
pub(crate) struct PeerFailure {
    pub(crate) client: String,
    pub(crate) error: PeerMemoryError,
}

#[derive(Debug)]
pub(crate) struct PeerMapping {
    client: String,
    region: Arc<dyn PeerRegion>,
}

impl PeerMapping {
    pub(crate) fn new(client: &str, region: Arc<dyn PeerRegion>) -> Self {
        PeerMapping { client: client.to_owned(), region }
    }

    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerFailure> {
        self.copy(|region| region.read(addr, into))
    }

    pub(crate) fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerFailure> {
        self.copy(|region| region.write(addr, from))
    }

    /// # Safety
    /// As [`PeerRegion::begin_read`].
    pub(crate) unsafe fn begin_read(
        &self,
        addr: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<AsyncCopy, PeerFailure> {
        // SAFETY: guaranteed by the caller.
        self.copy(|region| unsafe { region.begin_read(addr, into, len) })
    }

    /// # Safety
    /// As [`PeerRegion::begin_write`].
    pub(crate) unsafe fn begin_write(
        &self,
        addr: u64,
        from: *const u8,
        len: usize,
    ) -> Result<AsyncCopy, PeerFailure> {
        // SAFETY: guaranteed by the caller.
        self.copy(|region| unsafe { region.begin_write(addr, from, len) })
    }

    pub(crate) fn keeps_order(&self) -> bool {
        self.copy(|region| Ok(region.keeps_order())).unwrap_or(false)
    }

    /// # Errors
    /// The client panicked.
    pub(crate) fn start(&self) -> Result<(), PeerFailure> {
        self.copy(|region| {
            region.start();
            Ok(())
        })
    }

    pub(crate) fn finish(&self) -> Result<(), PeerFailure> {
        self.copy(|region| region.finish())
    }

    pub(crate) fn finish_started(&self) -> Result<(), PeerFailure> {
        self.copy(|region| region.finish_started())
    }

    /// Calls the client, whose panic must not end the card's thread.
    fn copy<T>(
        &self,
        copy: impl FnOnce(&dyn PeerRegion) -> Result<T, PeerMemoryError>,
    ) -> Result<T, PeerFailure> {
        let copied = contain(|| copy(&*self.region));
        copied
            .unwrap_or_else(|panic| Err(PeerMemoryError::new(format!("the copy panicked: {panic}"))))
            .map_err(|error| failure(&self.client, error))
    }
}

fn failure(client: &str, error: PeerMemoryError) -> PeerFailure {
    PeerFailure { client: client.to_owned(), error }
}

/// Asks the clients for a range; `None` if none claims it.
pub(crate) fn acquire(addr: u64, len: u64, writable: bool) -> Result<Option<PeerMapping>, PeerFailure> {
    // A copy of the list, as a client may be slow or register a further client.
    let clients = CLIENTS.read().clone();
    for client in clients {
        let acquired = client.acquire(addr, len, writable).map_err(|error| failure(client.name(), error))?;
        if let Some(region) = acquired {
            CLAIMED.set(true);
            return Ok(Some(PeerMapping::new(client.name(), region)));
        }
    }
    Ok(None)
}

/// A region that its client refuses: every copy fails.
#[derive(Debug)]
struct Refused(PeerMemoryError);

impl PeerRegion for Refused {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), PeerMemoryError> {
        Err(self.0.clone())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), PeerMemoryError> {
        Err(self.0.clone())
    }
}

/// Asks the clients for the memory of a queue; `None` for host memory. If a client refuses its own memory,
/// each access fails.
pub(crate) fn acquire_queue(addr: u64, len: u64) -> Option<PeerMapping> {
    if len == 0 {
        return None;
    }
    acquire(addr, len, true).unwrap_or_else(|PeerFailure { client, error }| {
        CLAIMED.set(true);
        Some(PeerMapping::new(&client, Arc::new(Refused(error))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An address where no memory is mapped. Other tests use addresses below it.
    const BASE: u64 = 1 << 62;

    #[derive(Debug)]
    struct Nothing;

    impl PeerRegion for Nothing {
        fn read(&self, addr: u64, _: &mut [u8]) -> Result<(), PeerMemoryError> {
            Err(PeerMemoryError::new(format!("nothing is at {addr:#x}")))
        }

        fn write(&self, addr: u64, _: &[u8]) -> Result<(), PeerMemoryError> {
            assert_ne!(addr, 8, "the eighth is my own");
            Ok(())
        }
    }

    /// A client that claims one address and refuses another.
    struct Client {
        name: &'static str,
        own: u64,
        refused: u64,
        asked: AtomicUsize,
    }

    impl PeerMemory for Client {
        fn name(&self) -> &str {
            self.name
        }

        fn acquire(
            &self,
            addr: u64,
            _: u64,
            _: bool,
        ) -> Result<Option<Arc<dyn PeerRegion>>, PeerMemoryError> {
            if addr < BASE {
                return Ok(None);
            }
            self.asked.fetch_add(1, Ordering::SeqCst);
            match addr - BASE {
                offset if offset == self.refused => Err(PeerMemoryError::new("not this one")),
                offset if offset == self.own => Ok(Some(Arc::new(Nothing))),
                _ => Ok(None),
            }
        }
    }

    #[test]
    fn clients_are_asked_in_order_until_one_knows() {
        let client = |name, own, refused| {
            let client = Arc::new(Client { name, own, refused, asked: AtomicUsize::new(0) });
            register_peer_memory(client.clone());
            client
        };
        let (first, second) = (client("first", 1, 2), client("second", 3, 1));
        let asked = || [&first, &second].map(|client| client.asked.swap(0, Ordering::SeqCst));
        let name = |offset| acquire(BASE + offset, 1, true).map(|mapping| mapping.map(|m| m.client.clone()));
        assert_eq!((name(1), asked()), (Ok(Some("first".to_owned())), [1, 0]));
        assert_eq!((name(3), asked()), (Ok(Some("second".to_owned())), [1, 1]));
        assert_eq!((name(4), asked()), (Ok(None), [1, 1]));
        let failure = name(2).unwrap_err();
        assert_eq!((failure.to_string().as_str(), asked()), ("first: not this one", [1, 0]));
        let mapping = acquire(BASE + 1, 1, true).unwrap().unwrap();
        assert_eq!(mapping.read(7, &mut [0]).unwrap_err().to_string(), "first: nothing is at 0x7");
        assert!(mapping.write(7, &[0]).is_ok());
        let error = mapping.write(8, &[0]).unwrap_err().to_string();
        assert!(error.starts_with("first: the copy panicked: ") && error.contains("my own"), "{error}");
    }
}
