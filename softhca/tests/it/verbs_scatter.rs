//! Small data inside completion entries, as queue pairs are created.

use crate::verbs_bed::*;
use gdsync_sys::mlx5dv::*;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, Opcode, RemoteAddrSeg};
use gdsync_sys::verbs::*;
use zerocopy::IntoBytes;

/// Returns whether a small receive and a small read are in the completion entries of a queue pair with such
/// flags, or in memory.
fn inside(qp_type: i32, create_flags: u32, signal_all: bool) -> (bool, Option<bool>) {
    let bed = Bed::new();
    let (send_cq, recv_cq) = (bed.cq(15), bed.cq(15));
    let make = || {
        let mut attr =
            ibv_qp_init_attr_ex { qp_type, sq_sig_all: signal_all.into(), ..bed.qp_attr(send_cq, recv_cq) };
        let mut mlx5 = mlx5dv_qp_init_attr {
            comp_mask: MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
            create_flags,
            ..Default::default()
        };
        // SAFETY: all that the attributes name is alive.
        let qp = unsafe { (api().mlx5dv_create_qp)(bed.context, &mut attr, &mut mlx5) };
        assert!(!qp.is_null(), "errno {}", errno());
        qp
    };
    let (left, right) = (make(), make());
    let is_reliable = qp_type == IBV_QPT_RC;
    for (qp, peer) in [(left, right), (right, left)] {
        let unreliable =
            (RTR_MASK & !(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), IBV_QP_STATE | IBV_QP_SQ_PSN);
        let (rtr, rts) = if is_reliable { (RTR_MASK, RTS_MASK) } else { unreliable };
        for (state, mask) in [(IBV_QPS_INIT, INIT_MASK), (IBV_QPS_RTR, rtr), (IBV_QPS_RTS, rts)] {
            let mut attr = attributes(state, qpn(peer), bed.lid());
            if !is_reliable {
                attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
            }
            assert_eq!(modify(qp, &attr, mask), 0, "to state {state}");
        }
    }
    let mut memory = vec![0u8; 128].into_boxed_slice();
    memory[..32].fill(0x5a);
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    let mr = bed.register(&mut memory, access);
    // SAFETY: registered.
    let (key, addr) = unsafe { ((*mr).lkey, (*mr).addr as u64) };
    // SAFETY: the card has completed its writes there.
    let has = |at: usize| unsafe { memory.as_ptr().add(at).cast::<[u8; 24]>().read_volatile() } == [0x5a; 24];

    let (rings, peer_rings) = (describe_qp(left), describe_qp(right));
    let (sends, receives) = (describe_cq(send_cq), describe_cq(recv_cq));
    let place = [DataSeg::new(24, key, addr + 32), DataSeg::terminator()];
    receive(&peer_rings, 0, place.as_bytes());
    let ctrl = CtrlSeg::new(Opcode::Send, 0, qpn(left), 2, CtrlFlags::CQ_UPDATE, [0; 4]);
    send(&rings, 0, ctrl, DataSeg::new(24, key, addr).as_bytes());
    completion(&sends, 0);
    let received = completion(&receives, 0);
    assert_ne!(received.data() == Some(&[0x5a; 24]), has(32));
    let result = is_reliable.then(|| {
        let ctrl = CtrlSeg::new(Opcode::RdmaRead, 1, qpn(left), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
        let remote = RemoteAddrSeg::new(addr, key);
        let place = DataSeg::new(24, key, addr + 64);
        send(&rings, 1, ctrl, &[remote.as_bytes(), place.as_bytes()].concat());
        let read = completion(&sends, 1);
        assert_ne!(read.data() == Some(&[0x5a; 24]), has(64));
        read.data().is_some()
    });
    [left, right].into_iter().for_each(destroy_qp);
    [send_cq, recv_cq].into_iter().for_each(destroy_cq);
    deregister(mr);
    bed.close();
    (received.data().is_some(), result)
}

#[test]
fn a_queue_pair_has_it_as_libmlx5_would_ask_for_it() {
    let (disable, allow) = (MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE);
    assert_eq!(inside(IBV_QPT_RC, 0, false), (true, Some(false)));
    assert_eq!(inside(IBV_QPT_RC, 0, true), (true, Some(true)));
    assert_eq!(inside(IBV_QPT_RC, allow, false), (true, Some(true)));
    assert_eq!(inside(IBV_QPT_RC, disable, true), (false, Some(false)));
    assert_eq!(inside(IBV_QPT_UC, 0, true), (true, None));
    assert_eq!(inside(IBV_QPT_UC, disable, true), (false, None));
}
