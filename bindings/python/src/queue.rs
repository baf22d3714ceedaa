//! A team's queue, for posts by the CPU.

use crate::batch::target;
use crate::errors::Failure;
use crate::interrupt::{self, Limit};
use crate::region::Slice;
use crate::segment::Segment;
use gdsync_notify::{NotifyError, Queue as Inner};
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

    /// A post waits for room in the queue.
    fn post(
        py: Python<'_>,
        timeout: Option<f64>,
        mut post: impl FnMut() -> Result<(), NotifyError> + Send,
    ) -> Result<(), Failure> {
        let limit = Limit::new(timeout)?;
        let posted = interrupt::wait(py, limit, move |_| match post() {
            Err(NotifyError::TimedOut { .. }) => Ok(None),
            posted => Ok(Some(posted?)),
        })?;
        posted.ok_or_else(|| limit.passed("the wait for room in the queue"))
    }
}

/// Waits until what was posted has arrived, at one rank or at all.
pub(crate) fn flush(py: Python<'_>, queue: &Inner, rank: Option<u32>, limit: Limit) -> Result<(), Failure> {
    let done = interrupt::wait(py, limit, |time| {
        let flushed = match rank {
            Some(rank) => queue.flush_rank(rank, time),
            None => queue.flush(time),
        };
        match flushed {
            Err(NotifyError::TimedOut { .. }) => Ok(None),
            flushed => Ok(Some(flushed?)),
        }
    })?;
    done.ok_or_else(|| limit.passed("the flush"))
}

#[pymethods]
impl Queue {
    #[getter]
    fn index(&self) -> u32 {
        self.index
    }

    #[pyo3(signature = (source, rank, offset=0, *, to=None, timeout=None))]
    fn write(
        &self,
        py: Python<'_>,
        source: &Slice,
        rank: u32,
        offset: u64,
        to: Option<&Segment>,
        timeout: Option<f64>,
    ) -> Result<(), Failure> {
        let to = target(source, to)?;
        Self::post(py, timeout, || self.inner.write(&source.inner, rank, &to.segment, offset))
    }

    #[pyo3(signature = (source, rank, offset=0, id=0, value=1, *, to=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn write_notify(
        &self,
        py: Python<'_>,
        source: &Slice,
        rank: u32,
        offset: u64,
        id: u32,
        value: u32,
        to: Option<&Segment>,
        timeout: Option<f64>,
    ) -> Result<(), Failure> {
        let to = target(source, to)?;
        Self::post(py, timeout, || {
            self.inner.write_notify(&source.inner, rank, &to.segment, offset, id, value)
        })
    }

    #[pyo3(signature = (segment, rank, id=0, value=1, *, timeout=None))]
    fn notify(
        &self,
        py: Python<'_>,
        segment: &Segment,
        rank: u32,
        id: u32,
        value: u32,
        timeout: Option<f64>,
    ) -> Result<(), Failure> {
        Self::post(py, timeout, || self.inner.notify(rank, &segment.shared.segment, id, value))
    }

    #[pyo3(signature = (into, rank, offset=0, *, of=None, timeout=None))]
    fn read(
        &self,
        py: Python<'_>,
        into: &Slice,
        rank: u32,
        offset: u64,
        of: Option<&Segment>,
        timeout: Option<f64>,
    ) -> Result<(), Failure> {
        let of = target(into, of)?;
        Self::post(py, timeout, || self.inner.read(&into.inner, rank, &of.segment, offset))
    }

    #[pyo3(signature = (into, rank, offset=0, *, add, of=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn fetch_add(
        &self,
        py: Python<'_>,
        into: &Slice,
        rank: u32,
        offset: u64,
        add: u64,
        of: Option<&Segment>,
        timeout: Option<f64>,
    ) -> Result<(), Failure> {
        let of = target(into, of)?;
        Self::post(py, timeout, || self.inner.fetch_add(&into.inner, rank, &of.segment, offset, add))
    }

    #[pyo3(signature = (into, rank, offset=0, *, compare, swap, of=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn compare_swap(
        &self,
        py: Python<'_>,
        into: &Slice,
        rank: u32,
        offset: u64,
        compare: u64,
        swap: u64,
        of: Option<&Segment>,
        timeout: Option<f64>,
    ) -> Result<(), Failure> {
        let of = target(into, of)?;
        Self::post(py, timeout, || {
            self.inner.compare_swap(&into.inner, rank, &of.segment, offset, compare, swap)
        })
    }

    #[pyo3(signature = (rank=None, timeout=None))]
    fn flush(&self, py: Python<'_>, rank: Option<u32>, timeout: Option<f64>) -> Result<(), Failure> {
        flush(py, &self.inner, rank, Limit::new(timeout)?)
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.Queue {}>", self.index)
    }
}
