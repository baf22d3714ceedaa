//! Segments: memory of which every rank has a part, with notifications.

use crate::awaits::{self, outcome};
use crate::errors::Failure;
use crate::interrupt::{self, Limit};
use crate::region::{self, SegmentHandle, Slice, Word};
use crate::tensor::Memory;
use gdsync_python_stub::documented;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice};
use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Segment {
    pub(crate) handle: SegmentHandle,
    memory: Memory,
    /// The registered object; `None` if the memory was allocated here.
    tensor: Option<Py<PyAny>>,
}

impl Segment {
    pub(crate) fn new(handle: SegmentHandle, memory: Memory, tensor: Option<Py<PyAny>>) -> Self {
        Segment { handle, memory, tensor }
    }

    fn segment(&self) -> &gdsync_notify::Segment {
        &self.handle.segment
    }

    /// Parses notification numbers: `None` for all, a number, or `range(a, b)`.
    fn ids(&self, ids: Option<&Bound<'_, PyAny>>) -> Result<Range<u32>, Failure> {
        let Some(ids) = ids else { return Ok(0..self.segment().notifications()) };
        if let Ok(id) = ids.extract::<u32>() {
            return Ok(id..id.saturating_add(1));
        }
        let bound = |name| ids.getattr(name).ok().and_then(|value| value.extract::<u32>().ok());
        match (bound("start"), bound("stop"), bound("step")) {
            (Some(start), Some(stop), Some(1)) => Ok(start..stop),
            _ => {
                let text = format!("{ids} names no notifications: give a number, or range(first, end)");
                Err(Failure::invalid(text))
            }
        }
    }
}

/// Returns the error of a wait for notifications that has timed out.
fn is_late(segment: &gdsync_notify::Segment, ids: &Range<u32>, limit: Limit) -> Failure {
    let what = format!("the wait for notifications {} to {}", ids.start, ids.end);
    limit.passed_because(&what, || segment.explain_wait(ids.clone()).ok().flatten())
}

#[documented]
#[pymethods]
impl Segment {
    fn __len__(&self) -> usize {
        self.segment().len()
    }

    fn __getitem__(&self, range: &Bound<'_, PySlice>) -> Result<Slice, Failure> {
        let range = region::range_of(range, self.segment().len())?;
        Ok(Slice::new(self.segment().slice(range)?, Some(self.handle.clone())))
    }

    #[getter]
    fn notifications(&self) -> u32 {
        self.segment().notifications()
    }

    #[getter]
    fn tensor(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.tensor.as_ref().map(|tensor| tensor.clone_ref(py))
    }

    #[pyo3(signature = (offset=0, nbytes=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        nbytes: Option<usize>,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let nbytes = nbytes.unwrap_or_else(|| self.segment().len().saturating_sub(offset));
        let bytes = py.detach(|| {
            // Check the range before allocating its length.
            self.segment().slice(offset..offset.saturating_add(nbytes))?;
            let mut bytes = vec![0; nbytes];
            self.segment().read(offset, &mut bytes)?;
            Ok::<_, Failure>(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn write(&self, py: Python<'_>, offset: usize, data: Cow<'_, [u8]>) -> Result<(), Failure> {
        Ok(py.detach(|| self.segment().write(offset, &data))?)
    }

    fn word32(&self, offset: usize) -> Result<Word, Failure> {
        Word::new(&self.memory, offset, false)
    }

    fn word64(&self, offset: usize) -> Result<Word, Failure> {
        Word::new(&self.memory, offset, true)
    }

    #[pyo3(signature = (ids=None, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        ids: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> Result<u32, Failure> {
        let (ids, limit) = (self.ids(ids)?, Limit::new(timeout)?);
        let found =
            interrupt::wait(py, limit, |time| Ok(self.segment().notify_waitsome(ids.clone(), time)?))?;
        found.ok_or_else(|| is_late(self.segment(), &ids, limit))
    }

    #[pyo3(signature = (ids=None, timeout=None))]
    pub(crate) fn wait_async<'py>(
        this: &Bound<'py, Self>,
        ids: Option<Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let (ids, segment) = (this.get().ids(ids.as_ref())?, this.get().segment().clone());
        let range = ids.clone();
        let (look_at, late) = (segment.clone(), segment);
        let look = move || Ok(look_at.notify_waitsome(ids.clone(), Duration::ZERO)?.map(outcome));
        awaits::awaitable(this.py(), timeout, look, move |limit| is_late(&late, &range, limit))
    }

    fn reset(&self, py: Python<'_>, id: u32) -> Result<u32, Failure> {
        Ok(py.detach(|| self.segment().notify_reset(id))?)
    }

    fn expect_from(&self, ids: &Bound<'_, PyAny>, rank: Option<u32>) -> Result<(), Failure> {
        let ids = self.ids(Some(ids))?;
        match rank {
            Some(rank) => self.segment().expect_from(ids, rank)?,
            None => self.segment().expect_from_any(ids)?,
        }
        Ok(())
    }

    fn check(&self, id: u32) -> Result<(), Failure> {
        Ok(self.segment().check_notification(id)?)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.cut(region::host_interface(py, &self.memory)?)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.cut(region::gpu_interface(py, &self.memory)?)
    }

    fn __repr__(&self) -> String {
        let (len, count, place) = (self.segment().len(), self.segment().notifications(), self.memory.place());
        let (rank, size) = (self.handle.team.rank(), self.handle.team.size());
        format!("<gdsync.Segment of {len} bytes and {count} notifications in {place}, rank {rank} of {size}>")
    }
}

impl Segment {
    /// Restricts an interface to the data, without the notifications.
    fn cut<'py>(&self, interface: Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        interface.set_item("shape", (self.segment().len(),))?;
        Ok(interface)
    }
}
