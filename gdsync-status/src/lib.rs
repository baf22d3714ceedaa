//! A process's status, served to other processes of the same user: its software cards, their queue pairs, its waiting
//! streams, and their reasons. `gdsync top` displays it.
//!
//! - [`publish`] registers a [`Source`]: a card or a stream.
//! - [`ask_all`] queries every process of this user on this host.
//! - [`Survey`] derives the cause of a wait from the answers, for `gdsync top` and for the errors of time-outs.
//!
//! # Cost
//! A process with a source has an additional thread and an additional open file. The thread blocks on a socket and
//! queries the sources only on request. [`STATUS_VARIABLE`] disables it.
//!
//! # Guarantees
//! - A process answers only its own user, and queries reach only that user's processes: the kernel reports the peer's
//!   user. The socket has an abstract name: there is no file, and the kernel removes the name when the process ends
//!   in any way. Processes see each other within a network namespace.
//! - Clients do not trust answers: see [`decode`]. Stopped processes cost a client a bounded time in total.
//! - A process reads nothing from clients, and spends at most a second on an answer. Its exit, and the removal of a
//!   source, wait for no client.
//! - The child of a fork reports its own sources only, not its parent's.

#[deny(unsafe_code)]
mod ask;
#[cfg(test)]
mod fork_tests;
#[deny(unsafe_code)]
mod name;
mod publish;
mod server;
#[deny(unsafe_code)]
mod status;
#[cfg_attr(not(test), deny(unsafe_code))]
mod survey;
#[cfg(test)]
mod tests;
#[deny(unsafe_code)]
mod wire;

pub use ask::{AskError, Process, ask_all};
pub use name::{ProcessState, card_name};
pub use publish::{Kept, Published, STATUS_VARIABLE, Source, own, publish};
pub use status::{
    Card, MOST_CARDS, MOST_NAMED, MOST_QUEUE_PAIRS, MOST_STREAMS, Peer, QueuePair, Status, Stream, Traffic,
    Wait, ipv4,
};
pub use survey::{PeerProcess, Survey, since};
pub use wire::{LONGEST, WireError, decode, encode};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
