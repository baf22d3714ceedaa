//! The key that the processes of a job share, and the proof of it that a connection gives before its bytes count.
//!
//! - [`Key`] is the secret, and [`KeyVariables`] where a program looks for it: an environment variable, or a file
//!   that an environment variable names. On one host [`Key::of_user`] is the key of the user, which the first process
//!   makes.
//! - [`Exchange`] proves the key over a connection, on both sides.
//! - [`Unproven`] holds the connections whose proof is awaited, so that strangers neither keep the job's processes
//!   out nor use up the files.
//!
//! # What is promised
//! - A process without the key does not pass: each side proves the key by HMAC-SHA256 over fresh random numbers of
//!   both sides, over the purpose that both sides name, and over its own role. So a recorded or reflected proof is
//!   worthless.
//! - What follows on the connection is neither authenticated nor encrypted. On the loopback interface the kernel
//!   keeps other users from it. Between hosts it is as safe as the network.
//! - Connections that stay silent keep no process of the job out. A flood of connections can: it is for the network
//!   to stop.
//! - The key is a secret with at least 128 bits of randomness. An observer of an exchange of a guessable key can try
//!   guesses against it.

#![deny(unsafe_code)]

mod exchange;
mod folder;
mod key;
mod source;
mod unproven;

pub use exchange::{Exchange, ExchangeError};
pub use folder::{FolderError, base_folder, own_user, private_folder};
pub use key::{Key, KeyError};
pub use source::KeyVariables;
pub use unproven::{Limits, Unproven};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
