//! What every layer may use: structs of options, locks and atomics, and the polling thread.

pub(crate) mod options;
pub(crate) mod poller;
pub(crate) mod sync;
