//! What a process that uses gdsync says of itself when another process of its user asks: its software cards, their
//! queue pairs, its streams that wait, and what each of them waits for. `gdsync top` asks.
//!
//! - [`publish`] registers a [`Source`]: a card, a stream.
//! - [`ask_all`] asks every process of this user on this host.
//!
//! # What it costs
//! A process that has a source has one more thread and one more open file. The thread sleeps at a socket until it is
//! asked, and sources are looked at only then. [`STATUS_VARIABLE`] turns it off.
//!
//! # What is promised
//! - A process answers only its own user, and only its own user is asked: the kernel says who is at the other side of
//!   a socket. The socket has an abstract name: nothing lies in a file system, and the kernel takes the name away
//!   when the process ends, however it ends. Processes see each other in one network namespace.
//! - Who asks trusts no answer: see [`decode`]. Processes that are stopped cost who asks a bounded time, together.
//! - A process reads nothing of who asks, and takes a second for an answer at most. Its own end, and the end of a
//!   source, wait for none who asks.
//! - The child of a fork answers for what it has published itself, and for nothing of its parent.

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
#[cfg(test)]
mod tests;
#[deny(unsafe_code)]
mod wire;

pub use ask::{AskError, Process, ask_all};
pub use publish::{Kept, Published, STATUS_VARIABLE, Source, own, publish};
pub use status::{
    Card, MOST_CARDS, MOST_NAMED, MOST_QUEUE_PAIRS, MOST_STREAMS, Peer, QueuePair, Status, Stream, Traffic,
    Wait,
};
pub use wire::{LONGEST, WireError, decode, encode, printable};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
