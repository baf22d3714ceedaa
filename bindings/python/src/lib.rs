//! The extension module `gdsync._gdsync` of the package `gdsync`.
//!
//! Each object wraps a handle of the library, frozen, and without a lock where the library has none. Blocking calls
//! release the GIL and answer Python's signals ([`interrupt`]). [`owner`] keeps the Python objects of memory and
//! streams.

#[deny(unsafe_code)]
mod awaits;
#[deny(unsafe_code)]
mod backend;
#[deny(unsafe_code)]
mod batch;
#[deny(unsafe_code)]
mod bootstrap;
#[deny(unsafe_code)]
mod call;
#[deny(unsafe_code)]
mod collective;
#[deny(unsafe_code)]
mod device;
#[deny(unsafe_code)]
mod errors;
#[deny(unsafe_code)]
mod graph;
#[deny(unsafe_code)]
mod interrupt;
#[deny(unsafe_code)]
mod measure;
mod owner;
#[deny(unsafe_code)]
mod persistent;
#[deny(unsafe_code)]
mod queue;
#[deny(unsafe_code)]
mod queue_pair;
#[deny(unsafe_code)]
mod region;
#[deny(unsafe_code)]
mod segment;
mod stream;
#[deny(unsafe_code)]
mod team;
mod tensor;
#[deny(unsafe_code)]
mod words;

use pyo3::prelude::*;

#[pymodule]
mod _gdsync {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::awaits::{_Wait, _Waits};
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::bootstrap::Bootstrap;
    #[pymodule_export]
    use crate::collective::{Plan, plan};
    #[pymodule_export]
    use crate::device::{Device, ProtectionDomain, devices};
    #[pymodule_export]
    use crate::graph::{Graph, capture};
    #[pymodule_export]
    use crate::measure::_time_batches;
    #[pymodule_export]
    use crate::owner::_end;
    #[pymodule_export]
    use crate::persistent::{Persistent, start_all, wait_all};
    #[pymodule_export]
    use crate::queue::Queue;
    #[pymodule_export]
    use crate::queue_pair::{Completion, CompletionQueue, QueuePair, Trigger, WorkRequest};
    #[pymodule_export]
    use crate::region::{MemoryRegion, RemoteMemory, Slice, Word};
    #[pymodule_export]
    use crate::segment::Segment;
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::team::Team;
    #[pymodule_export]
    use crate::tensor::_dlpack;
    #[pymodule_export]
    use crate::words::_of_python;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("_docstrings", gdsync_python_stub::docstrings!().to_vec())
    }
}
