//! Python objects that own memory or streams which the library uses.

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Keeps a Python object for the library, which drops this on any thread, under any of its locks.
/// So the drop calls nothing: the object is put aside, and released by the interpreter's main thread
/// as soon as it takes pending calls, or by [`release`].
#[derive(Debug)]
pub(crate) struct Owner(Option<Py<PyAny>>);

/// What was dropped, and is not released yet; none once the interpreter ends.
static DROPPED: Mutex<Option<Vec<Py<PyAny>>>> = Mutex::new(Some(Vec::new()));

impl Owner {
    pub(crate) fn new(object: Bound<'_, PyAny>) -> Self {
        Self::around(object.unbind())
    }

    pub(crate) fn around(object: Py<PyAny>) -> Self {
        Owner(Some(object))
    }

    /// Calls the object, without arguments.
    pub(crate) fn call(&self, py: Python<'_>) -> PyResult<()> {
        self.0.as_ref().map_or(Ok(()), |object| object.call0(py).map(drop))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(object) = self.0.take() else { return };
        let mut dropped = DROPPED.lock();
        let Some(list) = &mut *dropped else {
            // There is no interpreter any more that could release it.
            std::mem::forget(object);
            return;
        };
        list.push(object);
        if list.len() == 1 {
            // SAFETY: the function takes no argument and stays as long as the process. Any thread may make
            // this call while the interpreter is there: `end`, which waits for the lock, comes before
            // its end. (Where the interpreter has no room for the call, `release` is what is left.)
            unsafe { pyo3::ffi::Py_AddPendingCall(Some(pending), ptr::null_mut()) };
        }
    }
}

/// The interpreter's main thread calls this, attached.
extern "C" fn pending(_: *mut c_void) -> c_int {
    _ = Python::try_attach(release);
    0
}

/// Releases the objects that were put aside.
pub(crate) fn release(py: Python<'_>) {
    let dropped = DROPPED.lock().as_mut().map(std::mem::take);
    // Without the lock: what is released may run code of Python.
    dropped.into_iter().flatten().for_each(|object| object.drop_ref(py));
}

/// The interpreter ends: what is dropped from now on is left to the end of the process.
#[pyfunction]
pub(crate) fn _end(py: Python<'_>) {
    release(py);
    let dropped = DROPPED.lock().take();
    std::mem::forget(dropped);
}
