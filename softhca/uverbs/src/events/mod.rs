//! Delivery of the card's events to the program.

pub(crate) mod channels;
pub(crate) mod packets;
pub(crate) mod pipe;
pub(crate) mod routes;
pub(crate) mod signal;
pub(crate) mod subscriptions;
pub(crate) mod wake;
