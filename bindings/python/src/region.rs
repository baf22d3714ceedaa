//! Registered memory: regions, slices, words, and remote keys.

use crate::errors::Failure;
use crate::tensor::Memory;
use gdsync::memop::{GpuWord32, GpuWord64, Word32, Word64};
use gdsync::verbs::CachedRegion;
use gdsync_python_stub::documented;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice};
use std::borrow::Cow;
use std::ops::Range;

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct MemoryRegion {
    memory: Memory,
    region: CachedRegion,
    /// The registered object; `None` if the memory was allocated here.
    tensor: Option<Py<PyAny>>,
}

impl MemoryRegion {
    pub(crate) fn new(memory: Memory, region: CachedRegion, tensor: Option<Py<PyAny>>) -> Self {
        MemoryRegion { memory, region, tensor }
    }
}

/// Returns the bytes of `[a:b]`. A bound below 0 counts from the end.
///
/// # Errors
/// A step other than 1; a slice that Python would shorten: one that leaves the memory, or ends before its start.
pub(crate) fn range_of(slice: &Bound<'_, PySlice>, len: usize) -> Result<Range<usize>, Failure> {
    let bound = |name: &str, default: i128| -> PyResult<(i128, i128)> {
        let given = slice.getattr(name)?.extract::<Option<i128>>()?.unwrap_or(default);
        Ok((given, if given < 0 { given + len as i128 } else { given }))
    };
    let (step, _) = bound("step", 1)?;
    if step != 1 {
        return Err(Failure::invalid(format!("a step of {step}: a slice of memory has a step of 1")));
    }
    let ((first, start), (last, stop)) = (bound("start", 0)?, bound("stop", len as i128)?);
    if start < 0 || start > stop || stop > len as i128 {
        return Err(Failure::invalid(format!(
            "the slice [{first}:{last}] is not within the {len} bytes of the memory: give bounds from 0 to {len}, the lower one first"
        )));
    }
    Ok(start as usize..stop as usize)
}

#[documented]
#[pymethods]
impl MemoryRegion {
    fn __len__(&self) -> usize {
        self.memory.len()
    }

    fn __getitem__(&self, range: &Bound<'_, PySlice>) -> Result<Slice, Failure> {
        let range = range_of(range, self.memory.len())?;
        Ok(Slice::new(self.region.slice(range)?, None))
    }

    #[getter]
    fn tensor(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.tensor.as_ref().map(|tensor| tensor.clone_ref(py))
    }

    #[getter]
    fn address(&self) -> u64 {
        self.memory.address()
    }

    #[getter]
    fn remote(&self) -> RemoteMemory {
        RemoteMemory { inner: self.region.remote() }
    }

    fn word32(&self, offset: usize) -> Result<Word, Failure> {
        Word::new(&self.memory, offset, false)
    }

    fn word64(&self, offset: usize) -> Result<Word, Failure> {
        Word::new(&self.memory, offset, true)
    }

    #[pyo3(signature = (offset=0, nbytes=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        nbytes: Option<usize>,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let nbytes = nbytes.unwrap_or_else(|| self.memory.len().saturating_sub(offset));
        let bytes = py.detach(|| self.memory.read(offset, nbytes))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn write(&self, py: Python<'_>, offset: usize, data: Cow<'_, [u8]>) -> Result<(), Failure> {
        py.detach(|| self.memory.write(offset, &data))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        host_interface(py, &self.memory)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        gpu_interface(py, &self.memory)
    }

    fn __repr__(&self) -> String {
        let (len, address, place) = (self.memory.len(), self.memory.address(), self.memory.place());
        format!("<gdsync.MemoryRegion of {len} bytes at {address:#x} in {place}>")
    }
}

pub(crate) fn host_interface<'py>(py: Python<'py>, memory: &Memory) -> PyResult<Bound<'py, PyDict>> {
    match memory {
        Memory::Host(_) => memory.interface(py),
        Memory::Gpu(..) => Err(pyo3::exceptions::PyAttributeError::new_err("the memory is a GPU's")),
    }
}

pub(crate) fn gpu_interface<'py>(py: Python<'py>, memory: &Memory) -> PyResult<Bound<'py, PyDict>> {
    match memory {
        Memory::Gpu(..) => memory.interface(py),
        Memory::Host(_) => Err(pyo3::exceptions::PyAttributeError::new_err("the memory is the host's")),
    }
}

/// A segment and its team.
#[derive(Clone)]
pub(crate) struct SegmentHandle {
    pub(crate) segment: gdsync_notify::Segment,
    pub(crate) team: gdsync_notify::Team,
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Slice {
    pub(crate) inner: gdsync::Slice,
    /// The segment to which it belongs.
    pub(crate) segment: Option<SegmentHandle>,
}

impl Slice {
    pub(crate) fn new(inner: gdsync::Slice, segment: Option<SegmentHandle>) -> Self {
        Slice { inner, segment }
    }
}

#[documented]
#[pymethods]
impl Slice {
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __repr__(&self) -> String {
        let of = if self.segment.is_some() { "a segment" } else { "a memory region" };
        format!("<gdsync.Slice: {} bytes of {of}>", self.inner.len())
    }
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct RemoteMemory {
    pub(crate) inner: gdsync::RemoteMemory,
}

#[documented]
#[pymethods]
impl RemoteMemory {
    #[new]
    fn new(text: &str) -> Result<Self, Failure> {
        Ok(RemoteMemory { inner: text.parse()? })
    }

    fn __len__(&self) -> usize {
        self.inner.len as usize
    }

    fn __getitem__(&self, range: &Bound<'_, PySlice>) -> Result<Self, Failure> {
        let range = range_of(range, self.inner.len as usize)?;
        Ok(RemoteMemory { inner: self.inner.slice(range)? })
    }

    fn __str__(&self) -> String {
        self.inner.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.RemoteMemory of {} bytes at {:#x}>", self.inner.len, self.inner.addr)
    }
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Word {
    pub(crate) inner: AnyWord,
    pub(crate) address: u64,
}

pub(crate) enum AnyWord {
    Host32(Word32),
    Host64(Word64),
    Gpu32(GpuWord32),
    Gpu64(GpuWord64),
}

impl Word {
    pub(crate) fn new(memory: &Memory, offset: usize, wide: bool) -> Result<Self, Failure> {
        let inner = match (memory, wide) {
            (Memory::Host(memory), false) => AnyWord::Host32(Word32::new(memory, offset)?),
            (Memory::Host(memory), true) => AnyWord::Host64(Word64::new(memory, offset)?),
            (Memory::Gpu(memory, _), false) => AnyWord::Gpu32(GpuWord32::new(memory, offset)?),
            (Memory::Gpu(memory, _), true) => AnyWord::Gpu64(GpuWord64::new(memory, offset)?),
        };
        Ok(Word { inner, address: memory.address() + offset as u64 })
    }

    pub(crate) fn bits(&self) -> u32 {
        match self.inner {
            AnyWord::Host32(_) | AnyWord::Gpu32(_) => 32,
            AnyWord::Host64(_) | AnyWord::Gpu64(_) => 64,
        }
    }
}

/// Converts a value for a 32-bit word.
///
/// # Errors
/// A value that does not fit.
pub(crate) fn narrow(value: u64) -> Result<u32, Failure> {
    u32::try_from(value)
        .map_err(|_| Failure::invalid(format!("{value} does not fit a word of 32 bits: use word64")))
}

#[documented]
#[pymethods]
impl Word {
    fn load(&self, py: Python<'_>) -> Result<u64, Failure> {
        Ok(match &self.inner {
            AnyWord::Host32(word) => word.load().into(),
            AnyWord::Host64(word) => word.load(),
            AnyWord::Gpu32(word) => py.detach(|| word.load())?.into(),
            AnyWord::Gpu64(word) => py.detach(|| word.load())?,
        })
    }

    fn store(&self, py: Python<'_>, value: u64) -> Result<(), Failure> {
        match &self.inner {
            AnyWord::Host32(word) => word.store(narrow(value)?),
            AnyWord::Host64(word) => word.store(value),
            AnyWord::Gpu32(word) => {
                let value = narrow(value)?;
                py.detach(|| word.store(value))?;
            }
            AnyWord::Gpu64(word) => py.detach(|| word.store(value))?,
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let bits = self.bits();
        match &self.inner {
            AnyWord::Host32(word) => format!("<gdsync.Word of {bits} bits: {}>", word.load()),
            AnyWord::Host64(word) => format!("<gdsync.Word of {bits} bits: {}>", word.load()),
            AnyWord::Gpu32(_) | AnyWord::Gpu64(_) => format!("<gdsync.Word of {bits} bits in GPU memory>"),
        }
    }
}
