//! Making completion queues, by verbs or by commands of the device.

use crate::qp::channel::{ChannelInner, Told};
use crate::qp::cq::Company;
use crate::qp::domain::{Maker, ParentDomain, QueueDomain};
use crate::qp::{CompletionQueue, CompletionQueueConfig, CompletionQueueInner, devx, status};
use crate::queue::Ring;
use crate::queue::completion::CompletionState;
use crate::verbs::{Device, DevxError, Error, Owned, ProtectionDomain, QueuePairError, call};
use gdsync_sys::mlx5dv::{self, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_obj};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::doorbell::{DBR_CQ_ARM, UAR_CQ_ARM};
use gdsync_sys::verbs::{self, ibv_cq, ibv_cq_init_attr_ex};
use parking_lot::Mutex;
use spin::mutex::SpinMutex;
use std::ptr;
use std::sync::Arc;

/// The queue as its maker knows it. Destroyed when dropped: the queue pairs that complete there
/// hold the queue, so they were destroyed before.
#[derive(Debug)]
pub(super) enum CqObject {
    Verbs(Owned<ibv_cq>),
    Devx(#[expect(dead_code, reason = "it is dropped with the queue")] devx::Cq),
}

impl CompletionQueue {
    /// Makes a completion queue that queue pairs can share. A number stands for the configuration
    /// of a queue with so many entries.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the provider refuses, for example because the device has no queues of
    /// that length; [`OutOfRange`](crate::verbs::OutOfRange) and [`Error::Devx`] for those made by
    /// commands; [`PlacementError`](crate::cuda::PlacementError);
    /// [`QueuePairError::OtherDevice`](crate::verbs::QueuePairError) for a channel of another device,
    /// [`DevxError::NoChannel`](crate::verbs::DevxError) where commands would make a queue with one.
    pub fn new<'a>(device: &Device, config: impl Into<CompletionQueueConfig<'a>>) -> Result<Self, Error> {
        let CompletionQueueConfig { entries, queues, placement, channel } = config.into();
        let channel = channel.map(|channel| &channel.inner);
        if channel.is_some_and(|channel| !channel.is_of(&device.inner)) {
            return Err(Error::QueuePair(QueuePairError::OtherDevice { device: device.name().to_owned() }));
        }
        // A ring's memory comes by way of a domain. This one has no other use.
        let pd = ProtectionDomain::new(device)?;
        let domain = QueueDomain::of_completions(&pd.inner, queues, placement)?;
        Ok(CompletionQueue { inner: CompletionQueueInner::make(&domain, entries, channel)? })
    }
}

impl CompletionQueueInner {
    /// Makes a completion queue in a domain.
    pub(crate) fn make(
        domain: &Arc<QueueDomain>,
        entries: u32,
        channel: Option<&Arc<ChannelInner>>,
    ) -> Result<Arc<Self>, Error> {
        let (object, number, ring, told) = match &domain.maker {
            Maker::Verbs(parent) => make_by_verbs(domain, parent, entries, channel)?,
            Maker::Devx(_) if channel.is_some() => return Err(Error::Devx(DevxError::NoChannel)),
            Maker::Devx(devx) => {
                let (cq, ring) = devx::Cq::new(devx, entries)?;
                let number = cq.number();
                (CqObject::Devx(cq), number, ring, None)
            }
        };
        let ring = ring.write_combined(domain.placement.completions_are_combined());
        let inner = Arc::new_cyclic(|inner| CompletionQueueInner {
            _published: status::publish(inner.clone()),
            object,
            number,
            told,
            state: SpinMutex::new(CompletionState::new(ring)),
            company: Company::default(),
            queue_pairs: Mutex::default(),
            device: domain.pd.device.clone(),
            domain: domain.clone(),
        });
        if let (Some(told), Some(raw)) = (&inner.told, inner.verbs()) {
            told.channel.add(raw, &inner);
        }
        Ok(inner)
    }
}

/// The queue and its number, and its ring and what arms it, which must not be used longer.
fn make_by_verbs(
    domain: &QueueDomain,
    parent: &ParentDomain,
    entries: u32,
    channel: Option<&Arc<ChannelInner>>,
) -> Result<(CqObject, u32, Ring, Option<Told>), Error> {
    let device = &domain.pd.device;
    let mut attr = ibv_cq_init_attr_ex {
        cqe: entries.saturating_sub(1).max(1),
        cq_context: ptr::null_mut(),
        channel: channel.map_or(ptr::null_mut(), |channel| channel.raw()),
        comp_vector: 0,
        wc_flags: 0,
        comp_mask: verbs::IBV_CQ_INIT_ATTR_MASK_PD,
        flags: 0,
        parent_domain: parent.raw(),
    };
    let mut mlx5_attr = mlx5dv_cq_init_attr::default();
    // SAFETY: the context is open and the parent domain allocated as long as `domain` lives;
    // both structs are valid.
    let raw = unsafe { (device.api.mlx5dv_create_cq)(device.context(), &mut attr, &mut mlx5_attr) };
    let raw = call::pointer("mlx5dv_create_cq", raw, || format!("{entries} entries"))?;
    // SAFETY: nothing completes there any more, as `CqObject` says.
    let raw = unsafe { Owned::new(raw, device.api.destroy_cq, "ibv_destroy_cq") };
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut out: mlx5dv_cq = unsafe { std::mem::zeroed() };
    let mut obj = mlx5dv_obj::default();
    obj.cq.r#in = raw.as_ptr();
    obj.cq.out = &mut out;
    // SAFETY: the queue was just created, and `out` is a valid place.
    let rc = unsafe { (device.api.mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_CQ) };
    call::status("mlx5dv_init_obj", rc, || "completion queue".to_owned())?;
    if out.cqe_size as usize != CQE_SIZE {
        return Err(QueuePairError::layout("completion entry size", out.cqe_size));
    }
    if !out.cqe_cnt.is_power_of_two() {
        return Err(QueuePairError::layout("completion queue entries", out.cqe_cnt));
    }
    // SAFETY: libmlx5 describes the ring and record of the queue, valid until it is destroyed,
    // which `raw` does when it is dropped.
    let ring = unsafe { Ring::new(out.buf.cast(), out.cqe_cnt, CQE_SIZE, out.dbrec) };
    let told = channel.map(|channel| {
        // SAFETY: libmlx5 describes the queue's record, of two words, and the page with the register,
        // which is the context's.
        unsafe {
            let record = out.dbrec.add(DBR_CQ_ARM);
            Told::new(channel.clone(), record, out.cq_uar.cast::<u8>().add(UAR_CQ_ARM), out.cqn)
        }
    });
    Ok((CqObject::Verbs(raw), out.cqn, ring, told))
}
