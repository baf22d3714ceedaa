//! Objects that programs know by a pointer to a struct of the library's: any value may be looked up.

use crate::error::{CallError, stale};
use crate::handles::Handles;
use std::sync::Arc;

/// All objects of one kind: `C` is what programs see, `O` what the library has.
pub(crate) struct Named<C, O> {
    handles: Handles<C, O>,
    what: &'static str,
    /// What to do where a value names none.
    remedy: &'static str,
}

impl<C, O: Send + Sync> Named<C, O> {
    pub(crate) const fn new(what: &'static str, remedy: &'static str) -> Self {
        Named { handles: Handles::new(), what, remedy }
    }

    /// Makes a handle. `public` makes what programs see, of its address.
    pub(crate) fn keep(
        &self,
        object: impl Into<Arc<O>>,
        public: impl FnOnce(usize) -> C,
    ) -> Result<*mut C, CallError> {
        let object = object.into();
        let made = self.handles.insert(|at| (public(at.addr().get()), object));
        let made = made.map_err(|source| gdsync::Error::Memory { len: size_of::<C>(), source })?;
        Ok(made.as_ptr())
    }

    /// The object of a handle.
    ///
    /// # Safety
    /// No other thread [takes](Self::take) the object while the reference is used.
    pub(crate) unsafe fn find<'a>(&self, handle: *mut C) -> Result<&'a O, CallError> {
        // SAFETY: the caller's.
        match unsafe { self.handles.find(handle.addr()) } {
            Some((object, 0)) => Ok(object),
            _ => Err(self.unknown(handle)),
        }
    }

    /// Ends a handle, and returns its object: to one caller only.
    pub(crate) fn take(&self, handle: *mut C) -> Result<Arc<O>, CallError> {
        self.handles.remove(handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    #[cold]
    fn unknown(&self, handle: *mut C) -> CallError {
        if handle.is_null() {
            return CallError::Null { what: self.what };
        }
        stale(self.what, handle.addr(), "is not gdsync's, or is gone", self.remedy)
    }
}
