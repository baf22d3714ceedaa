//! The key that the cards of a job share.

use super::error::FabricError;
use super::listen;
use crate::setting::SettingError;
use gdsync_auth::{Key, KeyError, KeyVariables};
use std::net::SocketAddrV4;

/// Environment variables with the key that cards prove to each other on the fabric of several hosts: the key
/// itself, or the path of its file.
pub const KEY_VARIABLES: KeyVariables = KeyVariables { key: "SOFTHCA_KEY", file: "SOFTHCA_KEY_FILE" };

fn given() -> Result<Option<Key>, KeyError> {
    KEY_VARIABLES.read(|name| std::env::var_os(name))
}

/// Returns the environment's key for a card at one of these addresses. The user's own key may replace a
/// missing one only on this host: other hosts do not have it.
fn given_for(addresses: &[SocketAddrV4]) -> Result<Option<Key>, FabricError> {
    match (given()?, addresses.iter().find(|address| !address.ip().is_loopback())) {
        (None, Some(address)) => Err(FabricError::NoKey { address: *address, variables: KEY_VARIABLES }),
        (key, _) => Ok(key),
    }
}

pub(super) fn for_addresses(addresses: &[SocketAddrV4]) -> Result<Key, FabricError> {
    Ok(given_for(addresses)?.map_or_else(Key::of_user, Ok)?)
}

/// Checks the key that the environment gives, and that there is one if other hosts reach the cards.
///
/// # Errors
/// [`SettingError::Key`], and those of the addresses.
pub(crate) fn check_key() -> Result<(), SettingError> {
    let addresses = listen::from_environment()?;
    given_for(&addresses).map(drop).map_err(|error| SettingError::Key { problem: error.to_string() })
}

/// Returns the key for cards of this host, and creates it if there is none.
pub(super) fn for_this_host() -> Result<Key, FabricError> {
    Ok(given()?.map_or_else(Key::of_user, Ok)?)
}

pub(super) fn for_this_host_if_made() -> Result<Option<Key>, KeyError> {
    given()?.map_or_else(Key::of_user_if_made, |key| Ok(Some(key)))
}
