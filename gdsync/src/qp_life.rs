//! The beginning and the end of a queue pair: its attributes, what the provider says of its memory, and what goes with it.

use crate::cq::{CompletionQueueInner, QueueDomain};
use crate::error::Error;
use crate::qp::QueuePairInner;
use crate::qp_options::QueuePairConfig;
use crate::transport::Transport;
use crate::verbs_call;
use gdsync_sys::mlx5dv::{self, mlx5dv_obj, mlx5dv_qp};
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use gdsync_sys::verbs::{self, ibv_qp, ibv_qp_cap, ibv_qp_init_attr_ex};
use std::cmp::Ordering;
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) fn init_attr(
    config: &QueuePairConfig,
    domain: &QueueDomain,
    send_cq: &CompletionQueueInner,
    recv_cq: &CompletionQueueInner,
) -> ibv_qp_init_attr_ex {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    attr.send_cq = send_cq.raw();
    attr.recv_cq = recv_cq.raw();
    attr.cap = ibv_qp_cap {
        max_send_wr: config.send_depth.max(1),
        max_recv_wr: config.recv_depth.max(1),
        max_send_sge: config.send_segments.max(1),
        max_recv_sge: config.recv_segments.max(1),
        max_inline_data: config.inline,
    };
    attr.qp_type = config.transport.code();
    attr.comp_mask = verbs::IBV_QP_INIT_ATTR_PD;
    attr.pd = domain.raw();
    attr
}

/// The provider's refusal of a queue pair: of a transport that it does not have, by name.
pub(crate) fn refusal(error: Error, domain: &QueueDomain, transport: Transport) -> Error {
    match &error {
        Error::Verbs { source, .. } if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Error::NoTransport { device: domain.pd.device.name().to_owned(), transport }
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
    verbs_call::status("mlx5dv_init_obj", rc, || "queue pair".to_owned())?;
    let bad = |what, value: u32| Err(Error::Layout { what, value: value.into() });
    if out.sq.stride as usize != BASIC_BLOCK {
        return bad("send queue stride", out.sq.stride);
    }
    if !out.sq.wqe_cnt.is_power_of_two() {
        return bad("send queue blocks", out.sq.wqe_cnt);
    }
    if !out.rq.wqe_cnt.is_power_of_two() {
        return bad("receive queue entries", out.rq.wqe_cnt);
    }
    if out.rq.stride == 0 || !out.rq.stride.is_multiple_of(16) {
        return bad("receive queue stride", out.rq.stride);
    }
    Ok(out)
}

/// Destroys a queue pair whose construction did not get to its end.
pub(crate) struct DestroyQp<'a> {
    pub(crate) raw: NonNull<ibv_qp>,
    pub(crate) domain: &'a QueueDomain,
}

impl Drop for DestroyQp<'_> {
    fn drop(&mut self) {
        // SAFETY: created by us and not handed to anybody.
        verbs_call::on_drop("ibv_destroy_qp", unsafe {
            (self.domain.pd.device.api.destroy_qp)(self.raw.as_ptr())
        });
    }
}

impl Drop for QueuePairInner {
    fn drop(&mut self) {
        // Locked before the number may come again: nobody takes this queue pair's entries for another's. Of two queues, in the
        // order of their addresses, as another queue pair may have them the other way round.
        let (first, second) = match Arc::as_ptr(&self.send_cq).cmp(&Arc::as_ptr(&self.recv_cq)) {
            Ordering::Less => (&self.send_cq, Some(&self.recv_cq)),
            Ordering::Equal => (&self.send_cq, None),
            Ordering::Greater => (&self.recv_cq, Some(&self.send_cq)),
        };
        let mut states = [Some((first, first.lock())), second.map(|queue| (queue, queue.lock()))];
        // SAFETY: created by us; every prepared send and batch in flight holds an `Arc` of this, so none is left. After this
        // call the card touches neither the rings nor the memory that work requests name; fields drop afterwards.
        verbs_call::on_drop("ibv_destroy_qp", unsafe {
            (self.domain.pd.device.api.destroy_qp)(self.raw.as_ptr())
        });
        let (sends, receives) = (self.send.get_mut().outstanding(), self.recv.get_mut().outstanding());
        for (queue, state) in states.iter_mut().flatten() {
            if Arc::ptr_eq(queue, &self.send_cq) {
                (0..sends.entries).for_each(|i| state.unreserve(i < sends.signaled));
            }
            if Arc::ptr_eq(queue, &self.recv_cq) {
                (0..receives).for_each(|_| state.unreserve(true));
            }
            queue.detach(state, self.number());
        }
    }
}
