//! Completion queues and completion channels. Programs arm queues by the record and the register.

use super::context::{COMPLETION_VECTORS, Context};
use super::domain::Pd;
use super::errno::{self, Errno, Result};
use super::event_queue::{EventQueue, EventSource, ObjectNumber, ObjectPointer, Sink};
use super::object::{self, CStruct, object};
use super::queue_memory::{QueueMemory, Request, page_size};
use crate::card::{CqConfig, LIMITS};
use gdsync_sys::mlx5dv::{
    MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, MLX5DV_RES_TYPE_CQ, mlx5dv_cq, mlx5dv_cq_init_attr,
};
use gdsync_sys::prm::cqe::{CQE_SIZE, CqeOpcode};
use gdsync_sys::verbs::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_init_attr_ex,
};
use libc::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `IBV_WC_STANDARD_FLAGS`: the fields of every completion. This card has no timestamps, VLANs or flow tags.
const STANDARD_WC_FLAGS: u64 = 0x7f;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`: a promise of the caller, which has no effect.
const SINGLE_THREADED: u32 = 1 << 0;
/// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`: the card overwrites entries that are not consumed.
const IGNORE_OVERRUN: u32 = 1 << 1;
/// `MLX5DV_CQ_INIT_ATTR_MASK_FLAGS`.
const MLX5_MASK_FLAGS: u64 = 1 << 1;
/// `op_own` of an unwritten entry, as in libmlx5: invalid, owner bit 0.
const OP_OWN_INITIAL: u8 = (CqeOpcode::Invalid as u8) << 4;
/// Offset of `op_own` in an entry.
const OP_OWN: usize = CQE_SIZE - 1;

object! {
    Channel: ibv_comp_channel {
        pub(super) events: Arc<EventQueue>,
        pub(super) context: Arc<Context>,
    }
}

/// # Safety
/// `context` is null or open.
pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let context = unsafe { object::share::<Context>(context) }?;
        let events = Arc::new(EventQueue::new()?);
        // libibverbs counts queues in `refcnt`; here the object's references do.
        let ibv = ibv_comp_channel { context: object::handle(&context), fd: events.fd(), refcnt: 0 };
        Ok(object::into_raw(Arc::new(Channel { ibv: CStruct::new(ibv), events, context })))
    })
}

/// `ibv_destroy_comp_channel`. EBUSY while completion queues use it.
///
/// # Safety
/// `channel` is null or created.
pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy::<Channel>(channel, |_| Ok(())) })
}

/// `ibv_get_cq_event`: 0, or -1 with `errno` set; EAGAIN if the channel is non-blocking and has no event.
///
/// # Safety
/// `channel` is null or created; the other two are null or valid.
pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    errno::minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let channel = unsafe { object::borrow::<Channel>(channel) }?;
        // SAFETY: as above.
        let (cq, cq_context) = unsafe { (object::attributes(cq)?, object::attributes(cq_context)?) };
        // Only completion queues have events here.
        let ObjectPointer::Cq(found) = channel.events.next()?.object else { return Err(Errno::INVALID) };
        // SAFETY: the queue lives until its events are acknowledged.
        (*cq, *cq_context) = (found, unsafe { (*found).cq_context });
        Ok(())
    })
}

object! {
    Cq: ibv_cq {
        pub(super) number: u32,
        pub(super) events: Arc<EventSource>,
        pub(super) completions: Arc<EventSource>,
        entries: u32,
        ring: QueueMemory,
        dbrec: QueueMemory,
        pub(super) context: Arc<Context>,
        _channel: Option<Arc<Channel>>,
        /// The parent domain whose allocator made the ring.
        _domain: Option<Arc<Pd>>,
    }
}

impl Cq {
    /// Answers `mlx5dv_init_obj`.
    pub(super) fn describe(&self) -> mlx5dv_cq {
        mlx5dv_cq {
            buf: self.ring.start().cast(),
            dbrec: self.dbrec.start().cast(),
            cqe_cnt: self.entries,
            cqe_size: CQE_SIZE as u32,
            cq_uar: self.context.uar.page.cast(),
            cqn: self.number,
            comp_mask: 0,
        }
    }
}

/// `mlx5dv_create_cq`. The ring has the next power of two above `cqe` entries, one of them reserved.
///
/// # Safety
/// `context` is null or open; `attr` is null or valid, with valid objects; `mlx5_attr` is null or valid.
pub(super) unsafe extern "C" fn mlx5dv_create_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    mlx5_attr: *mut mlx5dv_cq_init_attr,
) -> *mut ibv_cq {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let (context, attr) = unsafe { (object::share::<Context>(context)?, object::attributes(attr)?) };
        let (entries, ignore_overrun) = check(attr)?;
        // SAFETY: the caller guarantees null or a valid struct.
        if let Some(mlx5_attr) = unsafe { mlx5_attr.as_ref() } {
            check_mlx5(mlx5_attr)?;
        }
        let domain = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
            // SAFETY: guaranteed by the caller.
            let domain = unsafe { object::share::<Pd>(attr.parent_domain) }?;
            if domain.parent().is_none() || !Arc::ptr_eq(&domain.context, &context) {
                return Err(Errno::INVALID);
            }
            Some(domain)
        } else {
            None
        };
        // SAFETY: guaranteed by the caller.
        let channel = unsafe { channel_of(attr, &context) }?;
        let (ring, dbrec) = allocate(domain.as_ref(), entries)?;
        let config = CqConfig {
            ring: ring.start(),
            entries,
            stride: CQE_SIZE as u32,
            dbrec: dbrec.start().cast(),
            ignore_overrun,
            collapsed: false,
        };
        // SAFETY: the `Cq` keeps ring and record until the card has destroyed the queue.
        let number = unsafe { context.card().create_cq(&config) }?;
        let ibv = ibv_cq {
            context: object::handle(&context),
            channel: attr.channel,
            cq_context: attr.cq_context,
            handle: number,
            cqe: (entries - 1) as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            comp_events_completed: 0,
            async_events_completed: 0,
        };
        let (events, completions) = (Arc::<EventSource>::default(), Arc::<EventSource>::default());
        let asynchronous = Sink { queue: context.events.clone(), source: events.clone() };
        let of_channel =
            channel.as_ref().map(|found| Sink { queue: found.events.clone(), source: completions.clone() });
        let cq = Arc::new(Cq {
            ibv: CStruct::new(ibv),
            number,
            events,
            completions,
            entries,
            ring,
            dbrec,
            context,
            _channel: channel,
            _domain: domain,
        });
        let pointer = ObjectPointer::Cq(object::handle(&cq));
        cq.context.open.routes.add(ObjectNumber::Cq(number), pointer, asynchronous, of_channel);
        Ok(object::into_raw(cq))
    })
}

/// Returns the channel of a new queue, if it has one.
///
/// # Safety
/// `channel` of the attributes is null or created.
unsafe fn channel_of(attr: &ibv_cq_init_attr_ex, context: &Arc<Context>) -> Result<Option<Arc<Channel>>> {
    if attr.channel.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let channel = unsafe { object::share::<Channel>(attr.channel) }?;
    if Arc::ptr_eq(&channel.context, context) { Ok(Some(channel)) } else { Err(Errno::INVALID) }
}

/// Checks in libmlx5's order. Returns the number of entries, and whether overruns are ignored.
fn check(attr: &ibv_cq_init_attr_ex) -> Result<(u32, bool)> {
    if attr.cqe == 0 || attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
        return Err(Errno::INVALID);
    }
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    if flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0 {
        return Err(Errno::INVALID);
    }
    if attr.wc_flags & !STANDARD_WC_FLAGS != 0 {
        tracing::warn!(attr.wc_flags, "the software card has no extended completion fields");
        return Err(Errno::NOT_SUPPORTED);
    }
    if attr.comp_vector >= COMPLETION_VECTORS as u32 {
        return Err(Errno::INVALID);
    }
    let entries = attr.cqe.checked_add(1).and_then(u32::checked_next_power_of_two);
    let entries = entries.filter(|entries| *entries <= LIMITS.max_cqe).ok_or(Errno::INVALID)?;
    Ok((entries, flags & IGNORE_OVERRUN != 0))
}

fn check_mlx5(attr: &mlx5dv_cq_init_attr) -> Result<()> {
    // Compression and padding are refused, as by hardware without them.
    if attr.comp_mask & !(MLX5_MASK_FLAGS | MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE) != 0
        || attr.comp_mask & MLX5_MASK_FLAGS != 0 && attr.flags != 0
    {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask & MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE != 0 {
        return match usize::from(attr.cqe_size) {
            CQE_SIZE => Ok(()),
            128 => Err(Errno::NOT_SUPPORTED),
            _ => Err(Errno::INVALID),
        };
    }
    Ok(())
}

/// Allocates ring and doorbell record, initialised as in libmlx5.
fn allocate(domain: Option<&Arc<Pd>>, entries: u32) -> Result<(QueueMemory, QueueMemory)> {
    let page = page_size();
    let size = (entries as usize * CQE_SIZE).next_multiple_of(page);
    let request = Request { size, alignment: page, resource_type: MLX5DV_RES_TYPE_CQ };
    let ring = QueueMemory::new(domain, &request, page)?;
    for entry in 0..entries as usize {
        // SAFETY: inside the ring, which the card does not know yet.
        unsafe { ring.start().add(entry * CQE_SIZE + OP_OWN).write(OP_OWN_INITIAL) };
    }
    let dbrec = QueueMemory::doorbell_record(domain)?;
    dbrec.clear_record();
    Ok((ring, dbrec))
}

/// `ibv_destroy_cq`. EBUSY while queue pairs use it; waits until its events are acknowledged.
///
/// # Safety
/// `cq` is null or created.
pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let destroy = |cq: &Arc<Cq>| {
        let open = &cq.context.open;
        open.routes.remove(ObjectNumber::Cq(cq.number), || Ok(open.card.destroy_cq(cq.number)?))
    };
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy(cq, destroy) })
}

/// `ibv_ack_cq_events`. No effect for null.
///
/// # Safety
/// `cq` is null, or a queue of which as many events were fetched and not acknowledged.
pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: guaranteed by the caller.
    if let Ok(cq) = unsafe { object::borrow::<Cq>(cq) } {
        // Through another reference, as the queue may be freed once its last event is acknowledged.
        cq.completions.clone().acknowledge(nevents);
    }
}
