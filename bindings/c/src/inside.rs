//! What is behind the names of C programs: for the bench, which compares C calls with Rust calls on
//! the same objects. Where queues and streams happen to lie in memory makes a post on one 35 ns
//! faster than on another, more than what is measured.

use crate::stream_object::StreamObject;
use crate::types::{CUstream, gds_qp};
use crate::{objects, streams};
use gdsync::raw::RegisteredMemory;
use gdsync::{QueuePair, SoftStream, Stream};
use std::sync::Arc;

/// The queue pair of a C struct, and the memory that its program has registered.
///
/// # Safety
/// As [`crate::api::queue_pair::gds_destroy_qp`]: null, or of `gds_create_qp` and not destroyed
/// while the references are used.
pub unsafe fn queue_pair<'a>(qp: *mut gds_qp) -> Option<(&'a QueuePair, &'a RegisteredMemory)> {
    // SAFETY: the caller's.
    let object = unsafe { objects::queue_pair(qp) }.ok()?;
    Some((&object.queue_pair, &object.memory))
}

/// A software stream.
#[derive(Debug)]
pub struct Soft(Arc<StreamObject>);

impl Soft {
    /// The stream of that name.
    ///
    /// # Safety
    /// It is of `gdsync_soft_stream_create`, and not destroyed.
    pub unsafe fn find(stream: CUstream) -> Option<Self> {
        // SAFETY: the caller's.
        unsafe { streams::find(stream) }.ok().map(Soft)
    }

    /// The stream itself. `None` for another kind.
    pub fn stream(&self) -> Option<&Stream<SoftStream>> {
        self.0.soft()
    }
}
