//! What a process that uses gdsync says of itself when another process of its user asks: its software cards, their
//! queue pairs, its streams that wait, and what each of them waits for. `gdsync top` asks.
//!
//! - [`publish`] registers a [`Source`]: a card, a stream.
//! - [`ask_all`] asks every process of this user on this host.
//!
//! # What it costs
//! A process that has a source has one more thread, which sleeps at a socket until it is asked. Sources are looked at
//! only then, so what is not asked for costs nothing on any path. [`STATUS_VARIABLE`] turns it off.
//!
//! # What is promised
//! - A process answers only its own user, and only its own user is asked: the kernel says who is at the other side of
//!   a socket. The socket has an abstract name: nothing lies in a file system, and the kernel takes the name away when
//!   the process ends, however it ends. Processes see each other in one network namespace.
//! - Who asks trusts no answer: see [`decode`]. A process that is stopped costs who asks a bounded time.
//! - A process that dies in the middle of its answer is one that is not there.

mod ask;
mod name;
mod publish;
mod status;
#[cfg(test)]
mod tests;
mod wire;

pub use ask::{AskError, Process, ask_all};
pub use publish::{Kept, Published, STATUS_VARIABLE, Source, own, publish};
pub use status::{
    Card, MOST_CARDS, MOST_NAMED, MOST_QUEUE_PAIRS, MOST_STREAMS, Peer, QueuePair, Status, Stream, Traffic,
    Wait,
};
pub use wire::{LONGEST, LONGEST_TEXT, WireError, decode, encode};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
