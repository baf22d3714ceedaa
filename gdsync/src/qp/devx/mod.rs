//! Queues made by commands of the device (DEVX) instead of verbs: their memory may be any that can
//! be registered with the device, GPU memory too, which the kernel takes for no queue of verbs.
//!
//! `command` gives commands, `memory` registers what queues lie in, `domain` has a doorbell
//! register, `sizes` is the arithmetic; `cq` and `qp` are the objects. What drives the queues is
//! the same as for those of verbs ([`crate::queue`]).
//!
//! Asynchronous events of such queues are not reported: the device delivers them on a channel of
//! its own kind (`mlx5dv_devx_create_event_channel`), which is not read. Those of ports and devices
//! do.

mod command;
mod cq;
mod domain;
mod memory;
mod qp;
mod sizes;
#[cfg(test)]
mod tests;

pub(crate) use cq::Cq;
pub(crate) use domain::Domain;
pub(crate) use qp::Qp;
