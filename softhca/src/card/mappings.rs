//! Changes of a program's mappings while its memory is registered.
//!
//! A card has pinned the pages: it goes on using them wherever the program maps them, or after it has unmapped them. A
//! front end that sees such a change makes it through here. Otherwise the card accesses what is mapped at the registered
//! address, and survives if there is nothing ([`crate::os::guard`]).

use super::device::Card;
use crate::os::memory::KeptPages;
use std::ops::Range;
use std::sync::Arc;

/// Performs a change of the program's mappings, by which the ranges `gone` are unmapped or mapped anew, and the range
/// `moved` moves to the address that `perform` returns. An empty range is none. Ranges are whole pages.
///
/// The cards wait meanwhile. They go on using registered pages in `gone`, which are kept at another address until they
/// are deregistered, and follow those in `moved`. Kernels before 6.17 cannot keep the pages of several mappings
/// together.
/// If `perform` returns `None`, the system has refused, and nothing has changed.
///
/// # Safety
/// `perform` makes that change, or none. The program does not access the ranges meanwhile.
pub unsafe fn change_mappings<'a>(
    cards: impl Iterator<Item = &'a Card> + Clone,
    gone: &[Range<u64>],
    moved: &Range<u64>,
    perform: impl FnOnce() -> Option<u64>,
) {
    let used = |range: &Range<u64>| {
        let parts = cards.clone().map(|card| card.shared.used.within(range));
        parts.flatten().collect::<Vec<_>>()
    };
    let mut parts: Vec<Range<u64>> = gone.iter().flat_map(used).collect();
    if parts.is_empty() && used(moved).is_empty() {
        perform();
        return;
    }
    parts.sort_unstable_by_key(|part| part.start);
    parts.dedup_by(|next, part| {
        let overlaps = next.start < part.end;
        if overlaps {
            part.end = part.end.max(next.end);
        }
        overlaps
    });
    let mut engines: Vec<_> = cards.map(|card| card.shared.engine.lock()).collect();
    // Deferred writes have addresses.
    engines.iter_mut().for_each(|engine| engine.write_deferred());
    // SAFETY: the caller guarantees this: the mappings go below, or their pages come back.
    let kept = parts.into_iter().filter_map(|part| Some((unsafe { KeptPages::take(&part) }?, part)));
    let kept: Vec<(KeptPages, Range<u64>)> = kept.collect();
    let Some(to) = perform() else {
        kept.into_iter().for_each(|(pages, part)| pages.give_back(&part));
        return;
    };
    let kept: Vec<_> = kept.into_iter().map(|(pages, part)| (Arc::new(pages), part)).collect();
    for engine in &mut engines {
        let regions = &mut engine.resources.regions;
        kept.iter().for_each(|(pages, part)| regions.moved(part, pages.addr(), Some(pages)));
        regions.moved(moved, to, None);
    }
}
