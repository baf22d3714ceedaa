//! The requester half of a queue pair: fetches work requests, sends and retries them, completes
//! them.

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
