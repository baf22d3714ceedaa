//! Queue pairs and completion queues made by verbs (`mlx5dv_create_qp`, `mlx5dv_create_cq`).

use crate::cuda::{QueueArenas, QueuePlacement};
use crate::memory::HostAddr;
use crate::qp::QueuePairConfig;
use crate::qp::make::{ArmWords, CqObject, NewCq, QpObject, QueueDomain, Role};
use crate::queue::{Ring, WorkQueues};
use crate::verbs::{Error, Owned, ProtectionDomainInner, QueuePairError, Transport, call};
use gdsync_sys::mlx5dv::{
    self, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_obj, mlx5dv_qp, mlx5dv_qp_init_attr, mlx5dv_ring,
};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::doorbell::{DBR_CQ_ARM, UAR_CQ_ARM};
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use gdsync_sys::verbs::{
    self, ibv_comp_channel, ibv_cq, ibv_cq_init_attr_ex, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr_ex,
    ibv_srq,
};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A thread domain and a parent domain, which give a queue pair its own doorbell register, for a GPU to use without
/// sharing it with a CPU, and place its rings in the pinned arena. A shared completion queue needs only the latter.
#[derive(Debug)]
pub(crate) struct ParentDomain {
    // In this order: each is made of the following ones.
    raw: Owned<ibv_pd>,
    /// It requires that one thread at a time posts: gdsync posts under the queue's lock.
    _td: Option<Owned<verbs::ibv_td>>,
    /// Boxed, as the provider keeps the address.
    _arenas: Box<QueueArenas>,
    _pd: Arc<ProtectionDomainInner>,
}

impl ParentDomain {
    pub(super) fn new(
        pd: &Arc<ProtectionDomainInner>,
        placement: QueuePlacement,
        has_register: bool,
    ) -> Result<Self, Error> {
        let (api, context) = (pd.device.api, pd.device.context());
        let thread_domain = || {
            let mut td_attr = verbs::ibv_td_init_attr::default();
            // SAFETY: the context is open as long as `pd` lives.
            let td = unsafe { (api.alloc_td)(context, &mut td_attr) };
            let td = call::pointer("ibv_alloc_td", td, String::new)?;
            // SAFETY: the parent domain that names it is deallocated before it, and it before the domain.
            Ok::<_, Error>(unsafe { Owned::new(td, api.dealloc_td, "ibv_dealloc_td") })
        };
        let td = has_register.then(thread_domain).transpose()?;
        let arenas = Box::new(QueueArenas::new(placement, &pd.device.arena)?);
        let mut attr = verbs::ibv_parent_domain_init_attr {
            pd: pd.raw(),
            td: td.as_ref().map_or(ptr::null_mut(), Owned::as_ptr),
            comp_mask: verbs::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | verbs::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            alloc: Some(allocate_queue_memory),
            free: Some(free_queue_memory),
            pd_context: (&raw const *arenas).cast_mut().cast(),
        };
        // SAFETY: as above; the arenas stay where they are as long as the domain, which outlives
        // everything that may still free.
        let raw = unsafe { (api.alloc_parent_domain)(context, &mut attr) };
        let raw = call::pointer("ibv_alloc_parent_domain", raw, String::new)?;
        // SAFETY: queues made in it hold an `Arc` of the `QueueDomain` around this.
        let raw = unsafe { Owned::new(raw, api.dealloc_pd, "ibv_dealloc_pd (parent domain)") };
        Ok(ParentDomain { raw, _td: td, _arenas: arenas, _pd: pd.clone() })
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

/// Allocates queue memory for the verbs provider, from the domain's arenas (`pd_context`).
unsafe extern "C" fn allocate_queue_memory(
    _pd: *mut ibv_pd,
    pd_context: *mut libc::c_void,
    size: libc::size_t,
    alignment: libc::size_t,
    resource_type: u64,
) -> *mut libc::c_void {
    // SAFETY: `ParentDomain::new` gave the address of the domain's arenas, which outlive the provider's use of it.
    let arenas = unsafe { &*pd_context.cast::<QueueArenas>() };
    match arenas.allocate(size, alignment.max(1).next_power_of_two(), resource_type) {
        Ok(block) => block.cast(),
        Err(error) => {
            tracing::debug!(%error, size, "no memory for a queue");
            ptr::null_mut()
        }
    }
}

unsafe extern "C" fn free_queue_memory(
    _pd: *mut ibv_pd,
    pd_context: *mut libc::c_void,
    block: *mut libc::c_void,
    resource_type: u64,
) {
    // SAFETY: as in `allocate_queue_memory`.
    let arenas = unsafe { &*pd_context.cast::<QueueArenas>() };
    if !arenas.release(block.cast(), resource_type) {
        tracing::error!(?block, "the verbs provider freed queue memory that it was not given");
    }
}

/// # Safety
/// As [`super::queue_pair`].
pub(super) unsafe fn queue_pair(
    domain: &QueueDomain,
    parent: &ParentDomain,
    config: &QueuePairConfig<'_>,
    queues: [NonNull<ibv_cq>; 2],
    shared: Option<NonNull<ibv_srq>>,
    role: Role,
) -> Result<(QpObject, WorkQueues), Error> {
    let device = &domain.pd.device;
    let mut attr = init_attr(config, parent, queues);
    let is_dc = config.transport == Transport::Dc;
    if let Some(shared) = shared {
        attr.srq = shared.as_ptr();
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
    // SAFETY: `domain` keeps the context and the parent domain alive, the caller the queues; both structs are valid.
    let raw = unsafe { (device.api.mlx5dv_create_qp)(device.context(), &mut attr, &mut mlx5_attr) };
    let raw = call::pointer("mlx5dv_create_qp", raw, || format!("{config:?}"))
        .map_err(|error| refusal(error, domain, config.transport))?;
    // SAFETY: it is dropped before the domain in which it is made, and nothing uses it then.
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
    let queues = WorkQueues {
        number,
        sq,
        rq,
        register: HostAddr(layout.bf.reg as u64),
        send_segments: attr.cap.max_send_sge,
        inline: attr.cap.max_inline_data,
        recv_segments: attr.cap.max_recv_sge,
    };
    Ok((object, queues))
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

/// Names the transport in a provider's refusal of a queue pair, if the device does not have it.
pub(in crate::qp) fn refusal(error: Error, domain: &QueueDomain, transport: Transport) -> Error {
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
pub(in crate::qp) fn describe(raw: NonNull<ibv_qp>, domain: &QueueDomain) -> Result<mlx5dv_qp, Error> {
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

/// # Safety
/// As [`super::completion_queue`].
pub(super) unsafe fn completion_queue(
    domain: &QueueDomain,
    parent: &ParentDomain,
    entries: u32,
    channel: Option<*mut ibv_comp_channel>,
) -> Result<NewCq, Error> {
    let device = &domain.pd.device;
    let mut attr = ibv_cq_init_attr_ex {
        cqe: entries.saturating_sub(1).max(1),
        cq_context: ptr::null_mut(),
        channel: channel.unwrap_or(ptr::null_mut()),
        comp_vector: 0,
        wc_flags: 0,
        comp_mask: verbs::IBV_CQ_INIT_ATTR_MASK_PD,
        flags: 0,
        parent_domain: parent.raw(),
    };
    let mut mlx5_attr = mlx5dv_cq_init_attr::default();
    // SAFETY: `domain` keeps the context and the parent domain alive, the caller the channel; both structs are valid.
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
    let arm = channel.map(|_| {
        // SAFETY: libmlx5 describes the queue's record, of two words, and the page with the register,
        // which is the context's.
        unsafe { ArmWords::new(out.dbrec.add(DBR_CQ_ARM), out.cq_uar.cast::<u8>().add(UAR_CQ_ARM)) }
    });
    Ok(NewCq { object: CqObject::Verbs(raw), number: out.cqn, ring, arm })
}
