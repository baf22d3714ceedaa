//! The key that the cards of a job share.

use super::error::FabricError;
use gdsync_auth::{Key, KeyError, KeyVariables};
use std::net::SocketAddrV4;

/// Environment variables with the key that cards prove to each other on the fabric of several
/// hosts: the key itself, or the path of a file with it.
pub const KEY_VARIABLES: KeyVariables = KeyVariables { key: "SOFTHCA_KEY", file: "SOFTHCA_KEY_FILE" };

/// The key that the environment gives.
fn given() -> Result<Option<Key>, KeyError> {
    KEY_VARIABLES.read(|name| std::env::var_os(name))
}

/// The key for a card at one of these addresses. Only on this host does the user's own key serve
/// in the place of a key that is given: other hosts do not have it.
pub(super) fn for_addresses(addresses: &[SocketAddrV4]) -> Result<Key, FabricError> {
    match (given()?, addresses.iter().find(|address| !address.ip().is_loopback())) {
        (Some(key), _) => Ok(key),
        (None, Some(address)) => Err(FabricError::NoKey { address: *address, variables: KEY_VARIABLES }),
        (None, None) => Ok(Key::of_user()?),
    }
}

/// The key for cards of this host, which is made if there is none.
pub(super) fn for_this_host() -> Result<Key, FabricError> {
    Ok(given()?.map_or_else(Key::of_user, Ok)?)
}

/// The key for cards of this host, if there is one.
pub(super) fn for_this_host_if_made() -> Result<Option<Key>, KeyError> {
    given()?.map_or_else(Key::of_user_if_made, |key| Ok(Some(key)))
}
