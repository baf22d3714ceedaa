//! Converts the error conventions of libibverbs and libmlx5 to `Result`s, and owns their objects.

use crate::verbs::Error;
use libc::c_int;
use std::ptr::NonNull;
use std::{fmt, io};

/// The result of a call that returns a pointer, or null and `errno`.
pub(crate) fn pointer<T>(
    call: &'static str,
    raw: *mut T,
    detail: impl FnOnce() -> String,
) -> Result<NonNull<T>, Error> {
    NonNull::new(raw).ok_or_else(|| Error::Verbs {
        call,
        detail: detail(),
        source: io::Error::last_os_error(),
    })
}

/// The result of a call that returns 0, a positive errno, or -1 and `errno`.
pub(crate) fn status(call: &'static str, rc: c_int, detail: impl FnOnce() -> String) -> Result<(), Error> {
    let source = match rc {
        0 => return Ok(()),
        rc if rc > 0 => io::Error::from_raw_os_error(rc),
        _ => io::Error::last_os_error(),
    };
    Err(Error::Verbs { call, detail: detail(), source })
}

/// Logs the error of a call made by a destructor.
pub(crate) fn on_drop(call: &'static str, rc: c_int) {
    if let Err(error) = status(call, rc, String::new) {
        tracing::error!(%error, "an object could not be released and leaks");
    }
}

/// An object of libibverbs or libmlx5, destroyed when dropped.
pub(crate) struct Owned<T> {
    raw: NonNull<T>,
    /// The call that destroys it, and the call's name. `None` if the program owns the object.
    destroy: Option<(Destroy<T>, &'static str)>,
}

type Destroy<T> = unsafe extern "C" fn(*mut T) -> c_int;

// SAFETY: libibverbs and libmlx5 allow any thread to use, change and destroy their objects.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// Owns an object that the counterpart of `destroy` has just created. `name` is the name of `destroy`.
    ///
    /// # Safety
    /// Nothing else destroys the object. When this is dropped, its parent objects still exist, and objects that were
    /// made in it or use it do not.
    pub(crate) unsafe fn new(raw: NonNull<T>, destroy: Destroy<T>, name: &'static str) -> Self {
        Owned { raw, destroy: Some((destroy, name)) }
    }

    /// An object of the program, which destroys it.
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
            // SAFETY: the caller of `new` promised it.
            on_drop(name, unsafe { destroy(self.raw.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_error_conventions_are_understood() {
        assert!(status("f", 0, String::new).is_ok());
        let text = status("ibv_f", libc::EINVAL, || "port 9".to_owned()).unwrap_err().to_string();
        assert!(text.starts_with("ibv_f failed (port 9): Invalid argument"), "{text}");
        assert!(pointer::<u8>("g", std::ptr::null_mut(), String::new).is_err());
        on_drop("h", libc::EBUSY);
    }
}
