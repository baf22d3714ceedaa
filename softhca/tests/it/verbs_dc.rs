//! Dynamically connected transport through the table of entry points: attributes of creation, the states of
//! both sides, and a message by hand.

use crate::verbs_bed::*;
use crate::verbs_errors::refused;
use gdsync_sys::mlx5dv::*;
use gdsync_sys::prm::cqe::CqeOpcode;
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::{AddressFields, AddressVector, CtrlFlags, CtrlSeg, DataSeg, Opcode};
use gdsync_sys::verbs::*;
use libc::EINVAL;
use std::ptr;
use zerocopy::IntoBytes;

const KEY: u64 = 0x1122_3344_5566_7788;
const PORT: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
const TO_RTR: u32 = IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV;
const TO_RTS: u32 = IBV_QP_STATE
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_SQ_PSN;

fn side(dc_type: u32) -> mlx5dv_qp_init_attr {
    mlx5dv_qp_init_attr {
        comp_mask: MLX5DV_QP_INIT_ATTR_MASK_DC | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        create_flags: MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
        dc_init_attr: mlx5dv_dc_init_attr { dc_type, dct_access_key: KEY },
        ..Default::default()
    }
}

fn create(bed: &Bed, attr: &ibv_qp_init_attr_ex, mut side: mlx5dv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: all that the attributes name is alive.
    unsafe { (api().mlx5dv_create_qp)(bed.context, &mut { *attr }, &mut side) }
}

fn shared_queue(bed: &Bed) -> (*mut ibv_srq, mlx5dv_srq) {
    let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
    // SAFETY: the domain is alive.
    let srq = unsafe { (api().create_srq)(bed.pd, &mut init) };
    assert!(!srq.is_null(), "errno {}", errno());
    let mut out = zeroed();
    let mut obj = mlx5dv_obj::default();
    (obj.srq.r#in, obj.srq.out) = (srq, &mut out);
    // SAFETY: the queue is alive.
    assert_eq!(unsafe { (api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_SRQ) }, 0);
    (srq, out)
}

#[test]
fn a_message_from_an_initiator_to_a_target_by_hand() {
    let bed = Bed::new();
    let (sends, receives) = (bed.cq(15), bed.cq(15));
    let (srq, ring) = shared_queue(&bed);
    let driver = |cq| ibv_qp_init_attr_ex { qp_type: IBV_QPT_DRIVER, ..bed.qp_attr(cq, cq) };
    let initiator = create(&bed, &driver(sends), side(MLX5DV_DCTYPE_DCI));
    let target = create(&bed, &ibv_qp_init_attr_ex { srq, ..driver(receives) }, side(MLX5DV_DCTYPE_DCT));
    assert!(!initiator.is_null() && !target.is_null(), "errno {}", errno());
    let lid = bed.lid();
    let climb = |qp, state, mask| modify(qp, &attributes(state, 0, lid), mask);
    assert_eq!(climb(initiator, IBV_QPS_INIT, INIT_MASK), EINVAL, "rights, which it does not give");
    assert_eq!(climb(target, IBV_QPS_INIT, PORT), EINVAL, "no rights");
    assert_eq!(climb(initiator, IBV_QPS_INIT, PORT), 0);
    assert_eq!(climb(target, IBV_QPS_INIT, INIT_MASK), 0);
    assert_eq!(climb(target, IBV_QPS_RTR, TO_RTR), EINVAL, "no RNR timer");
    assert_eq!(climb(initiator, IBV_QPS_RTR, TO_RTR), 0);
    assert_eq!(climb(target, IBV_QPS_RTR, TO_RTR | IBV_QP_MIN_RNR_TIMER), 0);
    assert_eq!(climb(initiator, IBV_QPS_RTS, TO_RTS), 0);
    assert_eq!(climb(target, IBV_QPS_ERR, IBV_QP_STATE), EINVAL, "a target is destroyed instead");
    assert_eq!((query(initiator).0.qp_state, query(target).0.qp_state), (IBV_QPS_RTS, IBV_QPS_RTR));

    let mut memory = vec![0u8; 64];
    let mr = bed.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: registered.
    let place = unsafe { DataSeg::new(64, (*mr).lkey, (*mr).addr as u64) };
    let entry = [&recv::link(1)[..], place.as_bytes()].concat();
    // SAFETY: inside the ring and its record; the card reads the entry after the record covers it.
    unsafe {
        ring.buf.cast::<u8>().copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        ring.dbrec.write_volatile(1u32.to_be());
    }
    let fields = AddressFields { qpn: qpn(target), dlid: lid, ..AddressFields::default() };
    let vector = AddressVector::new(&fields).with_dc_key(KEY);
    // One block: 16 + 48 bytes, so that the message is empty.
    let ctrl = CtrlSeg::new(Opcode::SendImm, 0, qpn(initiator), 4, CtrlFlags::CQ_UPDATE, [1, 2, 3, 4]);
    send(&describe_qp(initiator), 0, ctrl, vector.as_bytes());
    let arrived = completion(&describe_cq(receives), 0);
    assert_eq!((arrived.opcode(), arrived.imm()), (Ok(CqeOpcode::RespSendImm), [1, 2, 3, 4]));
    assert_eq!((arrived.qpn(), arrived.remote_qpn()), (qpn(target), qpn(initiator)));
    assert_eq!(completion(&describe_cq(sends), 0).opcode(), Ok(CqeOpcode::Requester));
    [initiator, target].into_iter().for_each(destroy_qp);
    deregister(mr);
    // SAFETY: created, used no more.
    assert_eq!(unsafe { (api().destroy_srq)(srq) }, 0);
    [sends, receives].into_iter().for_each(destroy_cq);
    bed.close();
}

#[test]
fn what_neither_side_can_be() {
    let bed = Bed::new();
    let cq = bed.cq(15);
    let (srq, _) = shared_queue(&bed);
    let driver = ibv_qp_init_attr_ex { qp_type: IBV_QPT_DRIVER, ..bed.qp_attr(cq, cq) };
    let with_receives = ibv_qp_init_attr_ex { srq, ..driver };
    let (initiator, target) = (side(MLX5DV_DCTYPE_DCI), side(MLX5DV_DCTYPE_DCT));
    let cases = [
        ("no side", driver, mlx5dv_qp_init_attr::default()),
        ("an unknown side", driver, side(3)),
        ("RC", bed.qp_attr(cq, cq), initiator),
        ("an initiator that takes receives", with_receives, initiator),
        ("a target without receives", driver, target),
    ];
    for (what, attr, side) in cases {
        refused(what, EINVAL, || create(&bed, &attr, side));
    }
    let qp = create(&bed, &with_receives, target);
    let (mut out, mut obj) = (zeroed(), mlx5dv_obj::default());
    (obj.qp.r#in, obj.qp.out) = (qp, &mut out);
    // SAFETY: alive.
    assert_eq!(unsafe { (api().mlx5dv_init_obj)(&mut obj, MLX5DV_OBJ_QP) }, EINVAL, "it has no rings");
    destroy_qp(qp);
    // SAFETY: created, used no more.
    assert_eq!(unsafe { (api().destroy_srq)(srq) }, 0);
    destroy_cq(cq);
    bed.close();
}
