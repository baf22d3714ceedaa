//! Delivery of the card's events to the program.

pub(crate) mod files;
pub(crate) mod packets;
pub(crate) mod routes;
pub(crate) mod subscriptions;
pub(crate) mod wake;
