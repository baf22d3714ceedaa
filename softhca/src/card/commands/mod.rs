//! Commands that create, change and destroy a card's objects.

mod inherited;
pub(super) mod memory;
mod queues;
