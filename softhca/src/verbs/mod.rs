//! The front of the card for programs: the entry points of libibverbs and libmlx5.
//!
//! Its behaviour follows the manual pages and rdma-core's mlx5 provider: granted capacities, errno values,
//! and the order in which objects can be destroyed. Objects are pointers to C structs. An object cannot be
//! destroyed (EBUSY) while objects made from it exist. A null pointer causes EINVAL. Using a pointer after
//! its object was destroyed is undefined, as in C.
//!
//! Every function may be called from any thread. None panics.
//!
//! Features that this card lacks are refused with EOPNOTSUPP and logged: transports other than RC, UC, UD and
//! DC, extended completion fields, the drained state.

mod ah;
mod api;
mod context;
mod cq;
mod device;
mod domain;
mod errno;
mod event_queue;
mod modify;
mod mr;
mod object;
mod qp;
mod queue_memory;
mod sizes;
mod srq;

pub use crate::devices::DEVICES_VARIABLE;
pub use api::verbs_api;
pub use context::open_simulated;
pub use device::diagnostics;
