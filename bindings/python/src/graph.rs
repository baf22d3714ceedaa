//! CUDA graphs that hold batches.

use crate::backend::Kind;
use crate::batch::Batch;
use crate::errors::{ExceptionClass, Failure};
use crate::interrupt::{self, Limit};
use crate::stream::Stream;
use gdsync::graph::{CudaGraph, GraphError, LaunchError};
use gdsync::stream::PostFailure;
use gdsync_python_stub::documented;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use std::time::Duration;

/// Pause of a launch while the stream has no room.
const PAUSE: Duration = Duration::from_micros(50);

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Graph {
    inner: Mutex<CudaGraph>,
    nodes: usize,
}

#[documented]
#[pyfunction]
pub(crate) fn capture(stream: &Stream, steps: &Bound<'_, PyAny>) -> Result<Graph, Failure> {
    let Kind::Cuda(cuda) = &stream.backend.kind else {
        let text = "only CUDA streams are captured: a software stream has no graphs";
        return Err(Failure::Of(ExceptionClass::Unsupported, text.to_owned()));
    };
    let steps = PyIterator::from_object(steps)?;
    let mut nodes = 0;
    let inner = cuda.capture(|capture| {
        for step in steps {
            let step = step?;
            let batch = step.cast::<Batch>().map_err(PyErr::from)?;
            capture.batch(&batch.get().pattern())?;
            nodes += 1;
        }
        Ok(())
    });
    match inner {
        Ok(inner) => Ok(Graph { inner: Mutex::new(inner), nodes }),
        Err(GraphError::Record(error)) => match error.downcast::<PyErr>() {
            Ok(own) => Err(Failure::Python(*own)),
            Err(other) => Err(Failure::Of(ExceptionClass::Error, other.to_string())),
        },
        Err(error) => Err(graph_failure(&error)),
    }
}

fn graph_failure(error: &GraphError) -> Failure {
    let kind = match error {
        GraphError::Stale { .. } | GraphError::Shape { .. } | GraphError::Size { .. } | GraphError::Copy => {
            ExceptionClass::InvalidArgument
        }
        GraphError::Post(PostFailure::WouldBlock { .. }) => ExceptionClass::WouldBlock,
        GraphError::OtherContext { .. } => ExceptionClass::InvalidArgument,
        _ => ExceptionClass::DeviceError,
    };
    Failure::Of(kind, error.to_string())
}

#[documented]
#[pymethods]
impl Graph {
    #[pyo3(signature = (stream, *batches, timeout=Some(30.0)))]
    fn launch(
        &self,
        py: Python<'_>,
        stream: &Stream,
        batches: Vec<Py<Batch>>,
        timeout: Option<f64>,
    ) -> Result<(), Failure> {
        let Kind::Cuda(cuda) = &stream.backend.kind else {
            let text = "a graph is launched on a CUDA stream";
            return Err(Failure::Of(ExceptionClass::Unsupported, text.to_owned()));
        };
        let limit = Limit::new(timeout)?;
        let launched = interrupt::wait(py, limit, |_| {
            let taken: Vec<_> = batches.iter().map(|batch| batch.get().take()).collect();
            match cuda.launch(&mut self.inner.lock(), taken) {
                Ok(_) => {
                    batches.iter().for_each(|batch| batch.get().finish(None));
                    Ok(Some(()))
                }
                Err(LaunchError { batches: rest, source, .. }) => {
                    batches.iter().zip(rest).for_each(|(batch, rest)| batch.get().restore(rest));
                    match source {
                        GraphError::Post(PostFailure::WouldBlock { .. }) => {
                            std::thread::sleep(PAUSE);
                            Ok(None)
                        }
                        source => Err(graph_failure(&source)),
                    }
                }
            }
        })?;
        launched.ok_or_else(|| limit.passed("the wait for room on the stream"))
    }

    #[getter]
    fn batches(&self) -> usize {
        self.nodes
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.Graph with {} batches>", self.nodes)
    }
}
