//! The memory regions and the address that a work request in flight keeps alive.

use crate::verbs::{AddressHandle, DeferredDeregistration, MemoryRegionInner, Slice};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Regions of a work request. Most name at most one, which needs no allocation.
#[derive(Debug)]
pub(crate) enum Regions {
    None,
    One(#[expect(dead_code, reason = "held, not looked at")] Arc<MemoryRegionInner>),
    Several(#[expect(dead_code, reason = "held, not looked at")] Vec<Arc<MemoryRegionInner>>),
    Addressed(#[expect(dead_code, reason = "held, not looked at")] Box<(AddressHandle, Regions)>),
    /// The queue's keeper keeps them.
    Kept,
}

impl Regions {
    /// Returns the regions of slices; `several` if they are not all of the same.
    #[inline(always)]
    pub(crate) fn of(slices: &[Slice], several: bool) -> Self {
        match slices.first() {
            None => Regions::None,
            Some(_) if several => Self::all_of(slices),
            Some(first) => Regions::One(first.region().clone()),
        }
    }

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

/// Regions recently posted to a queue: they know its keeper, so posts need not hold them. Used under the queue's lock.
#[derive(Debug)]
pub(crate) struct KnownRegions {
    keeper: Arc<DeferredDeregistration>,
    /// Address of the last posted region; 0 before the first.
    newest: AtomicUsize,
    /// Place of the number of that region's last post, which `all` holds; null before the first.
    newest_last: AtomicPtr<AtomicU64>,
    all: Mutex<Vec<Known>>,
}

#[derive(Debug)]
struct Known {
    /// Reserves the address for this region.
    region: Weak<MemoryRegionInner>,
    last: Arc<AtomicU64>,
}

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

    /// Returns whether the region is the last posted one. If so, records the next post for it.
    #[inline(always)]
    pub(crate) fn is_newest(&self, region: &Arc<MemoryRegionInner>) -> bool {
        let is_newest = Arc::as_ptr(region).addr() == self.newest.load(Ordering::Relaxed);
        if is_newest {
            // SAFETY: the newest region is in `all`, which holds this word; one thread at a time changes both and
            // calls this.
            if let Some(last) = unsafe { self.newest_last.load(Ordering::Relaxed).as_ref() } {
                last.store(self.keeper.next(), Ordering::Relaxed);
            }
        }
        is_newest
    }

    /// Records the next post for this region, and makes the keeper known to it, unless it is.
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
