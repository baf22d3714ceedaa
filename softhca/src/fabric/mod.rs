//! The fabric: packets between software cards, in order and without loss while both processes live.
//!
//! On one host, the default, cards find each other by LID, and packets pass through shared memory
//! (`shared.rs`). Between hosts, cards find each other by IPv4 address, the last bytes of their GIDs, and
//! packets pass through TCP (`tcp.rs`). [`LISTEN_VARIABLE`] selects that fabric and names the addresses of
//! the process; [`KEY_VARIABLES`] give the key that its cards share.
//!
//! The cards of a simulation have a private fabric, in the memory of one process (`local.rs`).

mod config;
mod error;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod groups;
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
pub use config::{DEFAULT_PORT, KEY_VARIABLES, LISTEN_VARIABLE, is_tcp};
pub use error::FabricError;
pub(crate) use groups::Group;
pub(crate) use local::Hub;
pub use names::close_names_in_child;
pub(crate) use packet::OWN_QPN_BITS;
pub(crate) use packet::{Hole, MAX_HEADER, MULTICAST, PayloadPart, SendOutcome, Sink, Use, node_of_address};
pub use packet::{MAX_PAYLOAD, Node};
pub use services::{Service, ServiceCard, Services, find_service};
pub(crate) use sleeper::Sleeper;

pub use crate::os::socket::limit_silence;

#[cfg(test)]
mod other_user_tests;
#[cfg(test)]
mod tests;

use crate::speed::Speed;
use gdsync_auth::{Key, Limits};
use network::Network;
use shared::Shared;
use std::net::SocketAddrV4;
use std::ops::{Deref, DerefMut};
use tcp::Tcp;

/// A card's access to its fabric, used by one thread at a time.
pub(crate) struct Fabric(Box<dyn Network>);

impl Fabric {
    /// Claims a free LID, or a free address if [`LISTEN_VARIABLE`] lists some, for a card with that speed.
    pub(crate) fn bind(speed: Speed) -> Result<Fabric, FabricError> {
        let addresses = config::addresses()?;
        if addresses.is_empty() {
            Self::on_host(speed)
        } else {
            Self::at(&addresses, config::key_for_addresses(&addresses)?, speed)
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

    /// Joins the fabric of several hosts at the first free one of these addresses. Cards with the same key
    /// reach each other.
    pub(crate) fn at(addresses: &[SocketAddrV4], key: Key, speed: Speed) -> Result<Fabric, FabricError> {
        Ok(Fabric(Box::new(Tcp::bind(addresses, key, speed, Limits::default())?)))
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
