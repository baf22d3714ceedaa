//! The requester half of a queue pair: fetches, sends, retries and completes work requests.

mod answer;
mod fetch;
mod owned;
mod send;
mod state;
mod uses;
mod wait;

pub(crate) use state::{PeerState, Requester, TimeoutCheck};
pub(crate) use uses::OBJECT;
