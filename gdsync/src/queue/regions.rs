//! The memory regions, the address, and the memory window that a work request in flight keeps.

use crate::verbs::mw::WindowChange;
use crate::verbs::{AddressHandle, MemoryRegionInner, RegionKeeper, Slice};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// The window keeps its region.
    Window(Box<WindowChange>),
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
/// Used by one thread at a time: under the queue's lock, or by its owner.
#[derive(Debug)]
pub(crate) struct KnownRegions {
    keeper: Arc<RegionKeeper>,
    /// Address of the last one; 0 before the first.
    newest: AtomicUsize,
    /// Their addresses are no other region's as long as these are here.
    all: Mutex<Vec<Weak<MemoryRegionInner>>>,
}

/// Most regions that a queue remembers.
const MOST_KNOWN: usize = 16;

impl KnownRegions {
    pub(crate) fn new(keeper: &Arc<RegionKeeper>) -> Self {
        KnownRegions { keeper: keeper.clone(), newest: AtomicUsize::new(0), all: Mutex::default() }
    }

    #[inline(always)]
    pub(crate) fn is_newest(&self, region: &Arc<MemoryRegionInner>) -> bool {
        Arc::as_ptr(region).addr() == self.newest.load(Ordering::Relaxed)
    }

    /// Makes the keeper known to the region, unless it is.
    #[inline(never)]
    pub(crate) fn admit(&self, region: &Arc<MemoryRegionInner>) {
        let mut all = self.all.lock();
        if !all.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(region))) {
            region.used_by(&self.keeper);
            if all.len() >= MOST_KNOWN {
                all.remove(0);
            }
            all.push(Arc::downgrade(region));
        }
        self.newest.store(Arc::as_ptr(region).addr(), Ordering::Relaxed);
    }
}
