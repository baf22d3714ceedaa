//! `gdsync/team.h`: segments and the CPU's view of notifications.

use crate::error::{self, CallError, bad, cause_of, non_null_mut};
use crate::teams::{self, LetGo, SEGMENTS, TEAMS};
use crate::types::{gdsync_segment, gdsync_team};
use gdsync::PinnedMemory;
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::CudaContext;
use gdsync_notify::Segment;
use libc::{c_int, c_uint, c_ulonglong, c_void, size_t};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(super) fn gpu(number: c_int) -> Result<Arc<CudaContext>, CallError> {
    let ordinal =
        u32::try_from(number).map_err(|_| bad("gpu_id", number, "it must be the number of a GPU"))?;
    Ok(cuda::context(ordinal)?)
}

/// `gdsync_segment_allocate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_segment_allocate(
    team: *mut gdsync_team,
    length: size_t,
    notifications: c_uint,
) -> *mut gdsync_segment {
    error::pointer("gdsync_segment_allocate", || {
        // SAFETY: the caller lets no other thread free the object.
        let segment = unsafe { TEAMS.find(team) }?.allocate(length, notifications)?;
        teams::keep_segment(team, segment, None)
    })
}

/// `gdsync_segment_allocate_gpu`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_segment_allocate_gpu(
    team: *mut gdsync_team,
    gpu_id: c_int,
    length: size_t,
    notifications: c_uint,
) -> *mut gdsync_segment {
    error::pointer("gdsync_segment_allocate_gpu", || {
        // SAFETY: the caller lets no other thread free the object.
        let found = unsafe { TEAMS.find(team) }?;
        let segment = found.allocate_gpu(&gpu(gpu_id)?, length, notifications)?;
        teams::keep_segment(team, segment, None)
    })
}

/// `gdsync_segment_register`.
///
/// # Safety
/// The memory is null, or mapped, readable and writable until the segment is freed. No other thread frees the team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_segment_register(
    team: *mut gdsync_team,
    addr: *mut c_void,
    length: size_t,
    notifications: c_uint,
) -> *mut gdsync_segment {
    error::pointer("gdsync_segment_register", || {
        // SAFETY: the caller lets no other thread free the object.
        let found = unsafe { TEAMS.find(team) }?;
        let base = NonNull::new(addr.cast::<u8>()).ok_or(CallError::Null { what: "the memory" })?;
        let free = Arc::new(AtomicBool::new(false));
        // SAFETY: the program keeps the memory until `gdsync_segment_free` has returned 0, which waits until the owner is dropped. The
        // program accesses it as a device does.
        let memory = unsafe { PinnedMemory::from_raw(base, length, LetGo(free.clone())) };
        teams::keep_segment(team, found.register(&memory, notifications)?, Some(free))
    })
}

/// `gdsync_segment_register_gpu`.
///
/// # Safety
/// The memory is of that GPU, and of its primary context, until the segment is freed. No other thread frees the team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_segment_register_gpu(
    team: *mut gdsync_team,
    gpu_id: c_int,
    addr: c_ulonglong,
    length: size_t,
    notifications: c_uint,
) -> *mut gdsync_segment {
    error::pointer("gdsync_segment_register_gpu", || {
        // SAFETY: the caller lets no other thread free the object.
        let found = unsafe { TEAMS.find(team) }?;
        if addr == 0 {
            return Err(CallError::Null { what: "the memory" });
        }
        let context = gpu(gpu_id)?;
        let free = Arc::new(AtomicBool::new(false));
        // SAFETY: the program keeps the memory until `gdsync_segment_free` has returned 0, which waits until the owner is dropped.
        let memory = unsafe { GpuMemory::from_raw(&context, addr, length, LetGo(free.clone())) }?;
        let segment = found.register_gpu(&context, &memory, notifications)?;
        teams::keep_segment(team, segment, Some(free))
    })
}

/// Returns the segment of a handle.
///
/// # Safety
/// No other thread frees it while the reference is used.
unsafe fn find<'a>(segment: *mut gdsync_segment) -> Result<&'a Segment, CallError> {
    // SAFETY: the caller lets no other thread free the object.
    Ok(&unsafe { SEGMENTS.find(segment) }?.segment)
}

/// `gdsync_segment_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_segment_data(segment: *mut gdsync_segment) -> *mut c_void {
    error::pointer("gdsync_segment_data", || {
        // SAFETY: the caller lets no other thread free the object.
        let address = teams::data_of(unsafe { find(segment) }?)?;
        Ok(std::ptr::with_exposed_provenance_mut(address))
    })
}

/// `gdsync_segment_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_segment_free(segment: *mut gdsync_segment) -> c_int {
    error::status("gdsync_segment_free", || teams::free_segment(segment))
}

/// Returns the range of `count` notifications from `first` on.
fn ids(first: u32, count: u32) -> Result<Range<u32>, CallError> {
    match first.checked_add(count) {
        Some(end) if count > 0 => Ok(first..end),
        _ => Err(bad("count", count, "there is 1 notification or more, and the last number is below 2^32")),
    }
}

/// `gdsync_notification_expect_from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_notification_expect_from(
    segment: *mut gdsync_segment,
    first: u32,
    count: u32,
    rank: u32,
) -> c_int {
    error::status("gdsync_notification_expect_from", || {
        // SAFETY: the caller lets no other thread free the object.
        Ok(unsafe { find(segment) }?.expect_from(ids(first, count)?, rank)?)
    })
}

/// `gdsync_notification_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_notification_wait(
    segment: *mut gdsync_segment,
    first: u32,
    count: u32,
    id: *mut u32,
    timeout_ms: c_uint,
) -> c_int {
    error::status("gdsync_notification_wait", || {
        // SAFETY: the caller lets no other thread free the object.
        let (found, id) = (unsafe { find(segment) }?, non_null_mut("id", id)?);
        let timeout = Duration::from_millis(timeout_ms.into());
        let ids = ids(first, count)?;
        let set = found.notify_waitsome(ids.clone(), timeout)?.ok_or_else(|| {
            let cause = cause_of(timeout, || found.explain_wait(ids).ok().flatten());
            CallError::NotNotified { timeout_ms: timeout_ms.into(), cause }
        })?;
        // SAFETY: the caller passes a place that is valid for a write.
        unsafe { id.write(set) };
        Ok(())
    })
}

/// `gdsync_notification_reset`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_notification_reset(
    segment: *mut gdsync_segment,
    id: u32,
    value: *mut u32,
) -> c_int {
    error::status("gdsync_notification_reset", || {
        // SAFETY: the caller lets no other thread free the object.
        let old = unsafe { find(segment) }?.notify_reset(id)?;
        if !value.is_null() {
            // SAFETY: the caller passes a place that is valid for a write.
            unsafe { value.write(old) };
        }
        Ok(())
    })
}

/// `gdsync_notification_check`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_notification_check(segment: *mut gdsync_segment, id: u32) -> c_int {
    // SAFETY: the caller lets no other thread free the object.
    error::status("gdsync_notification_check", || Ok(unsafe { find(segment) }?.check_notification(id)?))
}
