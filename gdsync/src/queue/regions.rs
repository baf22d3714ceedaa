//! The memory regions and the address that a work request in flight keeps.

use crate::verbs::{AddressHandle, DeferredDeregistration, MemoryRegionInner, Slice};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Regions that a work request names: most name one, if any, and that takes no memory of its own.
#[derive(Debug)]
pub(crate) enum Regions {
    None,
    One(#[expect(dead_code, reason = "held, not looked at")] Arc<MemoryRegionInner>),
    Several(#[expect(dead_code, reason = "held, not looked at")] Vec<Arc<MemoryRegionInner>>),
    /// Those of a datagram.
    Addressed(#[expect(dead_code, reason = "held, not looked at")] Box<(AddressHandle, Regions)>),
    /// The queue keeps them.
    Kept,
}

impl Regions {
    /// Those of slices; `several`, where they are not all of the same.
    #[inline(always)]
    pub(crate) fn of(slices: &[Slice], several: bool) -> Self {
        match slices.first() {
            None => Regions::None,
            Some(_) if several => Self::all_of(slices),
            Some(first) => Regions::One(first.region().clone()),
        }
    }

    /// The same and the address that they go to.
    pub(crate) fn with_address(self, handle: AddressHandle) -> Self {
        Regions::Addressed(Box::new((handle, self)))
    }

    #[cold]
    #[inline(never)]
    fn all_of(slices: &[Slice]) -> Self {
        let mut all: Vec<Arc<MemoryRegionInner>> = Vec::new();
        for slice in slices {
            if !all.last().is_some_and(|last| Arc::ptr_eq(last, slice.region())) {
                all.push(slice.region().clone());
            }
        }
        Regions::Several(all)
    }
}

/// Regions that were posted to a queue lately: they know its keeper, and posts need not hold them.
/// Used under the queue's lock.
#[derive(Debug)]
pub(crate) struct KnownRegions {
    keeper: Arc<DeferredDeregistration>,
    /// Address of the last one; 0 before the first.
    newest: AtomicUsize,
    /// Where the number of its last post is written, which is in `all`; null before the first.
    newest_last: AtomicPtr<AtomicU64>,
    all: Mutex<Vec<Known>>,
}

#[derive(Debug)]
struct Known {
    /// Its address is no other region's as long as this is here.
    region: Weak<MemoryRegionInner>,
    /// Number of its last post.
    last: Arc<AtomicU64>,
}

/// Most regions that a queue remembers.
const MOST_KNOWN: usize = 16;

impl KnownRegions {
    pub(crate) fn new(keeper: &Arc<DeferredDeregistration>) -> Self {
        KnownRegions {
            keeper: keeper.clone(),
            newest: AtomicUsize::new(0),
            newest_last: AtomicPtr::default(),
            all: Mutex::default(),
        }
    }

    /// Whether the region is the last one that was posted. If so, the next post names it, too.
    #[inline(always)]
    pub(crate) fn is_newest(&self, region: &Arc<MemoryRegionInner>) -> bool {
        let is_newest = Arc::as_ptr(region).addr() == self.newest.load(Ordering::Relaxed);
        if is_newest {
            // SAFETY: the newest one is in `all`, which holds this word; one thread at a time changes both and
            // comes here.
            if let Some(last) = unsafe { self.newest_last.load(Ordering::Relaxed).as_ref() } {
                last.store(self.keeper.next(), Ordering::Relaxed);
            }
        }
        is_newest
    }

    /// The next post names this region: makes the keeper known to it, unless it is.
    #[inline(never)]
    pub(crate) fn admit(&self, region: &Arc<MemoryRegionInner>) {
        let mut all = self.all.lock();
        let is_it = |known: &Known| std::ptr::eq(known.region.as_ptr(), Arc::as_ptr(region));
        let at = all.iter().position(is_it).unwrap_or_else(|| {
            if all.len() >= MOST_KNOWN {
                all.remove(0);
            }
            all.push(Known { region: Arc::downgrade(region), last: region.used_by(&self.keeper) });
            all.len() - 1
        });
        let last = &all[at].last;
        last.store(self.keeper.next(), Ordering::Relaxed);
        self.newest_last.store(Arc::as_ptr(last).cast_mut(), Ordering::Relaxed);
        self.newest.store(Arc::as_ptr(region).addr(), Ordering::Relaxed);
    }
}
