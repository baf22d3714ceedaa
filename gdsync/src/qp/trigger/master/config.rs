//! How masters are made.

use crate::util::options::options;

options! {
    /// How the master of a trigger is made ([`crate::Trigger::with_master`]).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct MasterConfig
    /// 512 sends.
    default {
        /// Sends of all its queue pairs, from 1 to 3072, that may at least be prepared and not
        /// released. More are refused sooner or later
        /// ([`QueueFull::Master`](crate::queue::QueueFull::Master)). Each takes two blocks of 64 bytes
        /// in the master's queue, and places in its completion queue.
        sends: u32 = 512,
    }
}
