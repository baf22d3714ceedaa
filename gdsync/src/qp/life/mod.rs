//! The life of a queue pair: making, connecting, failing, resetting, destroying.

pub(crate) mod connect;
pub(crate) mod create;
mod fail;
pub(crate) mod target;
