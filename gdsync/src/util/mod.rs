//! What every layer may use: structs of options, locks and atomics, the polling thread, and the
//! containment of panics.

pub(crate) mod contain;
pub(crate) mod options;
pub(crate) mod poller;
pub(crate) mod sync;
