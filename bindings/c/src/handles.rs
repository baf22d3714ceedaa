//! Handles: the addresses by which programs know objects. No address is that of a second object, and
//! all of them stay readable. So the library may look at any value that a program passes, and
//! recognises the handle of an object that is gone, whatever was made since.
//!
//! The C structs lie in address space of their own, one to a cache line, in the order in which they
//! are made. Where all structs of a unit are gone, its memory goes back to the system. Its addresses
//! are not used again.

use crate::error::{CallError, stale};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Bytes that become writable, and go back to the system, at a time: a multiple of every page size.
const UNIT: usize = 64 << 10;
/// Address space: for 2 billion handles or more. Less where the process may not have as much.
const MOST: usize = 1 << 38;

/// A C struct, and the object that it stands for.
#[repr(C, align(64))]
struct Slot<C, O> {
    /// The program's to read, and to write.
    public: UnsafeCell<C>,
    /// Null before the object is made, and once it is gone.
    object: AtomicPtr<O>,
}

/// All handles of one kind of objects: `C` is what programs see, `O` what the library has.
pub(crate) struct Handles<C, O> {
    base: AtomicPtr<Slot<C, O>>,
    /// Bytes of slots that were handed out, from `base` on.
    used: AtomicUsize,
    growth: Mutex<Growth>,
}

struct Growth {
    reserved: usize,
    writable: usize,
    /// Objects in each unit that has some, by the unit's number.
    live: BTreeMap<usize, usize>,
}

/// Any thread may make, find and remove objects.
impl<C, O: Send + Sync> Handles<C, O> {
    /// Bytes from one struct to the next: one cache line, or two.
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
    /// ENOMEM: no memory, or the address space for handles is used up.
    pub(crate) fn insert(&self, make: impl FnOnce(NonNull<C>) -> (C, Arc<O>)) -> io::Result<NonNull<C>> {
        let slot = self.next()?;
        // SAFETY: `next` has made the slot writable for good, and nothing else has got it. A fresh
        // page is zero, a valid slot without an object.
        let slot = unsafe { slot.as_ref() };
        let at = NonNull::from(&slot.public).cast::<C>();
        let (public, object) = make(at);
        // SAFETY: the program does not know the address yet.
        unsafe { slot.public.get().write(public) };
        slot.object.store(Arc::into_raw(object).cast_mut(), Ordering::Release);
        Ok(at)
    }

    /// The next slot, which is no other handle's and never was.
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
            // SAFETY: a unit of the address space that `reserve` has got for this value.
            if unsafe { libc::mprotect(base.add(start).cast(), UNIT, access) } != 0 {
                return Err(io::Error::last_os_error());
            }
            growth.writable += UNIT;
        }
        *growth.live.entry(start / UNIT).or_default() += 1;
        // Whoever finds the slot within `used` finds the base, and may read the slot.
        self.used.store(start + Self::SLOT, Ordering::Release);
        // SAFETY: within the address space; never null.
        Ok(unsafe { NonNull::new_unchecked(base.add(start).cast()) })
    }

    /// The slot that an address is in, and the offset of the address there.
    #[inline(always)]
    fn slot(&self, address: usize) -> Option<(&Slot<C, O>, usize)> {
        let used = self.used.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Relaxed);
        let offset = address.wrapping_sub(base.addr());
        if offset >= used {
            return None;
        }
        // SAFETY: slots below `used` stay readable for good (`next`), and are valid: zero, or as
        // `insert` has written them.
        Some((unsafe { &*base.add(offset / Self::SLOT) }, offset % Self::SLOT))
    }

    /// The object in whose C struct an address is, and the offset of the address there. `None` for
    /// any other value, also for one whose object is gone.
    ///
    /// # Safety
    /// No other thread [removes](Self::remove) the object while the reference is used.
    #[inline(always)]
    pub(crate) unsafe fn find<'a>(&self, address: usize) -> Option<(&'a O, usize)> {
        let (slot, offset) = self.slot(address)?;
        let object = slot.object.load(Ordering::Acquire);
        // SAFETY: null, or from the `Arc` that `insert` has kept; it lives until it is removed,
        // which does not happen meanwhile (the caller's).
        Some((unsafe { object.as_ref() }?, offset))
    }

    /// True where an object had its handle there. It is gone, or yet to be made.
    pub(crate) fn had(&self, address: usize) -> bool {
        self.slot(address).is_some()
    }

    /// Ends a handle, and returns its object: to one caller only. The C struct is zero from then on.
    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<O>> {
        let (slot, 0) = self.slot(handle)? else { return None };
        let object = NonNull::new(slot.object.swap(ptr::null_mut(), Ordering::AcqRel))?;
        // SAFETY: the program has given the struct back; the library does not read it as a `C`
        // again.
        unsafe { slot.public.get().write_bytes(0, 1) };
        self.give_back(handle);
        // SAFETY: the pointer of `insert`'s `Arc::into_raw`, which the exchange gives out once.
        Some(unsafe { Arc::from_raw(object.as_ptr()) })
    }

    /// One object fewer in the unit of that address.
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
            // SAFETY: a unit of this value's own, with no object left and none to come. Its slots
            // read as zero afterwards, as slots without objects do. A failure keeps the memory.
            unsafe { libc::madvise(base.cast::<u8>().add(unit * UNIT).cast(), UNIT, libc::MADV_DONTNEED) };
        }
    }
}

/// Address space that nothing else gets, and its bytes: as much as there is, up to [`MOST`].
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

/// For maps by address.
pub(crate) type Addresses = BuildHasherDefault<AddressHasher>;

/// Multiplies: the lowest bits of addresses are alike.
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

    /// Makes an object; returns its handle.
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
        // All but the first unit, which has an object, and the last, which is to have more.
        assert_eq!(handles.growth.lock().live, BTreeMap::from([(0, 1)]));
        assert_eq!(find(&handles, kept), Some((u64::MAX, 0)));
        // Addresses whose memory went back are readable.
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
