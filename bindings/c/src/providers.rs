//! The provider of a libibverbs object that a program passes: the software card for objects that the program has made by gdsync's calls
//! on it, otherwise the system's libibverbs, which the program then uses itself.

use crate::error::{CallError, stale};
use crate::handles::Addresses;
use gdsync::verbs::provider;
use gdsync_sys::VerbsApi;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kinds of objects that the software card makes for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Context,
    Domain,
    Region,
    Path,
}

/// The programs' objects of the software card, by address.
static SOFTWARE: LazyLock<RwLock<HashMap<usize, ObjectKind, Addresses>>> = LazyLock::new(RwLock::default);

impl ObjectKind {
    fn unknown<T>(self, object: *const T) -> CallError {
        let (what, remedy) = match self {
            Self::Context => ("the context", "pass what gdsync_soft_open returned, until gdsync_soft_close"),
            Self::Domain => {
                ("the protection domain", "pass what gdsync_alloc_pd returned, until gdsync_dealloc_pd")
            }
            Self::Region => ("the memory region", "pass what gdsync_reg_mr returned, until gdsync_dereg_mr"),
            Self::Path => {
                ("the address handle", "pass what gdsync_create_ah returned, until gdsync_destroy_ah")
            }
        };
        if object.is_null() {
            return CallError::Null { what };
        }
        stale(what, object.addr(), "is none of the software card, or is gone", remedy)
    }
}

/// Returns the provider of an object, without reading the object.
///
/// # Errors
/// Null, an object of another kind, or an object that is not the software card's, in a process without libibverbs.
pub(crate) fn of<T>(kind: ObjectKind, object: *const T) -> Result<&'static VerbsApi, CallError> {
    let known = SOFTWARE.read().get(&object.addr()).copied();
    match known {
        Some(known) if known == kind => Ok(provider::software()),
        None if !object.is_null() && libibverbs_is_there() => Ok(provider::system()?),
        _ => Err(kind.unknown(object)),
    }
}

/// Records an object that a provider has made.
pub(crate) fn note<T>(api: &VerbsApi, kind: ObjectKind, object: *mut T) -> *mut T {
    if ptr::eq(api, provider::software()) {
        SOFTWARE.write().insert(object.addr(), kind);
    }
    object
}

/// Destroys an object.
///
/// # Errors
/// Those of [`of`] and `destroy`.
pub(crate) fn end<T>(
    kind: ObjectKind,
    object: *mut T,
    destroy: impl FnOnce(&'static VerbsApi) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let api = of(kind, object)?;
    if ptr::eq(api, provider::software()) { end_software(kind, object, destroy) } else { destroy(api) }
}

/// Destroys an object of the software card, which is unknown afterwards, unless `destroy` fails.
///
/// # Errors
/// An object that is not the software card's; those of `destroy`.
pub(crate) fn end_software<T>(
    kind: ObjectKind,
    object: *mut T,
    destroy: impl FnOnce(&'static VerbsApi) -> Result<(), CallError>,
) -> Result<(), CallError> {
    // Before the destruction, after which a new object may have the address. If two threads race, one removes it.
    match SOFTWARE.write().entry(object.addr()) {
        Entry::Occupied(known) if *known.get() == kind => known.remove(),
        _ => return Err(kind.unknown(object)),
    };
    let api = provider::software();
    destroy(api).inspect_err(|_| {
        note(api, kind, object);
    })
}

/// Returns whether the process has loaded libibverbs, without which a program has no objects of it.
pub(crate) fn libibverbs_is_there() -> bool {
    static FOUND: AtomicBool = AtomicBool::new(false);
    if FOUND.load(Ordering::Relaxed) {
        return true;
    }
    // SAFETY: a zero-terminated name. Nothing is loaded; the handle stays open, and so does the library.
    let found = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if !found.is_null() {
        FOUND.store(true, Ordering::Relaxed);
    }
    !found.is_null()
}
