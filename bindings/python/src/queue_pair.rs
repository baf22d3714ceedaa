//! Queue pairs, completion queues, and work requests.

use crate::awaits::{self, outcome};
use crate::device::ProtectionDomain;
use crate::errors::Failure;
use crate::interrupt::{self, Limit};
use crate::region::{RemoteMemory, Slice};
use crate::words::of_python;
use gdsync::advanced::MasterConfig;
use gdsync::qp::CompletionChannel;
use gdsync::queue::WorkKind;
use gdsync::{CompletionQueueConfig, ConnectOptions, QueuePairConfig};
use gdsync_python_stub::documented;
use pyo3::prelude::*;

const WAIT: &str = "the wait for a completion";

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct CompletionQueue {
    pub(crate) inner: gdsync::CompletionQueue,
}

impl CompletionQueue {
    /// Creates a queue with a channel, so that waits sleep.
    fn on(device: &gdsync::Device, entries: u32) -> Result<Self, Failure> {
        let channel = CompletionChannel::new(device)?;
        let config = CompletionQueueConfig::from(entries).channel(&channel);
        Ok(CompletionQueue { inner: gdsync::CompletionQueue::new(device, config)? })
    }
}

#[documented]
#[pymethods]
impl CompletionQueue {
    #[new]
    #[pyo3(signature = (pd, entries=256))]
    fn new(pd: &ProtectionDomain, entries: u32) -> Result<Self, Failure> {
        Self::on(&pd.device, entries)
    }

    fn poll(&self) -> Result<Option<Completion>, Failure> {
        Ok(self.inner.poll()?.map(|inner| Completion { inner }))
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Completion, Failure> {
        let limit = Limit::new(timeout)?;
        let found = interrupt::wait(py, limit, |time| Ok(self.inner.wait(time)?))?;
        let inner = found.ok_or_else(|| limit.passed_because(WAIT, || self.inner.explain_wait()))?;
        Ok(Completion { inner })
    }

    #[pyo3(signature = (timeout=None))]
    fn wait_async<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> Result<Bound<'py, PyAny>, Failure> {
        let (queue, late) = (self.inner.clone(), self.inner.clone());
        let look = move || Ok(queue.poll()?.map(|inner| outcome(Completion { inner })));
        awaits::awaitable(py, timeout, look, move |limit| limit.passed_because(WAIT, || late.explain_wait()))
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.CompletionQueue of {} entries>", self.inner.entries())
    }
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Completion {
    inner: gdsync::Completion,
}

impl Completion {
    pub(crate) fn new(inner: gdsync::Completion) -> Self {
        Completion { inner }
    }
}

#[documented]
#[pymethods]
impl Completion {
    #[getter]
    fn wr_id(&self) -> u64 {
        self.inner.wr_id
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner.kind {
            WorkKind::Send => "send",
            WorkKind::RdmaWrite => "write",
            WorkKind::RdmaRead => "read",
            WorkKind::CompareSwap => "compare_swap",
            WorkKind::FetchAdd => "fetch_add",
            WorkKind::Receive | WorkKind::ReceiveRdmaWithImmediate => "receive",
            WorkKind::Nop => "nop",
            _ => "other",
        }
    }

    #[getter]
    fn nbytes(&self) -> u32 {
        self.inner.byte_len
    }

    #[getter]
    fn immediate(&self) -> Option<u32> {
        self.inner.immediate
    }

    #[getter]
    fn error(&self) -> Option<String> {
        self.inner.status.err().map(|error| of_python(error.to_string()))
    }

    fn __repr__(&self) -> String {
        let end = self.error().unwrap_or_else(|| format!("{} bytes", self.inner.byte_len));
        format!("<gdsync.Completion of {} {}: {end}>", self.kind(), self.inner.wr_id)
    }
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct WorkRequest {
    opcode: Opcode,
    slices: Vec<gdsync::Slice>,
    remote: Option<gdsync::RemoteMemory>,
    immediate: Option<u32>,
    signaled: bool,
    wr_id: u64,
}

#[derive(Clone, Copy, Debug)]
enum Opcode {
    Send,
    Write,
    Read,
    FetchAdd(u64),
    CompareSwap(u64, u64),
    Nop,
}

impl WorkRequest {
    /// Passes the library's work request to `take`.
    pub(crate) fn with<T>(
        &self,
        take: impl FnOnce(gdsync::WorkRequest<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let remote = || self.remote.ok_or_else(|| Failure::invalid("the request names no remote memory"));
        let one = || self.slices.first().ok_or_else(|| Failure::invalid("the request has no slice"));
        let request = match self.opcode {
            Opcode::Send => gdsync::WorkRequest::send(&self.slices),
            Opcode::Write => gdsync::WorkRequest::write(&self.slices, remote()?),
            Opcode::Read => gdsync::WorkRequest::read(&self.slices, remote()?),
            Opcode::FetchAdd(add) => gdsync::WorkRequest::fetch_add(one()?, remote()?, add),
            Opcode::CompareSwap(compare, swap) => {
                gdsync::WorkRequest::compare_swap(one()?, remote()?, compare, swap)
            }
            Opcode::Nop => gdsync::WorkRequest::nop(),
        };
        let request = request.wr_id(self.wr_id);
        let request = match self.immediate {
            Some(immediate) => request.immediate(immediate),
            None => request,
        };
        take(if self.signaled { request } else { request.unsignaled() })
    }

    /// Returns the name of the method that makes it.
    pub(crate) fn name(&self) -> &'static str {
        match self.opcode {
            Opcode::Send => "send",
            Opcode::Write => "write",
            Opcode::Read => "read",
            Opcode::FetchAdd(_) => "fetch_add",
            Opcode::CompareSwap(..) => "compare_swap",
            Opcode::Nop => "nop",
        }
    }

    pub(crate) fn nbytes(&self) -> u64 {
        self.slices.iter().map(|slice| slice.len() as u64).sum()
    }

    fn made(
        opcode: Opcode,
        slices: Vec<Py<Slice>>,
        remote: Option<&RemoteMemory>,
        wr_id: u64,
        signaled: bool,
    ) -> Self {
        let slices = slices.iter().map(|slice| slice.get().inner.clone()).collect();
        WorkRequest {
            opcode,
            slices,
            remote: remote.map(|remote| remote.inner),
            immediate: None,
            signaled,
            wr_id,
        }
    }
}

#[documented]
#[pymethods]
impl WorkRequest {
    #[staticmethod]
    #[pyo3(signature = (*slices, immediate=None, wr_id=0, signaled=true))]
    fn send(slices: Vec<Py<Slice>>, immediate: Option<u32>, wr_id: u64, signaled: bool) -> Self {
        WorkRequest { immediate, ..Self::made(Opcode::Send, slices, None, wr_id, signaled) }
    }

    #[staticmethod]
    #[pyo3(signature = (*slices, remote, immediate=None, wr_id=0, signaled=true))]
    fn write(
        slices: Vec<Py<Slice>>,
        remote: &RemoteMemory,
        immediate: Option<u32>,
        wr_id: u64,
        signaled: bool,
    ) -> Self {
        WorkRequest { immediate, ..Self::made(Opcode::Write, slices, Some(remote), wr_id, signaled) }
    }

    #[staticmethod]
    #[pyo3(signature = (*slices, remote, wr_id=0, signaled=true))]
    fn read(slices: Vec<Py<Slice>>, remote: &RemoteMemory, wr_id: u64, signaled: bool) -> Self {
        Self::made(Opcode::Read, slices, Some(remote), wr_id, signaled)
    }

    #[staticmethod]
    #[pyo3(signature = (result, *, remote, add, wr_id=0, signaled=true))]
    fn fetch_add(result: Py<Slice>, remote: &RemoteMemory, add: u64, wr_id: u64, signaled: bool) -> Self {
        Self::made(Opcode::FetchAdd(add), vec![result], Some(remote), wr_id, signaled)
    }

    #[staticmethod]
    #[pyo3(signature = (result, *, remote, compare, swap, wr_id=0, signaled=true))]
    fn compare_swap(
        result: Py<Slice>,
        remote: &RemoteMemory,
        compare: u64,
        swap: u64,
        wr_id: u64,
        signaled: bool,
    ) -> Self {
        Self::made(Opcode::CompareSwap(compare, swap), vec![result], Some(remote), wr_id, signaled)
    }

    #[staticmethod]
    #[pyo3(signature = (*, wr_id=0, signaled=true))]
    fn nop(wr_id: u64, signaled: bool) -> Self {
        Self::made(Opcode::Nop, Vec::new(), None, wr_id, signaled)
    }

    fn __repr__(&self) -> String {
        let (name, nbytes, wr_id) = (self.name(), self.nbytes(), self.wr_id);
        format!("<gdsync.WorkRequest.{name} of {nbytes} bytes, wr_id {wr_id}>")
    }
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct QueuePair {
    pub(crate) inner: gdsync::QueuePair,
}

#[documented]
#[pymethods]
impl QueuePair {
    #[new]
    #[pyo3(signature = (pd, *, send_depth=128, recv_depth=128, send_cq=None, recv_cq=None, trigger=None))]
    fn new(
        py: Python<'_>,
        pd: &ProtectionDomain,
        send_depth: u32,
        recv_depth: u32,
        send_cq: Option<&CompletionQueue>,
        recv_cq: Option<&CompletionQueue>,
        trigger: Option<&Trigger>,
    ) -> Result<Self, Failure> {
        py.detach(|| {
            // Creates only the missing ones.
            let own = |given: Option<&CompletionQueue>, depth: u32| match given {
                Some(given) => Ok(given.inner.clone()),
                None => CompletionQueue::on(&pd.device, depth.max(1)).map(|queue| queue.inner),
            };
            let (send_cq, recv_cq) = (own(send_cq, send_depth)?, own(recv_cq, recv_depth)?);
            let access = QueuePairConfig::default().access | gdsync::Access::REMOTE_ATOMIC;
            let config = QueuePairConfig::default().send_depth(send_depth).recv_depth(recv_depth);
            let config = config.access(access).completion_queues(&send_cq, &recv_cq);
            let config = match trigger {
                Some(trigger) => config.trigger(&trigger.inner),
                None => config,
            };
            Ok(QueuePair { inner: gdsync::QueuePair::new(&pd.inner, config)? })
        })
    }

    #[getter]
    fn endpoint(&self) -> Result<String, Failure> {
        Ok(self.inner.endpoint()?.to_string())
    }

    fn connect(&self, py: Python<'_>, endpoint: &str) -> Result<(), Failure> {
        let remote = endpoint.parse::<gdsync::Endpoint>()?;
        Ok(py.detach(|| self.inner.connect(&remote, ConnectOptions::default()))?)
    }

    #[pyo3(signature = (*slices, wr_id=0))]
    fn post_recv(&self, slices: Vec<Py<Slice>>, wr_id: u64) -> Result<(), Failure> {
        let slices: Vec<_> = slices.iter().map(|slice| slice.get().inner.clone()).collect();
        Ok(self.inner.post_recv(&slices, wr_id)?)
    }

    fn post_send(&self, request: &WorkRequest) -> Result<(), Failure> {
        request.with(|request| Ok(self.inner.post_send(request)?))
    }

    #[getter]
    fn send_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.send_cq() }
    }

    #[getter]
    fn recv_cq(&self) -> CompletionQueue {
        CompletionQueue { inner: self.inner.recv_cq() }
    }

    #[getter]
    fn failure(&self) -> Option<String> {
        self.inner.failure().map(|cause| of_python(cause.to_string()))
    }

    fn __repr__(&self) -> String {
        let state = self.failure().map_or(String::new(), |cause| format!(", failed: {cause}"));
        format!("<gdsync.QueuePair {:#x}{state}>", self.inner.number())
    }
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Trigger {
    pub(crate) inner: gdsync::Trigger,
}

#[documented]
#[pymethods]
impl Trigger {
    #[new]
    #[pyo3(signature = (pd, *, master=None))]
    fn new(py: Python<'_>, pd: &ProtectionDomain, master: Option<u32>) -> Result<Self, Failure> {
        py.detach(|| {
            let trigger = gdsync::Trigger::new(&pd.inner)?;
            let inner = match master {
                Some(sends) => trigger.with_master(MasterConfig::default().sends(sends))?,
                None => trigger,
            };
            Ok(Trigger { inner })
        })
    }

    #[getter]
    fn address(&self) -> u64 {
        self.inner.address()
    }

    #[staticmethod]
    fn word_of(ticket: u64) -> u64 {
        gdsync::Trigger::word_of(ticket)
    }

    fn release(&self, py: Python<'_>, ticket: u64) -> Result<(), Failure> {
        Ok(py.detach(|| self.inner.release(ticket))?)
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.Trigger at {:#x}>", self.inner.address())
    }
}
