//! Why there is no fabric.

use super::node::LIDS;
use crate::setting::SettingError;
use std::io;

/// Why there is no fabric.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Every LID is taken.
    #[error("no LID is free: {} software cards are on this host, or abstract sockets are not permitted ({last})", LIDS.len())]
    NoLid {
        /// The last error.
        last: io::Error,
    },
    /// None of the configured addresses is free and of this host.
    #[error(
        "{variable} gives no address that is free: {list} (the last: {last}); a card takes one each: give more of this host's"
    )]
    NoAddress {
        /// The environment variable with the addresses.
        variable: &'static str,
        /// The addresses.
        list: String,
        /// The last error.
        last: io::Error,
    },
    /// The list of addresses is malformed.
    #[error(transparent)]
    Addresses(#[from] SettingError),
    /// A system call failed.
    #[error("the fabric cannot be set up: {0}")]
    System(#[from] io::Error),
}
