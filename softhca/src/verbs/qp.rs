//! Queue pairs: creation and destruction.

use super::context::Context;
use super::cq::Cq;
use super::domain::Pd;
use super::errno::{self, Errno, Result};
use super::event_queue::{EventSource, ObjectNumber, ObjectPointer, Sink};
use super::object::{self, CStruct, object};
use super::queue_memory::{QueueMemory, Request, page_size};
use super::sizes::QueueSizes;
use super::srq::Srq;
use crate::card::{DataOrdering, QpConfig, ScatterToCqe, Transport};
use gdsync_sys::mlx5dv::{
    MLX5DV_DCTYPE_DCI, MLX5DV_DCTYPE_DCT, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE,
    MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, MLX5DV_QP_CREATE_OOO_DP, MLX5DV_QP_INIT_ATTR_MASK_DC,
    MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, MLX5DV_RES_TYPE_QP, SOFTWARE_QP_CREATE_MASTER,
    SOFTWARE_QP_CREATE_SLAVE_SEND, mlx5dv_qp, mlx5dv_qp_init_attr, mlx5dv_ring,
};
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use gdsync_sys::verbs::{
    self, IBV_QP_INIT_ATTR_PD, ibv_ah_attr, ibv_context, ibv_qp, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
};
use libc::c_int;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Bits of `comp_mask` that libmlx5 accepts: domain, XRC domain, flags, TSO header, indirection table, hash,
/// operations.
const KNOWN_MASK: u32 = 0x7f;
/// Bits of mlx5's `comp_mask` that libmlx5 accepts: flags, DC, operations, DCI streams.
const KNOWN_MLX5_MASK: u64 = 0xf;
/// Creation flags that libmlx5 accepts.
const KNOWN_MLX5_FLAGS: u32 = 0xff;
/// Creation flags of this front only.
const OWN_FLAGS: u32 = SOFTWARE_QP_CREATE_MASTER | SOFTWARE_QP_CREATE_SLAVE_SEND;
/// The mutually exclusive flags for data inside completion entries.
const SCATTER_FLAGS: u32 = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE;
/// Transports of verbs.h that this front lacks: raw packet, XRC send and receive.
const OTHER_TRANSPORTS: [c_int; 3] = [8, 9, 10];

object! {
    Qp: ibv_qp {
        pub(super) number: u32,
        pub(super) events: Arc<EventSource>,
        /// Serialises changes, and keeps the attributes that the card does not.
        pub(super) path: Mutex<Path>,
        pub(super) cap: ibv_qp_cap,
        qp_type: c_int,
        signal_all: bool,
        /// What the program asks for: set with the change to INIT.
        pub(super) ordering: Option<DataOrdering>,
        sizes: QueueSizes,
        /// `None` for a DC target.
        memory: Option<Memory>,
        send_cq: Arc<Cq>,
        recv_cq: Arc<Cq>,
        srq: Option<Arc<Srq>>,
        domain: Arc<Pd>,
    }
}

/// Attributes that `ibv_query_qp` reports and the card does not need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) address: ibv_ah_attr,
}

struct Memory {
    rings: QueueMemory,
    dbrec: QueueMemory,
}

impl Qp {
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }

    /// Sets `ibv_qp.state`, the last state that the library knows.
    pub(super) fn set_state(&self, state: c_int) {
        // SAFETY: inside our own struct, aligned; C callers read it, and only this function writes it.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.ibv.get()).state) }.store(state, Ordering::Relaxed);
    }

    pub(super) fn clear_records(&self) {
        if let Some(memory) = &self.memory {
            memory.dbrec.clear_record();
        }
    }

    pub(super) fn init_attributes(&self) -> ibv_qp_init_attr {
        // SAFETY: the field does not change.
        let qp_context = unsafe { (*self.ibv.get()).qp_context };
        ibv_qp_init_attr {
            qp_context,
            send_cq: object::handle(&self.send_cq),
            recv_cq: object::handle(&self.recv_cq),
            srq: self.srq.as_ref().map_or(std::ptr::null_mut(), object::handle),
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: self.signal_all.into(),
        }
    }

    /// Answers `mlx5dv_init_obj`, without optional fields: the register's page cannot be mapped a second time
    /// through this front. EINVAL for a DC target, which has no queues.
    pub(super) fn describe(&self, out: &mut mlx5dv_qp) -> Result<()> {
        let memory = self.memory.as_ref().ok_or(Errno::INVALID)?;
        let QueueSizes { sq_blocks, rq_entries, rq_stride } = self.sizes;
        let start = memory.rings.start();
        out.dbrec = memory.dbrec.start().cast();
        let sq_stride = if sq_blocks == 0 { 1 } else { BASIC_BLOCK as u32 };
        let sq = start.wrapping_add(self.sizes.send_offset()).cast();
        out.sq = mlx5dv_ring { buf: sq, wqe_cnt: sq_blocks, stride: sq_stride };
        out.rq = mlx5dv_ring { buf: start.cast(), wqe_cnt: rq_entries, stride: rq_stride };
        out.bf.reg = self.domain.uar().register().cast();
        // No BlueFlame: the register takes doorbells only.
        out.bf.size = 0;
        out.comp_mask = 0;
        Ok(())
    }
}

impl Memory {
    fn new(domain: &Arc<Pd>, sizes: &QueueSizes) -> Result<Self> {
        let page = page_size();
        let alignment = sizes.alignment(page);
        let size = sizes.bytes().max(1).next_multiple_of(alignment);
        let request = Request { size, alignment, resource_type: MLX5DV_RES_TYPE_QP };
        let rings = QueueMemory::new(Some(domain), &request, page)?;
        let dbrec = QueueMemory::doorbell_record(Some(domain))?;
        if !dbrec.is_custom() {
            // As in libmlx5, a custom allocator determines the content of its records.
            dbrec.clear_record();
        }
        Ok(Memory { rings, dbrec })
    }

    fn config(
        &self,
        transport: Transport,
        domain: &Pd,
        [send_cq, recv_cq]: [&Cq; 2],
        sizes: &QueueSizes,
        signal_all: bool,
        flags: u32,
    ) -> QpConfig {
        let start = self.rings.start();
        QpConfig {
            pdn: Some(domain.number()),
            send_cq: Some(send_cq.number),
            recv_cq: (transport != Transport::DcInitiator).then_some(recv_cq.number),
            uar: Some(domain.uar().id),
            sq: start.wrapping_add(sizes.send_offset()),
            sq_blocks: sizes.sq_blocks,
            rq: start,
            rq_entries: sizes.rq_entries,
            rq_stride: sizes.rq_stride,
            dbrec: self.dbrec.start().cast(),
            master: flags & SOFTWARE_QP_CREATE_MASTER != 0,
            slave_send: flags & SOFTWARE_QP_CREATE_SLAVE_SEND != 0,
            scatter: scatter(flags, transport, signal_all),
            ..QpConfig::new(transport)
        }
    }
}

/// `mlx5dv_create_qp`: a queue pair of the transports RC, UC, UD and DC. `attr.cap` gets the granted
/// capacities. A DC target has its number from the start, and libmlx5's from RTR on.
///
/// # Safety
/// `context` is null or open; `attr` is null or valid, with valid objects; `mlx5_attr` is null or valid.
pub(super) unsafe extern "C" fn mlx5dv_create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5_attr: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let (context, attr) = unsafe { (object::share::<Context>(context)?, object::attributes(attr)?) };
        // SAFETY: the caller guarantees null or a valid struct.
        let mlx5_attr = unsafe { mlx5_attr.as_ref() };
        let transport = check(attr, mlx5_attr)?;
        let flags = mlx5_attr.map_or(Ok(0), check_mlx5)?;
        // SAFETY: guaranteed by the caller.
        let (domain, send_cq, recv_cq) = unsafe {
            (
                object::share::<Pd>(attr.pd)?,
                object::share::<Cq>(attr.send_cq)?,
                object::share::<Cq>(attr.recv_cq)?,
            )
        };
        // SAFETY: guaranteed by the caller.
        let srq = unsafe { if attr.srq.is_null() { None } else { Some(object::share::<Srq>(attr.srq)?) } };
        let contexts = [Some(&domain.context), Some(&send_cq.context), Some(&recv_cq.context)];
        let of_srq = srq.as_ref().map(|srq| &srq.domain.context);
        if contexts.into_iter().chain([of_srq]).flatten().any(|other| !Arc::ptr_eq(other, &context)) {
            return Err(Errno::INVALID);
        }
        let mut cap = attr.cap;
        if srq.is_some() || transport == Transport::DcInitiator {
            // As in libmlx5: with an SRQ, the queue pair has no receive queue.
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let signal_all = attr.sq_sig_all != 0;
        let (sizes, memory, config) = if transport == Transport::DcTarget {
            let config = QpConfig {
                pdn: Some(domain.number()),
                recv_cq: Some(recv_cq.number),
                dc_key: mlx5_attr.map_or(0, |mlx5_attr| mlx5_attr.dc_init_attr.dct_access_key),
                ..QpConfig::new(transport)
            };
            (QueueSizes::default(), None, config)
        } else {
            let sizes = QueueSizes::new(transport, &mut cap)?;
            let memory = Memory::new(&domain, &sizes)?;
            let config = memory.config(transport, &domain, [&send_cq, &recv_cq], &sizes, signal_all, flags);
            (sizes, Some(memory), config)
        };
        let config = QpConfig { srq: srq.as_ref().map(|srq| srq.number), ..config };
        // SAFETY: the `Qp` keeps the memory until the card has destroyed the queue pair.
        let number = unsafe { context.card().create_qp(&config) }?;
        let ibv = ibv_qp {
            context: object::handle(&context),
            qp_context: attr.qp_context,
            pd: attr.pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle: number,
            qp_num: number,
            state: verbs::IBV_QPS_RESET,
            qp_type: attr.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let qp = Arc::new(Qp {
            ibv: CStruct::new(ibv),
            number,
            events: Arc::new(EventSource::default()),
            path: Mutex::default(),
            cap,
            qp_type: attr.qp_type,
            signal_all,
            ordering: (flags & MLX5DV_QP_CREATE_OOO_DP != 0).then_some(DataOrdering::AnyOrder),
            sizes,
            memory,
            send_cq,
            recv_cq,
            srq,
            domain,
        });
        let pointer = ObjectPointer::Qp(object::handle(&qp));
        let events = Sink { queue: context.events.clone(), source: qp.events.clone() };
        context.open.routes.add(ObjectNumber::Qp(number), pointer, events, None);
        attr.cap = cap;
        Ok(object::into_raw(qp))
    })
}

/// The small data in completion entries: libmlx5 asks for it unless the program refuses (`mlx5_create_qp`).
fn scatter(flags: u32, transport: Transport, signal_all: bool) -> ScatterToCqe {
    if flags & MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE != 0 {
        return ScatterToCqe::default();
    }
    ScatterToCqe::of_verbs(transport, signal_all || flags & MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE != 0)
}

/// Checks in libmlx5's order. Returns the transport.
fn check(attr: &ibv_qp_init_attr_ex, mlx5_attr: Option<&mlx5dv_qp_init_attr>) -> Result<Transport> {
    if attr.comp_mask & !KNOWN_MASK != 0 {
        return Err(Errno::INVALID);
    }
    if OTHER_TRANSPORTS.contains(&attr.qp_type) {
        tracing::warn!(attr.qp_type, "this front serves the transports RC, UC, UD and DC only");
        return Err(Errno::NOT_SUPPORTED);
    }
    let transport = match attr.qp_type {
        verbs::IBV_QPT_RC => Transport::Rc,
        verbs::IBV_QPT_UC => Transport::Uc,
        verbs::IBV_QPT_UD => Transport::Ud,
        verbs::IBV_QPT_DRIVER => dc_transport(mlx5_attr)?,
        _ => return Err(Errno::INVALID),
    };
    if mlx5_attr.is_some_and(has_dc) && attr.qp_type != verbs::IBV_QPT_DRIVER {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask != IBV_QP_INIT_ATTR_PD {
        tracing::warn!(attr.comp_mask, "the software card has no extended creation attributes");
        return Err(Errno::NOT_SUPPORTED);
    }
    Ok(transport)
}

fn has_dc(attr: &mlx5dv_qp_init_attr) -> bool {
    attr.comp_mask & MLX5DV_QP_INIT_ATTR_MASK_DC != 0
}

/// Returns the side of DC that mlx5's own queue pair type asks for.
fn dc_transport(attr: Option<&mlx5dv_qp_init_attr>) -> Result<Transport> {
    match attr.filter(|attr| has_dc(attr)).map(|attr| attr.dc_init_attr.dc_type) {
        Some(MLX5DV_DCTYPE_DCI) => Ok(Transport::DcInitiator),
        Some(MLX5DV_DCTYPE_DCT) => Ok(Transport::DcTarget),
        _ => Err(Errno::INVALID),
    }
}

/// Returns the creation flags.
fn check_mlx5(attr: &mlx5dv_qp_init_attr) -> Result<u32> {
    let with_flags = attr.comp_mask & MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS != 0;
    let flags = if with_flags { attr.create_flags } else { 0 };
    if attr.comp_mask & !KNOWN_MLX5_MASK != 0
        || flags & !(KNOWN_MLX5_FLAGS | OWN_FLAGS) != 0
        || flags & SCATTER_FLAGS == SCATTER_FLAGS
    {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask & !(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_DC) != 0
        || flags & !(SCATTER_FLAGS | OWN_FLAGS | MLX5DV_QP_CREATE_OOO_DP) != 0
    {
        tracing::warn!(
            attr.comp_mask,
            flags,
            "the software card does not have these mlx5 creation attributes"
        );
        return Err(Errno::NOT_SUPPORTED);
    }
    Ok(flags)
}

/// `ibv_destroy_qp`. After it, the card touches neither the rings nor the memory of work requests. Waits
/// until the queue pair's events are acknowledged. Its completion entries stay in their rings: libmlx5, too,
/// does not change a completion queue's ring once `mlx5dv_init_obj` has exposed it.
///
/// # Safety
/// `qp` is null or created.
pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let destroy = |qp: &Arc<Qp>| {
        let open = &qp.context().open;
        open.routes.remove(ObjectNumber::Qp(qp.number), || Ok(open.card.destroy_qp(qp.number)?))
    };
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy(qp, destroy) })
}
