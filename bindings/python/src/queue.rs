//! A team's queue for posts by the CPU, and the operations on ranks' memory, which batches have, too.

use crate::errors::Failure;
use crate::interrupt::{self, Limit};
use crate::region::{SegmentHandle, Slice};
use crate::segment::Segment;
use gdsync_notify::{NotifyError, Operation, Queue as Inner};
use gdsync_python_stub::documented;
use pyo3::prelude::*;
use std::time::Duration;

/// Returns the segment that an operation addresses: the named one, or the slice's own.
pub(crate) fn target(slice: &Slice, named: Option<&Segment>) -> Result<SegmentHandle, Failure> {
    match (named, &slice.segment) {
        (Some(named), _) => Ok(named.handle.clone()),
        (None, Some(own)) => Ok(own.clone()),
        (None, None) => {
            Err(Failure::invalid("the slice is of no segment: name the one that is written by to=SEGMENT"))
        }
    }
}

/// Repeats a queue's short wait until it is done, or the time has passed.
fn unless_timed_out<T: Send>(
    py: Python<'_>,
    limit: Limit,
    mut call: impl FnMut(Duration) -> Result<T, NotifyError> + Send,
) -> Result<Option<T>, Failure> {
    interrupt::wait(py, limit, move |time| match call(time) {
        Err(NotifyError::TimedOut { .. }) => Ok(None),
        done => Ok(Some(done?)),
    })
}

/// Repeats a queue's short wait until it is done.
pub(crate) fn until_done<T: Send>(
    py: Python<'_>,
    limit: Limit,
    what: &str,
    call: impl FnMut(Duration) -> Result<T, NotifyError> + Send,
) -> Result<T, Failure> {
    unless_timed_out(py, limit, call)?.ok_or_else(|| limit.passed(what))
}

/// The wait of a queue that takes a request.
pub(crate) const ROOM: &str = "the wait for room in the queue";

/// Defines a class's methods in the single block that PyO3 permits: one for each
/// [`Operation`](gdsync_notify::Operation), which `perform` takes with the segment and the class's own keyword
/// argument, and the others.
macro_rules! methods_with_operations {
    (impl $class:ident with $keyword:ident: $given:ty { $($others:tt)* }) => {
        #[documented]
        #[pymethods]
        #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
        impl $class {
            #[pyo3(signature = (source, rank, offset=0, *, to=None, $keyword=None))]
            fn write(
                &self, py: Python<'_>, source: &Slice, rank: u32, offset: u64, to: Option<&Segment>, $keyword: Option<$given>,
            ) -> Result<(), Failure> {
                let (from, to) = (&source.inner, target(source, to)?);
                self.perform(py, &to, $keyword, Operation::Write { from, rank, to: &to.segment, offset })
            }

            #[pyo3(signature = (source, rank, offset=0, id=0, value=1, *, to=None, $keyword=None))]
            fn write_notify(
                &self, py: Python<'_>, source: &Slice, rank: u32, offset: u64, id: u32, value: u32, to: Option<&Segment>,
                $keyword: Option<$given>,
            ) -> Result<(), Failure> {
                let (from, target) = (&source.inner, target(source, to)?);
                let to = &target.segment;
                self.perform(py, &target, $keyword, Operation::WriteNotify { from, rank, to, offset, id, value })
            }

            #[pyo3(signature = (segment, rank, id=0, value=1, *, $keyword=None))]
            fn notify(
                &self, py: Python<'_>, segment: &Segment, rank: u32, id: u32, value: u32, $keyword: Option<$given>,
            ) -> Result<(), Failure> {
                let to = &segment.handle;
                self.perform(py, to, $keyword, Operation::Notify { rank, to: &to.segment, id, value })
            }

            #[pyo3(signature = (into, rank, offset=0, *, of=None, $keyword=None))]
            fn read(
                &self, py: Python<'_>, into: &Slice, rank: u32, offset: u64, of: Option<&Segment>, $keyword: Option<$given>,
            ) -> Result<(), Failure> {
                let (into, of) = (&into.inner, target(into, of)?);
                self.perform(py, &of, $keyword, Operation::Read { into, rank, of: &of.segment, offset })
            }

            #[pyo3(signature = (into, rank, offset=0, *, add, of=None, $keyword=None))]
            fn fetch_add(
                &self, py: Python<'_>, into: &Slice, rank: u32, offset: u64, add: u64, of: Option<&Segment>,
                $keyword: Option<$given>,
            ) -> Result<(), Failure> {
                let (into, of) = (&into.inner, target(into, of)?);
                self.perform(py, &of, $keyword, Operation::FetchAdd { into, rank, of: &of.segment, offset, add })
            }

            #[pyo3(signature = (into, rank, offset=0, *, compare, swap, of=None, $keyword=None))]
            fn compare_swap(
                &self, py: Python<'_>, into: &Slice, rank: u32, offset: u64, compare: u64, swap: u64, of: Option<&Segment>,
                $keyword: Option<$given>,
            ) -> Result<(), Failure> {
                let (into, target) = (&into.inner, target(into, of)?);
                let of = &target.segment;
                self.perform(py, &target, $keyword, Operation::CompareSwap { into, rank, of, offset, compare, swap })
            }

            $($others)*
        }
    };
}

pub(crate) use methods_with_operations;

#[documented]
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
        _: &SegmentHandle,
        timeout: Option<f64>,
        operation: Operation<'_>,
    ) -> Result<(), Failure> {
        until_done(py, Limit::new(timeout)?, ROOM, |_| self.inner.post(operation))
    }
}

/// The wait for the end of posts.
pub(crate) const FLUSH: &str = "the flush";

/// Waits until all posts have arrived, at one rank or at all.
pub(crate) fn flush(py: Python<'_>, queue: &Inner, rank: Option<u32>, limit: Limit) -> Result<(), Failure> {
    let flush = |time| match rank {
        Some(rank) => queue.flush_rank(rank, time),
        None => queue.flush(time),
    };
    let done = unless_timed_out(py, limit, flush)?;
    done.ok_or_else(|| limit.passed_because(FLUSH, || queue.explain_flush()))
}

methods_with_operations! { impl Queue with timeout: f64 {
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
