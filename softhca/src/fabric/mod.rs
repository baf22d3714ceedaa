//! The fabric: packets between software cards, in order and without loss while both processes live.
//!
//! On one host, the default, cards find each other by LID, and packets pass through shared memory
//! (`shared.rs`). Between hosts, cards find each other by IPv4 address, the last bytes of their GIDs, and
//! packets pass through TCP (`tcp.rs`). [`LISTEN_VARIABLE`] selects that fabric and names the addresses of
//! the process; [`KEY_VARIABLES`] give the key that its cards share.

mod error;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod key;
mod listen;
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
mod tcp_join;
mod tcp_link;

pub use error::FabricError;
pub(crate) use groups::Group;
pub use key::KEY_VARIABLES;
pub(crate) use key::check_key;
pub use listen::{DEFAULT_PORT, LISTEN_VARIABLE, is_tcp};
pub(crate) use network::Fabric;
pub(crate) use packet::{Hole, MAX_HEADER, MULTICAST, Part, SendOutcome, Sink, Use, node_of_address};
pub use packet::{MAX_PAYLOAD, Node};
pub use services::{Service, ServiceCard, find_service};
pub(crate) use sleeper::Sleeper;

pub use crate::os::socket::limit_silence;

#[cfg(test)]
mod other_user_tests;
