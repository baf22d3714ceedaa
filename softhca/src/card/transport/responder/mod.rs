//! The responder half of a queue pair: executes requests, fills receives, answers.

mod answer;
mod atomic;
mod datagram;
mod hold;
mod receive;
mod reliable;
mod remote;
mod response;
mod state;
mod unreliable;

pub(crate) use state::Responder;
