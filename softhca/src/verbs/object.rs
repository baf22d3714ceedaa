//! How verbs objects are handed to C callers and taken back.
//!
//! An object is an [`Arc`] whose content begins with the C struct; the caller holds one count as a raw pointer, and every
//! object made of it another. So a parent with children is seen by its count, and stays alive as long as they do.

use super::errno::{Errno, Result};
use std::sync::Arc;

/// A verbs object.
///
/// # Safety
/// The type is `#[repr(C)]`, and its first field is an `UnsafeCell<Self::C>`: a pointer to either is one to the other.
pub(super) unsafe trait Object: Sized {
    /// The struct that C callers see.
    type C;
}

/// The pointer that C callers know the object by.
pub(super) fn handle<O: Object>(object: &Arc<O>) -> *mut O::C {
    Arc::as_ptr(object).cast_mut().cast()
}

/// Gives a new object to the caller.
pub(super) fn hand_out<O: Object>(object: Arc<O>) -> *mut O::C {
    Arc::into_raw(object).cast_mut().cast()
}

/// The object behind a caller's pointer.
///
/// # Errors
/// EINVAL for null.
///
/// # Safety
/// `raw` is null, or came from [`hand_out`] of the same type and was not taken back yet, nor is it while `'a` lasts.
pub(super) unsafe fn borrow<'a, O: Object>(raw: *mut O::C) -> Result<&'a O> {
    // SAFETY: as the caller promises, it points to a live object, which begins with its C struct.
    unsafe { raw.cast_const().cast::<O>().as_ref() }.ok_or(Errno::INVALID)
}

/// Another count of the object behind a caller's pointer, for a child to hold.
///
/// # Errors
/// EINVAL for null.
///
/// # Safety
/// As [`borrow`], for the time of the call.
pub(super) unsafe fn share<O: Object>(raw: *mut O::C) -> Result<Arc<O>> {
    if raw.is_null() {
        return Err(Errno::INVALID);
    }
    let object = raw.cast_const().cast::<O>();
    // SAFETY: as the caller promises, it came from `Arc::into_raw`, and the caller's count keeps it alive.
    unsafe {
        Arc::increment_strong_count(object);
        Ok(Arc::from_raw(object))
    }
}

/// Takes an object back from the caller, if nothing was made of it that is still there and `destroy` agrees.
///
/// # Errors
/// EINVAL for null, EBUSY for a parent with children, and what `destroy` says; the object stays the caller's then.
///
/// # Safety
/// As [`borrow`]; after success the pointer is dead.
pub(super) unsafe fn take_back<O: Object>(
    raw: *mut O::C,
    destroy: impl FnOnce(&Arc<O>) -> Result<()>,
) -> Result<()> {
    if raw.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: as the caller promises, it came from `Arc::into_raw`; the count goes back below where it is not given up.
    let object = unsafe { Arc::from_raw(raw.cast_const().cast::<O>()) };
    let destroyed = if Arc::strong_count(&object) > 1 { Err(Errno::BUSY) } else { destroy(&object) };
    if destroyed.is_err() {
        let _still_the_callers = Arc::into_raw(object);
    }
    destroyed
}

/// The caller's struct of attributes.
///
/// # Errors
/// EINVAL for null.
///
/// # Safety
/// `raw` is null, or valid and not accessed by anybody else while `'a` lasts.
pub(super) unsafe fn attributes<'a, T>(raw: *mut T) -> Result<&'a mut T> {
    // SAFETY: as the caller promises.
    unsafe { raw.as_mut() }.ok_or(Errno::INVALID)
}
