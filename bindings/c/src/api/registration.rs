//! `gdsync/ext.h`: registration caches.

use super::segment::gpu;
use crate::error::{self, CallError, bad, non_null_mut};
use crate::registrations::{self, CACHES, CacheObject, REGIONS};
use crate::types::{gdsync_cache, gdsync_cache_statistics_t, gdsync_region};
use crate::{log, objects};
use gdsync::Access;
use gdsync::verbs::{CacheLimits, RegistrationCache};
use gdsync_sys::verbs::{ibv_context, ibv_pd};
use libc::{c_int, c_ulonglong, c_void, size_t};
use std::ptr::NonNull;

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
        // SAFETY: the caller's.
        let (_, domain) = unsafe { objects::domain(context, pd) }?;
        let mut limits = CacheLimits::default();
        if entries > 0 {
            limits.entries = entries;
        }
        if bytes > 0 {
            limits.bytes = bytes;
        }
        let cache = RegistrationCache::with_limits(&domain, limits);
        CACHES.keep(CacheObject::new(cache), gdsync_cache::at)
    })
}

fn access_of(access: c_int) -> Result<Access, CallError> {
    let known = Access::from_bits(access as u32);
    known.ok_or_else(|| bad("access", access, "IBV_ACCESS_LOCAL_WRITE, _REMOTE_* and _MW_BIND are possible"))
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
        // SAFETY: the caller's.
        let object = unsafe { CACHES.find(cache) }?;
        let base = NonNull::new(addr.cast::<u8>()).ok_or(CallError::Null { what: "the memory" })?;
        check_length(addr.addr() as u64, length)?;
        // SAFETY: the caller's.
        registrations::keep_region(unsafe { object.get(base, length, access_of(access)?) }?)
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
        // SAFETY: the caller's.
        let object = unsafe { CACHES.find(cache) }?;
        if addr == 0 {
            return Err(CallError::Null { what: "the memory" });
        }
        check_length(addr, length)?;
        let access = access_of(access)?;
        // SAFETY: the caller's.
        let region = unsafe { object.cache.gpu_raw(&gpu(gpu_id)?, addr, length, access) }?;
        registrations::keep_region(region)
    })
}

/// `gdsync_cache_release`.
///
/// # Safety
/// No other thread uses the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_release(region: *mut gdsync_region) -> c_int {
    error::status("gdsync_cache_release", || REGIONS.take(region).map(drop))
}

/// `gdsync_cache_invalidate`.
///
/// # Safety
/// No other thread frees the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_invalidate(
    cache: *mut gdsync_cache,
    addr: *const c_void,
    length: size_t,
) -> c_int {
    error::count("gdsync_cache_invalidate", || {
        // SAFETY: the caller's.
        let object = unsafe { CACHES.find(cache) }?;
        check_length(addr.addr() as u64, length)?;
        Ok(c_int::try_from(object.invalidate(addr.addr(), length)).unwrap_or(c_int::MAX))
    })
}

/// `gdsync_cache_statistics`.
///
/// # Safety
/// No other thread frees the cache; `statistics` is null or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_statistics(
    cache: *mut gdsync_cache,
    statistics: *mut gdsync_cache_statistics_t,
) -> c_int {
    error::status("gdsync_cache_statistics", || {
        let place = non_null_mut("statistics", statistics)?;
        // SAFETY: the caller's.
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
        // SAFETY: a valid place, the caller's.
        unsafe { place.write(said) };
        Ok(())
    })
}

/// `gdsync_cache_free`.
///
/// # Safety
/// No other thread uses the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_cache_free(cache: *mut gdsync_cache) -> c_int {
    error::status("gdsync_cache_free", || CACHES.take(cache).map(drop))
}
