//! The part of `libgdsync-mpis` and `libgdsync-mpix` that does not call MPI: matched connections, persistent transfers and collectives
//! on software and CUDA streams, and MPI operations that streams trigger.
//!
//! The other part, `c/`, is compiled with the MPI at hand. It defines `MPIS_*` and `MPIX_*`, checks MPI's arguments, and sends this
//! crate's connection info between ranks. It calls [`api`], which `c/engine.h` declares for C.
//! [docs/mpi.md](https://github.com/gdsync/gdsync/blob/main/docs/mpi.md) has a first program; docs/mpi-reference.md describes the libraries.
//!
//! A `request` has one or more *peers*, and a `connection` with each; a transfer has one, a collective several. Matching connects them.
//! A `queue` starts matched requests and waits for them by batches of [`gdsync::persistent`]: the stream rings the doorbells and waits for
//! the completions, without the CPU.
//!
//! A message of a linked communicator (`link`) is a persistent request that is started once. MPI carries the other unmatched
//! operations of `MPIX_*`: a thread (`mpi_thread`) starts an `operation` when a stream (`enqueue`) or a `graph` has triggered it, and sets
//! a flag for the stream when it has completed.

pub mod api;
mod collective;
#[deny(unsafe_code)]
mod connection;
#[deny(unsafe_code)]
mod device;
mod enqueue;
#[deny(unsafe_code)]
mod error;
mod graph;
#[deny(unsafe_code)]
mod link;
#[deny(unsafe_code)]
mod link_progress;
mod memory;
mod mpi_thread;
mod operation;
mod partitions;
#[deny(unsafe_code)]
mod persistent;
#[deny(unsafe_code)]
mod queue;
mod request;
#[deny(unsafe_code)]
mod statistics;
mod stream;
#[cfg(test)]
mod tests;
