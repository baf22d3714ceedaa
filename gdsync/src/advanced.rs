//! For programs that need more than queue pairs and streams: kinds of queues and words that only some cards have, mappings
//! of GPU memory, and the objects that bindings of other languages have made themselves.
//!
//! | | |
//! |---|---|
//! | [`QueueApi`] | queues made by commands of the device (DEVX), also in the memory of a GPU; [`DevxError`], [`DevxStatus`] |
//! | [`Collector`] | one word that the card writes for the completions of many queues |
//! | [`MasterConfig`] | a queue whose WAITs release the sends of a [`Trigger`](crate::Trigger), so that its queue pairs are free meanwhile |
//! | [`mapped`] | GPU memory that the CPU loads from and stores to |
//! | [`raw`] | a program's own verbs objects, memory and streams |

pub use crate::qp::card::collector::{Collector, CollectorConfig};
pub use crate::qp::card::trigger::MasterConfig;
pub use crate::verbs::error::{DevxError, DevxStatus};
pub use crate::verbs::transport::QueueApi;

/// CPU mappings of GPU memory: [`MappedMemory`](mapped::MappedMemory) joins the library's
/// [`GpuMemory`](crate::cuda::GpuMemory) to a [`Mapping`](mapped::Mapping) of the crate `gdsync-gdr`, whose types are
/// re-exported here.
pub mod mapped {
    pub use crate::cuda::mapped::*;
}

/// The program's raw objects, for bindings of other languages: queue pairs that the program moves through their states,
/// memory that it has registered, addresses of its streams, and its kernels that ring and wait.
///
/// The C library `libgdsync` uses this. The program keeps its objects alive, and nothing here does, hence `unsafe`.
pub mod raw {
    pub use crate::device::raw::*;
}
