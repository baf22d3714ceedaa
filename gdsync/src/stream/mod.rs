//! Streams: where memory operations run, in order.
//!
//! A *backend* ([`MemOpStream`](crate::memop::MemOpStream)) performs memory operations:
//! [`SoftStream`] on a worker thread of its own, [`Cpu`] on the caller. A [`Stream`] is a backend
//! with a timeline: it turns batches into memory operations, keeps what they name alive, and knows
//! how far the backend has come.

mod bytes;
#[deny(unsafe_code)]
mod collecting;
pub(crate) mod cpu;
pub(crate) mod cuda;
#[deny(unsafe_code)]
mod doorbells;
mod execute;
mod fast_path;
#[cfg(test)]
mod first_post_tests;
#[deny(unsafe_code)]
pub(crate) mod in_flight;
#[deny(unsafe_code)]
mod lower;
mod perform;
#[deny(unsafe_code)]
pub mod persistent;
#[cfg(test)]
mod points_tests;
mod post;
#[deny(unsafe_code)]
mod post_error;
#[deny(unsafe_code)]
mod proxy;
mod retire;
mod soft;
#[deny(unsafe_code)]
mod status;
#[deny(unsafe_code)]
mod trace;
mod translations;
#[deny(unsafe_code)]
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
