//! The objects and queries of the verbs interface.
//!
//! Layers, each importing only modules before it: `port`, `device`, `channel`, `pd`, `ah`, `mr`, `rereg`,
//! `mw`, `dm`, `uar`, `xrcd`, `cq`, `srq`, `qp`.

pub(crate) mod ah;
pub(crate) mod channel;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod mcast;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod rereg;
pub(crate) mod srq;
pub(crate) mod uar;
pub(crate) mod xrcd;
