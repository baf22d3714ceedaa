//! Words that release sends: the card waits for them (docs/card-trigger.md).

use crate::device::ProtectionDomain;
use crate::errors::Failure;
use gdsync::qp::MasterConfig;
use pyo3::prelude::*;

/// A word that releases sends of queue pairs, for which the card waits.
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Trigger {
    pub(crate) inner: gdsync::Trigger,
}

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
