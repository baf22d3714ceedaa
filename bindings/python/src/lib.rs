//! The module `gdsync._gdsync`: what the package `gdsync` is made of.
//!
//! Each object is a handle of the library's, frozen and without a lock where the library's has none. Calls that may block
//! release the GIL, and answer Python's signals ([`interrupt`]). Memory and streams of Python objects are kept by [`owner`].

mod backend;
mod batch;
mod bootstrap;
mod collective;
mod device;
mod dlpack;
mod errors;
mod graph;
mod interrupt;
mod measure;
mod owner;
mod persistent;
mod queue;
mod queue_pair;
mod region;
mod segment;
mod shared;
mod stream;
mod team;
mod tensor;
mod trigger;
mod verbs;

use pyo3::prelude::*;

#[pymodule]
mod _gdsync {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::bootstrap::Bootstrap;
    #[pymodule_export]
    use crate::collective::{Plan, plan};
    #[pymodule_export]
    use crate::device::{Device, ProtectionDomain, devices};
    #[pymodule_export]
    use crate::dlpack::_dlpack;
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
    use crate::queue_pair::{Completion, CompletionQueue, QueuePair, WorkRequest};
    #[pymodule_export]
    use crate::region::{MemoryRegion, RemoteMemory, Slice, Word};
    #[pymodule_export]
    use crate::segment::Segment;
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::team::Team;
    #[pymodule_export]
    use crate::trigger::Trigger;
}
