//! Batches of stream operations.

use crate::backend::Backend;
use crate::errors::Failure;
use crate::interrupt::{self, Limit};
use crate::queue::{ROOM, methods_with_operations, target, until_done};
use crate::queue_pair::{CompletionQueue, QueuePair, WorkRequest};
use crate::region::{AnyWord, SegmentHandle, Slice, Word, narrow};
use crate::segment::Segment;
use gdsync::batch::BatchShape;
use gdsync::memop::Condition;
use gdsync::stream::{PostError, PostFailure};
use gdsync_notify::{Operation, Queue, WaitNotification};
use gdsync_python_stub::documented;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::mem;
use std::sync::Arc;

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Batch {
    backend: Arc<Backend>,
    /// The teams' queue for its sends.
    queue: u32,
    timeout: Option<f64>,
    contents: Mutex<Contents>,
}

#[derive(Default)]
struct Contents {
    batch: gdsync::Batch,
    /// Memory operations and submissions of the last post.
    posted: Option<(usize, usize)>,
}

impl Batch {
    pub(crate) fn on(
        backend: Arc<Backend>,
        queue: u32,
        merged: bool,
        timeout: Option<f64>,
    ) -> Result<Self, Failure> {
        // Refuses a bad time-out now rather than when the batch is posted.
        Limit::new(timeout)?;
        let contents = Contents { batch: gdsync::Batch::with_capacity(8).merged(merged), posted: None };
        Ok(Batch { backend, queue, timeout, contents: Mutex::new(contents) })
    }

    /// Adds operations.
    fn add(&self, add: impl FnOnce(gdsync::Batch) -> gdsync::Batch) {
        let mut contents = self.contents.lock();
        contents.batch = add(mem::take(&mut contents.batch));
    }

    /// Returns the queue of a segment's team for the batch's sends.
    fn queue_of(&self, segment: &SegmentHandle, queue: Option<u32>) -> Result<Queue, Failure> {
        Ok(segment.team.queue(queue.unwrap_or(self.queue))?.with_timeout(interrupt::SLICE))
    }

    fn perform(
        &self,
        py: Python<'_>,
        segment: &SegmentHandle,
        queue: Option<u32>,
        operation: Operation<'_>,
    ) -> Result<(), Failure> {
        let queue = self.queue_of(segment, queue)?;
        let sends = until_done(py, Limit::new(self.timeout)?, ROOM, |_| queue.prepare(operation))?;
        self.add(|batch| sends.fold(batch, gdsync::Batch::send));
        Ok(())
    }

    /// Takes the operations out of the batch.
    pub(crate) fn take(&self) -> gdsync::Batch {
        mem::take(&mut self.contents.lock().batch)
    }

    /// Returns the kinds of its operations.
    pub(crate) fn shape(&self) -> BatchShape {
        BatchShape::of(&self.contents.lock().batch)
    }

    /// Puts back unposted operations.
    pub(crate) fn restore(&self, batch: gdsync::Batch) {
        self.contents.lock().batch = batch;
    }
}

fn condition_of(name: &str) -> Result<Condition, Failure> {
    match name {
        "eq" => Ok(Condition::Eq),
        "geq" => Ok(Condition::Geq),
        "and" => Ok(Condition::And),
        "nor" => Ok(Condition::Nor),
        other => Err(Failure::invalid(format!("{other:?} is no condition: eq, geq, and, nor are"))),
    }
}

methods_with_operations! { impl Batch with queue: u32 {
    fn wait_notification(&self, segment: &Segment, id: u32) -> Result<(), Failure> {
        let word = segment.handle.segment.notification(id)?;
        self.add(|batch| batch.wait_notification(&word));
        Ok(())
    }

    #[pyo3(signature = (segment, rank, *, queue=None))]
    fn wait_writes(&self, segment: &Segment, rank: u32, queue: Option<u32>) -> Result<(), Failure> {
        let waits = self.queue_of(&segment.handle, queue)?.prepare_waits(rank)?;
        self.add(|batch| waits.into_iter().fold(batch, gdsync::Batch::wait));
        Ok(())
    }

    fn send(&self, queue_pair: &QueuePair, request: &WorkRequest) -> Result<(), Failure> {
        let send = request.with(|request| Ok(queue_pair.inner.prepare(request)?))?;
        self.add(|batch| batch.send(send));
        Ok(())
    }

    fn wait(&self, queue: &CompletionQueue) -> Result<(), Failure> {
        let wait = queue.inner.prepare_wait()?;
        self.add(|batch| batch.wait(wait));
        Ok(())
    }

    #[pyo3(signature = (word, value, condition="geq"))]
    fn wait_value(&self, word: &Word, value: u64, condition: &str) -> Result<(), Failure> {
        let condition = condition_of(condition)?;
        match &word.inner {
            AnyWord::Host32(word) => {
                let value = narrow(value)?;
                self.add(|batch| batch.wait_value32(word, condition, value));
            }
            AnyWord::Gpu32(word) => {
                let value = narrow(value)?;
                self.add(|batch| batch.wait_value32(word, condition, value));
            }
            AnyWord::Host64(word) => self.add(|batch| batch.wait_value64(word, condition, value)),
            AnyWord::Gpu64(word) => self.add(|batch| batch.wait_value64(word, condition, value)),
        }
        Ok(())
    }

    fn write_value(&self, word: &Word, value: u64) -> Result<(), Failure> {
        match &word.inner {
            AnyWord::Host32(word) => {
                let value = narrow(value)?;
                self.add(|batch| batch.write_value32(word, value));
            }
            AnyWord::Gpu32(word) => {
                let value = narrow(value)?;
                self.add(|batch| batch.write_value32(word, value));
            }
            AnyWord::Host64(word) => self.add(|batch| batch.write_value64(word, value)),
            AnyWord::Gpu64(word) => self.add(|batch| batch.write_value64(word, value)),
        }
        Ok(())
    }

    fn barrier(&self) {
        self.add(gdsync::Batch::barrier);
    }

    fn __len__(&self) -> usize {
        self.contents.lock().batch.len()
    }

    fn post<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyTuple>, Failure> {
        let limit = Limit::new(self.timeout)?;
        let posted = interrupt::wait(py, limit, |time| match self.backend.post(self.take(), time) {
            Ok(posted) => Ok(Some((posted.operations, posted.submissions))),
            Err(PostError { batch, source, .. }) => {
                self.restore(batch);
                match source {
                    PostFailure::WouldBlock { .. } if !time.is_zero() => Ok(None),
                    source => Err(source.into()),
                }
            }
        })?;
        let posted = posted.ok_or_else(|| limit.passed("the wait for room on the stream"))?;
        self.contents.lock().posted = Some(posted);
        Ok((posted.0, posted.1).into_pyobject(py)?)
    }

    #[getter]
    fn posted(&self) -> Option<(usize, usize)> {
        self.contents.lock().posted
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (kind=None, _error=None, _trace=None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _trace: Option<Bound<'_, PyAny>>,
    ) -> Result<bool, Failure> {
        match kind {
            None => _ = self.post(py)?,
            // Dropped sends leave their queues.
            Some(_) => drop(self.take()),
        }
        Ok(false)
    }

    fn __str__(&self) -> String {
        self.contents.lock().batch.to_string()
    }

    fn __repr__(&self) -> String {
        let contents = self.contents.lock();
        let posted = if contents.posted.is_some() { ", posted" } else { "" };
        format!("<gdsync.Batch of {} operations{posted}>", contents.batch.len())
    }
} }
