//! The memory regions, the address, and the memory window that a work request in flight keeps.

use crate::verbs::mw::WindowChange;
use crate::verbs::{AddressHandle, MemoryRegionInner, Slice};
use std::sync::Arc;

/// Regions that a work request names: most name one, if any, and that takes no memory of its own.
#[derive(Debug)]
pub(crate) enum Regions {
    None,
    One(#[expect(dead_code, reason = "held, not looked at")] Arc<MemoryRegionInner>),
    Several(#[expect(dead_code, reason = "held, not looked at")] Vec<Arc<MemoryRegionInner>>),
    /// Those of a datagram.
    Addressed(#[expect(dead_code, reason = "held, not looked at")] Box<(AddressHandle, Regions)>),
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
