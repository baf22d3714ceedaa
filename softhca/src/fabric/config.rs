//! Settings of the fabric of several hosts: the addresses of this process's cards, and the key that the cards of a job share.

use super::error::FabricError;
use super::packet::{NUMBERS, is_unicast};
use crate::os::socket::is_exhausted;
use crate::setting::{self, SettingError};
use gdsync_auth::{Key, KeyError, KeyVariables};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};

/// Environment variable with the IPv4 addresses of the devices: `ADDRESS[:PORT]`, separated by `,`. Each device has the
/// next one that this host has, the same in every process, and its cards use TCP. If it is unset, cards reach only others
/// of their host.
pub const LISTEN_VARIABLE: &str = "SOFTHCA_LISTEN";
/// Base TCP port of an address without one: RoCE v2's UDP port. The card with number n listens n above it. Cards that
/// communicate have the same base port.
pub const DEFAULT_PORT: u16 = 4791;
/// The highest base port: it has a port for each number above it.
const MAX_PORT: u16 = u16::MAX - *NUMBERS.end();

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
    if !is_unicast(*address.ip()) || !(1..=MAX_PORT).contains(&address.port()) {
        return Err(format!(
            "`{text}` is not the address of one host and a port of at most {MAX_PORT}: peers connect to it, and to the {} \
             ports above",
            NUMBERS.len()
        ));
    }
    Ok(address)
}

/// Returns whether an interface of this host has the address: the kernel binds to no other. True without a descriptor to
/// find that out: a device must not get another address for that.
pub fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).map_or_else(|error| is_exhausted(&error), |_| true)
}

/// Returns those of these addresses that this host has, each once: one list may serve several hosts.
pub(super) fn own(addresses: &[SocketAddrV4]) -> Vec<SocketAddrV4> {
    let mut own: Vec<SocketAddrV4> = Vec::new();
    for address in addresses {
        if !own.contains(address) && is_local((*address.ip()).into()) {
            own.push(*address);
        }
    }
    own
}

/// Returns the address of a device.
///
/// # Errors
/// [`FabricError::NoAddress`].
pub(super) fn of_device(addresses: &[SocketAddrV4], device: usize) -> Result<SocketAddrV4, FabricError> {
    let own = own(addresses);
    own.get(device).copied().ok_or_else(|| FabricError::NoAddress {
        variable: LISTEN_VARIABLE,
        list: addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        own: own.len(),
        device,
    })
}

/// Returns the addresses of this host's devices, the same in every process; none on the fabric of one host.
pub(super) fn addresses_of_host() -> Vec<SocketAddrV4> {
    own(&addresses().unwrap_or_default())
}

/// Returns the address of this host's first device, by which its processes know their host. `None` on the fabric of one
/// host.
pub(super) fn host() -> Option<Ipv4Addr> {
    addresses_of_host().first().map(|first| *first.ip())
}

/// Returns whether it is an address of this host's devices, on the fabric of several hosts.
pub fn is_own(address: Ipv4Addr) -> bool {
    addresses_of_host().iter().any(|own| *own.ip() == address)
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
    fn each_device_has_the_next_address_that_this_host_has() {
        let addresses = parse("198.51.100.1, 127.83.0.1, 127.83.0.1, 198.51.100.2, 127.83.0.2").unwrap();
        let of = |device| of_device(&addresses, device).map(|address| address.ip().octets());
        assert_eq!([of(0).unwrap(), of(1).unwrap()], [[127, 83, 0, 1], [127, 83, 0, 2]]);
        let error = of(2).unwrap_err().to_string();
        for part in
            ["198.51.100.1:4791, 127.83.0.1:4791", "2 addresses of this host", "device 2", "SOFTHCA_LISTEN"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
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
            ("10.0.0.1:65026", "at most 65025"),
            ("10.0.0.1,", "IPv4"),
            ("10.0.0.1:5,10.0.0.2:6", "one port"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
