//! What every layer may use: locks and atomics, and ways to wait for memory that another thread, a
//! card or a process writes.

pub(crate) mod options;
pub(crate) mod pause;
pub(crate) mod poller;
pub(crate) mod sync;
