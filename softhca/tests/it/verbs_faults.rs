//! Faults of the whole process, which apply to all its cards.

use crate::verbs_bed::*;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, Opcode, RemoteAddrSeg};
use gdsync_sys::verbs::*;
use gdsync_test_support::process::alone;
use zerocopy::IntoBytes;

#[test]
fn a_plan_is_for_cards_that_run_and_those_to_come_until_it_is_ended() {
    let test = "a_plan_is_for_cards_that_run_and_those_to_come_until_it_is_ended";
    if !alone(module_path!(), test, &[]) {
        return;
    }
    softhca::set_faults(Some("drop nth=1 kind=write times=1; fail=remote-operation nth=3".parse().unwrap()));
    let bed = Bed::new();
    let cq = bed.cq(15);
    let qp = bed.qp(cq);
    connect(qp, qpn(qp), bed.lid());
    let mut memory = vec![0u8; 64].into_boxed_slice();
    let mr = bed.register(&mut memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    // SAFETY: registered.
    let (key, addr) = unsafe { ((*mr).lkey, (*mr).addr as u64) };
    let (rings, entries) = (describe_qp(qp), describe_cq(cq));
    let segments =
        [RemoteAddrSeg::new(addr, key).as_bytes(), DataSeg::new(8, key, addr + 8).as_bytes()].concat();
    let post = |index: u32| {
        let ctrl = CtrlSeg::new(Opcode::RdmaWrite, index as u16, qpn(qp), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
        send(&rings, index, ctrl, &segments);
        completion(&entries, index)
    };
    assert!(!post(0).is_error(), "lost, and sent again");
    let counts: Vec<u64> = softhca::fault_counts().iter().map(|count| count.injected).collect();
    assert_eq!(counts, [1, 0]);
    // The packets so far: the write twice, an acknowledgement, and now the third request.
    let failed = post(1);
    assert_eq!(failed.syndrome(), Ok(Syndrome::RemoteOperation), "{failed}: {:?}", softhca::fault_counts());
    assert_eq!(query(qp).0.qp_state, IBV_QPS_ERR);

    softhca::set_faults(None);
    assert_eq!(softhca::fault_counts(), []);
    let fresh = bed.qp(cq);
    connect(fresh, qpn(fresh), bed.lid());
    let ctrl = CtrlSeg::new(Opcode::RdmaWrite, 0, qpn(fresh), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
    send(&describe_qp(fresh), 0, ctrl, &segments);
    assert!(!completion(&entries, 2).is_error());
    for qp in [qp, fresh] {
        destroy_qp(qp);
    }
    destroy_cq(cq);
    deregister(mr);
    bed.close();
}
