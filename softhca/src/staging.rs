//! Staging memory: host memory that the cards of this process copy from and to all the time. A peer-memory client may
//! pin it and then copy there directly.

use crate::os::memory::SharedMemory;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// A range of host memory that stays mapped while a clone of this value lives.
///
/// Another process may write to it at any time, so it is only copied, never borrowed as a slice.
#[derive(Clone)]
pub struct HostRange(Arc<SharedMemory>);

static STAGING: Mutex<BTreeMap<usize, Weak<SharedMemory>>> = Mutex::new(BTreeMap::new());

impl HostRange {
    /// Returns the range of staging memory that holds `len` bytes at `address`, if any.
    pub fn of(address: usize, len: usize) -> Option<HostRange> {
        let memory = STAGING.lock().range(..=address).next_back()?.1.upgrade()?;
        let end = memory.base() as usize + memory.len();
        (address.checked_add(len)? <= end).then_some(HostRange(memory))
    }

    /// Its first address, page-aligned.
    pub fn address(&self) -> usize {
        self.0.base() as usize
    }

    /// Its length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether a card still uses it.
    pub fn is_in_use(&self) -> bool {
        STAGING.lock().get(&self.address()).is_some_and(|one| std::ptr::eq(one.as_ptr(), &*self.0))
    }
}

impl fmt::Debug for HostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRange({:#x}+{})", self.address(), self.len())
    }
}

/// Staging memory of a card, which clients find while this value lives. A client's [`HostRange`] keeps it mapped for
/// longer.
pub(crate) struct StagingMemory(Arc<SharedMemory>);

impl StagingMemory {
    pub(crate) fn new(memory: SharedMemory) -> Self {
        let memory = Arc::new(memory);
        STAGING.lock().insert(memory.base() as usize, Arc::downgrade(&memory));
        StagingMemory(memory)
    }
}

impl Deref for StagingMemory {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.0
    }
}

impl Drop for StagingMemory {
    fn drop(&mut self) {
        // Not unmapped yet, so no other memory has this address.
        STAGING.lock().remove(&(self.0.base() as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_every_piece_of_it_and_stays_mapped() {
        let staging = StagingMemory::new(SharedMemory::create(8192).unwrap().0);
        let base = staging.base() as usize;
        for (offset, len) in [(0, 8192), (0, 0), (4097, 4095), (8191, 1)] {
            let found = HostRange::of(base + offset, len).unwrap();
            assert_eq!((found.address(), found.len(), found.is_in_use()), (base, 8192, true));
        }
        assert!(HostRange::of(base + 1, 8192).is_none() && HostRange::of(base, usize::MAX).is_none());
        assert!(HostRange::of(8, 1).is_none());
        let kept = HostRange::of(base, 1).unwrap();
        drop(staging);
        assert!(
            !kept.is_in_use() && HostRange::of(base, 1).is_none() && format!("{kept:?}").ends_with("+8192)")
        );
        // SAFETY: mapped while `kept` lives, and used by no other code.
        unsafe { (kept.address() as *mut u8).write(1) };
    }
}
