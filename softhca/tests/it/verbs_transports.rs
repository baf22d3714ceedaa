//! Datagrams and unreliable connections through the table of entry points: states, Q_Keys, addresses, and
//! messages by hand.

use crate::verbs_bed::*;
use gdsync_sys::mlx5dv::{self, mlx5dv_ah, mlx5dv_obj};
use gdsync_sys::prm::cqe::CqeOpcode;
use gdsync_sys::prm::wqe::{
    AddressVector, AtomicSeg, CtrlFlags, CtrlSeg, DataSeg, InlineSeg, Opcode, RemoteAddrSeg,
};
use gdsync_sys::verbs::*;
use libc::{EINVAL, c_int};
use std::ptr;
use zerocopy::{FromBytes, IntoBytes};

const ALL_ACCESS: u32 =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
const UD_INIT: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
const UC_RTR: u32 = RTR_MASK & !(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
const TO_RTS: u32 = IBV_QP_STATE | IBV_QP_SQ_PSN;
const QKEY: u32 = 0x1234;

fn of_type(bed: &Bed, cq: *mut ibv_cq, qp_type: c_int) -> *mut ibv_qp {
    let mut attr = ibv_qp_init_attr_ex { qp_type, ..bed.qp_attr(cq, cq) };
    // SAFETY: all that the attributes name is alive.
    let qp = unsafe { (api().mlx5dv_create_qp)(bed.context, &mut attr, ptr::null_mut()) };
    assert!(!qp.is_null(), "errno {}", errno());
    qp
}

fn climb(qp: *mut ibv_qp, lid: u16, steps: [(c_int, u32); 3]) {
    for (state, mask) in steps {
        let attr = ibv_qp_attr { qkey: QKEY, ..attributes(state, qpn(qp), lid) };
        assert_eq!(modify(qp, &attr, mask), 0, "to state {state}");
    }
}

#[test]
fn each_transport_has_its_attributes() {
    let bed = Bed::new();
    let cq = bed.cq(15);
    let (uc, ud, lid) = (of_type(&bed, cq, IBV_QPT_UC), of_type(&bed, cq, IBV_QPT_UD), bed.lid());
    let attempt = |qp, state, mask| modify(qp, &attributes(state, 1, lid), mask);
    assert_eq!(attempt(ud, IBV_QPS_INIT, INIT_MASK), EINVAL, "no Q_Key, and rights");
    assert_eq!(attempt(ud, IBV_QPS_INIT, UD_INIT & !IBV_QP_QKEY), EINVAL);
    assert_eq!(attempt(uc, IBV_QPS_INIT, UD_INIT), EINVAL, "a Q_Key, and no rights");
    climb(ud, lid, [(IBV_QPS_INIT, UD_INIT), (IBV_QPS_RTR, IBV_QP_STATE), (IBV_QPS_RTS, TO_RTS)]);
    assert_eq!(attempt(uc, IBV_QPS_INIT, INIT_MASK), 0);
    assert_eq!(attempt(uc, IBV_QPS_RTR, RTR_MASK), EINVAL, "reads, which it has not");
    assert_eq!(attempt(uc, IBV_QPS_RTR, UC_RTR), 0);
    assert_eq!(attempt(uc, IBV_QPS_RTS, RTS_MASK), EINVAL, "retries, which it has not");
    assert_eq!(attempt(uc, IBV_QPS_RTS, TO_RTS), 0);
    for (qp, qp_type, qkey) in [(uc, IBV_QPT_UC, 0), (ud, IBV_QPT_UD, QKEY)] {
        let (attr, init) = query(qp);
        assert_eq!((attr.qp_state, attr.qkey, init.qp_type), (IBV_QPS_RTS, qkey, qp_type));
    }
    assert_eq!(modify(ud, &ibv_qp_attr { qkey: 9, ..zeroed() }, IBV_QP_QKEY), 0);
    assert_eq!(query(ud).0.qkey, 9);
    [uc, ud].into_iter().for_each(destroy_qp);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn a_datagram_by_hand() {
    let bed = Bed::new();
    let cq = bed.cq(15);
    let ud = of_type(&bed, cq, IBV_QPT_UD);
    climb(ud, bed.lid(), [(IBV_QPS_INIT, UD_INIT), (IBV_QPS_RTR, IBV_QP_STATE), (IBV_QPS_RTS, TO_RTS)]);
    let mut path = ibv_ah_attr { dlid: bed.lid(), port_num: 1, sl: 3, ..Default::default() };
    // SAFETY: the domain is allocated, the attributes valid.
    let ah = unsafe { (api().create_ah)(bed.pd, &mut path) };
    assert!(!ah.is_null(), "errno {}", errno());
    let mut out: mlx5dv_ah = zeroed();
    let mut obj = mlx5dv_obj::default();
    (obj.ah.r#in, obj.ah.out) = (ah, &mut out);
    // SAFETY: the handle is alive; its vector has 48 bytes.
    let vector = unsafe {
        assert_eq!((api().mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_AH), 0);
        out.av.cast::<[u8; 48]>().read()
    };
    let vector = AddressVector::read_from_bytes(&vector).expect("48 bytes are a vector");
    // One block: 16 + 48 bytes, so that the datagram is empty.
    let mut memory = vec![0u8; 64];
    let mr = bed.register(&mut memory, ALL_ACCESS);
    let (rings, entries) = (describe_qp(ud), describe_cq(cq));
    // SAFETY: registered.
    let place = unsafe { DataSeg::new(64, (*mr).lkey, (*mr).addr as u64) };
    receive(&rings, 0, [place, DataSeg::terminator()].as_bytes());
    for (index, qkey) in [(0, QKEY + 1), (1, QKEY)] {
        let to = vector.with_destination(qpn(ud), qkey);
        let ctrl =
            CtrlSeg::new(Opcode::SendImm, index, qpn(ud), 4, CtrlFlags::CQ_UPDATE, [1, 2, 3, index as u8]);
        send(&rings, index.into(), ctrl, to.as_bytes());
    }
    let told = [0, 1, 2].map(|index| completion(&entries, index));
    let arrived: Vec<_> = told.iter().filter(|cqe| cqe.opcode() == Ok(CqeOpcode::RespSendImm)).collect();
    let [arrived] = arrived[..] else { panic!("the one with the other Q_Key is dropped: {told:?}") };
    assert_eq!((arrived.imm(), arrived.byte_count()), ([1, 2, 3, 1], 40));
    assert_eq!((arrived.remote_qpn(), arrived.path().slid), (qpn(ud), bed.lid()));
    assert_eq!((arrived.path().level_or_l3_type, arrived.path().has_grh), (3, false));
    // SAFETY: created, used no more.
    assert_eq!(unsafe { (api().destroy_ah)(ah) }, 0);
    destroy_qp(ud);
    deregister(mr);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn an_unreliable_connection_and_an_atomic_by_hand() {
    let bed = Bed::new();
    let mut memory = vec![0u64; 8];
    memory[0] = 40;
    // SAFETY: the bytes of the numbers, which the card alone uses from here on.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), 64) };
    let mr = bed.register(bytes, ALL_ACCESS);
    // SAFETY: registered.
    let (lkey, rkey, addr) = unsafe { ((*mr).lkey, (*mr).rkey, (*mr).addr as u64) };
    let word = |index: usize| {
        // SAFETY: registered memory, aligned; the card writes it before the completion.
        unsafe { (addr as *const u64).add(index).read_volatile() }
    };

    let (cq, uc_cq) = (bed.cq(15), bed.cq(15));
    let uc = of_type(&bed, uc_cq, IBV_QPT_UC);
    climb(uc, bed.lid(), [(IBV_QPS_INIT, INIT_MASK), (IBV_QPS_RTR, UC_RTR), (IBV_QPS_RTS, TO_RTS)]);
    let mut segments = RemoteAddrSeg::new(addr + 16, rkey).as_bytes().to_vec();
    segments.extend(InlineSeg::new(8).as_bytes());
    segments.extend(7u64.to_ne_bytes());
    segments.resize(32, 0);
    let ctrl = CtrlSeg::new(Opcode::RdmaWrite, 0, qpn(uc), 3, CtrlFlags::CQ_UPDATE, [0; 4]);
    send(&describe_qp(uc), 0, ctrl, &segments);
    assert_eq!(completion(&describe_cq(uc_cq), 0).opcode(), Ok(CqeOpcode::Requester));

    let rc = bed.qp(cq);
    let everything =
        |state| ibv_qp_attr { qp_access_flags: ALL_ACCESS, ..attributes(state, qpn(rc), bed.lid()) };
    for (state, mask) in [(IBV_QPS_INIT, INIT_MASK), (IBV_QPS_RTR, RTR_MASK), (IBV_QPS_RTS, RTS_MASK)] {
        assert_eq!(modify(rc, &everything(state), mask), 0);
    }
    let mut segments = RemoteAddrSeg::new(addr, rkey).as_bytes().to_vec();
    segments.extend(AtomicSeg::new(2, 0).as_bytes());
    segments.extend(DataSeg::new(8, lkey, addr + 8).as_bytes());
    let ctrl = CtrlSeg::new(Opcode::AtomicFa, 0, qpn(rc), 4, CtrlFlags::CQ_UPDATE, [0; 4]);
    send(&describe_qp(rc), 0, ctrl, &segments);
    assert_eq!(completion(&describe_cq(cq), 0).opcode(), Ok(CqeOpcode::Requester));
    assert_eq!((word(0), word(1), word(2)), (42, 40, 7));

    [uc, rc].into_iter().for_each(destroy_qp);
    deregister(mr);
    [cq, uc_cq].into_iter().for_each(destroy_cq);
    bed.close();
}
