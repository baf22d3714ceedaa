//! Shared receive queues through the table of entry points.

use crate::verbs_bed::*;
use gdsync_sys::mlx5dv::{MLX5DV_OBJ_SRQ, MLX5DV_SRQ_MASK_SRQN, mlx5dv_obj, mlx5dv_srq};
use gdsync_sys::prm::cqe::CqeOpcode;
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode};
use gdsync_sys::verbs::*;
use libc::{EBUSY, EINVAL, c_int};
use std::ptr;

fn init(max_wr: u32, max_sge: u32) -> ibv_srq_init_attr {
    let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
    ibv_srq_init_attr { srq_context: 9 as _, attr }
}

fn create(bed: &Bed, max_wr: u32, max_sge: u32) -> (*mut ibv_srq, ibv_srq_attr) {
    let mut init = init(max_wr, max_sge);
    // SAFETY: the domain is alive.
    let srq = unsafe { (api().create_srq)(bed.pd, &mut init) };
    assert!(!srq.is_null(), "errno {}", errno());
    (srq, init.attr)
}

fn describe(srq: *mut ibv_srq, comp_mask: u64) -> mlx5dv_srq {
    let mut out = mlx5dv_srq { comp_mask, ..zeroed() };
    let mut obj = mlx5dv_obj::default();
    (obj.srq.r#in, obj.srq.out) = (srq, &mut out);
    // SAFETY: the queue is alive.
    assert_eq!(unsafe { (api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_SRQ) }, 0);
    out
}

fn destroy(srq: *mut ibv_srq) -> c_int {
    // SAFETY: created, or null.
    unsafe { (api().destroy_srq)(srq) }
}

#[test]
fn a_queue_is_laid_out_as_libmlx5_lays_it_out() {
    let bed = Bed::new();
    let (srq, granted) = create(&bed, 8, 4);
    assert_eq!((granted.max_wr, granted.max_sge), (15, 7), "16 entries of 128 bytes, one of them spare");
    let layout = describe(srq, MLX5DV_SRQ_MASK_SRQN);
    assert_eq!((layout.stride, layout.head, layout.tail), (128, 0, 15));
    assert!(layout.comp_mask == MLX5DV_SRQ_MASK_SRQN && layout.srqn != 0);
    assert_eq!(
        (describe(srq, 0).srqn, describe(srq, 1 << 9).comp_mask),
        (0, 0),
        "the number is given if asked for"
    );
    for entry in 0..15u16 {
        // SAFETY: inside the ring.
        let link = unsafe { layout.buf.cast::<[u8; 16]>().byte_add(usize::from(entry) * 128).read() };
        assert_eq!(link, recv::link(entry + 1));
    }
    // SAFETY: alive.
    assert_eq!(unsafe { (*srq).srq_context }, 9 as _);
    assert_eq!(destroy(srq), 0);
    bed.close();
}

#[test]
fn queue_pairs_take_from_it_and_keep_it() {
    let bed = Bed::new();
    let (srq, _) = create(&bed, 3, 1);
    let cq = bed.cq(15);
    let mut attr = ibv_qp_init_attr_ex { srq, ..bed.qp_attr(cq, cq) };
    // SAFETY: all that the attributes name is alive.
    let qp = unsafe { (api().mlx5dv_create_qp)(bed.context, &mut attr, ptr::null_mut()) };
    assert!(!qp.is_null(), "errno {}", errno());
    assert_eq!((attr.cap.max_recv_wr, describe_qp(qp).rq.wqe_cnt), (0, 0), "no receive queue of its own");
    assert_eq!((query(qp).1.srq, destroy(srq)), (srq, EBUSY));
    connect(qp, qpn(qp), bed.lid());
    let layout = describe(srq, 0);
    // SAFETY: the queue's record: one receive without a segment, as the ring was zeroed but for links.
    unsafe { layout.dbrec.write_volatile(1u32.to_be()) };
    let ctrl = CtrlSeg::new(Opcode::Send, 0, qpn(qp), 1, CtrlFlags::empty(), [0; 4]);
    send(&describe_qp(qp), 0, ctrl, &[]);
    let arrived = completion(&describe_cq(cq), 0);
    assert_eq!(
        (arrived.opcode(), arrived.wqe_counter(), arrived.qpn()),
        (Ok(CqeOpcode::RespSend), 0, qpn(qp))
    );
    destroy_qp(qp);
    assert_eq!(destroy(srq), 0);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn bad_queues_are_refused() {
    let (bed, other) = (Bed::new(), Bed::new());
    let refused = |pd, mut init: ibv_srq_init_attr| {
        clear_errno();
        // SAFETY: the domain is alive or null.
        assert!(unsafe { (api().create_srq)(pd, &mut init) }.is_null());
        errno()
    };
    assert_eq!(refused(ptr::null_mut(), init(1, 1)), EINVAL);
    assert_eq!(refused(bed.pd, init(1 << 15, 1)), EINVAL);
    assert_eq!(refused(bed.pd, init(u32::MAX, 1)), EINVAL);
    assert_eq!(refused(bed.pd, init(1, 64)), EINVAL);
    assert_eq!(destroy(ptr::null_mut()), EINVAL);
    let (srq, _) = create(&bed, 1, 1);
    let cq = other.cq(15);
    let mut attr = ibv_qp_init_attr_ex { srq, ..other.qp_attr(cq, cq) };
    clear_errno();
    // SAFETY: all that the attributes name is alive.
    assert!(unsafe { (api().mlx5dv_create_qp)(other.context, &mut attr, ptr::null_mut()) }.is_null());
    assert_eq!(errno(), EINVAL, "the queue of another context");
    destroy_cq(cq);
    assert_eq!(destroy(srq), 0);
    bed.close();
    other.close();
}
