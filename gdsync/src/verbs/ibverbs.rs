//! For programs that use the crate `ibverbs` (feature `ibverbs`): gdsync on the program's context and protection
//! domain, given as pointers of that crate's C types, [`ffi`].
//!
//! gdsync destroys the objects that it makes on them, but never the context or the domain. Both crates must use the
//! same libibverbs: `ibverbs` links the system's, and gdsync loads `libibverbs.so.1`.

use crate::verbs::{Device, Error, OpenError, ProtectionDomain, provider};
use std::ptr::NonNull;

/// The C types of the crate `ibverbs` 0.9, which are those of `ibverbs-sys` 0.3.
pub use ibverbs_sys as ffi;

/// A device on an open context.
///
/// # Errors
/// [`OpenError::Null`], [`OpenError::NotMlx5`], [`OpenError::Load`] if libmlx5 cannot be loaded.
///
/// # Safety
/// The context is null, or was opened by the system's libibverbs and stays open until the device, its clones and
/// everything made on them are dropped, and streams have passed all work that names them.
pub unsafe fn device(context: *mut ffi::ibv_context) -> Result<Device, Error> {
    let context = NonNull::new(context.cast()).ok_or(Error::Open(OpenError::Null { what: "ibv_context" }))?;
    // SAFETY: the caller's; both types are the same C struct.
    unsafe { Device::from_raw(provider::system()?, context) }
}

/// A protection domain that the program has allocated on the context of `device`.
///
/// # Errors
/// [`OpenError::Null`], [`OpenError::OtherContext`].
///
/// # Safety
/// The domain is null, or valid, and stays so until the returned one, its clones and everything made in them are
/// dropped.
pub unsafe fn protection_domain(device: &Device, pd: *mut ffi::ibv_pd) -> Result<ProtectionDomain, Error> {
    let pd = NonNull::new(pd.cast()).ok_or(Error::Open(OpenError::Null { what: "ibv_pd" }))?;
    // SAFETY: the caller's; both types are the same C struct.
    unsafe { ProtectionDomain::from_raw(device, pd) }
}
