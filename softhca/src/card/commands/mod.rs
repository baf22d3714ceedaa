//! Commands that create, change and destroy a card's objects.

pub(super) mod memory;
mod queues;
