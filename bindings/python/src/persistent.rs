//! Persistent requests: prepared once, started many times on a stream.

use crate::backend::{Backend, on};
use crate::errors::{ExceptionClass, Failure};
use crate::interrupt::{self, Limit};
use crate::queue_pair::{Completion, QueuePair};
use crate::region::{RemoteMemory, Slice};
use crate::stream::Stream;
use gdsync::persistent::{self, ListError, PersistentError, PersistentRecv, PersistentSend, Request};
use gdsync::queue::Status;
use gdsync::stream::PostFailure;
use gdsync_python_stub::documented;
use parking_lot::Mutex;
use pyo3::prelude::*;

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Persistent {
    inner: Mutex<AnyRequest>,
    what: &'static str,
}

#[derive(Debug)]
enum AnyRequest {
    Send(PersistentSend),
    Recv(PersistentRecv),
}

impl AnyRequest {
    fn request(&mut self) -> &mut dyn Request {
        match self {
            AnyRequest::Send(request) => request,
            AnyRequest::Recv(request) => request,
        }
    }
}

fn persistent_failure(error: PersistentError) -> Failure {
    match error {
        PersistentError::Queue(error) => error.into(),
        PersistentError::Post(error) => error.into(),
        PersistentError::Resources(error) => error.into(),
        other => Failure::Of(ExceptionClass::InvalidArgument, other.to_string()),
    }
}

fn slices_of(slices: &[Py<Slice>]) -> Vec<gdsync::Slice> {
    slices.iter().map(|slice| slice.get().inner.clone()).collect()
}

#[documented]
#[pymethods]
impl Persistent {
    #[staticmethod]
    #[pyo3(signature = (queue_pair, *slices))]
    fn send(queue_pair: &QueuePair, slices: Vec<Py<Slice>>) -> Result<Self, Failure> {
        let request = PersistentSend::send(&queue_pair.inner, &slices_of(&slices))?;
        Ok(Persistent { inner: Mutex::new(AnyRequest::Send(request)), what: "send" })
    }

    #[staticmethod]
    #[pyo3(signature = (queue_pair, *slices, remote))]
    fn write(queue_pair: &QueuePair, slices: Vec<Py<Slice>>, remote: &RemoteMemory) -> Result<Self, Failure> {
        let request = PersistentSend::write(&queue_pair.inner, &slices_of(&slices), remote.inner)?;
        Ok(Persistent { inner: Mutex::new(AnyRequest::Send(request)), what: "write" })
    }

    #[staticmethod]
    #[pyo3(signature = (queue_pair, *slices))]
    fn receive(queue_pair: &QueuePair, slices: Vec<Py<Slice>>) -> Result<Self, Failure> {
        let request = PersistentRecv::new(&queue_pair.inner, &slices_of(&slices))?;
        Ok(Persistent { inner: Mutex::new(AnyRequest::Recv(request)), what: "receive" })
    }

    #[pyo3(signature = (timeout=None))]
    fn complete(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Completion, Failure> {
        let limit = Limit::new(timeout)?;
        let found = interrupt::wait(py, limit, |time| {
            let done = match &mut *self.inner.lock() {
                AnyRequest::Send(request) => request.complete(time),
                AnyRequest::Recv(request) => request.complete(time),
            };
            done.map_err(persistent_failure)
        })?;
        let found = found.ok_or_else(|| {
            let status = match &*self.inner.lock() {
                AnyRequest::Send(request) => request.status(),
                AnyRequest::Recv(request) => request.status(),
            };
            limit.passed_because(&format!("the {}", self.what), || status.as_ref().and_then(Status::explain))
        })?;
        Ok(Completion::new(found))
    }

    #[getter]
    fn is_active(&self) -> bool {
        match &*self.inner.lock() {
            AnyRequest::Send(request) => request.is_active(),
            AnyRequest::Recv(request) => request.is_active(),
        }
    }

    fn __repr__(&self) -> String {
        let active = if self.is_active() { ", active" } else { "" };
        format!("<gdsync.Persistent {}{active}>", self.what)
    }
}

/// A call for a list of requests on a stream of either kind.
type Call = fn(&mut [&mut dyn Request], &Backend) -> Result<(), ListError>;

fn for_all(
    py: Python<'_>,
    requests: &[Py<Persistent>],
    stream: &Stream,
    timeout: Option<f64>,
    call: Call,
) -> Result<(), Failure> {
    let limit = Limit::new(timeout)?;
    let done = interrupt::wait(py, limit, |_| {
        let locked: Option<Vec<_>> = requests.iter().map(|request| request.get().inner.try_lock()).collect();
        let mut locked = locked.ok_or_else(|| {
            Failure::invalid("a request stands twice in the list, or another thread uses it at the moment")
        })?;
        let mut all: Vec<&mut dyn Request> = locked.iter_mut().map(|one| one.request()).collect();
        match call(&mut all, &stream.backend) {
            Ok(()) => Ok(Some(())),
            Err(ListError { source: PersistentError::Post(PostFailure::WouldBlock { .. }), .. }) => Ok(None),
            Err(ListError { index: None, source, .. }) => Err(persistent_failure(source)),
            Err(ListError { index: Some(index), source, .. }) => {
                Err(persistent_failure(source).with_hint(&format!("this is request {index} of the list")))
            }
        }
    });
    let done = done.map_err(|failure| stream.backend.with_cause(py, failure))?;
    done.ok_or_else(|| limit.passed("the wait for room on the stream"))
}

#[documented]
#[pyfunction]
#[pyo3(signature = (requests, stream, timeout=Some(30.0)))]
pub(crate) fn start_all(
    py: Python<'_>,
    requests: Vec<Py<Persistent>>,
    stream: &Stream,
    timeout: Option<f64>,
) -> Result<(), Failure> {
    for_all(
        py,
        &requests,
        stream,
        timeout,
        |all, backend| on!(backend, stream => persistent::start_all(all, stream, interrupt::SLICE).map(drop)),
    )
}

#[documented]
#[pyfunction]
#[pyo3(signature = (requests, stream, timeout=Some(30.0)))]
pub(crate) fn wait_all(
    py: Python<'_>,
    requests: Vec<Py<Persistent>>,
    stream: &Stream,
    timeout: Option<f64>,
) -> Result<(), Failure> {
    for_all(
        py,
        &requests,
        stream,
        timeout,
        |all, backend| on!(backend, stream => persistent::wait_all(all, stream, interrupt::SLICE).map(drop)),
    )
}
