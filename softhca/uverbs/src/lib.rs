//! A preload library that runs the unmodified libibverbs and libmlx5, and any program that uses them, on the
//! software card.
//!
//! The library replaces the kernel modules `ib_uverbs` and `mlx5_ib`. Loaded with `LD_PRELOAD`, it intercepts
//! the calls with which libibverbs opens `/dev/infiniband/uverbs*` and sends commands to it, and performs the
//! commands on a [`softhca::card::Card`] inside the process. `gdsync soft -- COMMAND` sets up the
//! environment: a stand-in for sysfs, and the preloaded library.
//!
//! # Layers
//!
//! Each module imports only modules above it in this list:
//!
//! | module | contents |
//! |---|---|
//! | `uapi` | the kernel's headers: numbers and structures |
//! | `errno` | error numbers |
//! | `memory` | the library's own memory |
//! | `log` | the log on stderr |
//! | `calls` | names of commands, for messages |
//! | `paths` | the stand-ins for files of the system |
//! | `netlink` | the answers of RDMA netlink |
//! | `descriptors` | the file descriptors that belong to the library |
//! | `heritage` | what the child of a fork needs to know of its parent's devices |
//! | `resource` | the objects of a card, by number |
//! | `attributes` | the only access to memory that a command points to |
//! | `events` | events of the card, delivered through pipes |
//! | `cuda` | GPU memory, through the CUDA driver that the program has loaded |
//! | `card` | the running cards of the process |
//! | `context` | an open device and its objects, by handle |
//! | `verbs` | the objects of the verbs interface, one module each |
//! | `devx` | commands in the device's own format (`mlx5dv_devx_*`) |
//! | `commands` | dispatch from a command's numbers to its function |
//! | `cm` | the connection manager (`/dev/infiniband/rdma_cm`) |
//! | `process` | the open devices of the process, before and after a fork |
//! | `hooks` | the C functions that replace those of the C library |
//!
//! Loading the library starts nothing. A card starts when the first device is opened, and belongs to that
//! process: the child of a fork has no card until it uses a device of its parent's, or opens one itself.

mod attributes;
#[deny(unsafe_code)]
mod calls;
#[deny(unsafe_code)]
mod card;
#[deny(unsafe_code)]
mod cm;
#[deny(unsafe_code)]
mod commands;
#[deny(unsafe_code)]
mod context;
mod cuda;
mod descriptors;
mod devx;
mod errno;
mod events;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[deny(unsafe_code)]
pub mod fuzzing;
mod heritage;
pub mod hooks;
mod log;
mod memory;
#[deny(unsafe_code)]
mod netlink;
mod paths;
mod privilege;
mod process;
#[deny(unsafe_code)]
mod resource;
#[deny(unsafe_code)]
mod uapi;
mod verbs;

#[cfg(test)]
#[path = "../tests/commands/mod.rs"]
mod command_tests;
