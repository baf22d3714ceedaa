//! Memory that software cards lend: pinned for the copies of a GPU's memory from and to it.

use super::context::GpuContext;
use crate::memory::HostAddr;
use crate::memory::spans::{Kind, Span};
use softhca::HostRange;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A range, and its place in the address spaces of GPUs, which unpin it when they forget it.
struct Pinned {
    range: HostRange,
    _span: Arc<Span>,
}

/// By the first address.
static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());

/// First address of the range that holds `len` bytes at `address`, if a card has lent it and it is pinned for a
/// context. Pins it, if it was not, which takes most of a millisecond.
pub(super) fn pinned(context: &GpuContext, address: usize, len: usize) -> Option<usize> {
    let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = pinned.range(..=address).next_back().map(|(_, known)| &known.range);
    let holds = |range: &&HostRange| address + len <= range.address() + range.len() && range.is_lent();
    let base = match known.filter(holds) {
        Some(range) => range.address(),
        None => {
            let range = HostRange::of(address, len)?;
            // Cards that are gone want nothing pinned.
            pinned.retain(|_, known| known.range.is_lent());
            let (base, keep) = (range.address(), range.clone());
            let unpinned = Box::new(move || drop(keep));
            let span = Span::announce(base as u64, range.len() as u64, Kind::Whole, unpinned);
            pinned.insert(base, Pinned { range, _span: span });
            base
        }
    };
    drop(pinned);
    match context.look_up(HostAddr(address as u64), 1) {
        Ok(_) => Some(base),
        Err(error) => {
            tracing::debug!(?error, address, len, "memory of a card is not pinned");
            None
        }
    }
}
