//! Memory regions.

use super::domain::Pd;
use super::errno::{self, Errno, Result};
use super::object::{self, Object};
use crate::card::{Access, RegionConfig};
use gdsync_sys::verbs::{ibv_mr, ibv_pd};
use libc::{c_int, c_void, size_t};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// Access flags that a provider may ignore (`IB_ACCESS_OPTIONAL`, `rdma/ib_user_ioctl_verbs.h`).
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

/// A memory region. It keeps the protection domain alive, not a parent domain that it was made
/// from.
#[repr(C)]
pub(super) struct Mr {
    ibv: UnsafeCell<ibv_mr>,
    key: u32,
    domain: Arc<Pd>,
}

// SAFETY: the C struct is written once, before the caller gets the region.
unsafe impl Sync for Mr {}
// SAFETY: as above; its pointers are not dereferenced.
unsafe impl Send for Mr {}
// SAFETY: `repr(C)`, and the C struct is first.
unsafe impl Object for Mr {
    type C = ibv_mr;
}

/// `ibv_reg_mr`.
///
/// EINVAL: no bytes, remote write or atomic without local write, or unknown flags. EFAULT: the
/// memory is not mapped with that access (an on-demand region need not be), or its peer-memory client
/// refuses it.
///
/// # Safety
/// `pd` is null or allocated. Until the region is deregistered, the memory stays mapped (peer
/// memory: allocated), and is accessed otherwise only in ways that tolerate a device's concurrent
/// accesses.
pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's.
    errno::pointer(unsafe { register(pd, addr, length, access) })
}

unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, length: size_t, access: c_int) -> Result<*mut ibv_mr> {
    // SAFETY: the caller's.
    let through = unsafe { object::share::<Pd>(pd) }?;
    let access = access as u32;
    let known = access & (Access::all().bits() | !OPTIONAL_ACCESS);
    let access = Access::from_bits(known).ok_or_else(|| {
        tracing::warn!(access, "a memory region cannot be registered: unknown access flags");
        Errno::INVALID
    })?;
    let domain = Pd::protection(through);
    let config = RegionConfig::new(domain.number(), addr as u64, length as u64, access);
    // SAFETY: the caller's.
    let key = unsafe { domain.context.card().register_memory(&config) }?;
    let ibv = ibv_mr {
        context: object::handle(&domain.context),
        pd,
        addr,
        length,
        handle: key,
        lkey: key,
        rkey: key,
    };
    Ok(object::into_raw(Arc::new(Mr { ibv: UnsafeCell::new(ibv), key, domain })))
}

/// `ibv_dereg_mr`. After it, the card does not touch the memory, and its peer-memory client has
/// dropped the region.
///
/// # Safety
/// `mr` is null or registered.
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    let destroy = |mr: &Arc<Mr>| Ok(mr.domain.context.card().deregister_memory(mr.key)?);
    // SAFETY: the caller's.
    errno::status(unsafe { object::destroy(mr, destroy) })
}
