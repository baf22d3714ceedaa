//! What queues made by commands have in common with each other: a page of doorbell registers, and
//! where their memory comes from.

use super::command::{api_of, event_queue, timestamp_format};
use super::memory::{Blocks, MemorySource, source_of};
use super::sizes::Sizes;
use crate::cuda::QueuePlacement;
use crate::memory::HostAddr;
use crate::qp::config::QueuePairConfig;
use crate::verbs::{DeviceInner, Error, ProtectionDomainInner, call};
use gdsync_sys::api::DevxApi;
use gdsync_sys::mlx5dv::{self, mlx5dv_devx_uar, mlx5dv_obj, mlx5dv_pd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Makes the queues of one queue pair, or one shared completion queue.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(super) uar: Uar,
    /// Number of the protection domain.
    pub(super) pd: u32,
    pub(super) event_queue: u32,
    pub(super) ts_format: u8,
    sources: Sources,
    pub(super) device: Arc<DeviceInner>,
}

/// Where memory comes from. What comes from the same source can lie together.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) work: Arc<dyn MemorySource>,
    pub(crate) completions: Arc<dyn MemorySource>,
    pub(crate) records: Arc<dyn MemorySource>,
}

impl Sources {
    fn new(placement: QueuePlacement, device: &Arc<DeviceInner>) -> Result<Self, Error> {
        let records = source_of(placement.records, device)?;
        let source = |part| {
            if part == placement.records { Ok(records.clone()) } else { source_of(part, device) }
        };
        Ok(Sources { work: source(placement.work)?, completions: source(placement.completions)?, records })
    }
}

impl Domain {
    /// A domain for queues in the memory that `placement` names.
    pub(crate) fn new(pd: &Arc<ProtectionDomainInner>, placement: QueuePlacement) -> Result<Self, Error> {
        Self::in_memory_of(pd, Sources::new(placement, &pd.device)?)
    }

    /// Queues in whatever memory the sources have.
    pub(crate) fn in_memory_of(pd: &Arc<ProtectionDomainInner>, sources: Sources) -> Result<Self, Error> {
        let device = pd.device.clone();
        Ok(Domain {
            uar: Uar::new(&device)?,
            pd: number_of(pd)?,
            event_queue: event_queue(&device)?,
            ts_format: timestamp_format(&device)?,
            sources,
            device,
        })
    }

    /// Checks that such queues can be made, before anything is.
    pub(crate) fn check(&self, config: &QueuePairConfig<'_>) -> Result<(), Error> {
        Sizes::new(config, &self.device.attributes()?).map(drop)
    }

    /// Registered memory for the rings of a queue pair, of `bytes` bytes, and its record.
    pub(super) fn work_memory(&self, len: usize) -> Result<Blocks, Error> {
        Blocks::register(&self.device, len, &self.sources.work, &self.sources.records)
    }

    /// Registered memory for the ring of a completion queue, of `bytes` bytes, and its record.
    pub(super) fn completion_memory(&self, len: usize) -> Result<Blocks, Error> {
        Blocks::register(&self.device, len, &self.sources.completions, &self.sources.records)
    }
}

/// The number that commands know a protection domain of verbs by.
fn number_of(pd: &ProtectionDomainInner) -> Result<u32, Error> {
    let mut out = mlx5dv_pd { pdn: 0, comp_mask: 0 };
    let mut obj = mlx5dv_obj::default();
    obj.pd.r#in = pd.raw();
    obj.pd.out = &mut out;
    // SAFETY: the domain is allocated as long as `pd` lives, and `out` is a valid place.
    let rc = unsafe { (pd.device.api.mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_PD) };
    call::status("mlx5dv_init_obj", rc, || "protection domain".to_owned())?;
    Ok(out.pdn)
}

/// A doorbell register of its own.
#[derive(Debug)]
pub(super) struct Uar {
    raw: NonNull<mlx5dv_devx_uar>,
    pub(super) page: u32,
    pub(super) register: HostAddr,
    api: &'static DevxApi,
    _device: Arc<DeviceInner>,
}

// SAFETY: libmlx5 lets a register be freed from any thread; it is written to under the send queue's
// lock.
unsafe impl Send for Uar {}
// SAFETY: as above.
unsafe impl Sync for Uar {}

impl Uar {
    fn new(device: &Arc<DeviceInner>) -> Result<Self, Error> {
        let api = api_of(device)?;
        // SAFETY: the context is open.
        let alloc = |kind| NonNull::new(unsafe { (api.alloc_uar)(device.context(), kind) });
        // Where there is no write-combining, as in some virtual machines, there are no blue-flame
        // registers. Never the plain non-cached kind, whose one register all have in common.
        let raw = match alloc(mlx5dv::MLX5DV_UAR_ALLOC_TYPE_BF)
            .or_else(|| alloc(mlx5dv::MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED))
        {
            Some(raw) => raw,
            None => call::pointer("mlx5dv_devx_alloc_uar", std::ptr::null_mut(), || {
                "a doorbell register of its own".to_owned()
            })?,
        };
        // SAFETY: just allocated; what it says never changes.
        let mlx5dv_devx_uar { reg_addr, page_id, .. } = unsafe { *raw.as_ptr() };
        Ok(Uar { raw, page: page_id, register: HostAddr(reg_addr as u64), api, _device: device.clone() })
    }
}

impl Drop for Uar {
    fn drop(&mut self) {
        // SAFETY: allocated by us; queues that are rung by it hold the domain, and so does the span
        // that announces it.
        unsafe { (self.api.free_uar)(self.raw.as_ptr()) };
    }
}
