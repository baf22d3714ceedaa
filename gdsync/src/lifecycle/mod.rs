//! The life of a queue pair beyond its first connection: what the card reports of it, and how it starts anew.

mod events;
mod reset;
mod watch;
mod watchdog;

pub(crate) use events::QueuePairs;
#[cfg(test)]
mod spoilt_tests;

pub use events::{AsyncEvent, AsyncEventKind};
pub use watch::EventWatch;
pub use watchdog::{StalledWait, Watchdog};
