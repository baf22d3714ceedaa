//! Handles: the addresses by which programs know objects. No address is used for a second object, and all of them stay readable, so
//! the library can look up any value that a program passes, and recognises the handle of a destroyed object.
//!
//! The C structs have a reserved range of address space, one to a cache line, in the order of their creation. When all structs of a
//! unit are destroyed, its memory is returned to the system, but its addresses are not reused.

use crate::error::{CallError, stale};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Bytes that become writable, or are returned to the system, at a time: a multiple of every page size.
const UNIT: usize = 64 << 10;
/// The reserved address space: for 2 billion handles or more, or less if the process is limited.
const MOST: usize = 1 << 38;

#[repr(C, align(64))]
struct Slot<C, O> {
    public: UnsafeCell<C>,
    /// Null before the object is made, and after it is removed.
    object: AtomicPtr<O>,
}

/// All handles of one kind: `C` is the program's struct, `O` the library's object.
pub(crate) struct Handles<C, O> {
    base: AtomicPtr<Slot<C, O>>,
    /// Bytes of used slots, from `base` on.
    used: AtomicUsize,
    growth: Mutex<Growth>,
}

struct Growth {
    reserved: usize,
    writable: usize,
    /// The number of objects in each unit that has any, by the unit's index.
    live: BTreeMap<usize, usize>,
}

/// Any thread can make, find and remove objects.
impl<C, O: Send + Sync> Handles<C, O> {
    /// Bytes from one struct to the next: one or two cache lines.
    const SLOT: usize = size_of::<Slot<C, O>>();

    pub(crate) const fn new() -> Self {
        const { assert!(matches!(Self::SLOT, 64 | 128) && align_of::<C>() <= 64) };
        Handles {
            base: AtomicPtr::new(ptr::null_mut()),
            used: AtomicUsize::new(0),
            growth: Mutex::new(Growth { reserved: 0, writable: 0, live: BTreeMap::new() }),
        }
    }

    /// Makes a handle. `make` gets its address, and returns the C struct and the object.
    ///
    /// # Errors
    /// ENOMEM: there is no memory, or the address space for handles is used up.
    pub(crate) fn insert(&self, make: impl FnOnce(NonNull<C>) -> (C, Arc<O>)) -> io::Result<NonNull<C>> {
        let slot = self.next()?;
        // SAFETY: `next` has made the slot writable and gives it out once. A fresh page is zero, which is a valid slot.
        let slot = unsafe { slot.as_ref() };
        let at = NonNull::from(&slot.public).cast::<C>();
        let (public, object) = make(at);
        // SAFETY: the program does not know the address yet.
        unsafe { slot.public.get().write(public) };
        slot.object.store(Arc::into_raw(object).cast_mut(), Ordering::Release);
        Ok(at)
    }

    /// Returns a slot that was never used.
    fn next(&self) -> io::Result<NonNull<Slot<C, O>>> {
        let mut growth = self.growth.lock();
        if growth.reserved == 0 {
            let (base, reserved) = reserve()?;
            growth.reserved = reserved;
            self.base.store(base.cast(), Ordering::Relaxed);
        }
        let base = self.base.load(Ordering::Relaxed).cast::<u8>();
        let start = self.used.load(Ordering::Relaxed);
        if start == growth.reserved {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        if start == growth.writable {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a unit of the address space that `reserve` has returned for this value.
            if unsafe { libc::mprotect(base.add(start).cast(), UNIT, access) } != 0 {
                return Err(io::Error::last_os_error());
            }
            growth.writable += UNIT;
        }
        *growth.live.entry(start / UNIT).or_default() += 1;
        // A thread that finds the slot below `used` also finds the base and may read the slot.
        self.used.store(start + Self::SLOT, Ordering::Release);
        // SAFETY: within the reserved address space, and so not null.
        Ok(unsafe { NonNull::new_unchecked(base.add(start).cast()) })
    }

    /// Returns the slot that contains an address, and the offset of the address in it.
    #[inline(always)]
    fn slot(&self, address: usize) -> Option<(&Slot<C, O>, usize)> {
        let used = self.used.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Relaxed);
        let offset = address.wrapping_sub(base.addr());
        if offset >= used {
            return None;
        }
        // SAFETY: slots below `used` stay readable (`next`), and are zero or as `insert` has written them.
        Some((unsafe { &*base.add(offset / Self::SLOT) }, offset % Self::SLOT))
    }

    /// Returns the object whose C struct contains an address, and the offset of the address in it; `None` for any other value, and for
    /// a removed object.
    ///
    /// # Safety
    /// No other thread [removes](Self::remove) the object while the reference is used.
    #[inline(always)]
    pub(crate) unsafe fn find<'a>(&self, address: usize) -> Option<(&'a O, usize)> {
        let (slot, offset) = self.slot(address)?;
        let object = slot.object.load(Ordering::Acquire);
        // SAFETY: null, or from the `Arc` that `insert` has kept; the caller lets no thread remove it while the reference is used.
        Some((unsafe { object.as_ref() }?, offset))
    }

    /// Returns whether an address is in the struct of an object that was removed or is being made.
    pub(crate) fn had(&self, address: usize) -> bool {
        self.slot(address).is_some()
    }

    /// Ends a handle, and returns its object to one caller. The C struct becomes zero.
    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<O>> {
        let (slot, 0) = self.slot(handle)? else { return None };
        let object = NonNull::new(slot.object.swap(ptr::null_mut(), Ordering::AcqRel))?;
        // SAFETY: the program has given up the struct, and the library does not read it as a `C` again.
        unsafe { slot.public.get().write_bytes(0, 1) };
        self.give_back(handle);
        // SAFETY: the pointer of `insert`'s `Arc::into_raw`; the exchange returns it once.
        Some(unsafe { Arc::from_raw(object.as_ptr()) })
    }

    /// Counts a removed object, and returns the memory of an empty unit to the system.
    fn give_back(&self, address: usize) {
        let mut growth = self.growth.lock();
        let base = self.base.load(Ordering::Relaxed);
        let unit = (address - base.addr()) / UNIT;
        let Some(live) = growth.live.get_mut(&unit) else { return };
        *live -= 1;
        if *live > 0 {
            return;
        }
        growth.live.remove(&unit);
        if (unit + 1) * UNIT <= self.used.load(Ordering::Relaxed) {
            // SAFETY: a unit of this value without objects now and later. Its slots then read as zero, as slots without objects do. After a
            // failure it keeps its memory.
            unsafe { libc::madvise(base.cast::<u8>().add(unit * UNIT).cast(), UNIT, libc::MADV_DONTNEED) };
        }
    }
}

/// Reserves address space, up to [`MOST`] bytes. Returns it with its length.
fn reserve() -> io::Result<(*mut u8, usize)> {
    let mut len = MOST;
    loop {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, anywhere.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if base != libc::MAP_FAILED {
            return Ok((base.cast(), len));
        }
        if len == UNIT {
            return Err(io::Error::last_os_error());
        }
        len /= 2;
    }
}

/// All objects of one kind, which programs know by a pointer to a `C` and the library has as an `O`. Any value can be looked up.
pub(crate) struct Named<C, O> {
    handles: Handles<C, O>,
    what: &'static str,
    /// The remedy for a value that names no object.
    remedy: &'static str,
}

impl<C, O: Send + Sync> Named<C, O> {
    pub(crate) const fn new(what: &'static str, remedy: &'static str) -> Self {
        Named { handles: Handles::new(), what, remedy }
    }

    /// Makes a handle. `public` makes the program's struct, given its address.
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

    /// Returns the object of a handle.
    ///
    /// # Safety
    /// No other thread [takes](Self::take) the object while the reference is used.
    pub(crate) unsafe fn find<'a>(&self, handle: *mut C) -> Result<&'a O, CallError> {
        // SAFETY: the caller lets no other thread destroy the object.
        match unsafe { self.handles.find(handle.addr()) } {
            Some((object, 0)) => Ok(object),
            _ => Err(self.unknown(handle)),
        }
    }

    /// Ends a handle, and returns its object to one caller.
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

/// The hasher of maps by address. The addresses are the library's, so a program cannot choose ones that collide.
pub(crate) type Addresses = BuildHasherDefault<AddressHasher>;

/// Multiplies, as the lowest bits of addresses are alike.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Numbers = Handles<[u64; 7], u64>;

    /// Makes an object. Returns its handle.
    fn insert(handles: &Numbers, value: u64) -> usize {
        handles.insert(|at| ([at.addr().get() as u64; 7], Arc::new(value))).unwrap().addr().get()
    }

    fn find(handles: &Numbers, address: usize) -> Option<(u64, usize)> {
        // SAFETY: nothing is removed meanwhile.
        unsafe { handles.find(address) }.map(|(value, offset)| (*value, offset))
    }

    #[test]
    fn an_address_finds_its_object_until_that_is_removed() {
        let handles = Numbers::new();
        let (one, two) = (insert(&handles, 1), insert(&handles, 2));
        assert_eq!((find(&handles, one), find(&handles, two + 8)), (Some((1, 0)), Some((2, 8))));
        assert_eq!(handles.remove(one).as_deref(), Some(&1));
        assert!(find(&handles, one).is_none() && handles.remove(one).is_none() && handles.had(one));
        assert!(handles.remove(two + 8).is_none(), "the address of a field is no handle");
        assert_eq!(find(&handles, two), Some((2, 0)));
    }

    #[test]
    fn other_values_are_looked_at_and_find_nothing() {
        let handles = Numbers::new();
        let on_the_stack = 0u64;
        let strange = [0, 1, 7, usize::MAX, usize::MAX - 63, 1 << 47, ptr::from_ref(&on_the_stack).addr()];
        assert!(strange.iter().all(|value| find(&handles, *value).is_none() && !handles.had(*value)));
        let one = insert(&handles, 1);
        assert!(strange.iter().all(|value| find(&handles, *value).is_none() && !handles.had(*value)));
        assert!(
            find(&handles, one + Numbers::SLOT).is_none() && find(&handles, one.wrapping_sub(1)).is_none()
        );
    }

    #[test]
    fn no_address_is_used_twice_and_memory_goes_back() {
        let handles = Numbers::new();
        let kept = insert(&handles, u64::MAX);
        let per_unit = UNIT / Numbers::SLOT;
        let mut last = kept;
        for value in 0..4 * per_unit as u64 {
            let handle = insert(&handles, value);
            assert!(handle > last && find(&handles, handle) == Some((value, 0)));
            assert_eq!(handles.remove(handle).as_deref(), Some(&value));
            assert!(find(&handles, last).is_none() || last == kept);
            last = handle;
        }
        // The first unit has an object, and the last one has room for more.
        assert_eq!(handles.growth.lock().live, BTreeMap::from([(0, 1)]));
        assert_eq!(find(&handles, kept), Some((u64::MAX, 0)));
        // Addresses whose memory was returned stay readable.
        assert!(find(&handles, kept + 2 * UNIT).is_none() && handles.had(kept + 2 * UNIT));
    }

    #[test]
    fn of_threads_that_remove_an_object_one_gets_it() {
        let handles = Numbers::new();
        for round in 0..200 {
            let handle = insert(&handles, round);
            let got = std::thread::scope(|scope| {
                let removers: Vec<_> = (0..4).map(|_| scope.spawn(|| handles.remove(handle))).collect();
                removers.into_iter().filter_map(|remover| remover.join().unwrap()).count()
            });
            assert_eq!(got, 1, "round {round}");
        }
    }
}
