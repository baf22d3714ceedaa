//! Teams: ranks that write into each other's memory.

use crate::awaits;
use crate::bootstrap::Bootstrap;
use crate::device::ProtectionDomain;
use crate::errors::{ExceptionClass, Failure};
use crate::interrupt::{self, Limit};
use crate::owner;
use crate::queue::Queue;
use crate::region::SegmentHandle;
use crate::segment::Segment;
use crate::tensor::{self, Memory};
use gdsync::cuda;
use gdsync_notify::{ConnectionKind, NotifyError, SegmentMemory, TeamConfig};
use gdsync_python_stub::documented;
use pyo3::prelude::*;

#[documented]
#[pyclass(frozen, subclass, module = "gdsync")]
pub(crate) struct Team {
    pub(crate) inner: gdsync_notify::Team,
    device: gdsync::Device,
    queues: u32,
}

#[documented]
#[pymethods]
impl Team {
    #[new]
    #[pyo3(signature = (bootstrap, pd=None, *, queues=1, connections="auto"))]
    fn new(
        py: Python<'_>,
        bootstrap: &Bootstrap,
        pd: Option<&ProtectionDomain>,
        queues: u32,
        connections: &str,
    ) -> Result<Self, Failure> {
        let connections = match connections {
            "auto" => ConnectionKind::Auto,
            "each" => ConnectionKind::Each,
            "dynamic" => ConnectionKind::Dynamic,
            other => {
                let text = format!("connections={other:?}: auto, each and dynamic are known");
                return Err(Failure::invalid(text));
            }
        };
        let (pd, device) = match pd {
            Some(pd) => (pd.inner.clone(), pd.device.clone()),
            None => {
                let device = py.detach(gdsync::Device::software)?;
                (gdsync::ProtectionDomain::new(&device)?, device)
            }
        };
        let config = TeamConfig::default().queues(queues).connections(connections);
        let bootstrap = bootstrap.take()?;
        let make = move || gdsync_notify::Team::new(&pd, bootstrap, config);
        Ok(Team { inner: interrupt::on_a_thread(py, make)?, device, queues })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.inner.size()
    }

    #[getter]
    fn members(&self) -> Vec<u32> {
        self.inner.members()
    }

    #[getter]
    fn dead(&self) -> Vec<(u32, String)> {
        self.inner.dead().into_iter().map(|(rank, cause)| (rank, cause.to_string())).collect()
    }

    #[pyo3(signature = (nbytes, notifications=0, *, gpu=None))]
    pub(crate) fn allocate(
        &self,
        py: Python<'_>,
        nbytes: usize,
        notifications: u32,
        gpu: Option<u32>,
    ) -> Result<Segment, Failure> {
        let team = self.inner.clone();
        let segment = interrupt::on_a_thread(py, move || match gpu {
            Some(ordinal) => Ok(team.allocate_gpu(&cuda::context(ordinal)?, nbytes, notifications)?),
            None => Ok::<_, Failure>(team.allocate(nbytes, notifications)?),
        })?;
        let memory = match segment.memory() {
            SegmentMemory::Host(region) => Memory::Host(region.memory().clone()),
            SegmentMemory::Gpu(region) => Memory::Gpu(region.memory().clone(), gpu.unwrap_or_default()),
            _ => return Err(Failure::Of(ExceptionClass::Unsupported, "this kind of memory".to_owned())),
        };
        Ok(Segment::new(SegmentHandle { segment, team: self.inner.clone() }, memory, None))
    }

    #[pyo3(signature = (tensor, notifications=0))]
    fn register(&self, tensor: &Bound<'_, PyAny>, notifications: u32) -> Result<Segment, Failure> {
        owner::release(tensor.py());
        let memory = Memory::of(tensor)?;
        let (team, registered) = (self.inner.clone(), memory.clone());
        let segment = interrupt::on_a_thread(tensor.py(), move || match &registered {
            Memory::Host(memory) => Ok::<_, Failure>(team.register(memory, notifications)?),
            Memory::Gpu(memory, ordinal) => {
                Ok(team.register_gpu(&cuda::context(*ordinal)?, memory, notifications)?)
            }
        });
        let segment = segment.map_err(|failure| tensor::explain(&memory, failure))?;
        let handle = SegmentHandle { segment, team: self.inner.clone() };
        Ok(Segment::new(handle, memory, Some(tensor.clone().unbind())))
    }

    #[pyo3(signature = (index=0))]
    fn queue(&self, index: u32) -> Result<Queue, Failure> {
        Ok(Queue::new(self.inner.queue(index)?, index))
    }

    fn barrier(&self, py: Python<'_>) -> Result<(), Failure> {
        let team = self.inner.clone();
        interrupt::on_a_thread(py, move || team.barrier())
    }

    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> Result<(), Failure> {
        let limit = Limit::new(timeout)?;
        (0..self.queues).try_for_each(|queue| crate::queue::flush(py, &self.inner.queue(queue)?, None, limit))
    }

    fn barrier_async<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>, Failure> {
        let team = self.inner.clone();
        awaits::on_a_thread(py, move |_| Ok(team.barrier()?))
    }

    #[pyo3(signature = (timeout=None))]
    fn flush_async<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> Result<Bound<'py, PyAny>, Failure> {
        let (team, queues, limit) = (self.inner.clone(), self.queues, Limit::new(timeout)?);
        awaits::on_a_thread(py, move |is_awaited| {
            for queue in 0..queues {
                let queue = team.queue(queue)?;
                while let Err(error) = queue.flush(limit.slice()) {
                    match error {
                        NotifyError::TimedOut { .. } if limit.has_passed() => {
                            let cause = || queue.explain_flush();
                            return Err(limit.passed_because(crate::queue::FLUSH, cause));
                        }
                        NotifyError::TimedOut { .. } if is_awaited() => {}
                        error => return Err(error.into()),
                    }
                }
            }
            Ok(())
        })
    }

    fn shrink(&self, py: Python<'_>) -> Result<Vec<u32>, Failure> {
        let team = self.inner.clone();
        interrupt::on_a_thread(py, move || team.shrink())
    }

    #[pyo3(signature = (segment, ids=None, timeout=None))]
    fn wait<'py>(
        &self,
        segment: &Bound<'py, Segment>,
        ids: Option<Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        Segment::wait_async(segment, ids, timeout)
    }

    fn __repr__(&self) -> String {
        let (rank, size, dead) = (self.inner.rank(), self.inner.size(), self.inner.dead().len());
        let dead = if dead == 0 { String::new() } else { format!(", {dead} dead") };
        format!("<gdsync.Team: rank {rank} of {size} on {}{dead}>", self.device.name())
    }
}
