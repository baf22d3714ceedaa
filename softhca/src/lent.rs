//! Memory of the host from and to which the cards of this process copy all the time. A client of peer
//! memory may pin it, and then copy there without a detour.

use crate::os::memory::SharedMemory;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// A range of the host's memory that stays mapped as long as a clone of this value lives.
///
/// Another process may write to it at any time: it is copied from and to, and never borrowed as a
/// slice.
#[derive(Clone)]
pub struct HostRange(Arc<SharedMemory>);

/// The ranges that are lent, by their first address.
static LENT: Mutex<BTreeMap<usize, Weak<SharedMemory>>> = Mutex::new(BTreeMap::new());

impl HostRange {
    /// The range that holds `len` bytes from `address` on. `None`: no card has lent them.
    pub fn of(address: usize, len: usize) -> Option<HostRange> {
        let memory = LENT.lock().range(..=address).next_back()?.1.upgrade()?;
        let end = memory.base() as usize + memory.len();
        (address.checked_add(len)? <= end).then_some(HostRange(memory))
    }

    /// Its first address, of a page.
    pub fn address(&self) -> usize {
        self.0.base() as usize
    }

    /// Its length in bytes: whole pages.
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a card still uses it.
    pub fn is_lent(&self) -> bool {
        LENT.lock().get(&self.address()).is_some_and(|one| std::ptr::eq(one.as_ptr(), &*self.0))
    }
}

impl fmt::Debug for HostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRange({:#x}+{})", self.address(), self.len())
    }
}

/// Memory that is lent for as long as this value lives. It stays mapped for longer where a client keeps a
/// [`HostRange`].
pub(crate) struct Lent(Arc<SharedMemory>);

impl Lent {
    pub(crate) fn new(memory: SharedMemory) -> Self {
        let memory = Arc::new(memory);
        LENT.lock().insert(memory.base() as usize, Arc::downgrade(&memory));
        Lent(memory)
    }
}

impl Deref for Lent {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Still mapped here: no other memory has its address.
        LENT.lock().remove(&(self.0.base() as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_every_piece_of_it_and_stays_mapped() {
        let lent = Lent::new(SharedMemory::create(8192).unwrap().0);
        let base = lent.base() as usize;
        for (offset, len) in [(0, 8192), (0, 0), (4097, 4095), (8191, 1)] {
            let found = HostRange::of(base + offset, len).unwrap();
            assert_eq!((found.address(), found.len(), found.is_lent()), (base, 8192, true));
        }
        assert!(HostRange::of(base + 1, 8192).is_none() && HostRange::of(base, usize::MAX).is_none());
        assert!(HostRange::of(8, 1).is_none());
        let kept = HostRange::of(base, 1).unwrap();
        drop(lent);
        assert!(
            !kept.is_lent() && HostRange::of(base, 1).is_none() && format!("{kept:?}").ends_with("+8192)")
        );
        // SAFETY: mapped as long as `kept` lives, and used by no other code.
        unsafe { (kept.address() as *mut u8).write(1) };
    }
}
