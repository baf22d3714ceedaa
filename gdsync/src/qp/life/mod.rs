//! The life of a queue pair: making, connecting, failing, resetting, destroying.

pub(crate) mod connect;
#[deny(unsafe_code)]
pub(crate) mod create;
mod fail;
pub(crate) mod target;
