//! The common part of queues made by commands: a page of doorbell registers, sources of memory, and the commands
//! that make objects.

use crate::cuda::QueuePlacement;
use crate::memory::HostAddr;
use crate::qp::QueuePairConfig;
use crate::qp::make::devx::api_of;
use crate::qp::make::devx::check_sizes;
use crate::qp::make::devx::memory::{MemorySource, source_of};
use crate::verbs::devx::{check, failure};
use crate::verbs::{DeviceInner, Error, Owned, ProtectionDomainInner, call};
use gdsync_sys::api::DevxApi;
use gdsync_sys::mlx5dv::{self, mlx5dv_devx_obj, mlx5dv_devx_uar, mlx5dv_obj, mlx5dv_pd};
use gdsync_sys::prm::command::encode::{ANSWER, Command, Transition};
use gdsync_sys::prm::command::{cap, header, qpc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Domain {
    pub(super) uar: Uar,
    pub(super) pd: u32,
    pub(super) event_queue: u32,
    pub(super) ts_format: u8,
    pub(super) sources: Sources,
    pub(super) device: Arc<DeviceInner>,
}

/// Sources of memory. Memory from the same source can be combined.
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
    /// Makes a domain for queues in the memory that `placement` names.
    pub(crate) fn new(pd: &Arc<ProtectionDomainInner>, placement: QueuePlacement) -> Result<Self, Error> {
        Self::in_memory_of(pd, Sources::new(placement, &pd.device)?)
    }

    /// Makes a domain for queues in the sources' memory.
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

    /// Checks that such queues can be made, before any is.
    pub(crate) fn check(&self, config: &QueuePairConfig<'_>) -> Result<(), Error> {
        check_sizes(config, &self.device.attributes()?)
    }
}

/// Returns the number by which commands name a verbs protection domain.
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

/// A page with one doorbell register.
#[derive(Debug)]
pub(super) struct Uar {
    raw: NonNull<mlx5dv_devx_uar>,
    pub(super) page: u32,
    pub(super) register: HostAddr,
    api: &'static DevxApi,
    _device: Arc<DeviceInner>,
}

// SAFETY: libmlx5 lets a register be freed from any thread; it is written to under the send queue's lock.
unsafe impl Send for Uar {}
// SAFETY: as above.
unsafe impl Sync for Uar {}

impl Uar {
    fn new(device: &Arc<DeviceInner>) -> Result<Self, Error> {
        let api = api_of(device)?;
        // SAFETY: the context is open.
        let alloc = |kind| NonNull::new(unsafe { (api.alloc_uar)(device.context(), kind) });
        // Without write-combining, as in some virtual machines, there are no blue-flame registers. The plain
        // non-cached kind is never used, as all its users share one register.
        let raw = match alloc(mlx5dv::MLX5DV_UAR_ALLOC_TYPE_BF)
            .or_else(|| alloc(mlx5dv::MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED))
        {
            Some(raw) => raw,
            None => call::pointer("mlx5dv_devx_alloc_uar", std::ptr::null_mut(), || {
                "a doorbell register of its own".to_owned()
            })?,
        };
        // SAFETY: just allocated; its content never changes.
        let mlx5dv_devx_uar { reg_addr, page_id, .. } = unsafe { *raw.as_ptr() };
        Ok(Uar { raw, page: page_id, register: HostAddr(reg_addr as u64), api, _device: device.clone() })
    }
}

impl Drop for Uar {
    fn drop(&mut self) {
        // SAFETY: allocated by us; queues with this register hold the domain, and so does the span that announces it.
        unsafe { (self.api.free_uar)(self.raw.as_ptr()) };
    }
}

/// A device object made by a command. Once it is dropped, the device no longer accesses its memory.
#[derive(Debug)]
pub(super) struct Object {
    raw: Owned<mlx5dv_devx_obj>,
    pub(super) number: u32,
    api: &'static DevxApi,
    _device: Arc<DeviceInner>,
}

impl Object {
    /// Makes an object. `command` is the command's name, `detail` what it asks for.
    pub(super) fn create(
        device: &Arc<DeviceInner>,
        command: &'static str,
        input: &Command,
        detail: impl FnOnce() -> String,
    ) -> Result<Self, Error> {
        let api = api_of(device)?;
        let mut answer = [0u8; ANSWER];
        let (asked, told) = (input.as_ptr().cast(), answer.as_mut_ptr().cast());
        // SAFETY: the context is open; both buffers have the lengths that are given.
        let raw = unsafe { (api.obj_create)(device.context(), asked, input.len(), told, ANSWER) };
        let Some(raw) = NonNull::new(raw) else {
            let source = io::Error::last_os_error();
            return Err(failure(command, detail(), &answer, source));
        };
        // SAFETY: it holds the device; its memory and its users are dropped in the right order, after and before it.
        let raw = unsafe { Owned::new(raw, api.obj_destroy, "mlx5dv_devx_obj_destroy") };
        Ok(Object { raw, number: header::NUMBER.get32(&answer), api, _device: device.clone() })
    }

    pub(super) fn modify(&self, transition: &Transition) -> Result<(), Error> {
        let input = transition.encode(self.number);
        let mut answer = [0u8; ANSWER];
        let (asked, told) = (input.as_ptr().cast(), answer.as_mut_ptr().cast());
        // SAFETY: the object is alive; both buffers have the lengths that are given.
        let rc = unsafe { (self.api.obj_modify)(self.raw.as_ptr(), asked, input.len(), told, ANSWER) };
        let detail = || format!("queue pair {:#x}", self.number);
        check(transition.name(), rc, &answer, detail)
    }
}

impl Object {
    /// Asks the device about the object. `output` has room for the answer.
    pub(super) fn query(&self, command: &'static str, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        let (asked, told) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        // SAFETY: the object is alive; both buffers have the lengths that are given.
        let rc = unsafe { (self.api.obj_query)(self.raw.as_ptr(), asked, input.len(), told, output.len()) };
        check(command, rc, output, || format!("object {:#x}", self.number))
    }
}

/// Returns the event queue that a completion queue must name, though it is never armed.
pub(super) fn event_queue(device: &DeviceInner) -> Result<u32, Error> {
    let mut number = 0;
    // SAFETY: the context is open, and the place is valid.
    let rc = unsafe { (api_of(device)?.query_eqn)(device.context(), 0, &mut number) };
    call::status("mlx5dv_devx_query_eqn", rc, || "completion vector 0".to_owned())?;
    Ok(number)
}

/// Returns the time-stamp format for a queue pair. A device that has more than free-running time stamps may be
/// configured for another format, and then refuses free-running ones.
pub(super) fn timestamp_format(device: &DeviceInner) -> Result<u8, Error> {
    let general = device.capabilities(cap::TYPE_GENERAL)?;
    let formats = if cap::ROCE.is_set(&general) {
        cap::QP_TS_FORMAT.get(&device.capabilities(cap::TYPE_ROCE)?)
    } else {
        cap::SQ_TS_FORMAT.get(&general)
    };
    Ok(if formats == 0 { qpc::TS_FREE_RUNNING } else { qpc::TS_DEFAULT })
}
