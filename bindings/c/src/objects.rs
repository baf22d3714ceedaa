//! Queue pairs and completion queues of C programs.

use crate::error::{CallError, bad_bits, non_null_mut, stale};
use crate::handles::{Addresses, Handles};
use crate::providers::{self, ObjectKind};
use crate::types::{
    GDS_CREATE_QP_RX_CQ_ON_GPU, GDS_CREATE_QP_TX_CQ_ON_GPU, GDS_CREATE_QP_WISHES,
    GDS_CREATE_QP_WQ_DBREC_ON_GPU, gds_cq, gds_qp,
};
use crate::{persistent, requests, streams};
use gdsync::advanced::raw::RegisteredMemory;
use gdsync::cuda::{Placement, PlacementError, QueuePlacement};
use gdsync::{
    CompletionQueue, CompletionQueueConfig, Device, Error, ProtectionDomain, QueuePair, QueuePairConfig,
};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::Provider;
use gdsync_sys::verbs::{ibv_context, ibv_cq, ibv_pd, ibv_qp};
use libc::c_int;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The object of a `struct gds_qp *`.
pub(crate) struct QueuePairObject {
    handle: usize,
    pub(crate) queue_pair: QueuePair,
    pub(crate) memory: RegisteredMemory,
    /// True if every send is signaled.
    pub(crate) signal_all: bool,
    /// True for UD.
    pub(crate) is_datagram: bool,
    pub(crate) api: &'static VerbsApi,
    context: usize,
}

/// The offsets of the completion queues in a `struct gds_qp`.
const SEND: usize = offset_of!(gds_qp, send_cq);
const RECV: usize = offset_of!(gds_qp, recv_cq);

static QUEUE_PAIRS: Handles<gds_qp, QueuePairObject> = Handles::new();

#[derive(Default)]
struct Objects {
    /// By the address of the provider's object.
    queue_pairs: HashMap<usize, Arc<QueuePairObject>, Addresses>,
    /// By the address of the provider's object.
    queues: HashMap<usize, CompletionQueue, Addresses>,
    /// The device of each context with queue pairs, and their number.
    devices: HashMap<usize, (Device, usize), Addresses>,
}

static OBJECTS: LazyLock<RwLock<Objects>> = LazyLock::new(RwLock::default);

/// Returns a domain of the program, and its device.
///
/// # Safety
/// A context and domain of libibverbs are valid, and stay so until everything that is made from them is dropped.
pub(crate) unsafe fn domain(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
) -> Result<(Device, ProtectionDomain), CallError> {
    let api = providers::of(ObjectKind::Context, context)?;
    if !ptr::eq(api, providers::of(ObjectKind::Domain, pd)?) {
        return Err(bad_bits("the protection domain", pd.addr() as i64, "it must be one of the context"));
    }
    let context_at = NonNull::new(context).ok_or(CallError::Null { what: "the context" })?;
    let pd = NonNull::new(pd).ok_or(CallError::Null { what: "the protection domain" })?;
    let known = OBJECTS.read().devices.get(&(context as usize)).map(|(device, _)| device.clone());
    let device = match known {
        Some(device) => device,
        // SAFETY: the caller keeps the domain and the context alive.
        None => unsafe { Device::from_raw(api, context_at) }?,
    };
    // SAFETY: the caller keeps the domain and the context alive.
    let domain = unsafe { ProtectionDomain::from_raw(&device, pd) }?;
    Ok((device, domain))
}

/// Makes a queue pair in a domain of the program.
///
/// # Safety
/// A context and domain of libibverbs are valid, and stay so until the queue pair is destroyed.
pub(crate) unsafe fn create(
    (context, pd): (*mut ibv_context, usize),
    (device, domain): (Device, ProtectionDomain),
    config: QueuePairConfig<'_>,
    wishes: Wishes,
    signal_all: bool,
) -> Result<*mut gds_qp, CallError> {
    let (api, key) = (providers::of(ObjectKind::Context, context)?, context as usize);
    let config = config.port(first_active_port(&device)?);
    let queue_pair = make(api, &device, &domain, config, wishes)?;
    let (send_cq, recv_cq) = (queue_pair.send_cq(), queue_pair.recv_cq());
    let (memory, raw) = (queue_pair.registered(), queue_pair.as_raw());
    let mut made = None;
    let handle = QUEUE_PAIRS.insert(|at| {
        let public = gds_qp {
            qp: raw,
            send_cq: gds_cq { cq: send_cq.as_raw(), curr_offset: 0 },
            recv_cq: gds_cq { cq: recv_cq.as_raw(), curr_offset: 0 },
            res_domain: at.as_ptr().cast(),
            dev_context: context,
            send_cq_at: at.as_ptr().wrapping_byte_add(SEND).cast(),
            recv_cq_at: at.as_ptr().wrapping_byte_add(RECV).cast(),
        };
        let object = Arc::new(QueuePairObject {
            handle: at.addr().get(),
            queue_pair,
            memory,
            signal_all,
            is_datagram: config.transport == gdsync::verbs::Transport::Ud,
            api,
            context: key,
        });
        made = Some(object.clone());
        (public, object)
    });
    let handle = handle.map_err(|source| gdsync::Error::Memory { len: size_of::<gds_qp>(), source })?;
    let mut objects = OBJECTS.write();
    for queue in [send_cq, recv_cq] {
        objects.queues.insert(queue.as_raw() as usize, queue);
    }
    objects.queue_pairs.extend(made.map(|object| (raw as usize, object)));
    objects.devices.entry(key).or_insert((device, 0)).1 += 1;
    providers::adopt(ObjectKind::QueuePair, handle.as_ptr(), pd);
    Ok(handle.as_ptr())
}

/// Returns the device of a queue pair.
pub(crate) fn device(qp: &QueuePairObject) -> Option<Device> {
    OBJECTS.read().devices.get(&qp.context).map(|(device, _)| device.clone())
}

/// Returns the first active port. gdsync needs a port at creation, but libgdsync's programs choose it only with INIT.
pub(crate) fn first_active_port(device: &Device) -> Result<u8, CallError> {
    let ports = device.attributes()?.ports;
    let active =
        |port: &u8| device.port(*port).is_ok_and(|found| found.state == gdsync::verbs::PortState::Active);
    Ok((1..=ports).find(active).unwrap_or(gdsync::verbs::DEFAULT_PORT))
}

pub(crate) fn destroy(qp: *mut gds_qp) -> Result<(), CallError> {
    non_null_mut("the queue pair", qp)?;
    let object = QUEUE_PAIRS.remove(qp.addr()).ok_or_else(|| no_queue_pair(qp))?;
    providers::forget(qp);
    let mut objects = OBJECTS.write();
    let known = objects.queue_pairs.remove(&(object.queue_pair.as_raw() as usize));
    let queues = [object.queue_pair.send_cq(), object.queue_pair.recv_cq()];
    let gone: Vec<_> = queues.iter().map(|queue| objects.queues.remove(&(queue.as_raw() as usize))).collect();
    let mut device = None;
    if let Some((_, users)) = objects.devices.get_mut(&object.context) {
        *users -= 1;
        if *users == 0 {
            device = objects.devices.remove(&object.context);
        }
    }
    // Drops may take locks and time.
    drop(objects);
    requests::forget(object.handle);
    persistent::forget(object.handle);
    drop((queues, gone, known));
    // The program may deallocate its domain next, which fails while objects are left in it.
    let object = Arc::into_inner(object);
    let destroyed = object.is_none_or(|object| object.queue_pair.destroy_and_wait(PATIENCE, streams::settle));
    if !destroyed {
        tracing::warn!(
            "a stream has not passed the work of a queue pair that is gone: its domain stays in use until then"
        );
    }
    drop(device);
    Ok(())
}

/// How long streams may take to pass aborted work.
const PATIENCE: Duration = Duration::from_secs(2);

/// The error for a value that is not a queue pair's handle.
#[cold]
fn no_queue_pair(qp: *mut gds_qp) -> CallError {
    no_handle("the queue pair", qp.addr(), "pass what gds_create_qp returned, and no copy of the struct")
}

#[cold]
fn no_handle(what: &'static str, value: usize, remedy: &'static str) -> CallError {
    if value == 0 {
        CallError::Null { what }
    } else if QUEUE_PAIRS.had(value) {
        stale(what, value, "was destroyed", "use it before gds_destroy_qp, or make another by gds_create_qp")
    } else {
        stale(what, value, "is not gdsync's, or is gone", remedy)
    }
}

/// Returns the queue pair of a handle. Any value may be passed.
///
/// # Safety
/// No other thread destroys the queue pair while the reference is used.
#[inline]
pub(crate) unsafe fn queue_pair<'a>(qp: *mut gds_qp) -> Result<&'a QueuePairObject, CallError> {
    // SAFETY: the caller lets no other thread destroy the object.
    match unsafe { QUEUE_PAIRS.find(qp.addr()) } {
        Some((object, 0)) => Ok(object),
        _ => Err(no_queue_pair(qp)),
    }
}

/// The error for an address of no provider's queue pair.
#[cold]
pub(crate) fn no_provider_queue_pair(qp: *mut ibv_qp) -> CallError {
    no_handle("the queue pair", qp.addr(), "pass qp->qp of what gds_create_qp returned, until gds_destroy_qp")
}

/// The error for an address of no provider's completion queue.
#[cold]
pub(crate) fn no_provider_queue(cq: *mut ibv_cq) -> CallError {
    let remedy = "pass the cq of a queue pair that gds_create_qp returned, until gds_destroy_qp";
    no_handle("the completion queue", cq.addr(), remedy)
}

/// Returns the queue pair of a provider's object, if it is gdsync's.
pub(crate) fn find_queue_pair(qp: *mut ibv_qp) -> Option<Arc<QueuePairObject>> {
    OBJECTS.read().queue_pairs.get(&(qp as usize)).cloned()
}

/// Returns the completion queue of a provider's object, if it is gdsync's.
pub(crate) fn find_queue(cq: *mut ibv_cq) -> Option<CompletionQueue> {
    OBJECTS.read().queues.get(&(cq as usize)).cloned()
}

/// Returns the completion queue of a handle, and its queue pair's name for `requests`. Any value may be passed. If it is found, it
/// points to a `struct gds_cq` of the library.
///
/// # Safety
/// No other thread destroys the queue pair during the call.
pub(crate) unsafe fn queue(cq: *mut gds_cq) -> Result<(CompletionQueue, usize), CallError> {
    // SAFETY: the caller lets no other thread destroy the object.
    match unsafe { QUEUE_PAIRS.find(cq.addr()) } {
        Some((object, SEND)) => Ok((object.queue_pair.send_cq(), object.handle)),
        Some((object, RECV)) => Ok((object.queue_pair.recv_cq(), object.handle)),
        _ => {
            let remedy = "pass &qp->send_cq or &qp->recv_cq of what gds_create_qp returned, and no copy";
            Err(no_handle("the completion queue", cq.addr(), remedy))
        }
    }
}

impl QueuePairObject {
    /// The name under which `requests` keeps the queue pair's requests. It is never reused.
    pub(crate) fn name(&self) -> usize {
        self.handle
    }
}

/// The placement arguments of `gds_create_qp`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    pub(crate) flags: c_int,
    pub(crate) gpu: c_int,
}

impl Wishes {
    /// Returns the GPU's memory if the flag is set, otherwise the host's.
    fn place(self, flag: c_int, gpu: u32) -> Placement {
        if self.flags & flag != 0 { Placement::Gpu(gpu) } else { Placement::Host }
    }
}

/// Makes a queue pair with the placement that the program wishes, as far as possible.
pub(crate) fn make(
    api: &VerbsApi,
    device: &Device,
    domain: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    wishes: Wishes,
) -> Result<QueuePair, CallError> {
    if wishes.flags & GDS_CREATE_QP_WISHES != 0 {
        let reason = match (api.provider, u32::try_from(wishes.gpu)) {
            // Queues in GPU memory are made by DEVX, without the `ibv_qp` that the C structs have.
            (provider, _) if provider != Provider::Software => {
                "the system's provider takes queues of verbs in host memory only".to_owned()
            }
            (_, Err(_)) => "gpu_id names no GPU".to_owned(),
            (_, Ok(gpu)) => match placed(device, domain, config, wishes, gpu) {
                Err(Error::Placement(PlacementError { reason, .. })) => reason,
                done => return Ok(done?),
            },
        };
        tracing::info!(
            flags = wishes.flags,
            reason,
            "queues and records are put into host memory, not the GPU's"
        );
    }
    Ok(QueuePair::unmanaged(domain, config)?)
}

fn placed(
    device: &Device,
    domain: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    wishes: Wishes,
    gpu: u32,
) -> Result<QueuePair, Error> {
    let queue = |flag, depth: u32| {
        let placement = QueuePlacement::HOST.completions(wishes.place(flag, gpu));
        // The depth of a queue pair's own completion queues: one entry for each request, and for each that a stream has not read yet.
        CompletionQueue::new(
            device,
            CompletionQueueConfig::from(depth.max(1).saturating_mul(2)).placement(placement),
        )
    };
    let send_cq = queue(GDS_CREATE_QP_TX_CQ_ON_GPU, config.send_depth)?;
    let recv_cq = queue(GDS_CREATE_QP_RX_CQ_ON_GPU, config.recv_depth)?;
    let records = wishes.place(GDS_CREATE_QP_WQ_DBREC_ON_GPU, gpu);
    let config = config.placement(QueuePlacement::HOST.records(records));
    QueuePair::unmanaged(domain, config.completion_queues(&send_cq, &recv_cq))
}
