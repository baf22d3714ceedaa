//! All objects of C programs, by handle.
//!
//! Handles are numbers that are never reused, so a stale one is recognised. A child process starts with an empty table, as it does not
//! inherit its parent's mappings, and cannot release locks that another thread of the parent held during the fork.

use crate::backend::Backend;
use crate::error::CallError;
use crate::pin::Pin;
use crate::slots::Slots;
use parking_lot::RwLock;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

struct Pinned {
    library: u64,
    pin: Pin,
}

/// Open libraries and pinned memory. The libraries' lock is taken before a pin's. Copies hold a pin's lock for reading; maps and unmaps
/// hold it for writing, and so wait for copies to end.
#[derive(Default)]
pub(crate) struct Table {
    /// Sorted by number, as numbers grow and are drawn under the lock.
    libraries: RwLock<Vec<(u64, Backend)>>,
    pins: Slots<Pinned>,
}

/// This process' table; null until its first use. Never freed, as a child must not undo its parent's mappings.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
/// The last number drawn. A child continues from it, so that it does not take its parent's handles for its own.
static LAST: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    TABLE.store(ptr::null_mut(), Ordering::Release);
}

/// Returns this process' table.
#[inline]
pub(crate) fn table() -> &'static Table {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return make();
    }
    // SAFETY: made by `make`, and never freed.
    unsafe { &*table }
}

#[cold]
fn make() -> &'static Table {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler only stores an atomic, which a child may do.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            tracing::warn!("no memory for a fork handler: children will share their parent's handles");
        }
    }
    let made = Box::into_raw(Box::<Table>::default());
    let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
    match TABLE.compare_exchange(ptr::null_mut(), made, success, failure) {
        // SAFETY: from `Box::into_raw`, and never freed once it is the table.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: from `Box::into_raw`, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: another thread's, as in `table`.
            unsafe { &*other }
        }
    }
}

fn draw() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

fn find(libraries: &[(u64, Backend)], number: u64) -> Result<usize, CallError> {
    let unknown = |_| CallError::Unknown { what: "gdr_t", value: number };
    libraries.binary_search_by_key(&number, |(number, _)| *number).map_err(unknown)
}

impl Pinned {
    fn check(&self, library: u64, handle: u64) -> Result<(), CallError> {
        if self.library == library { Ok(()) } else { Err(CallError::Foreign { value: handle }) }
    }
}

impl Table {
    pub(crate) fn open(&self, backend: Backend) -> u64 {
        let mut libraries = self.libraries.write();
        let number = draw();
        libraries.push((number, backend));
        number
    }

    /// Returns the backend of an open library.
    pub(crate) fn library(&self, number: u64) -> Result<Backend, CallError> {
        let libraries = self.libraries.read();
        Ok(libraries[find(&libraries, number)?].1)
    }

    /// Removes a library, and unmaps and unpins its memory.
    pub(crate) fn close(&self, number: u64) -> Result<(), CallError> {
        let mut libraries = self.libraries.write();
        let at = find(&libraries, number)?;
        libraries.remove(at);
        let gone = self.pins.remove_all(|pinned| pinned.library == number);
        drop(libraries);
        drop(gone);
        Ok(())
    }

    pub(crate) fn add(&self, library: u64, pin: Pin) -> Result<u64, CallError> {
        // The lock is held until the pin is added, so `close` either finds the pin or came first.
        let libraries = self.libraries.read();
        find(&libraries, library)?;
        self.pins.add(draw(), Pinned { library, pin })
    }

    /// Copies through pinned memory of any library.
    #[inline]
    pub(crate) fn copy(
        &self,
        handle: u64,
        body: impl FnOnce(&Pin) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        self.pins.read(handle, |pinned| body(&pinned.pin))
    }

    /// Reads memory that this library pinned.
    pub(crate) fn look<R>(
        &self,
        library: u64,
        handle: u64,
        body: impl FnOnce(&Pin) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        self.library(library)?;
        self.pins.read(handle, |pinned| {
            pinned.check(library, handle)?;
            body(&pinned.pin)
        })
    }

    /// Maps or unmaps memory that this library pinned.
    pub(crate) fn change<R>(
        &self,
        library: u64,
        handle: u64,
        body: impl FnOnce(&mut Pin) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        self.library(library)?;
        self.pins.write(handle, |pinned| {
            pinned.check(library, handle)?;
            body(&mut pinned.pin)
        })
    }

    /// Unmaps and unpins memory that this library pinned.
    pub(crate) fn remove(&self, library: u64, handle: u64) -> Result<(), CallError> {
        self.library(library)?;
        self.pins.remove(handle, |pinned| pinned.check(library, handle)).map(drop)
    }
}
