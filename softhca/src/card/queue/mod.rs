//! The card's side of queues: work requests that it reads, completion entries that it writes.

mod atomic;
pub(crate) mod cq;
pub(crate) mod producer;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod shared;
mod umr;
pub(crate) mod wait;
pub(crate) mod wqe;
