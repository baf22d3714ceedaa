//! The functions that the C part calls. They return 0 or the class of an error (`c/engine.h`), whose text
//! [`gdsync_mpi_error_text`] returns. The C part has checked MPI's handles.
//!
//! # Safety
//! The caller of an `unsafe` function guarantees, besides what its own documentation says:
//! - A handle is null, or was made by this library and is not freed before the call has returned.
//! - A place for a result is null or valid for a write. A list has as many elements as the call says.
//! - `stream` is null or points to a handle of its kind: a live CUDA stream whose context outlives the process's use of it, or any value
//!   for a software stream. For a graph, it is a place for the graph.

#![allow(clippy::missing_safety_doc, reason = "the module's documentation has what all functions require")]

mod links;
mod operations;
mod queues;
mod requests;

pub use links::*;
pub use operations::*;
pub use queues::*;
pub use requests::*;

use crate::error::{Class, Failure, cut, status, text};
use crate::statistics::{Counts, counts};
use crate::{memory, queue, stream};
use libc::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// An [`Arc`] of a request, as a pointer of C.
pub(crate) type RequestHandle = *const c_void;

fn null(what: &str) -> Failure {
    Failure::new(Class::Argument, format!("{what} is a null pointer: pass a valid one"))
}

/// Returns a handle's object. The handle keeps its reference.
///
/// # Safety
/// The handle is null, or of an object of this type and not freed.
unsafe fn handle<T>(what: &str, handle: *const c_void) -> Result<Arc<T>, Failure> {
    if handle.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller passes a pointer of `Arc::into_raw` that is not freed.
    unsafe {
        Arc::increment_strong_count(handle.cast::<T>());
        Ok(Arc::from_raw(handle.cast::<T>()))
    }
}

/// Returns a handle's object, with the handle's reference.
///
/// # Safety
/// As [`handle()`]; the handle is not used again.
unsafe fn take<T>(what: &str, handle: *const c_void) -> Result<Arc<T>, Failure> {
    if handle.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller passes a pointer of `Arc::into_raw` that is not freed.
    Ok(unsafe { Arc::from_raw(handle.cast::<T>()) })
}

/// Stores a result for C.
///
/// # Safety
/// The place is null or valid for a write.
unsafe fn store<T>(place: *mut T, value: T) -> Result<(), Failure> {
    let place = NonNull::new(place).ok_or_else(|| null("the place of a result"))?;
    // SAFETY: the caller passes a place that is valid for a write.
    unsafe { place.as_ptr().write(value) };
    Ok(())
}

/// Returns a new handle of an object to C.
///
/// # Safety
/// As [`store`].
unsafe fn give<T>(object: Arc<T>, made: *mut *const c_void) -> Result<(), Failure> {
    let raw = Arc::into_raw(object);
    // SAFETY: the caller passes a place that is null or valid for a write.
    unsafe { store(made, raw.cast()) }.inspect_err(|_| {
        // SAFETY: made above; no other code has the pointer.
        drop(unsafe { Arc::from_raw(raw) });
    })
}

/// Runs the body of a C function with the object of a handle.
///
/// # Safety
/// As [`handle()`].
unsafe fn with<T>(
    what: &str,
    object: *const c_void,
    act: impl FnOnce(&Arc<T>) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller passes a handle that is null or not freed.
    status(|| act(&unsafe { handle(what, object) }?))
}

/// As [`with`], and stores the result.
///
/// # Safety
/// As [`handle()`] and [`store`].
unsafe fn get<T, R>(
    what: &str,
    object: *const c_void,
    place: *mut R,
    act: impl FnOnce(&Arc<T>) -> Result<R, Failure>,
) -> c_int {
    let act = |object: &Arc<T>| {
        let result = act(object)?;
        // SAFETY: the caller passes a place that is null or valid for a write.
        unsafe { store(place, result) }
    };
    // SAFETY: the caller passes a handle that is null or not freed.
    unsafe { with(what, object, act) }
}

fn length(bytes: u64) -> Result<usize, Failure> {
    let text = || format!("{bytes} bytes are more than the address space has");
    usize::try_from(bytes).map_err(|_| Failure::new(Class::Argument, text()))
}

/// Copies the text of this thread's last error, cut to `len` bytes including its zero.
///
/// # Safety
/// `into` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_error_text(into: *mut c_char, len: usize) {
    status(|| {
        let text = text();
        if into.is_null() || len == 0 {
            return Err(null("the place of the text"));
        }
        let text = cut(&text, len - 1);
        // SAFETY: the text is shorter than `len`, and the caller has room for `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, text.len());
            into.add(text.len()).write(0);
        }
        Ok(())
    });
}

/// Allocates memory of the host or, if `on_gpu` is not 0, of the current context's GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_allocate(bytes: u64, on_gpu: c_int, made: *mut *mut c_void) -> c_int {
    status(|| {
        let address = memory::allocate(length(bytes)?, on_gpu != 0)?;
        // SAFETY: the caller passes a valid `made`.
        unsafe { store(made, std::ptr::with_exposed_provenance_mut(address)) }
    })
}

/// Frees memory of [`gdsync_mpi_allocate`].
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_deallocate(memory: *const c_void) -> c_int {
    status(|| memory::free(memory.addr()))
}

/// Sets the function by which waiting threads progress the C part's matches.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_set_match_progress(matches: Option<extern "C" fn()>) {
    status(|| {
        stream::set_match_progress(matches.ok_or_else(|| null("the function"))?);
        Ok(())
    });
}

/// Returns the counts of this rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_counts(into: *mut Counts) -> c_int {
    // SAFETY: the caller passes a valid `into`.
    status(|| unsafe { store(into, counts()) })
}

/// Ends the library's work at the end of the program. Returns the counts of this rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_finish(into: *mut Counts) -> c_int {
    status(|| {
        queue::finish();
        // SAFETY: the caller passes a valid `into`.
        unsafe { store(into, counts()) }
    })
}
