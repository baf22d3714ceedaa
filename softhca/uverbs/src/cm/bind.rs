//! Addresses, ports, routes and options of identifiers.

use super::address::Address;
use super::event::EventKind;
use super::host;
use super::id::{Id, IdState, Port, port_of_service};
use super::manager::{Inner, Manager, random};
use super::path::check_path;
use crate::card::OpenCard;
use crate::errno::{Errno, Result};
use crate::privilege;
use crate::uapi::ucm::{ConnParam, Ece, option, space};
use softhca::fabric::Service;
use std::net::SocketAddrV6;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The port numbers of identifiers that ask for any (`net.ipv4.ip_local_port_range`).
const ANY_PORT: std::ops::Range<u16> = 32768..61000;
/// Time for which a connection request waits for its peer to listen, before it is sent anyway, and refused.
const GRACE: Duration = Duration::from_millis(100);
/// Error of a port number that its process has given up: it is free once the programs that the process is starting are
/// executed, which have copies of all its files until then.
const BEING_FREED: Errno = Errno(libc::EAGAIN);
/// Time limit for such a number to be free, and the time between two looks.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
const RELEASE_INTERVAL: Duration = Duration::from_micros(100);
/// `max_backlog` of the kernel's module.
const MAX_BACKLOG: u32 = 1024;
/// The port numbers of privileged programs (`PROT_SOCK`).
const PRIVILEGED_PORTS: std::ops::Range<u16> = 1..1024;

/// Returns whether an identifier may use a port space of InfiniBand service IDs (`cma_select_ib_ps`).
fn fits_space(id: &Id, service_space: u64) -> bool {
    let spaces: &[u16] = match id.space {
        space::IB => &[space::IB, space::TCP, space::UDP],
        space::TCP => &[space::TCP],
        space::UDP => &[space::UDP],
        _ => &[],
    };
    spaces.iter().any(|space| u64::from(*space) << 16 == service_space)
}

/// Checks that two identifiers can have the same port number (`cma_check_port`). `reuses` is whether the first
/// shares it.
///
/// # Errors
/// EADDRNOTAVAIL if one of them is bound to all addresses, EADDRINUSE if both are bound to one.
fn check_port(one: &Id, reuses: bool, other: &Id) -> Result<()> {
    let (Some(address), Some(taken)) = (one.source, other.source) else { return Ok(()) };
    let are_apart = one.is_own_family_only() && other.is_own_family_only() && !address.is_same_family(&taken);
    if are_apart || reuses && other.options.reuses_address {
        Ok(())
    } else if address.is_any() || taken.is_any() {
        Err(Errno(libc::EADDRNOTAVAIL))
    } else if address.is_same_interface(&taken) {
        Err(Errno(libc::EADDRINUSE))
    } else {
        Ok(())
    }
}

impl Manager {
    /// `BIND`, `BIND_IP`.
    ///
    /// # Errors
    /// EINVAL if it is bound, and for a link-local address without its interface; EPROTONOSUPPORT for a service
    /// ID of another port space, EACCES for a port number of privileged programs, and those of [`check_port`] and
    /// [`host::own_card`].
    pub(crate) fn bind(&self, file: u32, number: u32, address: Address) -> Result<()> {
        let cards = if address.is_any() { Vec::new() } else { self.cards() };
        let end = Instant::now() + RELEASE_LIMIT;
        loop {
            match self.lock().bind(file, number, address, &cards, true) {
                Err(BEING_FREED) if Instant::now() < end => {}
                Err(BEING_FREED) => return Err(Errno(libc::EADDRINUSE)),
                result => return result,
            }
            std::thread::sleep(RELEASE_INTERVAL);
        }
    }

    /// `LISTEN`. An identifier that is not bound gets any free port.
    ///
    /// # Errors
    /// EINVAL in the wrong state, ENODEV without a card, and those of [`check_port`]: a listener shares its port
    /// number with no other identifier.
    pub(crate) fn listen(&self, file: u32, number: u32, backlog: u32) -> Result<()> {
        let cards = self.cards();
        let mut inner = self.lock();
        if inner.id(file, number)?.state == IdState::Idle {
            let any = Address::of(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
            inner.bind(file, number, any, &cards, true)?;
        }
        if cards.is_empty() {
            return Err(Errno::NO_DEVICE);
        }
        let id = inner.id(file, number)?;
        id.must_be(IdState::AddrBound)?;
        if id.options.reuses_address {
            inner.check_alone(number)?;
        }
        let id = inner.id(file, number)?;
        id.options.reuses_address = false;
        id.backlog = if (1..MAX_BACKLOG).contains(&backlog) { backlog } else { MAX_BACKLOG };
        id.state = IdState::Listen;
        Ok(())
    }

    /// `RESOLVE_ADDR`, `RESOLVE_IP`: finds the route to an address, and adds an event for the program.
    ///
    /// # Errors
    /// EINVAL in the wrong state, and those of [`Self::bind`] for the source address.
    pub(crate) fn resolve(
        &self,
        file: u32,
        number: u32,
        source: Option<Address>,
        destination: Address,
    ) -> Result<()> {
        let cards = self.cards();
        let mut inner = self.lock();
        if inner.id(file, number)?.state == IdState::Idle {
            let source = source.unwrap_or_else(|| destination.any_like());
            inner.bind(file, number, source, &cards, false)?;
        }
        let id = inner.id(file, number)?;
        id.must_be(IdState::AddrBound)?;
        if id.source.is_some_and(|source| !source.is_same_family(&destination)) {
            return Err(Errno::INVALID);
        }
        let (bound, service) = (id.card.clone(), id.service_id(&destination));
        drop(inner);
        let route =
            host::route(&cards, bound.as_ref(), &destination, port_of_service(service), Duration::ZERO);
        let mut inner = self.lock();
        let id = inner.id(file, number)?;
        // Another thread may have resolved it meanwhile.
        id.must_be(IdState::AddrBound)?;
        match route {
            Ok(route) => {
                if let Some(source) = id.source.filter(Address::is_any) {
                    id.source = Some(host::source_for(&route, &destination).with_port(source.port()));
                }
                id.destination = Some(destination);
                id.card = Some(route.card.clone());
                id.route = Some(route);
                id.state = IdState::AddrResolved;
                inner.push_plain(number, EventKind::AddrResolved, 0);
            }
            Err(errno) => {
                tracing::warn!(?destination, ?errno, "no card of the fabric has the address");
                inner.push_plain(number, EventKind::AddrError, -errno.0);
            }
        }
        Ok(())
    }
}

impl Manager {
    /// `CONNECT`. Another process may serve the port now than when the address was resolved, or the first may.
    ///
    /// # Errors
    /// Those of [`Inner::ask`].
    pub(crate) fn ask(&self, file: u32, number: u32, param: &ConnParam, ece: Ece) -> Result<()> {
        let mut inner = self.lock();
        let id = inner.id(file, number)?;
        id.must_be(IdState::RouteResolved)?;
        let (bound, destination) = (id.card.clone(), id.destination.ok_or(Errno::INVALID)?);
        let key = port_of_service(id.service_id(&destination));
        drop(inner);
        let route = host::route(&self.cards(), bound.as_ref(), &destination, key, GRACE);
        let mut inner = self.lock();
        if let Ok(route) = route {
            inner.id(file, number)?.route = Some(route);
        }
        inner.ask(file, number, param, ece)
    }
}

impl Inner {
    fn bind(
        &mut self,
        file: u32,
        number: u32,
        address: Address,
        cards: &[Arc<OpenCard>],
        claims: bool,
    ) -> Result<()> {
        let id = self.id(file, number)?;
        id.must_be(IdState::Idle)?;
        let is_link_local = |address: &SocketAddrV6| address.ip().is_unicast_link_local();
        if matches!(&address, Address::V6(address) if is_link_local(address) && address.scope_id() == 0) {
            return Err(Errno::INVALID);
        }
        let card = host::own_card(cards, &address)?;
        if address.ib_space().is_some_and(|service| !fits_space(id, service)) {
            return Err(Errno::UNKNOWN);
        }
        let (port_space, _) = port_of_service(id.service_id(&address));
        let own = Id { source: Some(address), ..id.clone() };
        let port = match address.port() {
            0 => self.any_port(port_space, claims)?,
            port => self.chosen_port((port_space, port), &own, claims)?,
        };
        let id = self.id(file, number)?;
        id.source = Some(address.with_port(port.key.1));
        id.port = Some(port);
        id.card = card;
        id.state = IdState::AddrBound;
        Ok(())
    }

    fn owners(&self, key: (u16, u16)) -> impl Iterator<Item = &Id> {
        self.ids.values().filter(move |id| id.port.as_ref().is_some_and(|port| port.key == key))
    }

    /// Binds the port number that the program has chosen.
    fn chosen_port(&self, key: (u16, u16), own: &Id, claims: bool) -> Result<Port> {
        if PRIVILEGED_PORTS.contains(&key.1) && !privilege::has(privilege::NET_BIND_SERVICE) {
            return Err(Errno(libc::EACCES));
        }
        let reuses = own.options.reuses_address;
        self.owners(key).try_for_each(|other| check_port(own, reuses, other))?;
        if let Some(claim) = self.owners(key).find_map(|id| id.port.as_ref()?.claim.clone()) {
            return Ok(Port { key, claim: Some(claim) });
        }
        let claim = if claims { self.claim(key)? } else { None };
        if claims && claim.is_none() {
            let is_any = own.source.is_some_and(|address| address.is_any());
            return Err(Errno(if is_any { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE }));
        }
        Ok(Port { key, claim })
    }

    /// Claims a port number among the processes of the host. `None` if it is taken.
    fn claim(&self, key: (u16, u16)) -> Result<Option<Arc<Service>>> {
        let services = self.services.as_ref().ok_or(Errno::NO_DEVICE)?;
        Ok(services.claim(key.0, key.1)?.map(Arc::new))
    }

    fn any_port(&self, port_space: u16, claims: bool) -> Result<Port> {
        let count = ANY_PORT.len() as u64;
        let first = random() % count;
        for step in 0..count {
            let port = ANY_PORT.start + ((first + step) % count) as u16;
            let key = (port_space, port);
            if self.owners(key).next().is_some() {
                continue;
            }
            let claim = if claims { self.claim(key) } else { Ok(None) };
            match claim {
                Err(BEING_FREED) => {}
                claim => {
                    let claim = claim?;
                    if !claims || claim.is_some() {
                        return Ok(Port { key, claim });
                    }
                }
            }
        }
        Err(Errno(libc::EADDRNOTAVAIL))
    }

    /// Checks that no other identifier has its port number.
    fn check_alone(&self, number: u32) -> Result<()> {
        let Some(own) = self.ids.get(&number) else { return Ok(()) };
        let Some(port) = &own.port else { return Ok(()) };
        self.owners(port.key)
            .filter(|other| !std::ptr::eq(*other, own))
            .try_for_each(|other| check_port(own, false, other))
    }

    /// `RESOLVE_ROUTE`. The route is known with the address.
    ///
    /// # Errors
    /// EINVAL in the wrong state.
    pub(crate) fn resolve_route(&mut self, file: u32, number: u32) -> Result<()> {
        let id = self.id(file, number)?;
        id.must_be(IdState::AddrResolved)?;
        id.state = IdState::RouteResolved;
        self.push_plain(number, EventKind::RouteResolved, 0);
        Ok(())
    }

    /// `SET_OPTION`.
    ///
    /// # Errors
    /// EINVAL for a value of the wrong size or state, ENOSYS for an unknown option.
    pub(crate) fn set_option(
        &mut self,
        file: u32,
        number: u32,
        name: (u32, u32),
        value: &[u8],
    ) -> Result<()> {
        let id = self.id(file, number)?;
        let byte = || <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| Errno::INVALID);
        let flag = || {
            let value = <[u8; 4]>::try_from(value).map_err(|_| Errno::INVALID)?;
            Ok::<bool, Errno>(i32::from_ne_bytes(value) != 0)
        };
        match name {
            option::TOS => id.options.type_of_service = byte()?,
            option::REUSEADDR => {
                let reuses = flag()?;
                let is_free = id.state == IdState::Idle || reuses && id.state != IdState::Listen;
                if !is_free {
                    return Err(Errno::INVALID);
                }
                id.options.reuses_address = reuses;
            }
            option::AFONLY => {
                let only = flag()?;
                if !matches!(id.state, IdState::Idle | IdState::AddrBound) {
                    return Err(Errno::INVALID);
                }
                id.options.only_own_family = Some(only);
            }
            option::ACK_TIMEOUT => {
                let code = byte()?;
                if !id.qp_type.is_reliable_initiator() {
                    return Err(Errno::INVALID);
                }
                id.options.ack_timeout = Some(code);
            }
            // The path is that of the address, regardless of the program's findings.
            option::IB_PATH => {
                check_path(value)?;
                return self.resolve_route(file, number);
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }
}
