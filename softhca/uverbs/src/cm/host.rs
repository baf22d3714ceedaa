//! Which card an IP address leads to: of this process, and of its peers.
//!
//! Cards have IP addresses of their own among their GIDs. Besides these, every local address of the
//! host leads to the process's first card, and as a destination to the process that serves the port.

use super::address::Address;
use super::group;
use super::id::Route;
use super::message::Gids;
use crate::card::{Cards, OpenCard};
use crate::errno::{Errno, Result};
use softhca::card::LinkLayer;
use softhca::devices::devices_from_environment;
use softhca::fabric::{Node, ServiceCard, find_service, is_tcp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for another process to name its cards.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks for a service that is not there yet.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The process's cards, which start here if they do not run. Those that cannot start are not there.
pub(crate) fn cards(cards: &Cards) -> Vec<Arc<OpenCard>> {
    let count = devices_from_environment().map_or(0, |devices| devices.len());
    (0..count).filter_map(|index| cards.open(index).ok()).collect()
}

/// What this process says of itself to those who ask for its services.
pub(crate) fn as_services(cards: &[Arc<OpenCard>]) -> Vec<ServiceCard> {
    cards.iter().map(|open| ServiceCard { is_ethernet: is_ethernet(open), node: open.card.node() }).collect()
}

fn is_ethernet(open: &OpenCard) -> bool {
    open.card.link_layer() == LinkLayer::Ethernet
}

/// Whether an interface of this host has the address. (The kernel binds to no other.)
fn is_local(ip: IpAddr) -> bool {
    !ip.is_multicast() && !ip.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok()
}

/// The IP address in which an address's GID ends, or which it is.
fn ip_of(address: &Address) -> IpAddr {
    match address {
        Address::Ib(address) => Ipv6Addr::from(address.gid).into(),
        Address::V4(address) => (*address.ip()).into(),
        Address::V6(address) => address.ip().to_canonical(),
    }
}

/// The card that an address of this host belongs to; `None` for one that names no interface.
///
/// # Errors
/// EADDRNOTAVAIL for an address that this host does not have, ENODEV if there is no card, or for a GID
/// that none has.
pub(crate) fn own_card(cards: &[Arc<OpenCard>], address: &Address) -> Result<Option<Arc<OpenCard>>> {
    if address.is_any() {
        return Ok(None);
    }
    let ip = ip_of(address);
    let has_it = |open: &&Arc<OpenCard>| open.card.node_at(ip) == Some(open.card.node());
    let own = cards.iter().find(has_it).cloned();
    match address {
        _ if own.is_some() => Ok(own),
        Address::Ib(_) => Err(Errno::NO_DEVICE),
        _ if is_local(ip) => cards.first().cloned().map(Some).ok_or(Errno::NO_DEVICE),
        _ => Err(Errno(libc::EADDRNOTAVAIL)),
    }
}

/// Where a destination leads to.
enum Target {
    /// A card of the fabric.
    Card(Node),
    /// The process that serves the port on this host.
    Service,
    /// A multicast group.
    Group,
}

fn target(cards: &[Arc<OpenCard>], destination: &Address) -> Result<Target> {
    let ip = ip_of(destination);
    let first = cards.first().ok_or(Errno::NO_DEVICE)?;
    if ip.is_multicast() {
        return Ok(Target::Group);
    }
    let is_loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&ip);
    match first.card.node_at(ip) {
        // On the fabric of several hosts, every address may be a card's. Here one of this process is.
        Some(node) if !is_loopback || cards.iter().any(|open| open.card.node() == node) => {
            Ok(Target::Card(node))
        }
        _ if destination.is_any() || is_local(ip) => Ok(Target::Service),
        _ => Err(Errno(libc::ENETUNREACH)),
    }
}

/// The way from one of these cards to a destination. `bound` is the card that the identifier is bound to
/// already; `key` are the port space and number. Where no process listens at the port, it looks again for the
/// time `grace`: on a subnet the resolution takes milliseconds, and programs (perftest) count on that
/// their peer listens by then. May wait for another process: no lock is held.
///
/// # Errors
/// ENODEV if no card of the process has the link layer of the destination's, ENETUNREACH for an address
/// that no card of the fabric has, ETIMEDOUT if the process there does not answer.
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
    let chosen = match target(cards, destination)? {
        Target::Card(node) => {
            // An IPv4 address is a GID on Ethernet only.
            let prefers = |open: &&&Arc<OpenCard>| destination.ip().is_some() && is_ethernet(open);
            Some((*candidates.iter().find(prefers).unwrap_or(&first), node))
        }
        // Connections to a group are refused by this card itself.
        Target::Group => Some((first, first.card.node())),
        Target::Service => match find_listener(key, grace)? {
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
    let to = match ip_of(destination).is_multicast() {
        true => group::gid(open.card.link_layer(), key.0, destination),
        false => gid(node)?,
    };
    let gids = Gids { source: gid(open.card.node())?, destination: to };
    Ok(Route { card: open.clone(), node, gids })
}

/// The cards of the process that listens at a port of this host, if one does before the time is over.
fn find_listener(key: (u16, u16), grace: Duration) -> Result<Option<Vec<ServiceCard>>> {
    let end = Instant::now() + grace;
    loop {
        match find_service(key.0, key.1, PATIENCE)?.filter(|cards| !cards.is_empty()) {
            None if Instant::now() < end => std::thread::sleep(LOOK_AGAIN),
            found => return Ok(found),
        }
    }
}

/// The source address of an identifier without one: on the way to this host the destination's, else the
/// card's own.
pub(crate) fn source_for(route: &Route, destination: &Address) -> Address {
    let own: [u8; 16] = route.gids.source;
    match destination {
        Address::Ib(address) => Address::Ib(super::address::IbAddress { gid: own, ..*address }).with_port(0),
        _ if destination.is_any() || is_local(ip_of(destination)) => destination.with_port(0),
        Address::V4(_) => {
            let [.., a, b, c, d] = own;
            Address::of(Ipv4Addr::new(a, b, c, d).into(), 0)
        }
        Address::V6(_) => Address::of(Ipv6Addr::from(own).into(), 0),
    }
}

/// Whether a port number must be free on the whole host. On the fabric of several hosts each card has an
/// address of its own, and with it its own port numbers.
pub(crate) fn shares_ports() -> bool {
    !is_tcp()
}
