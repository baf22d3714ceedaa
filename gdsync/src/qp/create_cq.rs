//! Making completion queues, by verbs or by commands of the device.

use crate::qp::channel::{ChannelInner, Told};
use crate::qp::cq::CqObject;
use crate::qp::domain::{Maker, ParentDomain, QueueDomain};
use crate::qp::{CompletionQueue, CompletionQueueConfig, CompletionQueueInner, devx};
use crate::queue::Ring;
use crate::verbs::{Device, DeviceInner, DevxError, Error, ProtectionDomain, QueuePairError, call};
use gdsync_sys::mlx5dv::{self, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_obj};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::doorbell::{DBR_CQ_ARM, UAR_CQ_ARM};
use gdsync_sys::verbs::{self, ibv_cq, ibv_cq_init_attr_ex};
use std::ptr::{self, NonNull};
use std::sync::Arc;

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
        let (object, ring, told): (Box<dyn CqObject>, Ring, Option<Told>) = match &domain.maker {
            Maker::Verbs(parent) => {
                let (cq, ring, told) = VerbsCq::new(domain, parent, entries, channel)?;
                (Box::new(cq), ring, told)
            }
            Maker::Devx(_) if channel.is_some() => return Err(Error::Devx(DevxError::NoChannel)),
            Maker::Devx(devx) => {
                let (cq, ring) = devx::Cq::new(devx, entries)?;
                (Box::new(cq), ring, None)
            }
        };
        let ring = ring.write_combined(domain.placement.completions_are_combined());
        Ok(Self::new(object, ring, told, &domain.pd.device, domain.clone()))
    }
}

#[derive(Debug)]
struct VerbsCq {
    raw: NonNull<ibv_cq>,
    number: u32,
    device: Arc<DeviceInner>,
}

// SAFETY: libibverbs allows a completion queue to be destroyed from any thread; nothing else is
// done with it.
unsafe impl Send for VerbsCq {}
// SAFETY: as above.
unsafe impl Sync for VerbsCq {}

impl VerbsCq {
    /// The queue, and its ring and what arms it, which must not be used longer.
    fn new(
        domain: &QueueDomain,
        parent: &ParentDomain,
        entries: u32,
        channel: Option<&Arc<ChannelInner>>,
    ) -> Result<(Self, Ring, Option<Told>), Error> {
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
        let mut made = VerbsCq { raw, number: 0, device: device.clone() };
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
        // which `Drop` does.
        let ring = unsafe { Ring::new(out.buf.cast(), out.cqe_cnt, CQE_SIZE, out.dbrec) };
        made.number = out.cqn;
        let told = channel.map(|channel| {
            // SAFETY: libmlx5 describes the queue's record, of two words, and the page with the register,
            // which is the context's.
            unsafe {
                let record = out.dbrec.add(DBR_CQ_ARM);
                Told::new(channel.clone(), record, out.cq_uar.cast::<u8>().add(UAR_CQ_ARM), out.cqn)
            }
        });
        Ok((made, ring, told))
    }
}

impl CqObject for VerbsCq {
    fn number(&self) -> u32 {
        self.number
    }

    fn verbs(&self) -> Option<NonNull<ibv_cq>> {
        Some(self.raw)
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        // SAFETY: created by us; nothing completes there any more, as `Object` says.
        call::on_drop("ibv_destroy_cq", unsafe { (self.device.api.destroy_cq)(self.raw.as_ptr()) });
    }
}
