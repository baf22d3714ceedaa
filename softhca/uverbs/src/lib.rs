//! A preload library: the unmodified libibverbs and libmlx5, and any program on them, run on the software card.
//!
//! It stands in the place of the kernel's `ib_uverbs` and `mlx5_ib`. Loaded with `LD_PRELOAD`, it takes the calls with which
//! libibverbs opens `/dev/infiniband/uverbs*` and commands it, and answers them from a [`softhca::card::Card`] inside the
//! process. `gdsync soft -- COMMAND` sets the environment up: a stand-in for sysfs, and the preloaded library.
//!
//! Layers, bottom up: `uapi` is what the kernel's headers say; `attributes` reads and answers a command; one module per kind
//! of object performs it on the card, for a `context`; `files` knows which file descriptors are contexts; `hooks` are the C
//! functions.
//!
//! Nothing happens when the library is loaded. A card starts with the first open device, and belongs to the process: the
//! child of a fork has none until it opens a device itself.

mod ah;
mod attributes;
mod card;
mod channel;
mod context;
mod cq;
mod cuda;
mod device;
mod devx;
mod errno;
mod events;
mod files;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod hooks;
mod mr;
mod pd;
mod port;
mod qp;
mod uapi;
mod uar;
mod write;

#[cfg(test)]
mod command_tests;
