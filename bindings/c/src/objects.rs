//! Queue pairs, completion queues and contexts that C programs have names of.

use crate::addresses::Addresses;
use crate::error::{CallError, non_null_mut};
use crate::placement::{self, Wishes};
use crate::types::{gds_cq, gds_qp};
use crate::{requests, streams};
use gdsync::raw::RegisteredMemory;
use gdsync::verbs::provider;
use gdsync::{CompletionQueue, Device, ProtectionDomain, QueuePair, QueuePairConfig};
use gdsync_sys::VerbsApi;
use gdsync_sys::verbs::{ibv_context, ibv_cq, ibv_pd, ibv_qp};
use parking_lot::RwLock;
use std::cell::UnsafeCell;
use std::collections::{HashMap, HashSet};
use std::ptr::{self, NonNull};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// What a `struct gds_qp *` of ours points to: the C struct, and what belongs to it.
#[repr(C)]
pub(crate) struct QueuePairObject {
    /// The program's to read, and to write.
    public: UnsafeCell<gds_qp>,
    magic: u64,
    pub(crate) queue_pair: QueuePair,
    pub(crate) memory: RegisteredMemory,
    /// Every send completes with an entry.
    pub(crate) signal_all: bool,
    /// Its sends have addresses.
    pub(crate) is_datagram: bool,
    pub(crate) api: &'static VerbsApi,
    context: usize,
}

// SAFETY: the C struct, which is plain data, is written by the library only before the program gets
// it; everything else may be used from any thread.
unsafe impl Send for QueuePairObject {}
// SAFETY: as above.
unsafe impl Sync for QueuePairObject {}

/// Tells a queue pair of ours from another program's struct: the second word of what `res_domain`
/// points to.
const MAGIC: u64 = 0x6764_7379_6e63_5150;

#[derive(Default)]
struct Objects {
    /// By the addresses of their C structs.
    queue_pairs: HashMap<usize, Arc<QueuePairObject>, Addresses>,
    /// By the provider's objects.
    provider_queue_pairs: HashMap<usize, Arc<QueuePairObject>, Addresses>,
    /// By the provider's objects, with the [name](QueuePairObject::name) of the queue pair that
    /// each is of.
    queues: HashMap<usize, (CompletionQueue, usize), Addresses>,
    /// A device for each context of a program, as long as it has queue pairs.
    devices: HashMap<usize, (Device, usize), Addresses>,
    /// Contexts of the software card, opened by `gdsync_soft_open`.
    software: HashSet<usize, Addresses>,
}

static OBJECTS: LazyLock<RwLock<Objects>> = LazyLock::new(RwLock::default);

/// What drives a context.
pub(crate) fn api_of(context: *mut ibv_context) -> Result<&'static VerbsApi, CallError> {
    non_null_mut("the context", context)?;
    if OBJECTS.read().software.contains(&(context as usize)) {
        return Ok(provider::software());
    }
    Ok(provider::system()?)
}

/// A context of the software card has been opened (true), or closed.
pub(crate) fn note_software(context: *mut ibv_context, open: bool) {
    let mut objects = OBJECTS.write();
    if open {
        objects.software.insert(context as usize);
    } else {
        objects.software.remove(&(context as usize));
    }
}

/// Whether a context was opened by `gdsync_soft_open`.
pub(crate) fn is_software(context: *mut ibv_context) -> bool {
    OBJECTS.read().software.contains(&(context as usize))
}

/// Makes a queue pair in a domain of the program.
///
/// # Safety
/// Context and domain are valid, and stay so until it is destroyed.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    config: QueuePairConfig<'_>,
    wishes: Wishes,
    signal_all: bool,
) -> Result<*mut gds_qp, CallError> {
    let api = api_of(context)?;
    let context_at = NonNull::new(context).ok_or(CallError::Null { what: "the context" })?;
    let pd = NonNull::new(pd).ok_or(CallError::Null { what: "the protection domain" })?;
    let key = context as usize;
    let known = OBJECTS.read().devices.get(&key).map(|(device, _)| device.clone());
    let device = match known {
        Some(device) => device,
        // SAFETY: the caller's.
        None => unsafe { Device::from_raw(api, context_at) }?,
    };
    // SAFETY: the caller's.
    let domain = unsafe { ProtectionDomain::from_raw(&device, pd) }?;
    let config = config.port(first_active_port(&device)?);
    let queue_pair = placement::make(api, &device, &domain, config, wishes)?;
    let (send_cq, recv_cq) = (queue_pair.send_cq(), queue_pair.recv_cq());
    let public = gds_qp {
        qp: queue_pair.as_raw(),
        send_cq: gds_cq { cq: send_cq.as_raw(), curr_offset: 0 },
        recv_cq: gds_cq { cq: recv_cq.as_raw(), curr_offset: 0 },
        res_domain: ptr::null_mut(),
        dev_context: context,
    };
    let memory = queue_pair.registered();
    let object = Arc::new(QueuePairObject {
        public: UnsafeCell::new(public),
        magic: MAGIC,
        queue_pair,
        memory,
        signal_all,
        is_datagram: config.transport == gdsync::verbs::Transport::Ud,
        api,
        context: key,
    });
    let public = object.public.get();
    // SAFETY: the program has not got the object yet.
    unsafe { (*public).res_domain = Arc::as_ptr(&object).cast_mut().cast() };
    let mut objects = OBJECTS.write();
    for queue in [send_cq, recv_cq] {
        objects.queues.insert(queue.as_raw() as usize, (queue, public as usize));
    }
    objects.provider_queue_pairs.insert(object.queue_pair.as_raw() as usize, object.clone());
    objects.queue_pairs.insert(public as usize, object);
    objects.devices.entry(key).or_insert((device, 0)).1 += 1;
    Ok(public)
}

/// libgdsync's queue pairs have no port until their program moves them to INIT; gdsync asks for one
/// at once.
fn first_active_port(device: &Device) -> Result<u8, CallError> {
    let ports = device.attributes()?.ports;
    let active =
        |port: &u8| device.port(*port).is_ok_and(|found| found.state == gdsync::verbs::PortState::Active);
    Ok((1..=ports).find(active).unwrap_or(gdsync::verbs::DEFAULT_PORT))
}

/// Destroys a queue pair.
pub(crate) fn destroy(qp: *mut gds_qp) -> Result<(), CallError> {
    non_null_mut("the queue pair", qp)?;
    let mut objects = OBJECTS.write();
    let object = objects.queue_pairs.remove(&(qp as usize)).ok_or(NO_QUEUE_PAIR)?;
    objects.provider_queue_pairs.remove(&(object.queue_pair.as_raw() as usize));
    let queues = [object.queue_pair.send_cq(), object.queue_pair.recv_cq()];
    let gone: Vec<_> = queues.iter().map(|queue| objects.queues.remove(&(queue.as_raw() as usize))).collect();
    let mut device = None;
    if let Some((_, users)) = objects.devices.get_mut(&object.context) {
        *users -= 1;
        if *users == 0 {
            device = objects.devices.remove(&object.context);
        }
    }
    // What is dropped may take its time, and locks.
    drop(objects);
    requests::forget(qp as usize);
    drop((queues, gone));
    // The program will deallocate its domain next, which fails while anything is left in it.
    let object = Arc::into_inner(object);
    let destroyed = object.is_none_or(|object| object.queue_pair.drop_within(PATIENCE, streams::settle));
    if !destroyed {
        tracing::warn!(
            "a stream has not passed the work of a queue pair that is gone: its domain stays in use until then"
        );
    }
    drop(device);
    Ok(())
}

/// Time for streams to pass work that was aborted.
const PATIENCE: Duration = Duration::from_secs(2);

const NO_QUEUE_PAIR: CallError =
    CallError::Stale { what: "not a queue pair of gds_create_qp, or one that is gone" };
const NO_QUEUE: CallError =
    CallError::Stale { what: "not a completion queue of a gds_create_qp queue pair, or one that is gone" };

/// The queue pair of a C struct.
///
/// # Safety
/// Null, or a valid `struct gds_qp` with a `res_domain` that is null or gdsync's.
#[inline]
pub(crate) unsafe fn queue_pair<'a>(qp: *mut gds_qp) -> Result<&'a QueuePairObject, CallError> {
    let qp = non_null_mut("the queue pair", qp)?;
    // SAFETY: valid, as the caller promises.
    let object = unsafe { (*qp).res_domain }.cast::<QueuePairObject>();
    if object.is_null() {
        return Err(NO_QUEUE_PAIR);
    }
    // SAFETY: `create` put the object's address there; it lives until the program destroys the
    // queue pair.
    let object = unsafe { &*object };
    if object.magic == MAGIC { Ok(object) } else { Err(NO_QUEUE_PAIR) }
}

/// The queue pair of a provider's object, if it is gdsync's.
pub(crate) fn find_queue_pair(qp: *mut ibv_qp) -> Option<Arc<QueuePairObject>> {
    OBJECTS.read().provider_queue_pairs.get(&(qp as usize)).cloned()
}

/// The completion queue of a provider's object, if it is gdsync's.
pub(crate) fn find_queue(cq: *mut ibv_cq) -> Option<CompletionQueue> {
    OBJECTS.read().queues.get(&(cq as usize)).map(|(queue, _)| queue.clone())
}

/// The completion queue of a C struct, and the name of the queue pair that it is of, for
/// `requests`.
///
/// # Safety
/// Null, or a valid `struct gds_cq`.
pub(crate) unsafe fn queue(cq: *mut gds_cq) -> Result<(CompletionQueue, usize), CallError> {
    let cq = non_null_mut("the completion queue", cq)?;
    // SAFETY: valid, as the caller promises.
    let cq = unsafe { (*cq).cq };
    OBJECTS.read().queues.get(&(cq as usize)).cloned().ok_or(NO_QUEUE)
}

impl QueuePairObject {
    /// The address of its C struct.
    pub(crate) fn name(&self) -> usize {
        self.public.get() as usize
    }
}
