//! Handles of the objects that libibverbs and libmlx5 make.

use crate::verbs::call;
use libc::c_int;
use std::fmt;
use std::ptr::NonNull;

/// An object of libibverbs or libmlx5, destroyed when dropped.
pub(crate) struct Owned<T> {
    raw: NonNull<T>,
    /// The call that destroys it, and its name. None where the object is the program's.
    destroy: Option<(Destroy<T>, &'static str)>,
}

type Destroy<T> = unsafe extern "C" fn(*mut T) -> c_int;

// SAFETY: libibverbs and libmlx5 allow their objects to be used, changed and destroyed from any thread.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// What the counterpart of `destroy` has just made. `name` is that of `destroy`.
    ///
    /// # Safety
    /// Nothing else destroys it. When this is dropped, what it was made in is still there, and what was made
    /// in it or uses it is not.
    pub(crate) unsafe fn new(raw: NonNull<T>, destroy: Destroy<T>, name: &'static str) -> Self {
        Owned { raw, destroy: Some((destroy, name)) }
    }

    /// One of the program's, which destroys it.
    pub(crate) fn borrowed(raw: NonNull<T>) -> Self {
        Owned { raw, destroy: None }
    }

    pub(crate) fn raw(&self) -> NonNull<T> {
        self.raw
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if let Some((destroy, name)) = self.destroy {
            // SAFETY: as `new` was promised.
            call::on_drop(name, unsafe { destroy(self.raw.as_ptr()) });
        }
    }
}
