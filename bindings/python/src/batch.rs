//! Batches of stream operations.

use crate::backend::Backend;
use crate::call::Call;
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
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::CString;
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
    /// The calls that have added them, each with the number of its operations.
    calls: Vec<(Call, usize)>,
    /// True for a pattern of a graph's batches, which is not posted itself.
    is_pattern: bool,
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
        let batch = gdsync::Batch::with_capacity(8).merged(merged);
        let contents = Mutex::new(Contents { batch, ..Contents::default() });
        Ok(Batch { backend, queue, timeout, contents })
    }

    /// Adds the operations of a call.
    fn add(&self, call: Call, add: impl FnOnce(gdsync::Batch) -> gdsync::Batch) {
        let mut contents = self.contents.lock();
        let before = contents.batch.len();
        contents.batch = add(mem::take(&mut contents.batch));
        let added = contents.batch.len() - before;
        contents.calls.push((call, added));
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
        self.add(operation.into(), |batch| sends.fold(batch, gdsync::Batch::send));
        Ok(())
    }

    /// Takes the operations out of the batch, to post them. Its calls stay until [`Self::restore`] or [`Self::finish`].
    pub(crate) fn take(&self) -> gdsync::Batch {
        mem::take(&mut self.contents.lock().batch)
    }

    /// Returns the kinds of its operations, as a pattern for a graph.
    pub(crate) fn pattern(&self) -> BatchShape {
        let mut contents = self.contents.lock();
        contents.is_pattern = true;
        BatchShape::of(&contents.batch)
    }

    /// Puts back unposted operations.
    pub(crate) fn restore(&self, batch: gdsync::Batch) {
        let mut contents = self.contents.lock();
        let posted = contents.calls.iter().map(|(_, added)| added).sum::<usize>().saturating_sub(batch.len());
        let mut passed = 0;
        contents.calls.retain(|(_, added)| {
            passed += added;
            passed > posted
        });
        contents.batch = batch;
    }

    /// Forgets the calls, whose operations have been posted or dropped.
    pub(crate) fn finish(&self, posted: Option<(usize, usize)>) {
        let mut contents = self.contents.lock();
        contents.calls.clear();
        contents.posted = posted;
    }
}

impl Drop for Batch {
    /// Warns of operations that were never posted.
    fn drop(&mut self) {
        let contents = self.contents.get_mut();
        if contents.batch.is_empty() || contents.is_pattern {
            return;
        }
        let text = format!(
            "a batch of {} operations is dropped unposted, and its sends leave their queues: call post(), or use it in a with block",
            contents.calls.len()
        );
        _ = Python::try_attach(|py| {
            // An exception may be on its way through the frame that drops the batch.
            let raised = PyErr::take(py);
            let category = py.get_type::<PyResourceWarning>();
            let text = CString::new(text).unwrap_or_default();
            if let Err(error) = PyErr::warn(py, &category, &text, 1) {
                error.write_unraisable(py, None);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

fn condition_of(name: &str) -> Result<Condition, Failure> {
    let all = [Condition::Eq, Condition::Geq, Condition::And, Condition::Nor];
    let found = all.into_iter().find(|known| known.to_string() == name);
    found.ok_or_else(|| Failure::invalid(format!("{name:?} is no condition: eq, geq, and, nor are")))
}

methods_with_operations! { impl Batch with queue: u32 {
    fn wait_notification(&self, segment: &Segment, id: u32) -> Result<(), Failure> {
        let word = segment.handle.segment.notification(id)?;
        self.add(Call::WaitNotification { id }, |batch| batch.wait_notification(&word));
        Ok(())
    }

    #[pyo3(signature = (segment, rank, *, queue=None))]
    fn wait_writes(&self, segment: &Segment, rank: u32, queue: Option<u32>) -> Result<(), Failure> {
        let waits = self.queue_of(&segment.handle, queue)?.prepare_waits(rank)?;
        self.add(Call::WaitWrites { rank }, |batch| waits.into_iter().fold(batch, gdsync::Batch::wait));
        Ok(())
    }

    fn send(&self, queue_pair: &QueuePair, request: &WorkRequest) -> Result<(), Failure> {
        let send = request.with(|request| Ok(queue_pair.inner.prepare(request)?))?;
        self.add(Call::send(&queue_pair.inner, request), |batch| batch.send(send));
        Ok(())
    }

    fn wait(&self, queue: &CompletionQueue) -> Result<(), Failure> {
        let wait = queue.inner.prepare_wait()?;
        self.add(Call::Wait { entries: queue.inner.entries() }, |batch| batch.wait(wait));
        Ok(())
    }

    #[pyo3(signature = (word, value, condition="geq"))]
    fn wait_value(&self, word: &Word, value: u64, condition: &str) -> Result<(), Failure> {
        let condition = condition_of(condition)?;
        let call = Call::WaitValue { word: word.into(), value, condition };
        match &word.inner {
            AnyWord::Host32(word) => {
                let value = narrow(value)?;
                self.add(call, |batch| batch.wait_value32(word, condition, value));
            }
            AnyWord::Gpu32(word) => {
                let value = narrow(value)?;
                self.add(call, |batch| batch.wait_value32(word, condition, value));
            }
            AnyWord::Host64(word) => self.add(call, |batch| batch.wait_value64(word, condition, value)),
            AnyWord::Gpu64(word) => self.add(call, |batch| batch.wait_value64(word, condition, value)),
        }
        Ok(())
    }

    fn write_value(&self, word: &Word, value: u64) -> Result<(), Failure> {
        let call = Call::WriteValue { word: word.into(), value };
        match &word.inner {
            AnyWord::Host32(word) => {
                let value = narrow(value)?;
                self.add(call, |batch| batch.write_value32(word, value));
            }
            AnyWord::Gpu32(word) => {
                let value = narrow(value)?;
                self.add(call, |batch| batch.write_value32(word, value));
            }
            AnyWord::Host64(word) => self.add(call, |batch| batch.write_value64(word, value)),
            AnyWord::Gpu64(word) => self.add(call, |batch| batch.write_value64(word, value)),
        }
        Ok(())
    }

    fn barrier(&self) {
        self.add(Call::Barrier, gdsync::Batch::barrier);
    }

    fn __len__(&self) -> usize {
        self.contents.lock().calls.len()
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
        });
        let posted = posted.map_err(|failure| self.backend.with_cause(py, failure))?;
        let posted = posted.ok_or_else(|| limit.passed("the wait for room on the stream"))?;
        self.finish(Some(posted));
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
            Some(_) => {
                drop(self.take());
                self.finish(None);
            }
        }
        Ok(false)
    }

    fn __str__(&self) -> String {
        let contents = self.contents.lock();
        contents.calls.iter().map(|(call, _)| call.to_string()).collect::<Vec<_>>().join("\n")
    }

    fn __repr__(&self) -> String {
        let contents = self.contents.lock();
        let posted = if contents.posted.is_some() { ", posted" } else { "" };
        format!("<gdsync.Batch of {} operations{posted}>", contents.calls.len())
    }
} }
