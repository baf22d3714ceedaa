//! The responder half of a queue pair: executes requests, fills receives, answers.

mod answer;
mod execute;
mod request;
mod state;

pub(crate) use state::Responder;
