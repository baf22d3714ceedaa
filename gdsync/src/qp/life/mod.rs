//! The life of a queue pair: making, connecting, failing, resetting, destroying.

pub(crate) mod connect;
pub(crate) mod create;
pub(crate) mod fail;
pub(crate) mod ordering;
#[deny(unsafe_code)]
pub(crate) mod state;
pub(crate) mod target;
