//! The part of `libgdsync-mpis` and `libgdsync-mpix` that needs no MPI: matched channels, persistent transfers and
//! collectives on software and CUDA streams, and operations of MPI that streams trigger.
//!
//! `c/` is the other part. The MPI at hand compiles it; it defines `MPIS_*` and `MPIX_*`, checks MPI's arguments, and
//! moves this crate's offers between ranks. [`api`] is what it calls, declared for C in `c/engine.h`.
//! [docs/mpi.md](https://github.com/gdsync/gdsync/blob/main/docs/mpi.md) describes the library.
//!
//! A request has *legs*: one for each message of a round, with a queue pair of its own on either side. A transfer
//! has one leg, a collective several. Matching a request connects its legs. A start and a wait are batches of
//! [`gdsync::persistent`]: the stream rings the card and waits for its completions, without the CPU.
//!
//! A message of a linked communicator (`link`) is a persistent request that is started once. Any other operation of
//! `MPIX_*` that is not matched is MPI's own: a thread of the CPU (`mpi_thread`) starts it when the
//! stream has triggered it, and sets a flag for the stream when it has completed.
//!
//! Layers, bottom up: `statistics`, `progress` and `error`; `flag`, `launches`, `marks` and `turn` are what streams, graphs and kernels wait for and store;
//! `device` is the card of the process; `memory` finds out what a buffer is and registers it; `offer` is what one
//! side of a leg sends to the other; `channel` is a queue pair; `stream` is either kind of stream; `operation` is
//! what streams trigger, for which `mpi_thread` calls MPI; `parts` are persistent requests that complete together, and `partitions` writes of one
//! message; `link` carries messages of any buffers; `reduce`, `lane` and `collective` are chains of parts; `plan` is what
//! the program asks for; `request` and `queue` are what C has handles of; `enqueue` has queues trigger operations and wait
//! for them, and `graph` graphs; `links` gives queues the messages of links.

pub mod api;
#[deny(unsafe_code)]
mod channel;
mod collective;
#[deny(unsafe_code)]
mod device;
mod enqueue;
#[deny(unsafe_code)]
mod error;
#[deny(unsafe_code)]
mod flag;
mod graph;
mod lane;
#[deny(unsafe_code)]
mod launches;
#[deny(unsafe_code)]
mod link;
#[deny(unsafe_code)]
mod links;
mod marks;
mod memory;
mod mpi_thread;
#[deny(unsafe_code)]
mod offer;
mod operation;
#[deny(unsafe_code)]
mod partitions;
#[deny(unsafe_code)]
mod parts;
#[deny(unsafe_code)]
mod plan;
#[deny(unsafe_code)]
mod progress;
#[deny(unsafe_code)]
mod queue;
#[deny(unsafe_code)]
mod reduce;
mod request;
#[deny(unsafe_code)]
mod statistics;
mod stream;
#[cfg(test)]
mod tests;
#[deny(unsafe_code)]
mod turn;
