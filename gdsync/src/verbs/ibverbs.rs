//! For programs that use the crate `ibverbs` (feature `ibverbs`): gdsync on a context and a
//! protection domain that are the program's own, given as pointers of that crate's C types,
//! [`ffi`].
//!
//! gdsync destroys what it makes on them, and never them. Both crates must have the same
//! libibverbs: `ibverbs` links the system's, and gdsync loads it by its name, `libibverbs.so.1`.

use crate::verbs::{Device, Error, OpenError, ProtectionDomain, provider};
use std::ptr::NonNull;

/// The C types of the crate `ibverbs` 0.9, which are those of `ibverbs-sys` 0.3.
pub use ibverbs_sys as ffi;

/// A device on an open context.
///
/// # Errors
/// [`OpenError::Null`](crate::verbs::OpenError::Null),
/// [`OpenError::NotMlx5`](crate::verbs::OpenError::NotMlx5),
/// [`OpenError::Load`](crate::verbs::OpenError::Load) where libmlx5 cannot be loaded.
///
/// # Safety
/// The context is null, or was opened by the system's libibverbs and stays open until the device,
/// its clones and everything made on them are dropped, and streams have passed what they were
/// given.
pub unsafe fn device(context: *mut ffi::ibv_context) -> Result<Device, Error> {
    let context = NonNull::new(context.cast()).ok_or(Error::Open(OpenError::Null { what: "ibv_context" }))?;
    // SAFETY: the caller's; both names are of the same C struct.
    unsafe { Device::from_raw(provider::system()?, context) }
}

/// A protection domain that the program has allocated on the context of `device`.
///
/// # Errors
/// [`OpenError::Null`](crate::verbs::OpenError::Null),
/// [`OpenError::OtherContext`](crate::verbs::OpenError::OtherContext).
///
/// # Safety
/// The domain is null, or valid, and stays so until the returned one, its clones and everything
/// made in them are dropped.
pub unsafe fn protection_domain(device: &Device, pd: *mut ffi::ibv_pd) -> Result<ProtectionDomain, Error> {
    let pd = NonNull::new(pd.cast()).ok_or(Error::Open(OpenError::Null { what: "ibv_pd" }))?;
    // SAFETY: the caller's; both names are of the same C struct.
    unsafe { ProtectionDomain::from_raw(device, pd) }
}
