//! Cards, protection domains, and registration.

use crate::errors::Failure;
use crate::region::MemoryRegion;
use crate::tensor::{self, Memory};
use gdsync::Access;
use gdsync::verbs::{Provider, RegistrationCache, provider};
use gdsync_python_stub::documented;
use pyo3::prelude::*;

/// Prefix of software cards' names.
const SOFTWARE: &str = "softhca";

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Device {
    pub(crate) inner: gdsync::Device,
}

#[documented]
#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name=None))]
    fn new(py: Python<'_>, name: Option<String>) -> Result<Self, Failure> {
        let inner = py.detach(|| match name.as_deref() {
            None => gdsync::Device::software(),
            Some(name) if name.starts_with(SOFTWARE) => {
                gdsync::Device::open(provider::software(), Some(name))
            }
            Some(name) => gdsync::Device::open(provider::system()?, Some(name)),
        })?;
        Ok(Device { inner })
    }

    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn is_software(&self) -> bool {
        self.inner.provider() == Provider::Software
    }

    fn __repr__(&self) -> String {
        let kind = if self.is_software() { "software card" } else { "card of the system's libraries" };
        format!("<gdsync.Device {}: {kind}>", self.inner.name())
    }
}

#[documented]
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Result<Vec<String>, Failure> {
    py.detach(|| {
        let mut names = gdsync::Device::names(provider::software())?;
        // Without the system's libraries there are no other cards.
        names.extend(provider::system().and_then(gdsync::Device::names).unwrap_or_default());
        Ok(names)
    })
}

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct ProtectionDomain {
    pub(crate) inner: gdsync::ProtectionDomain,
    pub(crate) device: gdsync::Device,
    cache: RegistrationCache,
}

impl ProtectionDomain {
    pub(crate) fn on(device: &gdsync::Device) -> Result<Self, Failure> {
        let inner = gdsync::ProtectionDomain::new(device)?;
        let cache = RegistrationCache::new(&inner);
        Ok(ProtectionDomain { inner, device: device.clone(), cache })
    }

    fn make(&self, memory: Memory, remote: bool, of: Option<Py<PyAny>>) -> Result<MemoryRegion, Failure> {
        let access = match remote {
            true => Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            false => Access::LOCAL_WRITE,
        };
        let region = match &memory {
            Memory::Host(memory) => self.cache.host(memory, access),
            Memory::Gpu(memory, _) => self.cache.gpu(memory, access),
        };
        match region {
            Ok(region) => Ok(MemoryRegion::new(memory, region, of)),
            Err(error) => Err(tensor::explain(&memory, error.into())),
        }
    }
}

#[documented]
#[pymethods]
impl ProtectionDomain {
    #[new]
    #[pyo3(signature = (device=None))]
    fn new(py: Python<'_>, device: Option<Py<Device>>) -> Result<Self, Failure> {
        py.detach(|| match &device {
            Some(device) => Self::on(&device.get().inner),
            None => Self::on(&gdsync::Device::software()?),
        })
    }

    #[pyo3(signature = (tensor, *, remote=true))]
    fn register(&self, tensor: &Bound<'_, PyAny>, remote: bool) -> Result<MemoryRegion, Failure> {
        crate::owner::release(tensor.py());
        let memory = Memory::of(tensor)?;
        let of = tensor.clone().unbind();
        tensor.py().detach(|| self.make(memory, remote, Some(of)))
    }

    #[pyo3(signature = (nbytes, *, remote=true, gpu=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        nbytes: usize,
        remote: bool,
        gpu: Option<u32>,
    ) -> Result<MemoryRegion, Failure> {
        py.detach(|| self.make(Memory::allocate(nbytes, gpu)?, remote, None))
    }

    #[getter]
    fn registrations(&self) -> (usize, u64, u64) {
        let statistics = self.cache.statistics();
        (statistics.entries, statistics.hits, statistics.misses)
    }

    fn __repr__(&self) -> String {
        let entries = self.cache.statistics().entries;
        format!("<gdsync.ProtectionDomain on {}: {entries} registrations>", self.device.name())
    }
}
