//! The state machine of queue pairs, with the attributes that every step requires and refuses.

use crate::verbs_bed::*;
use gdsync_sys::verbs::*;
use libc::c_int;

/// A queue pair in a given state, freshly made.
fn in_state(bed: &Bed, cq: *mut ibv_cq, state: c_int) -> *mut ibv_qp {
    let qp = bed.qp(cq);
    let steps = [(IBV_QPS_INIT, INIT_MASK), (IBV_QPS_RTR, RTR_MASK), (IBV_QPS_RTS, RTS_MASK)];
    match state {
        IBV_QPS_ERR => assert_eq!(modify(qp, &attributes(IBV_QPS_ERR, 0, 0), IBV_QP_STATE), 0),
        _ => {
            for (to, mask) in steps.into_iter().take_while(|(to, _)| *to <= state) {
                assert_eq!(modify(qp, &attributes(to, qpn(qp), bed.lid()), mask), 0);
            }
        }
    }
    assert_eq!(state_of(qp), state);
    qp
}

fn state_of(qp: *mut ibv_qp) -> c_int {
    // SAFETY: alive; the library keeps the field current.
    let kept = unsafe { (*qp).state };
    assert_eq!(query(qp).0.qp_state, kept);
    kept
}

const STATES: [c_int; 5] = [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR];

/// Required and optional attributes of a transition: the kernel's table for RC
/// (`ib_modify_qp_is_ok`), without SQD, SQE and alternate paths.
fn rules(from: c_int, to: c_int) -> Option<(u32, u32)> {
    let basic = INIT_MASK & !IBV_QP_STATE;
    let running = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE;
    match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((basic, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, basic)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            Some((RTR_MASK & !IBV_QP_STATE, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX))
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some((RTS_MASK & !IBV_QP_STATE, running)),
        (IBV_QPS_RTS, IBV_QPS_RTS) => Some((0, running)),
        _ => None,
    }
}

#[test]
fn every_transition_with_every_attribute_missing_or_too_many() {
    let bed = Bed::new();
    let cq = bed.cq(100);
    let all_bits: Vec<u32> = (1..=20).map(|bit| 1 << bit).filter(|bit| *bit != IBV_QP_CUR_STATE).collect();
    for from in STATES {
        for to in STATES {
            let attempt = |mask: u32, expected: c_int| {
                let qp = in_state(&bed, cq, from);
                let answer = modify(qp, &attributes(to, qpn(qp), bed.lid()), IBV_QP_STATE | mask);
                assert_eq!(answer, expected, "{from} -> {to} with {mask:#x}");
                assert_eq!(state_of(qp), if expected == 0 { to } else { from });
                destroy_qp(qp);
            };
            let Some((required, optional)) = rules(from, to) else {
                attempt(0, libc::EINVAL);
                attempt(RTR_MASK, libc::EINVAL);
                attempt(RTS_MASK, libc::EINVAL);
                continue;
            };
            attempt(required, 0);
            for bit in &all_bits {
                if required & bit != 0 {
                    attempt(required & !bit, libc::EINVAL);
                } else if optional & bit != 0 {
                    attempt(required | bit, 0);
                } else {
                    attempt(required | bit, libc::EINVAL);
                }
            }
        }
    }
    destroy_cq(cq);
    bed.close();
}

#[test]
fn values_states_and_bits_that_do_not_exist() {
    let bed = Bed::new();
    let cq = bed.cq(10);
    let lid = bed.lid();
    let good = attributes(0, 0x40, lid);
    let address = |change: fn(&mut ibv_ah_attr)| {
        let mut attr = good;
        change(&mut attr.ah_attr);
        attr
    };
    let (reset, init, rtr) = (IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR);
    let cases: Vec<(&str, c_int, u32, ibv_qp_attr, c_int)> = vec![
        ("port", reset, INIT_MASK, ibv_qp_attr { port_num: 2, ..good }, libc::EINVAL),
        ("no port", reset, INIT_MASK, ibv_qp_attr { port_num: 0, ..good }, libc::EINVAL),
        ("partition", reset, INIT_MASK, ibv_qp_attr { pkey_index: 1, ..good }, libc::EINVAL),
        ("rights", reset, INIT_MASK, ibv_qp_attr { qp_access_flags: 1 << 30, ..good }, libc::EINVAL),
        ("MTU", init, RTR_MASK, ibv_qp_attr { path_mtu: 6, ..good }, libc::EINVAL),
        ("number", init, RTR_MASK, ibv_qp_attr { dest_qp_num: 1 << 24, ..good }, libc::EINVAL),
        ("receive PSN", init, RTR_MASK, ibv_qp_attr { rq_psn: 1 << 24, ..good }, libc::EINVAL),
        ("target reads", init, RTR_MASK, ibv_qp_attr { max_dest_rd_atomic: 17, ..good }, libc::EINVAL),
        ("RNR timer", init, RTR_MASK, ibv_qp_attr { min_rnr_timer: 32, ..good }, libc::EINVAL),
        ("path port", init, RTR_MASK, address(|path| path.port_num = 0), libc::EINVAL),
        ("level", init, RTR_MASK, address(|path| path.sl = 16), libc::EINVAL),
        ("path bits", init, RTR_MASK, address(|path| path.src_path_bits = 128), libc::EINVAL),
        (
            "source GID",
            init,
            RTR_MASK,
            address(|path| (path.is_global, path.grh.sgid_index) = (1, 1)),
            libc::EINVAL,
        ),
        (
            "flow",
            init,
            RTR_MASK,
            address(|path| (path.is_global, path.grh.flow_label) = (1, 1 << 20)),
            libc::EINVAL,
        ),
        ("timeout", rtr, RTS_MASK, ibv_qp_attr { timeout: 32, ..good }, libc::EINVAL),
        ("retries", rtr, RTS_MASK, ibv_qp_attr { retry_cnt: 8, ..good }, libc::EINVAL),
        ("RNR retries", rtr, RTS_MASK, ibv_qp_attr { rnr_retry: 8, ..good }, libc::EINVAL),
        ("send PSN", rtr, RTS_MASK, ibv_qp_attr { sq_psn: 1 << 24, ..good }, libc::EINVAL),
        ("reads", rtr, RTS_MASK, ibv_qp_attr { max_rd_atomic: 17, ..good }, libc::EINVAL),
    ];
    for (name, from, mask, attr, expected) in cases {
        let qp = in_state(&bed, cq, from);
        clear_errno();
        assert_eq!(modify(qp, &ibv_qp_attr { qp_state: from + 1, ..attr }, mask), expected, "{name}");
        assert_eq!((errno(), state_of(qp)), (expected, from), "{name}");
        destroy_qp(qp);
    }
    let qp = in_state(&bed, cq, reset);
    let to = |state| ibv_qp_attr { qp_state: state, ..good };
    for state in [-1, 5, 7, c_int::MAX] {
        assert_eq!(modify(qp, &to(state), IBV_QP_STATE), libc::EINVAL, "state {state}");
    }
    assert_eq!(modify(qp, &to(IBV_QPS_SQD), IBV_QP_STATE), libc::EOPNOTSUPP);
    for bit in (21..32).map(|bit| 1u32 << bit) {
        assert_eq!(modify(qp, &to(IBV_QPS_INIT), INIT_MASK | bit), libc::EINVAL, "bit {bit:#x}");
    }
    let believed = ibv_qp_attr { cur_qp_state: IBV_QPS_RTS, ..to(IBV_QPS_ERR) };
    assert_eq!(
        modify(qp, &believed, IBV_QP_STATE | IBV_QP_CUR_STATE),
        libc::EINVAL,
        "not the state that it is in"
    );
    assert_eq!(state_of(qp), reset);
    destroy_qp(qp);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn a_query_tells_what_was_set() {
    let bed = Bed::new();
    let cq = bed.cq(10);
    let qp = bed.qp(cq);
    let lid = bed.lid();
    connect(qp, 0x4242, lid);
    let (now, _) = query(qp);
    assert_eq!((now.qp_state, now.cur_qp_state), (IBV_QPS_RTS, IBV_QPS_RTS));
    assert_eq!((now.dest_qp_num, now.rq_psn, now.sq_psn), (0x4242, 0x123, 0x123));
    assert_eq!((now.ah_attr.dlid, now.ah_attr.port_num, now.port_num), (lid, 1, 1));
    assert_eq!((now.path_mtu, now.min_rnr_timer, now.timeout), (IBV_MTU_4096, 12, 14));
    assert_eq!((now.retry_cnt, now.rnr_retry, now.max_rd_atomic, now.max_dest_rd_atomic), (7, 7, 4, 4));
    assert_eq!(
        now.qp_access_flags,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
    );

    // RESET clears the doorbell records.
    let records = describe_qp(qp).dbrec.cast::<[u32; 2]>();
    // SAFETY: the queue pair's two records.
    unsafe { records.write([5u32.to_be(), 0]) };
    assert_eq!(modify(qp, &attributes(IBV_QPS_RESET, 0, 0), IBV_QP_STATE), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { records.read() }, [0, 0]);
    let (now, _) = query(qp);
    assert_eq!((now.qp_state, now.port_num, now.ah_attr.dlid), (IBV_QPS_RESET, 0, 0));
    connect(qp, 0x4242, lid);
    destroy_qp(qp);
    destroy_cq(cq);
    bed.close();
}
