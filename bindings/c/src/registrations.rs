//! Registration caches that C programs have names of.

use crate::error::CallError;
use crate::named::Named;
use crate::types::{gdsync_cache, gdsync_region};
use gdsync::verbs::{CachedRegion, RegistrationCache};
use gdsync::{Access, PinnedMemory};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// What a `gdsync_cache_t *` stands for.
pub(crate) struct CacheObject {
    pub(crate) cache: RegistrationCache,
    /// Host memory that was asked for, by its address. The cache forgets memory when its handle here is dropped.
    host: Mutex<BTreeMap<usize, PinnedMemory>>,
}

pub(crate) static CACHES: Named<gdsync_cache, CacheObject> =
    Named::new("the cache", "pass what gdsync_cache_create returned, until gdsync_cache_free");

/// Each keeps its registration.
pub(crate) static REGIONS: Named<gdsync_region, CachedRegion> =
    Named::new("the region", "pass what gdsync_cache_get returned, and no copy, until gdsync_cache_release");

impl CacheObject {
    pub(crate) fn new(cache: RegistrationCache) -> Self {
        CacheObject { cache, host: Mutex::default() }
    }

    /// Host memory, registered.
    ///
    /// # Safety
    /// It is mapped, and stays so until [`Self::invalidate`] is called for it, or the cache has gone, and the region is
    /// dropped. The program's accesses are as those of a device.
    pub(crate) unsafe fn get(
        &self,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<CachedRegion, CallError> {
        // SAFETY: the caller's.
        let memory = unsafe { self.memory(base, length) };
        Ok(self.cache.host(&memory, access)?)
    }

    /// The known memory that has these bytes, or they become known.
    ///
    /// # Safety
    /// As [`Self::get`].
    unsafe fn memory(&self, base: NonNull<u8>, length: usize) -> PinnedMemory {
        let start = base.addr().get();
        let mut host = self.host.lock();
        let has_all =
            |at: usize, memory: &PinnedMemory| memory.len() - (start - at).min(memory.len()) >= length;
        let known = host.range(..=start).rev().find(|(at, memory)| has_all(**at, memory));
        if let Some((_, memory)) = known {
            return memory.clone();
        }
        // SAFETY: the caller's.
        let memory = unsafe { PinnedMemory::from_raw(base, length, ()) };
        let shorter = host.insert(start, memory.clone());
        drop(host);
        // Its registration leaves the cache.
        drop(shorter);
        memory
    }

    /// Forgets registrations of a range. Returns how many.
    pub(crate) fn invalidate(&self, start: usize, length: usize) -> usize {
        let end = start.saturating_add(length);
        let gone = self.cache.invalidate(start as u64..end as u64);
        let mut host = self.host.lock();
        let of_range: Vec<usize> = host
            .range(..end)
            .filter(|(at, memory)| at.saturating_add(memory.len()) > start)
            .map(|(at, _)| *at)
            .collect();
        let memory: Vec<_> = of_range.iter().map(|at| host.remove(at)).collect();
        drop(host);
        drop(memory);
        gone
    }
}

/// Makes a handle of a region.
pub(crate) fn keep_region(region: CachedRegion) -> Result<*mut gdsync_region, CallError> {
    let (lkey, rkey) = (region.lkey(), region.rkey());
    let remote = region.remote();
    REGIONS.keep(region, |_| gdsync_region { addr: remote.addr, length: remote.len as usize, lkey, rkey })
}
