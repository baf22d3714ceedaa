//! The memory regions that a work request in flight keeps.

use crate::mr::MemoryRegionInner;
use std::sync::Arc;

/// Regions that a work request names: most name one, if any, and that takes no memory of its own.
#[derive(Debug, Default)]
pub(crate) enum Regions {
    #[default]
    None,
    One(Arc<MemoryRegionInner>),
    Several(Vec<Arc<MemoryRegionInner>>),
}

impl Regions {
    /// Holds one more, unless it is the same as the last.
    pub(crate) fn add(&mut self, region: &Arc<MemoryRegionInner>) {
        let last = match self {
            Regions::None => None,
            Regions::One(only) => Some(&*only),
            Regions::Several(all) => all.last(),
        };
        if last.is_some_and(|last| Arc::ptr_eq(last, region)) {
            return;
        }
        *self = match std::mem::take(self) {
            Regions::None => Regions::One(region.clone()),
            Regions::One(first) => Regions::Several(vec![first, region.clone()]),
            Regions::Several(mut all) => {
                all.push(region.clone());
                Regions::Several(all)
            }
        };
    }
}
