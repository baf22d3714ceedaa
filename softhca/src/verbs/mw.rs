//! Memory windows. Work requests bind them.

use super::domain::Pd;
use super::errno::{self, Errno, Result};
use super::object::{self, Object};
use crate::card::WindowKind;
use gdsync_sys::verbs::{self, ibv_mw, ibv_pd};
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A memory window. It keeps the protection domain alive, not a parent domain that it was made from.
#[repr(C)]
pub(super) struct Mw {
    ibv: UnsafeCell<ibv_mw>,
    key: u32,
    domain: Arc<Pd>,
}

// SAFETY: the C struct is written once, before the caller gets the window.
unsafe impl Sync for Mw {}
// SAFETY: as above; its pointers are not dereferenced.
unsafe impl Send for Mw {}
// SAFETY: `repr(C)`, and the C struct is first.
unsafe impl Object for Mw {
    type C = ibv_mw;
}

/// `ibv_alloc_mw`. EINVAL: neither type 1 nor type 2.
///
/// # Safety
/// `pd` is null or allocated.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    // SAFETY: the caller's.
    errno::pointer(unsafe { allocate(pd, kind) })
}

unsafe fn allocate(pd: *mut ibv_pd, kind: c_int) -> Result<*mut ibv_mw> {
    // SAFETY: the caller's.
    let through = unsafe { object::share::<Pd>(pd) }?;
    let window = match kind {
        verbs::IBV_MW_TYPE_1 => WindowKind::Type1,
        verbs::IBV_MW_TYPE_2 => WindowKind::Type2,
        _ => return Err(Errno::INVALID),
    };
    let domain = Pd::protection(through);
    let key = domain.context.card().alloc_window(domain.number(), window)?;
    let ibv = ibv_mw { context: object::handle(&domain.context), pd, rkey: key, handle: key, r#type: kind };
    Ok(object::into_raw(Arc::new(Mw { ibv: UnsafeCell::new(ibv), key, domain })))
}

/// `ibv_dealloc_mw`, of a bound window, too. After it, no request reaches memory through the window.
///
/// # Safety
/// `mw` is null or allocated.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let destroy = |mw: &Arc<Mw>| Ok(mw.domain.context.card().deregister_memory(mw.key)?);
    // SAFETY: the caller's.
    errno::status(unsafe { object::destroy(mw, destroy) })
}
