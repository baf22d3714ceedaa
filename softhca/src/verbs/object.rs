//! Verbs objects and the pointers of C callers.
//!
//! An object is an [`Arc`] whose content begins with the C struct. The caller's raw pointer is one reference,
//! and every child holds another, so the reference count shows whether an object has children, which keep it
//! alive. The functions return EINVAL for a null pointer.

use super::errno::{Errno, Result};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A struct that C callers access by its address. It is written before they get the address; from then on,
/// its fields change only atomically.
#[repr(transparent)]
pub(super) struct CStruct<C>(UnsafeCell<C>);

// SAFETY: it gives away its address only, as above; its own pointers are passed on, and not dereferenced.
unsafe impl<C> Sync for CStruct<C> {}
// SAFETY: as above.
unsafe impl<C> Send for CStruct<C> {}

impl<C> CStruct<C> {
    pub(super) fn new(content: C) -> Self {
        CStruct(UnsafeCell::new(content))
    }

    pub(super) fn get(&self) -> *mut C {
        self.0.get()
    }
}

/// Defines a verbs object: its first field `ibv` is the struct that C callers see.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident: $c:ty { $($fields:tt)* }) => {
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name {
            ibv: CStruct<$c>,
            $($fields)*
        }

        // SAFETY: `repr(C)`, and the C struct is first.
        unsafe impl object::Object for $name {
            type C = $c;
        }
    };
}
pub(super) use object;

/// A verbs object.
///
/// # Safety
/// The type is `#[repr(C)]`, and its first field is a `CStruct<Self::C>`: a pointer to either is one to the other.
pub(super) unsafe trait Object: Sized {
    /// The struct that C callers see.
    type C;
}

/// Returns the pointer by which C callers know the object.
pub(super) fn handle<O: Object>(object: &Arc<O>) -> *mut O::C {
    Arc::as_ptr(object).cast_mut().cast()
}

/// Passes a new object to the caller.
pub(super) fn into_raw<O: Object>(object: Arc<O>) -> *mut O::C {
    Arc::into_raw(object).cast_mut().cast()
}

/// Returns the object at a caller's pointer.
///
/// # Safety
/// `raw` is null, or came from [`into_raw`] of the same type and is not destroyed before `'a` ends.
pub(super) unsafe fn borrow<'a, O: Object>(raw: *mut O::C) -> Result<&'a O> {
    // SAFETY: the caller guarantees a live object, which begins with its C struct.
    unsafe { raw.cast_const().cast::<O>().as_ref() }.ok_or(Errno::INVALID)
}

/// Returns another reference to the object at a caller's pointer, for a child.
///
/// # Safety
/// As [`borrow`], for the time of the call.
pub(super) unsafe fn share<O: Object>(raw: *mut O::C) -> Result<Arc<O>> {
    if raw.is_null() {
        return Err(Errno::INVALID);
    }
    let object = raw.cast_const().cast::<O>();
    // SAFETY: the caller guarantees that it came from `Arc::into_raw`, and its reference keeps it alive.
    unsafe {
        Arc::increment_strong_count(object);
        Ok(Arc::from_raw(object))
    }
}

/// Destroys an object if it has no children and `release` succeeds.
///
/// # Errors
/// EBUSY for a parent with children, and errors of `release`. The object still exists then.
///
/// # Safety
/// As [`borrow`]; after success the pointer is invalid.
pub(super) unsafe fn destroy<O: Object>(
    raw: *mut O::C,
    release: impl FnOnce(&Arc<O>) -> Result<()>,
) -> Result<()> {
    if raw.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller guarantees that it came from `Arc::into_raw`; on failure the reference is returned below.
    let object = unsafe { Arc::from_raw(raw.cast_const().cast::<O>()) };
    let destroyed = if Arc::strong_count(&object) > 1 { Err(Errno::BUSY) } else { release(&object) };
    if destroyed.is_err() {
        let _still_the_callers = Arc::into_raw(object);
    }
    destroyed
}

/// Returns the caller's struct of attributes.
///
/// # Safety
/// `raw` is null, or valid and not accessed through other pointers while `'a` lasts.
pub(super) unsafe fn attributes<'a, T>(raw: *mut T) -> Result<&'a mut T> {
    // SAFETY: guaranteed by the caller.
    unsafe { raw.as_mut() }.ok_or(Errno::INVALID)
}
