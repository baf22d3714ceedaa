//! Changes of a program's mappings while its memory is registered.
//!
//! A card has pinned the pages: it goes on using them wherever the program maps them, or after it has unmapped them. A
//! front end that sees such a change in advance reports it here. Without a report the card accesses what is mapped at
//! the registered address, and survives if there is nothing ([`crate::os::guard`]).

use super::device::Card;
use crate::os::memory::KeptPages;
use std::ops::Range;
use std::sync::Arc;

/// Keeps the registered pages in a range, which the program is about to unmap or to map anew: moves them to another
/// address, where the cards go on using them until they are deregistered. The range must be whole pages.
///
/// Pages of several mappings that a region uses together cannot be kept.
///
/// # Safety
/// The program unmaps the range, or maps it anew, before it accesses it again.
pub unsafe fn keep_pages<'a>(cards: impl Iterator<Item = &'a Card> + Clone, range: &Range<u64>) {
    let mut used: Vec<Range<u64>> = cards.clone().flat_map(|card| card.shared.used.within(range)).collect();
    used.sort_unstable_by_key(|part| part.start);
    used.dedup_by(|next, part| {
        let overlaps = next.start < part.end;
        if overlaps {
            part.end = part.end.max(next.end);
        }
        overlaps
    });
    for part in used {
        let take = || {
            // SAFETY: guaranteed by the caller.
            let kept = unsafe { KeptPages::take(&part) }?;
            Some((kept.addr(), Some(kept)))
        };
        follow(cards.clone(), &part, take);
    }
}

/// Performs a move of the program's mappings. The cards follow the pages to the address that `perform` returns, if it
/// returns one, and wait meanwhile.
pub fn move_pages<'a>(
    cards: impl Iterator<Item = &'a Card> + Clone,
    range: &Range<u64>,
    perform: impl FnOnce() -> Option<u64>,
) {
    if cards.clone().all(|card| card.shared.used.within(range).is_empty()) {
        perform();
        return;
    }
    follow(cards, range, || Some((perform()?, None)));
}

fn follow<'a>(
    cards: impl Iterator<Item = &'a Card>,
    range: &Range<u64>,
    perform: impl FnOnce() -> Option<(u64, Option<KeptPages>)>,
) {
    let mut engines: Vec<_> = cards.map(|card| card.shared.engine.lock()).collect();
    // Deferred writes have addresses.
    engines.iter_mut().for_each(|engine| engine.write_deferred());
    let Some((to, kept)) = perform().filter(|(to, _)| *to != range.start) else { return };
    let kept = kept.map(Arc::new);
    tracing::debug!(?range, to, is_kept = kept.is_some(), "registered pages have moved");
    for engine in &mut engines {
        engine.resources.regions.moved(range, to, kept.as_ref());
    }
}
