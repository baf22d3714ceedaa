//! What the C part calls. Functions return 0, or the class of an error (`c/engine.h`), whose text
//! [`gdsync_mpi_error_text`] has. The C part has checked MPI's handles; pointers are its own.

mod links;
mod operations;
mod partitions;
mod queues;
mod requests;

pub use links::*;
pub use operations::*;
pub use partitions::*;
pub use queues::*;
pub use requests::*;

use crate::error::{Class, Failure, cut, status, text};
use crate::statistics::{Counts, counts};
use crate::{memory, progress, queue};
use libc::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// An [`Arc`] of a request, as C has it.
pub(crate) type RequestHandle = *const c_void;

fn null(what: &str) -> Failure {
    Failure::new(Class::Argument, format!("{what} is a null pointer: pass a valid one"))
}

/// What a handle names; the handle keeps its share.
///
/// # Safety
/// The handle is null or one of this type's that was not freed.
unsafe fn handle<T>(what: &str, handle: *const c_void) -> Result<Arc<T>, Failure> {
    if handle.is_null() {
        return Err(null(what));
    }
    // SAFETY: from `Arc::into_raw`, and not freed (the caller's).
    unsafe {
        Arc::increment_strong_count(handle.cast::<T>());
        Ok(Arc::from_raw(handle.cast::<T>()))
    }
}

/// What a handle names, with the handle's own share.
///
/// # Safety
/// As [`handle()`]; the handle is not used any more.
unsafe fn take<T>(what: &str, handle: *const c_void) -> Result<Arc<T>, Failure> {
    if handle.is_null() {
        return Err(null(what));
    }
    // SAFETY: from `Arc::into_raw`, and not freed (the caller's).
    Ok(unsafe { Arc::from_raw(handle.cast::<T>()) })
}

/// Stores a value for C.
///
/// # Safety
/// The place is null or valid for a write.
unsafe fn store<T>(place: *mut T, value: T) -> Result<(), Failure> {
    let place = NonNull::new(place).ok_or_else(|| null("the place of a result"))?;
    // SAFETY: the caller's.
    unsafe { place.as_ptr().write(value) };
    Ok(())
}

fn length(bytes: u64) -> Result<usize, Failure> {
    let text = || format!("{bytes} bytes are more than the address space has");
    usize::try_from(bytes).map_err(|_| Failure::new(Class::Argument, text()))
}

/// Copies the text of this thread's last error, cut to `len` bytes with its zero.
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
        // SAFETY: the text is shorter than `len`, for which the caller has room.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, text.len());
            into.add(text.len()).write(0);
        }
        Ok(())
    });
}

/// Allocates memory of the host, or (`on_gpu` is not 0) of the GPU whose context is current.
///
/// # Safety
/// `made` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_allocate(bytes: u64, on_gpu: c_int, made: *mut *mut c_void) -> c_int {
    status(|| {
        let address = memory::allocate(length(bytes)?, on_gpu != 0)?;
        // SAFETY: the caller's.
        unsafe { store(made, std::ptr::with_exposed_provenance_mut(address)) }
    })
}

/// Frees memory of [`gdsync_mpi_allocate`].
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_deallocate(memory: *const c_void) -> c_int {
    status(|| memory::free(memory.addr()))
}

/// Says what a thread of the program calls while it waits: the C part's matches progress there.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_mpi_meanwhile(matches: Option<extern "C" fn()>) {
    status(|| {
        progress::set(matches.ok_or_else(|| null("the function"))?);
        Ok(())
    });
}

/// What this rank has done.
///
/// # Safety
/// `into` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_counts(into: *mut Counts) -> c_int {
    // SAFETY: the caller's.
    status(|| unsafe { store(into, counts()) })
}

/// The end of the program. `into` gets what this rank has done.
///
/// # Safety
/// `into` is a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_mpi_finish(into: *mut Counts) -> c_int {
    status(|| {
        queue::finish();
        // SAFETY: the caller's.
        unsafe { store(into, counts()) }
    })
}
