//! The requester half of a queue pair: fetches, sends, retries and completes work requests.

mod answer;
mod send;
mod state;
mod wait;

pub(crate) use state::{PeerState, Requester, TimeoutCheck};
