//! The timeline of gdsync: events of the library and of the software card, recorded with little overhead and written
//! as a Chrome trace, which <https://ui.perfetto.dev> opens.
//!
//! - [`event`] and [`span`] record. Without a trace, each costs one load and one branch.
//! - [`TRACE_VARIABLE`] enables a trace and names its destination.
//! - [`merge`] combines the parts of several processes into one trace.
//!
//! With the feature `nvtx`, each [`span`] is also an NVTX range in the domain `gdsync`, which profilers such as Nsight
//! Systems show. Building it requires libclang. Without an attached profiler, a range costs a check of a pointer.
//!
//! # How events get to the file
//! Each thread has a buffer of 4096 [records](EventKind) of 48 bytes. A full buffer is appended to the process's part,
//! a file. The rest is appended when the thread or the process ends. A process that ends by a signal or by `_exit`
//! loses the content of its buffers.
//!
//! A part holds [`LIMIT`] records. Later ones are dropped and counted, like records that cannot be written; the trace
//! contains the count.
//!
//! The clock is `CLOCK_MONOTONIC`, one clock for all processes of a host. Traces of different hosts have different
//! clocks and are not merged.
//!
//! The child of a process that has recorded something records nothing, unless it executes a program.

#![deny(unsafe_code)]

mod chrome;
#[allow(unsafe_code)]
mod destination;
mod flows;
mod part;
mod record;
#[allow(unsafe_code)]
mod recorder;
#[cfg(test)]
mod testing;
mod timeline;

pub use chrome::Summary;
pub use destination::{GPU_VARIABLE, TRACE_VARIABLE};
pub use part::{LIMIT, MergeError, merge, parts_in};
pub use record::EventKind;
pub use recorder::{Span, enabled, event, name_card, name_thread, now, span, span_of, span_since};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
