//! Streams: where memory operations run, in order.
//!
//! A *backend* ([`MemOpStream`](crate::memop::MemOpStream)) performs memory operations:
//! [`SoftStream`] on a worker thread of its own, [`Cpu`] on the caller. A [`Stream`] is a backend
//! with a timeline: it turns batches into memory operations, keeps what they name alive, and knows
//! how far the backend has come.

mod bytes;
mod collecting;
pub(crate) mod cpu;
pub(crate) mod cuda;
mod doorbells;
mod execute;
mod fast_path;
#[cfg(test)]
mod first_post_tests;
pub(crate) mod in_flight;
mod lower;
mod perform;
pub mod persistent;
#[cfg(test)]
mod points_tests;
mod post;
mod post_error;
mod proxy;
mod retire;
mod soft;
mod status;
mod trace;
mod translations;
mod watchdog;

pub use cpu::Cpu;
pub use cuda::CudaStream;

pub use doorbells::{DoorbellPath, Doorbells, StreamOptions};
pub use post::Stream;
pub use post_error::{PostError, PostFailure, Posted};
pub use soft::{Event, SoftStream};
/// CUDA graphs that hold batches.
pub mod graph {
    pub use super::cuda::graph::{Capture, CudaGraph, GraphError, LaunchError};
    pub use super::cuda::params::with_params;
}
pub use watchdog::{StalledWait, Watchdog};
