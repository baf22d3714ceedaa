//! Commands that create, change and destroy a card's objects.

mod ends;
mod inherited;
pub(super) mod memory;
mod queues;
