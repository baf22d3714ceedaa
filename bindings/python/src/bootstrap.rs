//! The bootstrap of a job's processes or threads.

use crate::errors::Failure;
use crate::interrupt::{self, Limit};
use gdsync_notify::bootstrap::{Job, Key, Rendezvous};
use gdsync_python_stub::documented;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

type Inner = gdsync_notify::bootstrap::Bootstrap;

#[documented]
#[pyclass(frozen, module = "gdsync")]
pub(crate) struct Bootstrap {
    rank: u32,
    size: u32,
    /// `None` once a team has taken it.
    inner: Arc<Mutex<Option<Inner>>>,
}

impl Bootstrap {
    fn new(inner: Inner) -> Self {
        Bootstrap { rank: inner.rank(), size: inner.size(), inner: Arc::new(Mutex::new(Some(inner))) }
    }

    fn meet(py: Python<'_>, job: Job, timeout: Option<f64>) -> Result<Self, Failure> {
        let time = Limit::new(timeout)?.duration();
        interrupt::on_a_thread(py, move || Inner::join(&job, time)).map(Self::new)
    }

    /// Takes it for a team.
    pub(crate) fn take(&self) -> Result<Inner, Failure> {
        let gone = || Failure::invalid("the bootstrap has become a team: make another one for another team");
        self.inner.lock().take().ok_or_else(gone)
    }

    /// Makes an exchange with all ranks.
    fn exchange<T: Send + 'static>(
        &self,
        py: Python<'_>,
        exchange: impl FnOnce(&mut Inner) -> Result<T, gdsync_notify::bootstrap::BootstrapError> + Send + 'static,
    ) -> Result<T, Failure> {
        let inner = self.inner.clone();
        interrupt::on_a_thread(py, move || match &mut *inner.lock() {
            Some(inner) => exchange(inner).map_err(Failure::from),
            None => Err(Failure::invalid("the bootstrap has become a team")),
        })
    }
}

#[documented]
#[pymethods]
impl Bootstrap {
    #[staticmethod]
    #[pyo3(signature = (timeout=30.0))]
    pub(crate) fn from_env(py: Python<'_>, timeout: Option<f64>) -> Result<Self, Failure> {
        Self::meet(py, Job::from_env()?, timeout)
    }

    #[staticmethod]
    #[pyo3(signature = (rank, size, address, *, key=None, timeout=30.0))]
    fn join(
        py: Python<'_>,
        rank: u32,
        size: u32,
        address: String,
        key: Option<Vec<u8>>,
        timeout: Option<f64>,
    ) -> Result<Self, Failure> {
        // `host:port` is rank 0's address; other text is a name on this host.
        let rendezvous = match address.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => Rendezvous::Root(address),
            Some((_, port)) if !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()) => {
                let text =
                    format!("{address}: {port} is no port: give one from 1 to 65535, or a name without it");
                return Err(Failure::invalid(text));
            }
            _ => Rendezvous::Local(address),
        };
        let job = Job::new(rank, size, rendezvous)?;
        let job = match key {
            Some(key) => job.with_key(Key::new(&key).map_err(|error| Failure::invalid(error.to_string()))?),
            None => job,
        };
        Self::meet(py, job, timeout)
    }

    #[staticmethod]
    #[pyo3(signature = (size, timeout=30.0))]
    fn threads(size: u32, timeout: Option<f64>) -> Result<Vec<Self>, Failure> {
        let ranks = Inner::threads(size, Limit::new(timeout)?.duration())?;
        Ok(ranks.into_iter().map(Self::new).collect())
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    fn all_gather<'py>(&self, py: Python<'py>, data: Vec<u8>) -> Result<Vec<Bound<'py, PyBytes>>, Failure> {
        let all = self.exchange(py, move |inner| inner.all_gather(&data))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    fn barrier(&self, py: Python<'_>) -> Result<(), Failure> {
        self.exchange(py, Inner::barrier)
    }

    fn __repr__(&self) -> String {
        format!("<gdsync.Bootstrap: rank {} of {}>", self.rank, self.size)
    }
}
