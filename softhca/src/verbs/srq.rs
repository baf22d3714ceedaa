//! Shared receive queues, laid out as in libmlx5 (`providers/mlx5/srq.c`).

use super::context::Context;
use super::domain::Pd;
use super::errno::{self, Errno};
use super::event_queue::{EventSource, ObjectNumber, ObjectPointer, Sink};
use super::object::{self, CStruct, object};
use super::queue_memory::{QueueMemory, Request, page_size};
use crate::card::{LIMITS, SrqConfig};
use gdsync_sys::mlx5dv::{MLX5DV_RES_TYPE_SRQ, MLX5DV_SRQ_MASK_SRQN, mlx5dv_srq};
use gdsync_sys::prm::recv;
use gdsync_sys::verbs::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use libc::c_int;
use std::sync::Arc;

object! {
    Srq: ibv_srq {
        pub(super) number: u32,
        pub(super) events: Arc<EventSource>,
        entries: u32,
        stride: u32,
        ring: QueueMemory,
        dbrec: QueueMemory,
        pub(super) domain: Arc<Pd>,
    }
}

impl Srq {
    fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }

    /// Answers `mlx5dv_init_obj`: the list of free entries goes from the first to the last. Gives the number
    /// on request.
    pub(super) fn describe(&self, out: &mut mlx5dv_srq) {
        let srqn = if out.comp_mask & MLX5DV_SRQ_MASK_SRQN != 0 { self.number } else { out.srqn };
        *out = mlx5dv_srq {
            buf: self.ring.start().cast(),
            dbrec: self.dbrec.start().cast(),
            stride: self.stride,
            head: 0,
            tail: self.entries - 1,
            comp_mask: out.comp_mask & MLX5DV_SRQ_MASK_SRQN,
            srqn,
        };
    }
}

/// `ibv_create_srq`. The attributes get the granted sizes: one entry less than the ring has, as one always
/// ends the list.
///
/// # Safety
/// `pd` is null or allocated; `init` is null or valid.
pub(super) unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let (domain, init) = unsafe { (object::share::<Pd>(pd)?, object::attributes(init)?) };
        let ibv_srq_attr { max_wr, max_sge, .. } = init.attr;
        if max_wr >= LIMITS.max_srq_entries || max_sge > LIMITS.max_srq_sge {
            return Err(Errno::INVALID);
        }
        let (entries, stride) = ((max_wr + 1).next_power_of_two(), recv::linked_stride(max_sge));
        let page = page_size();
        let size = (entries as usize * stride as usize).next_multiple_of(page);
        let request = Request { size, alignment: page, resource_type: MLX5DV_RES_TYPE_SRQ };
        let ring = QueueMemory::new(Some(&domain), &request, page)?;
        for entry in 0..entries {
            let link = recv::link((entry + 1) as u16);
            // SAFETY: inside the ring, which the card does not know yet.
            unsafe { ring.start().add(entry as usize * stride as usize).cast::<[u8; 16]>().write(link) };
        }
        let dbrec = QueueMemory::doorbell_record(Some(&domain))?;
        dbrec.clear_record();
        let config = SrqConfig {
            pdn: domain.number(),
            ring: ring.start(),
            entries,
            stride,
            cyclic: false,
            dbrec: dbrec.start().cast(),
            xrc: None,
        };
        // SAFETY: the `Srq` keeps ring and record until the card has destroyed the queue.
        let number = unsafe { domain.context.card().create_srq(&config) }?;
        let ibv = ibv_srq {
            context: object::handle(&domain.context),
            srq_context: init.srq_context,
            pd,
            handle: number,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let (ibv, events) = (CStruct::new(ibv), Arc::<EventSource>::default());
        let srq = Arc::new(Srq { ibv, number, events, entries, stride, ring, dbrec, domain });
        let context = srq.context();
        let sink = Sink { queue: context.events.clone(), source: srq.events.clone() };
        let pointer = ObjectPointer::Srq(object::handle(&srq));
        context.open.routes.add(ObjectNumber::Srq(number), pointer, sink, None);
        init.attr = granted(entries, stride, init.attr.srq_limit);
        Ok(object::into_raw(srq))
    })
}

fn granted(entries: u32, stride: u32, srq_limit: u32) -> ibv_srq_attr {
    ibv_srq_attr { max_wr: entries - 1, max_sge: recv::linked_segments(stride), srq_limit }
}

/// `ibv_destroy_srq`. EBUSY while queue pairs use it; waits until its events are acknowledged.
///
/// # Safety
/// `srq` is null or created.
pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let destroy = |srq: &Arc<Srq>| {
        let open = &srq.context().open;
        open.routes.remove(ObjectNumber::Srq(srq.number), || Ok(open.card.destroy_srq(srq.number)?))
    };
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy(srq, destroy) })
}
