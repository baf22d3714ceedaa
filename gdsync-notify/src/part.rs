//! A rank's own part of a segment: its memory, and where its notifications lie.

use crate::connect::access;
use crate::connections::Stock;
use crate::error::NotifyError;
use crate::layout::{RemoteSegment, WORD, total, words_at, words_bytes};
use crate::word::{Taker, Words};
use gdsync::cuda::{self, GpuCapabilities, GpuMemory};
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::{GpuMemoryRegion, Provider};
use gdsync::{MemoryRegion, PinnedMemory, RemoteMemory};
use std::sync::Arc;

/// The part of this rank.
#[derive(Debug)]
pub(crate) struct OwnPart {
    pub(crate) rank: u32,
    pub(crate) memory: SegmentMemory,
    /// The memory of the notifications: that of the data, unless the program has given it.
    pub(crate) words: SegmentMemory,
    /// The first notification, counted in words of that memory.
    pub(crate) first: usize,
    pub(crate) len: usize,
    pub(crate) notifications: u32,
    /// The card is no software card. It promises an order of its writes into GPU memory to the
    /// GPU's streams only.
    pub(crate) is_real: bool,
    /// The GPU of [`SegmentMemory::Gpu`].
    pub(crate) gpu: Option<Gpu>,
}

#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) number: i32,
    pub(crate) capabilities: GpuCapabilities,
    pub(crate) taker: Arc<Taker>,
}

/// What the part of a new process of a segment is to be ([`Team::take_place`](crate::Team::take_place)).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum PartPlan<'a> {
    /// As [`Team::allocate`](crate::Team::allocate) makes it.
    Host {
        /// Bytes.
        len: usize,
        /// Notifications.
        notifications: u32,
    },
    /// As [`Team::allocate_gpu`](crate::Team::allocate_gpu) makes it.
    Gpu {
        /// The GPU.
        context: &'a Arc<CudaContext>,
        /// Bytes.
        len: usize,
        /// Notifications.
        notifications: u32,
    },
    /// As [`Team::register`](crate::Team::register) makes it.
    Registered {
        /// The data.
        memory: &'a PinnedMemory,
        /// Notifications.
        notifications: u32,
    },
    /// As [`Team::register_gpu`](crate::Team::register_gpu) makes it.
    RegisteredGpu {
        /// The context that the memory was made with.
        context: &'a Arc<CudaContext>,
        /// The data.
        memory: &'a GpuMemory,
        /// Notifications.
        notifications: u32,
    },
}

impl PartPlan<'_> {
    pub(crate) fn make(&self, stock: &Stock, rank: u32) -> Result<OwnPart, NotifyError> {
        let registrations = &stock.registrations;
        let pd = registrations.domain();
        let access = access(pd)?;
        let (context, notifications) = match *self {
            PartPlan::Host { notifications, .. } | PartPlan::Registered { notifications, .. } => {
                (None, notifications)
            }
            PartPlan::Gpu { context, notifications, .. }
            | PartPlan::RegisteredGpu { context, notifications, .. } => (Some(context), notifications),
        };
        let allocate = |bytes: usize| -> Result<SegmentMemory, NotifyError> {
            let Some(context) = context else {
                return Ok(SegmentMemory::Host(MemoryRegion::allocate(pd, bytes, access)?));
            };
            let memory = GpuMemory::allocate(context, bytes)?;
            Ok(SegmentMemory::Gpu(GpuMemoryRegion::register(pd, memory, access)?))
        };
        let (memory, len) = match *self {
            PartPlan::Host { len, .. } | PartPlan::Gpu { len, .. } => {
                (allocate(total(len, notifications)?)?, len)
            }
            PartPlan::Registered { memory, .. } if !memory.is_empty() => {
                (SegmentMemory::Host(registrations.host_region(memory, access)?), memory.len())
            }
            PartPlan::RegisteredGpu { context, memory, .. } if !memory.is_empty() => {
                if !memory.is_of(context)? {
                    return Err(NotifyError::OtherGpu { gpu: context.cu_device() });
                }
                (SegmentMemory::Gpu(registrations.gpu_region(memory, access)?), memory.len())
            }
            PartPlan::Registered { .. } | PartPlan::RegisteredGpu { .. } => {
                return Err(NotifyError::NothingToRegister);
            }
        };
        let gpu = context.map(|context| Gpu::new(stock, context)).transpose()?;
        let (words, first) = match self {
            PartPlan::Host { .. } | PartPlan::Gpu { .. } => (memory.clone(), words_at(len) / WORD),
            _ => (allocate(words_bytes(notifications))?, 0),
        };
        let is_real = pd.device().provider() != Provider::Software;
        Ok(OwnPart { rank, memory, words, first, len, notifications, is_real, gpu })
    }
}

/// This rank's memory of a [`Segment`](crate::Segment): the data, and, unless the program has given the
/// memory ([`Team::register`](crate::Team::register)), the notifications behind them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SegmentMemory {
    /// In host memory.
    Host(MemoryRegion),
    /// In GPU memory.
    Gpu(GpuMemoryRegion),
}

impl SegmentMemory {
    pub(crate) fn remote(&self) -> RemoteMemory {
        match self {
            SegmentMemory::Host(region) => region.remote(),
            SegmentMemory::Gpu(region) => region.remote(),
        }
    }
}

impl Gpu {
    fn new(stock: &Stock, context: &Arc<CudaContext>) -> Result<Self, NotifyError> {
        let (number, capabilities) = (context.cu_device(), cuda::capabilities(context)?);
        Ok(Gpu { number, capabilities, taker: stock.taker(context)? })
    }
}

impl OwnPart {
    /// The line that the other ranks get.
    pub(crate) fn describe(&self) -> Result<String, NotifyError> {
        let words = self.first * WORD..self.first * WORD + words_bytes(self.notifications);
        let data = self.memory.remote().slice(..self.len)?;
        let segment = RemoteSegment { data, notifications: self.words.remote().slice(words)? };
        Ok(segment.describe())
    }

    /// Its notifications.
    pub(crate) fn words(&self) -> Words {
        let first = self.first;
        match &self.words {
            SegmentMemory::Gpu(region) => {
                let taker = self.gpu.as_ref().map(|gpu| gpu.taker.clone());
                Words::Gpu { memory: region.memory().clone(), first, taker }
            }
            SegmentMemory::Host(region) => Words::Host { memory: region.memory().clone(), first },
        }
    }
}
