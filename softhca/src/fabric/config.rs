//! Settings of the fabric of several hosts: the addresses of this process's cards, and the key that the cards of a job share.

use super::error::FabricError;
use crate::setting::{self, SettingError};
use gdsync_auth::{Key, KeyError, KeyVariables};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Environment variable with the IPv4 addresses for cards of this process: `ADDRESS[:PORT]`, separated by `,`. Each
/// card takes the first free one, and uses TCP. If it is unset, cards reach only others of their host.
pub const LISTEN_VARIABLE: &str = "SOFTHCA_LISTEN";
/// TCP port of an address without one: RoCE v2's UDP port. Cards that communicate use the same port.
pub const DEFAULT_PORT: u16 = 4791;

/// Returns whether the environment asks for TCP.
pub fn is_tcp() -> bool {
    setting::value(LISTEN_VARIABLE).is_some()
}

/// Returns the addresses in [`LISTEN_VARIABLE`]; none if it is not set.
///
/// # Errors
/// The address that is wrong, and why.
pub(super) fn addresses() -> Result<Vec<SocketAddrV4>, SettingError> {
    Ok(setting::parsed(LISTEN_VARIABLE, parse)?.unwrap_or_default())
}

fn parse(text: &str) -> Result<Vec<SocketAddrV4>, String> {
    let addresses = text.split(',').map(|part| parse_address(part.trim())).collect::<Result<Vec<_>, _>>()?;
    match addresses.first() {
        Some(first) if addresses.iter().any(|address| address.port() != first.port()) => {
            Err("all addresses have one port: cards find each other by it".to_owned())
        }
        _ => Ok(addresses),
    }
}

fn parse_address(text: &str) -> Result<SocketAddrV4, String> {
    let address = text.parse::<SocketAddrV4>().ok();
    let address = address.or_else(|| Some(SocketAddrV4::new(text.parse().ok()?, DEFAULT_PORT)));
    let address =
        address.ok_or_else(|| format!("`{text}` is not ADDRESS or ADDRESS:PORT with an IPv4 address"))?;
    if !is_of_one_host(*address.ip()) || address.port() == 0 {
        return Err(format!("`{text}` is not the address and port of one host: peers connect to it"));
    }
    Ok(address)
}

/// Returns whether packets to that address reach exactly one host. No host has an address of 0.0.0.0/8.
fn is_of_one_host(address: Ipv4Addr) -> bool {
    address.octets()[0] != 0 && !address.is_multicast() && !address.is_broadcast()
}

/// Environment variables with the key that cards prove to each other on the fabric of several hosts: the key
/// itself, or the path of its file.
pub const KEY_VARIABLES: KeyVariables = KeyVariables { key: "SOFTHCA_KEY", file: "SOFTHCA_KEY_FILE" };

fn environment_key() -> Result<Option<Key>, KeyError> {
    KEY_VARIABLES.read(|name| std::env::var_os(name))
}

/// Returns the environment's key for a card at one of these addresses. The user's own key may replace a
/// missing one only on this host: other hosts do not have it.
fn environment_key_for(addresses: &[SocketAddrV4]) -> Result<Option<Key>, FabricError> {
    match (environment_key()?, addresses.iter().find(|address| !address.ip().is_loopback())) {
        (None, Some(address)) => Err(FabricError::NoKey { address: *address, variables: KEY_VARIABLES }),
        (key, _) => Ok(key),
    }
}

pub(super) fn key_for_addresses(addresses: &[SocketAddrV4]) -> Result<Key, FabricError> {
    Ok(environment_key_for(addresses)?.map_or_else(Key::of_user, Ok)?)
}

/// Checks the key that the environment gives, and that there is one if other hosts reach the cards.
///
/// # Errors
/// [`SettingError::Key`], and those of the addresses.
pub(crate) fn check_key() -> Result<(), SettingError> {
    let addresses = addresses()?;
    environment_key_for(&addresses)
        .map(drop)
        .map_err(|error| SettingError::Key { problem: error.to_string() })
}

/// Returns the key for cards of this host, and creates it if there is none.
pub(super) fn key_for_this_host() -> Result<Key, FabricError> {
    Ok(environment_key()?.map_or_else(Key::of_user, Ok)?)
}

pub(super) fn existing_key() -> Result<Option<Key>, KeyError> {
    environment_key()?.map_or_else(Key::of_user_if_made, |key| Ok(Some(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_a_port() {
        let plain = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), DEFAULT_PORT);
        assert_eq!(parse("127.0.0.2"), Ok(vec![plain]));
        let text = "10.0.0.1:99, 10.0.0.2:99";
        assert_eq!(parse(text).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "), text);
    }

    #[test]
    fn what_is_not_an_address_of_one_host_is_named() {
        for (text, problem) in [
            ("localhost", "IPv4"),
            ("::1", "IPv4"),
            ("10.0.0.1:", "IPv4"),
            ("10.0.0.1:70000", "IPv4"),
            ("0.0.0.0", "one host"),
            ("0.0.0.7", "one host"),
            ("224.0.0.1", "one host"),
            ("255.255.255.255:1", "one host"),
            ("10.0.0.1:0", "one host"),
            ("10.0.0.1,", "IPv4"),
            ("10.0.0.1:5,10.0.0.2:6", "one port"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
