//! The objects and queries of the verbs interface.
//!
//! Layers, each importing only modules before it: `port`, `device`, `domain`, `ah`, `mr`, `pages`, `cq`, `srq`,
//! `derived`, `qp`, `modify`, `mcast`.

pub(crate) mod ah;
pub(crate) mod cq;
mod derived;
pub(crate) mod device;
pub(crate) mod domain;
pub(crate) mod mcast;
pub(crate) mod modify;
pub(crate) mod mr;
pub(crate) mod pages;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod srq;
