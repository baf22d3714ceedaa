//! Creation and destruction of a queue pair: its attributes, the description of its memory, and the
//! order of its end; and making completion queues. Both by verbs or by commands of the device.

use crate::memory::HostAddr;
use crate::qp::channel::{ChannelInner, Told};
use crate::qp::cq::Company;
use crate::qp::domain::{Maker, ParentDomain, QueueDomain};
use crate::qp::shared_receives::Sharing;
use crate::qp::{
    CompletionQueue, CompletionQueueConfig, CompletionQueueInner, QueuePairConfig, QueuePairInner, devx,
    status,
};
use crate::queue::completion::CompletionState;
use crate::queue::{QueueParts, Ring};
use crate::verbs::{
    Device, DeviceInner, DevxError, Error, Owned, ProtectionDomain, QueueApi, QueuePairError, Transport, call,
};
use gdsync_sys::api::Provider;
use gdsync_sys::mlx5dv::{
    self, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_obj, mlx5dv_qp, mlx5dv_qp_init_attr, mlx5dv_ring,
};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::doorbell::{DBR_CQ_ARM, UAR_CQ_ARM};
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use gdsync_sys::verbs::{self, ibv_cq, ibv_cq_init_attr_ex, ibv_qp, ibv_qp_cap, ibv_qp_init_attr_ex};
use parking_lot::Mutex;
use spin::mutex::SpinMutex;
use std::cmp::Ordering;
use std::ptr;
use std::ptr::NonNull;
use std::sync::Arc;

/// A queue pair as its maker knows it. Destroyed when dropped.
#[derive(Debug)]
pub(crate) enum QpObject {
    Verbs(Owned<ibv_qp>),
    Devx(devx::Qp),
    /// A DC target, which ends by being destroyed: none then.
    Target(Mutex<Option<Owned<ibv_qp>>>),
}

impl QpObject {
    /// The queue pair as verbs know it, if they do.
    pub(crate) fn verbs(&self) -> Option<NonNull<ibv_qp>> {
        match self {
            QpObject::Verbs(qp) => Some(qp.raw()),
            QpObject::Devx(_) => None,
            QpObject::Target(qp) => qp.lock().as_ref().map(Owned::raw),
        }
    }

    fn destroy(&mut self) {
        *self = QpObject::Target(Mutex::default());
    }
}

/// Makes a queue pair, in the state RESET.
pub(crate) fn make(
    domain: &QueueDomain,
    config: &QueuePairConfig<'_>,
    [send_cq, recv_cq]: [&CompletionQueueInner; 2],
    shared: Option<&Sharing>,
    role: Role,
) -> Result<(QpObject, QueueParts), Error> {
    match &domain.maker {
        Maker::Verbs(parent) => {
            let known = |queue: &CompletionQueueInner| {
                queue.verbs().ok_or(DevxError::OtherMaker { cqn: queue.number() })
            };
            make_by_verbs(domain, parent, config, [known(send_cq)?, known(recv_cq)?], shared, role)
        }
        Maker::Devx(devx) => {
            let (qp, parts) = devx::Qp::make(devx, config, (send_cq.number(), recv_cq.number()), role)?;
            Ok((QpObject::Devx(qp), parts))
        }
    }
}

fn make_by_verbs(
    domain: &QueueDomain,
    parent: &ParentDomain,
    config: &QueuePairConfig<'_>,
    queues: [NonNull<ibv_cq>; 2],
    shared: Option<&Sharing>,
    role: Role,
) -> Result<(QpObject, QueueParts), Error> {
    let device = &domain.pd.device;
    let mut attr = init_attr(config, parent, queues);
    let is_dc = config.transport == Transport::Dc;
    if let Some(shared) = shared {
        attr.srq = shared.receives.raw().as_ptr();
    }
    if shared.is_some() || is_dc {
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
    }
    let mut mlx5_attr = mlx5dv_qp_init_attr {
        comp_mask: mlx5dv::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        create_flags: mlx5dv::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | role.flag(),
        ..Default::default()
    };
    if is_dc {
        mlx5_attr.comp_mask |= mlx5dv::MLX5DV_QP_INIT_ATTR_MASK_DC;
        mlx5_attr.dc_init_attr.dc_type = mlx5dv::MLX5DV_DCTYPE_DCI;
    }
    // SAFETY: context, domain and queues are alive (held by the caller); both structs are valid.
    let raw = unsafe { (device.api.mlx5dv_create_qp)(device.context(), &mut attr, &mut mlx5_attr) };
    let raw = call::pointer("mlx5dv_create_qp", raw, || format!("{config:?}"))
        .map_err(|error| refusal(error, domain, config.transport))?;
    // SAFETY: it is dropped before the domain that holds what it is made in, and nothing uses it then.
    let object = QpObject::Verbs(unsafe { Owned::new(raw, device.api.destroy_qp, "ibv_destroy_qp") });
    let layout = describe(raw, domain)?;
    // SAFETY: a queue pair just returned by the provider is valid; its number never changes.
    let number = unsafe { (*raw.as_ptr()).qp_num };
    // SAFETY: the provider describes the rings and records of the queue pair, valid until it is
    // destroyed, which the object does when it is dropped; counts are checked.
    let sq = unsafe { Ring::new(layout.sq.buf.cast(), layout.sq.wqe_cnt, BASIC_BLOCK, layout.dbrec.add(1)) };
    let rq = match shared {
        Some(_) => None,
        None if is_dc => None,
        None => {
            let (entries, stride) = check_receives(&layout)?;
            // SAFETY: as above.
            Some(unsafe { Ring::new(layout.rq.buf.cast(), entries, stride, layout.dbrec) })
        }
    };
    let parts = QueueParts {
        number,
        sq,
        rq,
        register: HostAddr(layout.bf.reg as u64),
        send_segments: attr.cap.max_send_sge,
        inline: attr.cap.max_inline_data,
        recv_segments: attr.cap.max_recv_sge,
    };
    Ok((object, parts))
}

fn init_attr(
    config: &QueuePairConfig<'_>,
    parent: &ParentDomain,
    [send_cq, recv_cq]: [NonNull<ibv_cq>; 2],
) -> ibv_qp_init_attr_ex {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    attr.send_cq = send_cq.as_ptr();
    attr.recv_cq = recv_cq.as_ptr();
    attr.cap = ibv_qp_cap {
        max_send_wr: config.send_depth.max(1),
        max_recv_wr: config.recv_depth.max(1),
        max_send_sge: config.send_segments.max(1),
        max_recv_sge: config.recv_segments.max(1),
        max_inline_data: config.inline,
    };
    attr.qp_type = config.transport.code();
    attr.comp_mask = verbs::IBV_QP_INIT_ATTR_PD;
    attr.pd = parent.raw();
    attr
}

/// The provider's refusal of a queue pair: of a transport that it does not have, by name.
pub(super) fn refusal(error: Error, domain: &QueueDomain, transport: Transport) -> Error {
    match &error {
        Error::Verbs { source, .. } if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Error::QueuePair(QueuePairError::NoTransport {
                device: domain.pd.device.name.to_owned(),
                transport,
            })
        }
        _ => error,
    }
}

/// Asks the provider for the queue pair's rings, and checks that gdsync can drive them.
pub(crate) fn describe(raw: NonNull<ibv_qp>, domain: &QueueDomain) -> Result<mlx5dv_qp, Error> {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut out: mlx5dv_qp = unsafe { std::mem::zeroed() };
    let mut obj = mlx5dv_obj::default();
    obj.qp.r#in = raw.as_ptr();
    obj.qp.out = &mut out;
    // SAFETY: the queue pair is alive, and `out` is a valid place.
    let rc = unsafe { (domain.pd.device.api.mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_QP) };
    call::status("mlx5dv_init_obj", rc, || "queue pair".to_owned())?;
    let bad = |what, value: u32| Err(QueuePairError::layout(what, value));
    if out.sq.stride as usize != BASIC_BLOCK {
        return bad("send queue stride", out.sq.stride);
    }
    if !out.sq.wqe_cnt.is_power_of_two() {
        return bad("send queue blocks", out.sq.wqe_cnt);
    }
    Ok(out)
}

/// The entries of a receive queue, and the bytes of each.
fn check_receives(layout: &mlx5dv_qp) -> Result<(u32, usize), Error> {
    let mlx5dv_ring { wqe_cnt, stride, .. } = layout.rq;
    if !wqe_cnt.is_power_of_two() {
        return Err(QueuePairError::layout("receive queue entries", wqe_cnt));
    }
    if stride == 0 || !stride.is_multiple_of(16) {
        return Err(QueuePairError::layout("receive queue stride", stride));
    }
    Ok((wqe_cnt, stride as usize))
}

impl Drop for QueuePairInner {
    fn drop(&mut self) {
        if let Some((trigger, master)) = self.master() {
            // Before its number can be another one's, which a release of this one's sends would meet.
            master.leave(trigger, self.number);
        }
        // Locked before the number may be used again, so that this queue pair's entries are not
        // taken for another's. Two queues in the order of their addresses, as another queue pair
        // may have them the other way round.
        let (first, second) = match Arc::as_ptr(&self.send_cq).cmp(&Arc::as_ptr(&self.recv_cq)) {
            Ordering::Less => (&self.send_cq, Some(&self.recv_cq)),
            Ordering::Equal => (&self.send_cq, None),
            Ordering::Greater => (&self.recv_cq, Some(&self.send_cq)),
        };
        let mut states = [Some((first, first.lock())), second.map(|queue| (queue, queue.lock()))];
        // Another one may have the number of a target that was closed.
        let is_closed = self.is_target() && self.object.verbs().is_none();
        // Every prepared send and batch in flight holds an `Arc` of this, so none is left. After
        // this the card touches neither the rings nor the memory that work requests name; fields
        // drop afterwards.
        self.object.destroy();
        let (sends, receives) = (self.send.get_mut().outstanding(), self.recv.get_mut().len());
        for (queue, state) in states.iter_mut().flatten() {
            if Arc::ptr_eq(queue, &self.send_cq) {
                (0..sends.entries).for_each(|i| state.unreserve(i < sends.signaled));
            }
            if Arc::ptr_eq(queue, &self.recv_cq) {
                (0..receives).for_each(|_| state.unreserve(true));
            }
            if is_closed {
                queue.unlist(self.number);
                continue;
            }
            for receive in queue.detach(state, self.number) {
                // Polling does not return it: its entry is free.
                self.shared.as_ref().and_then(|shared| shared.receives.retire(receive));
            }
        }
    }
}

/// What SEND_EN has to do with a queue pair: queue pairs have to be made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    Plain,
    /// It releases sends of others.
    Master,
    /// Another one releases its sends.
    Slave,
}

impl Role {
    /// The interface that makes it. Of verbs, those of the software card of this process alone have
    /// flags for it.
    pub(crate) fn maker(self, device: &DeviceInner) -> QueueApi {
        let has_flags = device.api.provider == Provider::Software;
        if self == Role::Plain || has_flags { QueueApi::Verbs } else { QueueApi::Devx }
    }

    /// The flag of the software card of this process.
    pub(crate) fn flag(self) -> u32 {
        match self {
            Role::Plain => 0,
            Role::Master => mlx5dv::SOFTWARE_QP_CREATE_MASTER,
            Role::Slave => mlx5dv::SOFTWARE_QP_CREATE_SLAVE_SEND,
        }
    }
}

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
        let domain = QueueDomain::new(&pd.inner, queues, placement, false)?;
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
            Maker::Verbs(parent) => queue_by_verbs(domain, parent, entries, channel)?,
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
fn queue_by_verbs(
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
