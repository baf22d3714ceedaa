//! Utilities of every layer: options, locks and atomics, the polling thread, and the containment of panics.

#[deny(unsafe_code)]
pub(crate) mod contain;
#[deny(unsafe_code)]
pub(crate) mod options;
pub(crate) mod poller;
#[deny(unsafe_code)]
pub(crate) mod sync;
