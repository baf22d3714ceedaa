//! `gdsync/ext.h`: registration caches.

use super::segment::gpu;
use crate::error::{self, CallError, bad, bad_bits, non_null_mut};
use crate::handles::Named;
use crate::providers::{self, ObjectKind};
use crate::types::{gdsync_cache, gdsync_cache_statistics_t, gdsync_region};
use crate::{log, objects};
use gdsync::verbs::{CacheLimits, CachedRegion, RegistrationCache};
use gdsync::{Access, PinnedMemory};
use gdsync_sys::verbs::{ibv_context, ibv_pd};
use libc::{c_int, c_ulonglong, c_void, size_t};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// The object of a `gdsync_cache_t *`.
struct CacheObject {
    cache: RegistrationCache,
    /// Host memory that was registered, by address. The cache forgets the memory when its handle here is dropped.
    host: Mutex<BTreeMap<usize, PinnedMemory>>,
    /// The address of the program's domain.
    pd: usize,
}

static CACHES: Named<gdsync_cache, CacheObject> =
    Named::new("the cache", "pass what gdsync_cache_create returned, until gdsync_cache_free");

/// The regions of programs. Each holds its registration.
static REGIONS: Named<gdsync_region, CachedRegion> =
    Named::new("the region", "pass what gdsync_cache_get returned, and no copy, until gdsync_cache_release");

impl CacheObject {
    fn new(cache: RegistrationCache, pd: usize) -> Self {
        CacheObject { cache, host: Mutex::default(), pd }
    }

    /// Registers host memory.
    ///
    /// # Safety
    /// The memory stays mapped until [`Self::invalidate`] is called for it, or the cache is dropped, and until the region is dropped. The
    /// program accesses it as a device does.
    unsafe fn get(
        &self,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<CachedRegion, CallError> {
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { self.memory(base, length) };
        Ok(self.cache.host(&memory, access)?)
    }

    /// Returns known memory that contains these bytes, or adds it.
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
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { PinnedMemory::from_raw(base, length, ()) };
        let shorter = host.insert(start, memory.clone());
        drop(host);
        // The shorter registration leaves the cache.
        drop(shorter);
        memory
    }

    /// Forgets the registrations of a range. Returns their number.
    fn invalidate(&self, start: usize, length: usize) -> usize {
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

fn keep_region(region: CachedRegion, pd: usize) -> Result<*mut gdsync_region, CallError> {
    let (lkey, rkey) = (region.lkey(), region.rkey());
    let remote = region.remote();
    let public = |_| gdsync_region { addr: remote.addr, length: remote.len as usize, lkey, rkey };
    let made = REGIONS.keep(region, public)?;
    providers::adopt(ObjectKind::CachedRegion, made, pd);
    Ok(made)
}

/// `gdsync_cache_create`.
///
/// # Safety
/// Domain and context are null or valid, and outlive the cache and its regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_create(
    pd: *mut ibv_pd,
    context: *mut ibv_context,
    entries: size_t,
    bytes: u64,
) -> *mut gdsync_cache {
    log::start();
    error::pointer("gdsync_cache_create", || {
        // SAFETY: the caller keeps the domain and the context alive.
        let (_, domain) = unsafe { objects::domain(context, pd) }?;
        let mut limits = CacheLimits::default();
        if entries > 0 {
            limits.entries = entries;
        }
        if bytes > 0 {
            limits.bytes = bytes;
        }
        let cache = RegistrationCache::with_limits(&domain, limits);
        let made = CACHES.keep(CacheObject::new(cache, pd.addr()), gdsync_cache::at)?;
        providers::adopt(ObjectKind::Cache, made, pd.addr());
        Ok(made)
    })
}

fn access_of(access: c_int) -> Result<Access, CallError> {
    let known = Access::from_bits(access as u32);
    known.ok_or_else(|| {
        bad_bits("access", access, "IBV_ACCESS_LOCAL_WRITE, _REMOTE_* and _MW_BIND are possible")
    })
}

/// `gdsync_cache_get`.
///
/// # Safety
/// The memory is null or mapped, and stays so as the header says. No other thread frees the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_get(
    cache: *mut gdsync_cache,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut gdsync_region {
    error::pointer("gdsync_cache_get", || {
        // SAFETY: the caller lets no other thread free the object.
        let object = unsafe { CACHES.find(cache) }?;
        let base = NonNull::new(addr.cast::<u8>()).ok_or(CallError::Null { what: "the memory" })?;
        check_length(addr.addr() as u64, length)?;
        // SAFETY: the caller keeps the memory mapped.
        keep_region(unsafe { object.get(base, length, access_of(access)?) }?, object.pd)
    })
}

fn check_length(address: u64, length: usize) -> Result<(), CallError> {
    let limit = "it must be 1 or more, and end within the address space";
    let fits = length > 0 && address.checked_add(length as u64).is_some();
    if fits { Ok(()) } else { Err(bad("length", length as i64, limit)) }
}

/// `gdsync_cache_get_gpu`.
///
/// # Safety
/// The memory is of that GPU, and stays so as the header says. No other thread frees the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_get_gpu(
    cache: *mut gdsync_cache,
    gpu_id: c_int,
    addr: c_ulonglong,
    length: size_t,
    access: c_int,
) -> *mut gdsync_region {
    error::pointer("gdsync_cache_get_gpu", || {
        // SAFETY: the caller lets no other thread free the object.
        let object = unsafe { CACHES.find(cache) }?;
        if addr == 0 {
            return Err(CallError::Null { what: "the memory" });
        }
        check_length(addr, length)?;
        let access = access_of(access)?;
        // SAFETY: the caller keeps the memory mapped.
        let region = unsafe { object.cache.gpu_raw(&gpu(gpu_id)?, addr, length, access) }?;
        keep_region(region, object.pd)
    })
}

/// `gdsync_cache_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_release(region: *mut gdsync_region) -> c_int {
    error::status("gdsync_cache_release", || {
        REGIONS.take(region)?;
        providers::forget(region);
        Ok(())
    })
}

/// `gdsync_cache_invalidate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_invalidate(
    cache: *mut gdsync_cache,
    addr: *const c_void,
    length: size_t,
) -> c_int {
    error::count("gdsync_cache_invalidate", || {
        // SAFETY: the caller lets no other thread free the object.
        let object = unsafe { CACHES.find(cache) }?;
        check_length(addr.addr() as u64, length)?;
        Ok(c_int::try_from(object.invalidate(addr.addr(), length)).unwrap_or(c_int::MAX))
    })
}

/// `gdsync_cache_statistics`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_statistics(
    cache: *mut gdsync_cache,
    statistics: *mut gdsync_cache_statistics_t,
) -> c_int {
    error::status("gdsync_cache_statistics", || {
        let place = non_null_mut("statistics", statistics)?;
        // SAFETY: the caller lets no other thread free the object.
        let found = unsafe { CACHES.find(cache) }?.cache.statistics();
        let said = gdsync_cache_statistics_t {
            hits: found.hits,
            misses: found.misses,
            evictions: found.evictions,
            invalidations: found.invalidations,
            not_kept: found.not_kept,
            entries: found.entries as u64,
            bytes: found.bytes,
        };
        // SAFETY: the caller passes a place that is valid for a write.
        unsafe { place.write(said) };
        Ok(())
    })
}

/// `gdsync_cache_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_free(cache: *mut gdsync_cache) -> c_int {
    error::status("gdsync_cache_free", || {
        CACHES.take(cache)?;
        providers::forget(cache);
        Ok(())
    })
}
