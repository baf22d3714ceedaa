//! A stream's cache of translations: streams name the same few pages again and again.
//!
//! It holds only the library's own pages. Several allocations of the program may share a page, and each that a
//! stream names keeps the page registered, so the stream asks the backend about each.

use crate::memop::{MemOpStream, StreamError};
use crate::memory::{HostAddr, StreamAddr};
use std::cell::Cell;

/// Pages in the cache. A power of two.
const PLACES: usize = 16;
/// The smallest page of any system, in bytes. No object of the library crosses one.
const PAGE: u64 = 4096;

/// A small cache in front of [`MemOpStream::translate`].
#[derive(Debug, Default)]
pub(super) struct Translations {
    epoch: Cell<u64>,
    /// Host page, and the offset of the stream's address. Page 0 marks a free place.
    places: [Cell<(u64, u64)>; PLACES],
}

impl Translations {
    /// Clears the cache before a batch, if a translation may have changed. Memory that a batch names cannot change
    /// while the batch is posted, because the batch holds it.
    #[inline]
    pub(super) fn refresh(&self, backend: &impl MemOpStream) {
        let epoch = backend.epoch();
        if self.epoch.get() != epoch {
            self.forget(epoch);
        }
    }

    #[cold]
    #[inline(never)]
    fn forget(&self, epoch: u64) {
        self.epoch.set(epoch);
        self.places.iter().for_each(|place| place.set((0, 0)));
    }

    /// Returns the stream's address of the library's memory, if its page is in the cache.
    #[inline]
    pub(super) fn known(&self, addr: HostAddr) -> Option<StreamAddr> {
        let page = addr.get() / PAGE;
        let (known, offset) = self.places[page as usize % PLACES].get();
        (known == page && known != 0).then(|| StreamAddr::new(addr.get().wrapping_add(offset)))
    }

    #[inline]
    pub(super) fn translate(
        &self,
        backend: &impl MemOpStream,
        addr: HostAddr,
        len: usize,
    ) -> Result<StreamAddr, StreamError> {
        match self.known(addr) {
            Some(found) => Ok(found),
            None => self.ask(backend, addr, len),
        }
    }

    #[cold]
    fn ask(&self, backend: &impl MemOpStream, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        let page = addr.get() / PAGE;
        let found = backend.translate(addr, len)?;
        self.places[page as usize % PLACES].set((page, found.get().wrapping_sub(addr.get())));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Descriptor};
    use crate::memop::{Condition, Location, MemOp, MemOpCaps};
    use crate::stream::Stream;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// Adds an offset to each address, counts queries, and keeps submitted operations.
    #[derive(Default)]
    struct Shifted {
        by: AtomicU64,
        asked: AtomicU64,
        submitted: Mutex<Vec<MemOp>>,
    }

    // SAFETY: it performs nothing.
    unsafe impl MemOpStream for Shifted {
        fn caps(&self) -> MemOpCaps {
            MemOpCaps::FULL
        }

        fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if addr.get() >= 0x100_0000 {
                return Err(StreamError::Unregistered { addr, len });
            }
            Ok(StreamAddr::new(addr.get() + self.by.load(Ordering::Relaxed)))
        }

        fn epoch(&self) -> u64 {
            self.by.load(Ordering::Relaxed)
        }

        unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
            self.submitted.lock().unwrap().extend(ops);
            Ok(())
        }

        fn wait_idle(&self, _timeout: Duration) -> Result<bool, StreamError> {
            Ok(true)
        }
    }

    #[test]
    fn a_page_is_asked_for_once_until_something_changes() {
        let (backend, cache) = (Shifted::default(), Translations::default());
        let translate = |addr| cache.translate(&backend, HostAddr(addr), 8).map(StreamAddr::get);
        for by in [0, 0x10_0000] {
            backend.by.store(by, Ordering::Relaxed);
            cache.refresh(&backend);
            for addr in [0x5000, 0x5ff8, 0x5008, 0x6000, 0x6010, 0x10] {
                assert_eq!(translate(addr), Ok(addr + by));
            }
            assert!(translate(0x100_0000).is_err());
            // Pages 5 and 6; page 0, which is never cached; and the refusal.
            assert_eq!(backend.asked.swap(0, Ordering::Relaxed), 4);
        }
    }

    #[test]
    fn pages_that_share_a_place_take_turns() {
        let (backend, cache) = (Shifted::default(), Translations::default());
        for page in [1u64, 17, 1, 33, 17] {
            let addr = page * PAGE + 8;
            assert_eq!(cache.translate(&backend, HostAddr(addr), 8), Ok(StreamAddr::new(addr)));
        }
    }

    #[test]
    fn memory_of_the_streams_own_device_is_named_as_it_is() {
        let stream = Stream::new(Shifted { by: AtomicU64::new(0x1000), ..Shifted::default() }).unwrap();
        let (mut batch, location) = (Batch::new(), Location::stream(0x9_0000, 8));
        batch.push(Descriptor::Write64(location.clone(), 1));
        batch.push(Descriptor::Wait32(location, Condition::Geq, 2));
        stream.post(batch).unwrap();
        let addr = StreamAddr::new(0x9_0000);
        let wait = MemOp::Wait32 { addr, condition: Condition::Geq, value: 2 };
        assert_eq!(*stream.submitted.lock().unwrap(), [MemOp::Write64 { addr, value: 1 }, wait]);
    }
}
