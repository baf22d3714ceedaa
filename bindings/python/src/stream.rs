//! Streams: software ones, and CUDA streams of other libraries.

use crate::awaits::{self, nothing};
use crate::backend::{Backend, Kind, on};
use crate::batch::Batch;
use crate::errors::{ExceptionClass, Failure};
use crate::interrupt::{self, Limit};
use crate::owner::{self, Owner};
use gdsync::cuda;
use gdsync::cudarc::driver::sys::CUstream;
use gdsync::stream::StreamOptions;
use gdsync::{CudaStream, SoftStream};
use gdsync_python_stub::documented;
use pyo3::prelude::*;
use std::panic;
use std::sync::Arc;
use std::time::Duration;

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Stream {
    pub(crate) backend: Arc<Backend>,
}

/// A stream of another library, and its GPU if known.
struct Handle {
    raw: u64,
    gpu: Option<u32>,
}

/// Returns the handle of a stream of torch (`cuda_stream`), CuPy (`ptr`) or cuda-python (`__cuda_stream__`), or a
/// number.
///
/// # Errors
/// Any other object.
fn handle_of(object: &Bound<'_, PyAny>) -> Result<Handle, Failure> {
    let gpu = ["device_index", "device_id"].into_iter().find_map(|name| {
        let value = object.getattr(name).ok()?;
        value.extract::<u32>().ok()
    });
    if let Ok(raw) = object.extract::<u64>() {
        return Ok(Handle { raw, gpu: None });
    }
    for name in ["cuda_stream", "ptr", "handle"] {
        if let Some(raw) = object.getattr(name).ok().and_then(|value| value.extract::<u64>().ok()) {
            return Ok(Handle { raw, gpu });
        }
    }
    if let Ok(protocol) = object.getattr("__cuda_stream__") {
        // A method (a property in older releases): the protocol's version and the handle.
        let pair = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let (_version, raw): (u32, u64) = pair.extract()?;
        return Ok(Handle { raw, gpu });
    }
    let name = object.get_type().qualname()?;
    Err(Failure::invalid(format!(
        "a {name} is no CUDA stream: pass one of torch or CuPy, an object with __cuda_stream__, a handle as a number, or nothing for a software stream"
    )))
}

#[documented]
#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (stream=None, *, stop_at_death=true))]
    fn new(stream: Option<&Bound<'_, PyAny>>, stop_at_death: bool) -> Result<Self, Failure> {
        let options = StreamOptions::default().stop_at_death(stop_at_death);
        let Some(object) = stream else {
            let stream = gdsync::Stream::with_options(SoftStream::new()?, options)?;
            return Ok(Stream { backend: Arc::new(Kind::Soft(stream).into()) });
        };
        let Handle { raw, gpu } = handle_of(object)?;
        if let Some(ordinal) = gpu {
            // A default stream belongs to the current context.
            cuda::context(ordinal)?.bind_to_thread().map_err(|error| {
                Failure::Of(ExceptionClass::DeviceError, format!("cuCtxSetCurrent: {error}"))
            })?;
        } else {
            // Fails if there is no driver.
            cuda::device_count()?;
        }
        let owner = Owner::new(object.clone());
        // SAFETY: the object promises that this is the handle of its stream, and `owner` keeps the object; for a plain
        // number the program promises it. torch and CuPy use primary contexts.
        let stream = unsafe { CudaStream::from_raw(raw as CUstream, owner) }?;
        Ok(Stream { backend: Arc::new(Kind::Cuda(gdsync::Stream::with_options(stream, options)?).into()) })
    }

    #[pyo3(signature = (*, queue=0, merged=true, timeout=Some(30.0)))]
    fn batch(&self, queue: u32, merged: bool, timeout: Option<f64>) -> Result<Batch, Failure> {
        Batch::on(self.backend.clone(), queue, merged, timeout)
    }

    #[pyo3(signature = (timeout=None))]
    fn synchronize(&self, py: Python<'_>, timeout: Option<f64>) -> Result<(), Failure> {
        let limit = Limit::new(timeout)?;
        let done = interrupt::wait(py, limit, |time| {
            let done = on!(self.backend, stream => stream.synchronize_timeout(time))?;
            Ok(done.then_some(()))
        });
        owner::release(py);
        let done = done.map_err(|failure| self.backend.with_cause(py, failure))?;
        done.ok_or_else(|| self.backend.is_late(limit))
    }

    #[pyo3(signature = (timeout=None))]
    fn synchronize_async<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let (backend, late) = (self.backend.clone(), self.backend.clone());
        let look = move || match on!(backend, stream => stream.synchronize_timeout(Duration::ZERO)) {
            Ok(done) => Ok(done.then(nothing)),
            // No Python runs while the interpreter ends.
            Err(error) => Err(Python::try_attach(|py| backend.with_cause(py, error.into()))
                .unwrap_or_else(|| Failure::invalid("the interpreter ends"))),
        };
        awaits::awaitable(py, timeout, look, move |limit| late.is_late(limit))
    }

    fn launch(&self, py: Python<'_>, kernel: Py<PyAny>) -> Result<(), Failure> {
        let Kind::Soft(stream) = &self.backend.kind else {
            let text =
                "launch runs Python on a software stream: on a CUDA stream, launch kernels by torch or CuPy";
            return Err(Failure::Of(ExceptionClass::Unsupported, text.to_owned()));
        };
        let kernel = Owner::around(kernel);
        let raised = self.backend.raised();
        let launched = stream.launch(move || {
            // No Python runs while the interpreter ends.
            let result = Python::try_attach(|py| kernel.call(py).map_err(|error| (error.to_string(), error)));
            if let Some(Err((text, error))) = result {
                _ = raised.set(error);
                // The stream catches it and fails with this text, as after an illegal access on a GPU.
                panic::resume_unwind(Box::new(text));
            }
        });
        launched.map_err(|error| self.backend.with_cause(py, error.into()))
    }

    fn go_on(&self) {
        on!(self.backend, stream => stream.go_on());
    }

    #[getter]
    fn outstanding(&self, py: Python<'_>) -> usize {
        py.detach(|| on!(self.backend, stream => stream.outstanding()))
    }

    #[getter]
    fn oldest_wait(&self) -> Option<String> {
        on!(self.backend, stream => stream.oldest_wait())
    }

    #[getter]
    fn cuda_stream(&self) -> Option<u64> {
        match &self.backend.kind {
            Kind::Soft(_) => None,
            Kind::Cuda(stream) => Some(stream.raw() as u64),
        }
    }

    fn __repr__(&self) -> String {
        let outstanding = on!(self.backend, stream => stream.outstanding());
        let kind = match &self.backend.kind {
            Kind::Soft(_) => "in software".to_owned(),
            Kind::Cuda(stream) => format!("of CUDA, {:#x}", stream.raw() as u64),
        };
        format!("<gdsync.Stream {kind}: {outstanding} submissions outstanding>")
    }
}
