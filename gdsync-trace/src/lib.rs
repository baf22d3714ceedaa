//! The timeline of gdsync: events of the library and of the software card, recorded at little cost and written as a
//! Chrome trace, which <https://ui.perfetto.dev> opens.
//!
//! - [`event`] and [`span`] record. While no trace is asked for, each of them is one load and one branch.
//! - [`TRACE_VARIABLE`] asks for a trace: see there what it may name.
//! - [`merge`] makes one trace of the parts of several processes.
//!
//! With the feature `nvtx`, each [`span`] is also a range of NVTX in the domain `gdsync`, which profilers such as
//! Nsight Systems show. Its build needs libclang. A range costs a look at a pointer where no profiler is attached.
//!
//! # How events get to the file
//! Each thread has a buffer of 4096 [records](Kind) of 48 bytes. The thread appends a full buffer to the part of its
//! process, a file. The end of a thread, and that of the process, append the rest. A process that ends by a signal,
//! or by `_exit`, loses what its buffers had.
//!
//! A part takes [`LIMIT`] records. Those after it are dropped and counted, as are records that cannot be written; the
//! trace says how many.
//!
//! The clock is `CLOCK_MONOTONIC`, which is one clock for all processes of a host. Traces of several hosts have
//! several clocks: they are not merged.
//!
//! Where a process forks that has recorded something, its child records nothing, unless it executes a program.

#![deny(unsafe_code)]

mod chrome;
#[allow(unsafe_code)]
mod destination;
mod flows;
mod merge;
mod part;
mod ranges;
mod read;
mod record;
#[allow(unsafe_code)]
mod recorder;
#[cfg(test)]
mod testing;
mod timeline;

pub use chrome::Summary;
pub use destination::{GPU_VARIABLE, TRACE_VARIABLE};
pub use merge::{MergeError, merge, parts_in};
pub use part::LIMIT;
pub use record::Kind;
pub use recorder::{Span, enabled, event, name_card, name_thread, now, span, span_of, span_since};

/// The example of the crate's page, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
