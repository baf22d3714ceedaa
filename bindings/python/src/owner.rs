//! Python objects that own memory or streams of the library.

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Keeps a Python object for the library, which drops this on any thread and under any of its locks. So the drop calls
/// no Python: it queues the object for the interpreter's main thread, which releases it at its next pending call, or
/// for [`release`].
#[derive(Debug)]
pub(crate) struct Owner(Option<Py<PyAny>>);

/// Dropped objects to release; `None` once the interpreter ends.
static DROPPED: Mutex<Option<Vec<Py<PyAny>>>> = Mutex::new(Some(Vec::new()));

impl Owner {
    pub(crate) fn new(object: Bound<'_, PyAny>) -> Self {
        Self::around(object.unbind())
    }

    pub(crate) fn around(object: Py<PyAny>) -> Self {
        Owner(Some(object))
    }

    /// Calls the object without arguments.
    pub(crate) fn call(&self, py: Python<'_>) -> PyResult<()> {
        self.0.as_ref().map_or(Ok(()), |object| object.call0(py).map(drop))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(object) = self.0.take() else { return };
        let mut dropped = DROPPED.lock();
        let Some(list) = &mut *dropped else {
            // No interpreter is left to release it.
            std::mem::forget(object);
            return;
        };
        list.push(object);
        if list.len() == 1 {
            // SAFETY: the function takes no argument and stays as long as the process. Any thread may make this call
            // while the interpreter exists: `end`, which waits for the lock, precedes its end. (If the interpreter has
            // no room for the call, `release` remains.)
            unsafe { pyo3::ffi::Py_AddPendingCall(Some(pending), ptr::null_mut()) };
        }
    }
}

/// Called by the interpreter's main thread, attached.
extern "C" fn pending(_: *mut c_void) -> c_int {
    _ = Python::try_attach(release);
    0
}

/// Releases the queued objects.
pub(crate) fn release(py: Python<'_>) {
    let dropped = DROPPED.lock().as_mut().map(std::mem::take);
    // Without the lock, because a release may run Python code.
    dropped.into_iter().flatten().for_each(|object| object.drop_ref(py));
}

/// Called when the interpreter ends: objects dropped from now on are left to the end of the process.
#[pyfunction]
pub(crate) fn _end(py: Python<'_>) {
    release(py);
    let dropped = DROPPED.lock().take();
    std::mem::forget(dropped);
}
