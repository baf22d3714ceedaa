//! The provider of a libibverbs object that a program passes: the software card for objects that the program has made by gdsync's calls
//! on it, otherwise the system's libibverbs, which the program then uses itself.

use crate::error::{CallError, stale};
use crate::handles::Addresses;
use gdsync::verbs::provider;
use gdsync_sys::VerbsApi;
use parking_lot::RwLock;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kinds of objects that the software card makes for programs, and of those that gdsync makes in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    Context,
    Domain,
    Region,
    Path,
    QueuePair,
    Trigger,
    ReadyWord,
    Cache,
    CachedRegion,
    Team,
    Segment,
}

/// A program's objects of the software card, and of gdsync, by address: kind, and the address of the object in which it was made.
type Known = HashMap<usize, (ObjectKind, usize), Addresses>;

static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(RwLock::default);

impl ObjectKind {
    /// Its name, and the call that destroys it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Context => ("context", "gdsync_soft_close"),
            Self::Domain => ("protection domain", "gdsync_dealloc_pd"),
            Self::Region => ("memory region", "gdsync_dereg_mr"),
            Self::Path => ("address handle", "gdsync_destroy_ah"),
            Self::QueuePair => ("queue pair", "gds_destroy_qp"),
            Self::Trigger => ("trigger", "gdsync_trigger_free"),
            Self::ReadyWord => ("ready word", "gdsync_ready_word_free"),
            Self::Cache => ("registration cache", "gdsync_cache_free"),
            Self::CachedRegion => ("cached region", "gdsync_cache_release"),
            Self::Team => ("team", "gdsync_team_free"),
            Self::Segment => ("segment", "gdsync_segment_free"),
        }
    }

    fn unknown<T>(self, object: *const T) -> CallError {
        let (what, remedy) = match self {
            Self::Context => ("the context", "pass what gdsync_soft_open returned, until gdsync_soft_close"),
            Self::Region => ("the memory region", "pass what gdsync_reg_mr returned, until gdsync_dereg_mr"),
            Self::Path => {
                ("the address handle", "pass what gdsync_create_ah returned, until gdsync_destroy_ah")
            }
            _ => ("the protection domain", "pass what gdsync_alloc_pd returned, until gdsync_dealloc_pd"),
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
    let known = KNOWN.read().get(&object.addr()).copied();
    match known {
        Some((known, _)) if known == kind => Ok(provider::software()),
        None if !object.is_null() && libibverbs_is_there() => Ok(provider::system()?),
        _ => Err(kind.unknown(object)),
    }
}

/// Records an object that a provider has made in another one.
pub(crate) fn note<T, P>(api: &VerbsApi, kind: ObjectKind, object: *mut T, parent: *const P) -> *mut T {
    if ptr::eq(api, provider::software()) {
        adopt(kind, object, parent.addr());
    }
    object
}

/// Records an object of gdsync in a domain.
pub(crate) fn adopt<T>(kind: ObjectKind, object: *mut T, parent: usize) {
    KNOWN.write().insert(object.addr(), (kind, parent));
}

/// Forgets an object of gdsync.
pub(crate) fn forget<T>(object: *mut T) {
    KNOWN.write().remove(&object.addr());
}

/// Returns the object in which an object of gdsync was made.
pub(crate) fn parent<T>(object: *mut T) -> Option<usize> {
    KNOWN.read().get(&object.addr()).map(|(_, parent)| *parent)
}

/// Names the objects that were made in an object and are left, with the calls that destroy them.
fn left(parent: usize) -> String {
    let known = KNOWN.read();
    let of = |parent: usize| known.iter().filter(move |(_, (_, of))| *of == parent);
    let mut counts = BTreeMap::<ObjectKind, usize>::new();
    for (child, (kind, _)) in of(parent) {
        *counts.entry(*kind).or_default() += 1;
        for (_, (kind, _)) in of(*child) {
            *counts.entry(*kind).or_default() += 1;
        }
    }
    let name = |(kind, count): (&ObjectKind, &usize)| {
        let ((name, destroy), plural) = (kind.words(), if *count == 1 { "" } else { "s" });
        format!("{count} {name}{plural} ({destroy})")
    };
    counts.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Has the error of an object that is in use name what is left in it.
pub(crate) fn name_left<T>(
    kind: ObjectKind,
    object: *mut T,
    done: Result<(), CallError>,
) -> Result<(), CallError> {
    done.map_err(|error| match error {
        CallError::Verbs { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
            CallError::Left { what: kind.words().0, left: left(object.addr()) }
        }
        error => error,
    })
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
    let (_, parent) = match KNOWN.write().entry(object.addr()) {
        Entry::Occupied(known) if known.get().0 == kind => known.remove(),
        _ => return Err(kind.unknown(object)),
    };
    destroy(provider::software()).inspect_err(|_| adopt(kind, object, parent))
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
