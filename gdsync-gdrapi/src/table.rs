//! What C programs have handles of.
//!
//! Handles are numbers that never come again, so that one that was given back is known as such. A child process starts with an empty
//! table: its parent's mappings are not its own, and neither are locks that another thread of the parent held when it forked.

use crate::backend::Backend;
use crate::fault::Fault;
use crate::pin::Pin;
use parking_lot::RwLock;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Sorted by number: numbers grow, and are drawn where entries are added.
type Entries<T> = RwLock<Vec<(u64, T)>>;

struct Pinned {
    library: u64,
    pin: Arc<Pin>,
}

/// What is open and what is pinned. A library's lock comes before a pin's.
#[derive(Default)]
pub(crate) struct Table {
    libraries: Entries<Backend>,
    pins: Entries<Pinned>,
}

/// This process' table; null until it is wanted. Never freed: a child must not undo what is in its parent's.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
/// The number drawn last. Goes on in children, so that they do not take their parent's handles for their own.
static LAST: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    TABLE.store(ptr::null_mut(), Ordering::Release);
}

/// This process' table.
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
            // SAFETY: from `Box::into_raw`, and nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: another thread's, as in `table`.
            unsafe { &*other }
        }
    }
}

fn add<T>(entries: &mut Vec<(u64, T)>, entry: T) -> u64 {
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    entries.push((number, entry));
    number
}

fn find<T>(entries: &[(u64, T)], number: u64, what: &'static str) -> Result<usize, Fault> {
    let unknown = |_| Fault::Unknown { what, value: number };
    entries.binary_search_by_key(&number, |(number, _)| *number).map_err(unknown)
}

const LIBRARY: &str = "gdr_t";
const PIN: &str = "memory handle";

impl Table {
    /// Adds an open library.
    pub(crate) fn open(&self, backend: Backend) -> u64 {
        add(&mut self.libraries.write(), backend)
    }

    /// The backend of an open library.
    pub(crate) fn library(&self, number: u64) -> Result<Backend, Fault> {
        let libraries = self.libraries.read();
        Ok(libraries[find(&libraries, number, LIBRARY)?].1)
    }

    /// Takes out a library, and what is pinned by it.
    pub(crate) fn close(&self, number: u64) -> Result<Vec<Arc<Pin>>, Fault> {
        let mut libraries = self.libraries.write();
        let at = find(&libraries, number, LIBRARY)?;
        libraries.remove(at);
        let mut pins = self.pins.write();
        let gone = pins.extract_if(.., |(_, pinned)| pinned.library == number);
        Ok(gone.map(|(_, pinned)| pinned.pin).collect())
    }

    /// Adds what is pinned.
    pub(crate) fn add(&self, library: u64, pin: Pin) -> Result<u64, Fault> {
        // Held until the pin is in: `close` must find it, or have been before.
        let libraries = self.libraries.read();
        find(&libraries, library, LIBRARY)?;
        Ok(add(&mut self.pins.write(), Pinned { library, pin: Arc::new(pin) }))
    }

    /// What is pinned, whoever pinned it.
    #[inline]
    pub(crate) fn pin(&self, handle: u64) -> Result<Arc<Pin>, Fault> {
        let pins = self.pins.read();
        Ok(pins[find(&pins, handle, PIN)?].1.pin.clone())
    }

    /// What is pinned by this library.
    pub(crate) fn pin_of(&self, library: u64, handle: u64) -> Result<Arc<Pin>, Fault> {
        self.library(library)?;
        let pins = self.pins.read();
        Ok(pins[Self::find_of(&pins, library, handle)?].1.pin.clone())
    }

    /// Takes out what is pinned by this library.
    pub(crate) fn remove(&self, library: u64, handle: u64) -> Result<Arc<Pin>, Fault> {
        self.library(library)?;
        let mut pins = self.pins.write();
        let at = Self::find_of(&pins, library, handle)?;
        Ok(pins.remove(at).1.pin)
    }

    fn find_of(pins: &[(u64, Pinned)], library: u64, handle: u64) -> Result<usize, Fault> {
        let at = find(pins, handle, PIN)?;
        if pins[at].1.library == library { Ok(at) } else { Err(Fault::Foreign { value: handle }) }
    }
}
