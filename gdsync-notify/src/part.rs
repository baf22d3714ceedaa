//! A rank's own part of a segment: its memory, and where the notifications lie in it.

use crate::error::NotifyError;
use crate::layout::{RemoteSegment, WORD, total, words_at};
use crate::word::{Taker, Words};
use gdsync::cuda::{self, GpuCapabilities, GpuMemory};
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::{GpuMemoryRegion, Provider};
use gdsync::{Access, MemoryRegion, ProtectionDomain};
use std::sync::Arc;

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// The part of this rank.
#[derive(Debug)]
pub(crate) struct OwnPart {
    pub(crate) rank: u32,
    pub(crate) memory: SegmentMemory,
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
}

impl PartPlan<'_> {
    pub(crate) fn make(&self, pd: &ProtectionDomain, rank: u32) -> Result<OwnPart, NotifyError> {
        match *self {
            PartPlan::Host { len, notifications } => OwnPart::host(pd, rank, len, notifications),
            PartPlan::Gpu { context, len, notifications } => {
                OwnPart::gpu(pd, rank, context, len, notifications)
            }
        }
    }
}

/// This rank's memory of a [`Segment`](crate::Segment): data, and behind them notifications.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SegmentMemory {
    /// In host memory.
    Host(MemoryRegion),
    /// In GPU memory.
    Gpu(GpuMemoryRegion),
}

impl OwnPart {
    pub(crate) fn host(
        pd: &ProtectionDomain,
        rank: u32,
        len: usize,
        notifications: u32,
    ) -> Result<Self, NotifyError> {
        let region = MemoryRegion::allocate(pd, total(len, notifications)?, ACCESS)?;
        Ok(Self::new(pd, rank, SegmentMemory::Host(region), len, notifications, None))
    }

    pub(crate) fn gpu(
        pd: &ProtectionDomain,
        rank: u32,
        context: &Arc<CudaContext>,
        len: usize,
        notifications: u32,
    ) -> Result<Self, NotifyError> {
        let (number, capabilities) = (context.cu_device(), cuda::capabilities(context)?);
        let gpu = Gpu { number, capabilities, taker: Arc::new(Taker::new(context)?) };
        let memory = GpuMemory::allocate(context, total(len, notifications)?)?;
        let region = GpuMemoryRegion::register(pd, memory, ACCESS)?;
        Ok(Self::new(pd, rank, SegmentMemory::Gpu(region), len, notifications, Some(gpu)))
    }

    fn new(
        pd: &ProtectionDomain,
        rank: u32,
        memory: SegmentMemory,
        len: usize,
        notifications: u32,
        gpu: Option<Gpu>,
    ) -> Self {
        let is_real = pd.device().provider() != Provider::Software;
        OwnPart { rank, memory, len, notifications, is_real, gpu }
    }

    /// The line that the other ranks get.
    pub(crate) fn describe(&self) -> String {
        let whole = match &self.memory {
            SegmentMemory::Host(region) => region.remote(),
            SegmentMemory::Gpu(region) => region.remote(),
        };
        RemoteSegment::describe(whole, self.len, self.notifications)
    }

    /// Its notifications.
    pub(crate) fn words(&self) -> Words {
        let first = words_at(self.len) / WORD;
        match &self.memory {
            SegmentMemory::Gpu(region) => {
                let taker = self.gpu.as_ref().map(|gpu| gpu.taker.clone());
                Words::Gpu { memory: region.memory().clone(), first, taker }
            }
            SegmentMemory::Host(region) => Words::Host { memory: region.memory().clone(), first },
        }
    }
}
