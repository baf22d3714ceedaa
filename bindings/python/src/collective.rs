//! Collectives in the order of streams.

use crate::backend::on;
use crate::errors::Failure;
use crate::interrupt;
use crate::segment::Segment;
use crate::stream::Stream;
use crate::team::Team;
use gdsync_notify::collective::{Collective, Collectives, Element, Operation};
use gdsync_python_stub::documented;
use pyo3::prelude::*;
use std::ops::Range;

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Plan {
    inner: gdsync_notify::collective::Plan,
    segment: Py<Segment>,
}

/// Parses the names of a collective.
///
/// # Errors
/// An unknown name.
fn collective_of(
    kind: &str,
    block: usize,
    root: u32,
    element: &str,
    operation: &str,
) -> Result<Collective, Failure> {
    let unknown = |what: &str, given: &str, known: &str| {
        Failure::invalid(format!("{given:?} is no {what}: {known} are known"))
    };
    Ok(match kind {
        "barrier" => Collective::Barrier,
        "all_gather" => Collective::AllGather { block },
        "all_to_all" => Collective::AllToAll { block },
        "broadcast" => Collective::Broadcast { root, len: block },
        "reduce_scatter" | "all_reduce" => {
            let element = (Element::ALL.into_iter().find(|one| one.to_string() == element))
                .ok_or_else(|| unknown("element", element, &names(&Element::ALL)))?;
            let operation = (Operation::ALL.into_iter().find(|one| one.to_string() == operation))
                .ok_or_else(|| unknown("operation", operation, &names(&Operation::ALL)))?;
            match kind {
                "all_reduce" => Collective::AllReduce { len: block, element, operation },
                _ => Collective::ReduceScatter { block, element, operation },
            }
        }
        other => {
            let known = "barrier, all_gather, all_to_all, all_reduce, broadcast, reduce_scatter";
            return Err(unknown("collective", other, known));
        }
    })
}

/// Joins names.
fn names<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[documented]
#[pyfunction]
#[pyo3(signature = (team, kind, block=0, *, root=0, element="f32", operation="sum", queue=0, gpu=None))]
#[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
pub(crate) fn plan(
    py: Python<'_>,
    team: &Team,
    kind: &str,
    block: usize,
    root: u32,
    element: &str,
    operation: &str,
    queue: u32,
    gpu: Option<u32>,
) -> Result<Plan, Failure> {
    let what = collective_of(kind, block, root, element, operation)?;
    let ranks = team.inner.members().len() as u32;
    let queue = team.inner.queue(queue)?;
    let segment = team.allocate(py, what.bytes(ranks), what.notifications(ranks), gpu)?;
    let own = segment.handle.segment.clone();
    let inner = interrupt::on_a_thread(py, move || Collectives::new(&queue, &own)?.plan(what))?;
    Ok(Plan { inner, segment: Py::new(py, segment)? })
}

impl Plan {
    fn range(&self, round: Option<u64>, of: impl FnOnce(u64) -> Range<usize>) -> (usize, usize) {
        let Range { start, end } = of(round.unwrap_or_else(|| self.inner.round()));
        (start, end)
    }
}

#[documented]
#[pymethods]
impl Plan {
    #[getter]
    fn segment(&self, py: Python<'_>) -> Py<Segment> {
        self.segment.clone_ref(py)
    }

    #[getter]
    fn round(&self) -> u64 {
        self.inner.round()
    }

    #[pyo3(signature = (round=None))]
    fn input(&self, round: Option<u64>) -> (usize, usize) {
        self.range(round, |round| self.inner.input(round))
    }

    #[pyo3(signature = (round=None))]
    fn output(&self, round: Option<u64>) -> (usize, usize) {
        self.range(round, |round| self.inner.output(round))
    }

    fn post(&self, py: Python<'_>, stream: &Stream) -> Result<usize, Failure> {
        let (plan, backend) = (self.inner.clone(), stream.backend.clone());
        let posted = py.detach(|| on!(backend, stream => plan.post(stream)));
        posted.map_err(|error| stream.backend.with_cause(py, error.into()))
    }

    fn check(&self) -> Result<(), Failure> {
        Ok(self.inner.check()?)
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.Plan of a {}: round {}>", self.inner.collective(), self.inner.round())
    }
}
