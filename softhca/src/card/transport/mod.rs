//! The transport protocol: queue pairs, each with a requester and a responder.
//!
//! Both halves report to their [`endpoint`] and never call each other: if one fails, the queue pair flushes both.

pub(crate) mod dc;
pub(crate) mod endpoint;
pub(crate) mod qp;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod route;
pub(crate) mod transition;
