//! The requester half of a queue pair: fetches, sends, retries and completes work requests.

mod answer;
mod complete;
mod dc;
mod fetch;
mod send;
mod state;
mod status;
mod timeout;
mod wait;

pub(crate) use state::{Examination, PeerState, Requester};
