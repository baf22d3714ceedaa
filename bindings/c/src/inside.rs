//! The objects behind the handles of C programs, for the benchmark, which compares C calls with Rust calls on the same objects: with
//! different ones the placement in memory makes 35 ns of difference for a post, more than the difference to measure.

use crate::stream_object::StreamObject;
use crate::types::{CUstream, gds_qp};
use crate::{objects, streams};
use gdsync::advanced::raw::RegisteredMemory;
use gdsync::{QueuePair, SoftStream, Stream};
use std::sync::Arc;

/// Returns the queue pair of a C struct, and the memory that its program has registered.
///
/// # Safety
/// As [`crate::api::queue_pair::gds_destroy_qp`]: the pointer is null, or of `gds_create_qp` and not destroyed while the references are
/// used.
pub unsafe fn queue_pair<'a>(qp: *mut gds_qp) -> Option<(&'a QueuePair, &'a RegisteredMemory)> {
    // SAFETY: the caller lets no other thread destroy the object.
    let object = unsafe { objects::queue_pair(qp) }.ok()?;
    Some((&object.queue_pair, &object.memory))
}

/// A software stream.
#[derive(Debug)]
pub struct Soft(Arc<StreamObject>);

impl Soft {
    /// Returns the stream of a handle.
    ///
    /// # Safety
    /// The handle is of `gdsync_soft_stream_create`, and not destroyed.
    pub unsafe fn find(stream: CUstream) -> Option<Self> {
        // SAFETY: the caller passes a stream that is alive.
        unsafe { streams::find(stream) }.ok().map(Soft)
    }

    /// The stream; `None` for a CUDA stream.
    pub fn stream(&self) -> Option<&Stream<SoftStream>> {
        self.0.soft()
    }
}
