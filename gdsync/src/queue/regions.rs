//! The memory regions, the address, and the memory window that a work request in flight keeps.

use crate::verbs::mw::WindowChange;
use crate::verbs::{AddressHandle, MemoryRegionInner, RegionKeeper, Slice};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

/// Regions that a work request names: most name one, if any, and that takes no memory of its own.
#[derive(Debug)]
pub(crate) enum Regions {
    None,
    One(#[expect(dead_code, reason = "held, not looked at")] Arc<MemoryRegionInner>),
    Several(#[expect(dead_code, reason = "held, not looked at")] Vec<Arc<MemoryRegionInner>>),
    /// Those of a datagram.
    Addressed(#[expect(dead_code, reason = "held, not looked at")] Box<(AddressHandle, Regions)>),
    /// The queue keeps them: its owner has posted the request.
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

/// Regions that an owner has posted lately: they know the queue's keeper, and need not be held.
#[derive(Debug)]
pub(crate) struct KnownRegions {
    keeper: Arc<RegionKeeper>,
    /// Address of the last one; 0 before the first.
    newest: Cell<usize>,
    /// Their addresses are no other region's as long as these are here.
    all: RefCell<Vec<Weak<MemoryRegionInner>>>,
}

/// Most regions that an owner remembers.
const MOST_KNOWN: usize = 16;

impl KnownRegions {
    pub(crate) fn new(keeper: &Arc<RegionKeeper>) -> Self {
        KnownRegions { keeper: keeper.clone(), newest: Cell::new(0), all: RefCell::default() }
    }

    #[inline(always)]
    pub(crate) fn is_newest(&self, region: &Arc<MemoryRegionInner>) -> bool {
        Arc::as_ptr(region).addr() == self.newest.get()
    }

    /// Makes the keeper known to the region, unless it is.
    #[inline(never)]
    pub(crate) fn admit(&self, region: &Arc<MemoryRegionInner>) {
        let mut all = self.all.borrow_mut();
        if !all.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(region))) {
            region.used_by(&self.keeper);
            if all.len() >= MOST_KNOWN {
                all.remove(0);
            }
            all.push(Arc::downgrade(region));
        }
        self.newest.set(Arc::as_ptr(region).addr());
    }
}
