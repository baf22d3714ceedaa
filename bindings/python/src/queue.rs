//! A team's queue, for posts by the CPU.

use crate::errors::Failure;
use crate::interrupt::{self, Limit};
use crate::region::Slice;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::verbs::{ROOM, methods_with_verbs, target, until_done};
use gdsync_notify::{Operation, Queue as Inner};
use pyo3::prelude::*;

/// A queue of a team: writes and notifications by the CPU.
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Queue {
    inner: Inner,
    index: u32,
}

impl Queue {
    pub(crate) fn new(inner: Inner, index: u32) -> Self {
        Queue { inner: inner.with_timeout(interrupt::SLICE), index }
    }

    fn perform(
        &self,
        py: Python<'_>,
        _: &Shared,
        timeout: Option<f64>,
        operation: Operation<'_>,
    ) -> Result<(), Failure> {
        until_done(py, Limit::new(timeout)?, ROOM, |_| self.inner.post(operation))
    }
}

/// Waits until what was posted has arrived, at one rank or at all.
pub(crate) fn flush(py: Python<'_>, queue: &Inner, rank: Option<u32>, limit: Limit) -> Result<(), Failure> {
    until_done(py, limit, "the flush", |time| match rank {
        Some(rank) => queue.flush_rank(rank, time),
        None => queue.flush(time),
    })
}

methods_with_verbs! { impl Queue with timeout: f64 {
    #[getter]
    fn index(&self) -> u32 {
        self.index
    }

    #[pyo3(signature = (rank=None, timeout=None))]
    fn flush(&self, py: Python<'_>, rank: Option<u32>, timeout: Option<f64>) -> Result<(), Failure> {
        flush(py, &self.inner, rank, Limit::new(timeout)?)
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.Queue {}>", self.index)
    }
} }
