use super::packet::NUMBERS;
use crate::setting::SettingError;
use gdsync_auth::{KeyError, KeyVariables};
use std::io;
use std::net::SocketAddrV4;

/// Reason for which a card cannot join a fabric.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Every number is taken.
    #[error("no number is free for a card: {} software cards are on this host, or abstract sockets are not permitted ({last})", NUMBERS.len())]
    NoLid {
        /// The last error.
        last: io::Error,
    },
    /// Every number is taken at an address.
    #[error(
        "no number is free for a card at {address}: it listens at one of the {} TCP ports above, of which none is free ({last})", NUMBERS.len()
    )]
    NoPort {
        /// The address, and the base port.
        address: SocketAddrV4,
        /// The last error.
        last: io::Error,
    },
    /// The configured addresses give none to a device.
    #[error(
        "{variable} is {list}, with {own} addresses of this host, and gives none to device {device} (from 0): give as many of this host's addresses as it has devices"
    )]
    NoAddress {
        /// The environment variable with the addresses.
        variable: &'static str,
        /// The addresses.
        list: String,
        /// The number of those that this host has.
        own: usize,
        /// The index of the device.
        device: usize,
    },
    /// The list of addresses is malformed.
    #[error(transparent)]
    Addresses(#[from] SettingError),
    /// The cards of several hosts share no key.
    #[error(
        "a card at {address} is reached from other hosts, which needs a key that all hosts have: make it with `(umask 077; head -c 32 /dev/urandom | base64 > job.key)`, copy it to every host, and name it in {}", .variables.file
    )]
    NoKey {
        /// The first address that other hosts reach.
        address: SocketAddrV4,
        /// The environment variables that give a key.
        variables: KeyVariables,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A system call failed.
    #[error("the fabric cannot be set up: {0}")]
    System(#[from] io::Error),
}
