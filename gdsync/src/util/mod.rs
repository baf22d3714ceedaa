//! What every layer may use: structs of options, locks and atomics, the polling thread, and what
//! contains panics of the program's values.

#[deny(unsafe_code)]
pub(crate) mod contain;
#[deny(unsafe_code)]
pub(crate) mod options;
pub(crate) mod poller;
#[deny(unsafe_code)]
pub(crate) mod sync;
