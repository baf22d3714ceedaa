//! The cards of IP addresses, of this process and of its peers.
//!
//! Each card has IP addresses among its GIDs. In addition, on the fabric of one host, the addresses of its interfaces are those
//! of the process's first card. As a destination, every local address leads to the process that serves the port.

use super::address::Address;
use super::id::Route;
use super::message::Gids;
use super::path::{group_gid, pkey_index};
use crate::card::{Cards, OpenCard};
use crate::errno::{Errno, Result};
use softhca::card::LinkLayer;
use softhca::devices::devices_from_environment;
use softhca::fabric::{ServiceCard, address_of, find_service, find_service_at, is_own, is_tcp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for another process to name its cards.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two searches for a service that does not exist yet, here and on another host.
const SEARCH_INTERVAL: Duration = Duration::from_millis(2);
const ASK_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the process's cards, and starts them if needed. Those that cannot start are missing.
pub(crate) fn cards(cards: &Cards) -> Vec<Arc<OpenCard>> {
    let count = devices_from_environment().map_or(0, |devices| devices.len());
    (0..count).filter_map(|index| cards.open(index).ok()).collect()
}

/// Describes the cards for processes that ask for this process's services.
pub(crate) fn as_services(cards: &[Arc<OpenCard>]) -> Vec<ServiceCard> {
    cards.iter().map(|open| ServiceCard { is_ethernet: is_ethernet(open), node: open.card.node() }).collect()
}

fn is_ethernet(open: &OpenCard) -> bool {
    open.card.link_layer() == LinkLayer::Ethernet
}

fn is_local(ip: IpAddr) -> bool {
    !ip.is_multicast() && !ip.is_unspecified() && softhca::fabric::is_local(ip)
}

/// Returns the card of an address of this host; `None` for an address that names no interface. On the fabric of one host, the
/// first card has the addresses of the host's interfaces, too: they lead to no other host's cards.
///
/// # Errors
/// EADDRNOTAVAIL for an address that this host does not have; ENODEV for one of its interfaces, or a GID, that no card has.
pub(crate) fn own_card(cards: &[Arc<OpenCard>], address: &Address) -> Result<Option<Arc<OpenCard>>> {
    if address.is_any() {
        return Ok(None);
    }
    let ip = address.ip_or_gid();
    let own = cards.iter().find(|open| open.card.has_address(ip)).cloned();
    match address {
        _ if own.is_some() => Ok(own),
        Address::Ib(_) => Err(Errno::NO_DEVICE),
        _ if !is_local(ip) => Err(Errno(libc::EADDRNOTAVAIL)),
        _ => cards.first().filter(|_| !is_tcp()).cloned().map(Some).ok_or(Errno::NO_DEVICE),
    }
}

enum Target {
    /// The process that serves the port: at that address or, without one, on this host.
    Service(Option<Ipv4Addr>),
    Group,
}

fn target(cards: &[Arc<OpenCard>], destination: &Address) -> Result<Target> {
    let ip = destination.ip_or_gid();
    let first = cards.first().ok_or(Errno::NO_DEVICE)?;
    if ip.is_multicast() {
        return Ok(Target::Group);
    }
    let has_it = || cards.iter().any(|open| open.card.has_address(ip));
    match first.card.ipv4_of(ip) {
        // On the fabric of several hosts, every address may be a card's.
        Some(address) if address != Ipv4Addr::LOCALHOST || has_it() => Ok(Target::Service(Some(address))),
        _ if destination.is_any() || is_local(ip) || has_it() => Ok(Target::Service(None)),
        _ => Err(Errno(libc::ENETUNREACH)),
    }
}

/// Returns whether a request that has arrived at a card is for its host: a host refuses its own requests to another one
/// where no process serves the port.
pub(crate) fn is_for(open: &OpenCard, destination: &Address) -> bool {
    let ip = destination.ip_or_gid();
    let address = open.card.ipv4_of(ip).filter(|address| *address != Ipv4Addr::LOCALHOST);
    address.is_none() || open.card.has_address(ip)
}

/// Returns the route from one of these cards to a destination. `bound` is the card that the identifier is
/// already bound to; `key` are the port space and number. If no process listens at the port, the search
/// repeats for the time `grace`: on a subnet the resolution takes milliseconds, and programs (perftest) rely
/// on their peer listening by then. May wait for another process: no lock is held.
///
/// # Errors
/// ENODEV if no card of the process has the destination's link layer, or if the port's table lacks the destination's
/// partition key; ENETUNREACH for an address that no card of the fabric has, ETIMEDOUT if the process there does not
/// answer.
pub(crate) fn route(
    cards: &[Arc<OpenCard>],
    bound: Option<&Arc<OpenCard>>,
    destination: &Address,
    key: (u16, u16),
    grace: Duration,
) -> Result<Route> {
    let candidates: Vec<&Arc<OpenCard>> = match bound {
        Some(card) => vec![card],
        None => cards.iter().collect(),
    };
    let first = *candidates.first().ok_or(Errno::NO_DEVICE)?;
    let target = target(cards, destination)?;
    let chosen = match target {
        // This card itself refuses connections to a group.
        Target::Group => Some((first, first.card.node())),
        Target::Service(address) => match find_listener(key, address, grace)? {
            Some(served) => candidates.iter().find_map(|open| {
                let fits = served.iter().find(|card| card.is_ethernet == is_ethernet(open))?;
                Some((*open, fits.node))
            }),
            // No process serves the port: this host itself will refuse the connection.
            None => Some((first, first.card.node())),
        },
    };
    let (open, node) = chosen.ok_or(Errno::NO_DEVICE)?;
    let gid = |node| open.card.gid_of(node).ok_or(Errno::NO_DEVICE);
    let to = match target {
        Target::Group => group_gid(open, key.0, destination),
        Target::Service(Some(address)) => address.to_ipv6_mapped().octets(),
        Target::Service(None) => gid(node)?,
    };
    let gids = Gids { source: gid(open.card.node())?, destination: to };
    let pkey_index = pkey_index(open, Some(destination)).ok_or(Errno::NO_DEVICE)?;
    Ok(Route { card: open.clone(), node, gids, pkey_index })
}

/// Returns the cards at an address, or of this host, of the process that listens at a port, if one does before the time is
/// over.
fn find_listener(
    (space, port): (u16, u16),
    address: Option<Ipv4Addr>,
    grace: Duration,
) -> Result<Option<Vec<ServiceCard>>> {
    let other = address.filter(|address| !is_own(*address));
    let interval = if other.is_some() { ASK_INTERVAL } else { SEARCH_INTERVAL };
    let end = Instant::now() + grace;
    loop {
        let found = match other {
            Some(other) => find_service_at(other, space, port, PATIENCE)?,
            None => find_service(space, port, PATIENCE)?,
        };
        let found = found.map(|mut cards| {
            cards.retain(|card| address.is_none() || address_of(card.node) == address);
            cards
        });
        match found.filter(|cards| !cards.is_empty()) {
            None if Instant::now() < end => std::thread::sleep(interval),
            found => return Ok(found),
        }
    }
}

/// Returns the source address of an identifier without one: the destination's for this host, else the card's own.
pub(crate) fn source_for(route: &Route, destination: &Address) -> Address {
    let own: [u8; 16] = route.gids.source;
    match destination {
        Address::Ib(address) => Address::Ib(super::address::IbAddress { gid: own, ..*address }).with_port(0),
        _ if destination.is_any() || is_local(destination.ip_or_gid()) => destination.with_port(0),
        Address::V4(_) => {
            let [.., a, b, c, d] = own;
            Address::of(Ipv4Addr::new(a, b, c, d).into(), 0)
        }
        Address::V6(_) => Address::of(Ipv6Addr::from(own).into(), 0),
    }
}
