//! The shared key of a job's processes, and its proof at the start of each connection.
//!
//! - [`Key`] is the secret. [`KeyVariables`] are its sources in the environment: a variable with the key, or one with
//!   the path of a key file. [`Key::of_user`] is the user's key on one host, which the first process creates.
//! - [`Exchange`] proves the key over a connection, in both directions.
//! - [`Unproven`] holds connections without a proof yet, so that strangers can neither block the job's processes nor
//!   exhaust file descriptors.
//!
//! # Guarantees
//! - A process without the key is rejected: each side proves the key by HMAC-SHA256 over fresh random numbers of both
//!   sides, the purpose that both sides state, and its own role. Recorded or reflected proofs are therefore useless.
//! - Later data on the connection is neither authenticated nor encrypted. On the loopback interface the kernel
//!   protects it from other users. Between hosts it is as safe as the network.
//! - Silent connections do not block the job's processes. A flood of connections can; stopping it is up to the network.
//! - The key must have at least 128 bits of randomness: an observer of an exchange can test guesses of a weak key.

#![deny(unsafe_code)]

mod exchange;
mod key;
mod unproven;

pub use exchange::{Exchange, ExchangeError};
pub use key::{
    FolderError, Key, KeyError, KeyVariables, base_folder, new_key_text, own_user, private_folder,
};
pub use unproven::{Limits, Unproven};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
