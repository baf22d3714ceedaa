//! What every layer may use: structs of options, locks and atomics, the polling thread, and what
//! contains panics of the program's values.

pub(crate) mod contain;
pub(crate) mod options;
pub(crate) mod poller;
pub(crate) mod sync;
