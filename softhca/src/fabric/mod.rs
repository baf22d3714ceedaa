//! The fabric: packets between software cards, in order and without loss while both processes live.
//!
//! All processes of a host share the addresses of its devices. Each card has a number, which tells it from the others at
//! an address, and which the numbers of its queue pairs begin with: address and number are the card's [`Node`].
//!
//! On one host, the default, addresses are LIDs, and packets pass through shared memory. Between hosts they
//! are IPv4 addresses, the last bytes of GIDs, and packets pass through TCP. [`LISTEN_VARIABLE`] selects that
//! fabric and gives the addresses of the host's devices; [`KEY_VARIABLES`] give the key that all cards share.
//!
//! The cards of a simulation have a private fabric, in the memory of one process.

mod config;
mod door;
mod error;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod held;
mod local;
mod names;
mod network;
mod packet;
mod peers;
mod ring;
mod services;
mod shared;
mod shared_link;
mod sleeper;
mod tcp;
mod tcp_handshake;
mod tcp_link;

pub(crate) use config::check_key;
pub use config::{DEFAULT_PORT, KEY_VARIABLES, LISTEN_VARIABLE, is_local, is_own, is_tcp};
pub use door::{Door, find_service_at};
pub use error::FabricError;
pub(crate) use groups::Group;
pub use held::close_sockets_in_child;
pub(crate) use local::Hub;
pub(crate) use packet::OWN_QPN_BITS;
pub(crate) use packet::{Hole, MAX_HEADER, MULTICAST, PayloadPart, SendOutcome, Sink, Use, is_unicast, node};
pub use packet::{MAX_PAYLOAD, Node, address_of};
pub use services::{Service, ServiceCard, Services, find_service};
pub(crate) use sleeper::Sleeper;

pub use crate::os::socket::limit_silence;

#[cfg(test)]
mod other_user_tests;
#[cfg(test)]
mod tests;

use crate::speed::Speed;
use gdsync_auth::Key;
use network::Network;
use shared::Shared;
use std::net::SocketAddrV4;
use std::ops::{Deref, DerefMut};
use tcp::Tcp;

/// A card's access to its fabric, used by one thread at a time.
pub(crate) struct Fabric(Box<dyn Network>);

impl Fabric {
    /// Claims a free number for a card of a device with that speed: on this host or, if [`LISTEN_VARIABLE`] gives the
    /// device an address, there.
    pub(crate) fn bind(device: usize, speed: Speed) -> Result<Fabric, FabricError> {
        let addresses = config::addresses()?;
        if addresses.is_empty() {
            Self::on_host(speed)
        } else {
            let address = config::of_device(&addresses, device)?;
            Self::at(address, config::key_for_addresses(&addresses)?, speed)
        }
    }

    pub(crate) fn on_host(speed: Speed) -> Result<Fabric, FabricError> {
        Ok(Fabric(Box::new(Shared::bind(speed)?)))
    }

    /// Joins the fabric of a simulation.
    ///
    /// # Errors
    /// [`FabricError::NoLid`] if the simulation has had all cards that a fabric may have.
    pub(crate) fn simulated(hub: &Hub) -> Result<Fabric, FabricError> {
        Ok(Fabric(Box::new(hub.join()?)))
    }

    /// Joins the fabric of several hosts at an address and a base port. Cards with the same key reach each other.
    pub(crate) fn at(address: SocketAddrV4, key: Key, speed: Speed) -> Result<Fabric, FabricError> {
        Ok(Fabric(Box::new(Tcp::bind(address, names::seed(), key, speed, tcp_handshake::limits())?)))
    }
}

impl Deref for Fabric {
    type Target = dyn Network;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl DerefMut for Fabric {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}
