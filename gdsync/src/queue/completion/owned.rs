//! Queue pairs with one owner, which posts without the lock of the completion queue: places for what it
//! posts are booked ahead.

use super::CompletionState;
use crate::queue::inbox::Inbox;
use std::sync::Arc;

/// Most places that are booked ahead at once.
const MOST_AHEAD: u32 = 128;

impl CompletionState {
    /// Completions that are certain to come, of work that has not retired.
    pub(super) fn expected(&self) -> u32 {
        self.owners.iter().fold(self.expected, |sum, owner| sum.wrapping_add(owner.signaled()))
    }

    /// What is posted there from now on completes here.
    pub(crate) fn add_owner(&mut self, owner: &Arc<Inbox>) {
        self.expected = self.expected.wrapping_sub(owner.signaled());
        self.owners.push(owner.clone());
    }

    /// Nothing more is posted there; what was counts here.
    pub(crate) fn remove_owner(&mut self, owner: &Arc<Inbox>) {
        self.expected = self.expected.wrapping_add(owner.signaled());
        self.owners.retain(|known| !Arc::ptr_eq(known, owner));
    }

    /// Books places for work requests to come: no more than `most`, nor than half of what is free, which
    /// others may want. Returns how many.
    pub(crate) fn book_ahead(&mut self, most: u32) -> u32 {
        let free = self.entries().saturating_sub(self.taken());
        let booked = if self.attached.is_some() { 0 } else { most.min(free / 2).min(MOST_AHEAD) };
        self.reserved += booked;
        booked
    }

    /// A work request was posted whose place was booked ahead.
    pub(crate) fn expect(&mut self, signaled: bool) {
        self.expected = self.expected.wrapping_add(signaled.into());
    }

    /// Gives back places that were booked ahead.
    pub(crate) fn return_booked(&mut self, places: u32) {
        self.reserved = self.reserved.saturating_sub(places);
    }
}
