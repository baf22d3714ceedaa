use super::*;
use proptest::prelude::*;

#[test]
fn control_segment_bytes() {
    // mlx5dv.h, struct mlx5_wqe_ctrl_seg: opmod<<24 | index<<8 | opcode; qpn<<8 | ds; signature, stream, fm_ce_se;
    // imm.
    let flags = CtrlFlags::CQ_UPDATE | CtrlFlags::SOLICITED | CtrlFlags::FENCE;
    let ctrl = CtrlSeg::new(Opcode::SendImm, 0x1234, 0xabcdef, 0x3f, flags, [1, 2, 3, 4]);
    let bytes = [0x00, 0x12, 0x34, 0x0b, 0xab, 0xcd, 0xef, 0x3f, 0, 0, 0, 0x8a, 1, 2, 3, 4];
    assert_eq!(ctrl.as_bytes(), bytes);
    assert_eq!(ctrl.doorbell().to_ne_bytes(), bytes[..8]);
    assert_eq!((ctrl.completion_mode(), ctrl.fence_mode(), ctrl.opmod()), (2, 4, 0));
    let modified = ctrl.with_opmod(0xff).with_opmod(2);
    assert_eq!((modified.as_bytes()[0], &modified.as_bytes()[1..]), (2, &bytes[1..]));
    assert_eq!(ctrl.to_string(), "SendImm index 4660 qpn 0xabcdef ds 63 flags 0x8a");
}

#[test]
fn unknown_opcodes_keep_their_value() {
    let ctrl = CtrlSeg::read_from_bytes(&[9, 0, 1, 0x77, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(ctrl.opcode(), Err(UnknownCode { what: "WQE opcode", code: 0x77 }));
    assert_eq!((ctrl.opmod(), ctrl.index()), (9, 1));
    assert!(ctrl.to_string().starts_with("opcode 0x77"));
}

#[test]
fn opcodes_are_those_of_the_header() {
    // mlx5dv.h, MLX5_OPCODE_*; WAIT, SEND_EN and DUMP from the PRM.
    let codes: Vec<u8> = Opcode::ALL.iter().map(|opcode| *opcode as u8).collect();
    let expected =
        [0, 1, 8, 9, 0xa, 0xb, 0xe, 0xf, 0x10, 0x11, 0x12, 0x14, 0x15, 0x17, 0x19, 0x1b, 0x23, 0x25, 0x2f];
    assert_eq!(codes, expected);
}

#[test]
fn address_data_inline_and_atomic_bytes() {
    // mlx5dv.h, structs mlx5_wqe_raddr_seg, mlx5_wqe_data_seg, mlx5_wqe_inl_data_seg, mlx5_wqe_atomic_seg.
    let raddr = RemoteAddrSeg::new(0x0102_0304_0506_0708, 0x1112_1314);
    assert_eq!(raddr.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 0]);
    let data = DataSeg::new(0x2122_2324, 0x3132_3334, 0x4142_4344_4546_4748);
    let bytes =
        [0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48];
    assert_eq!(data.as_bytes(), bytes);
    assert_eq!(DataSeg::terminator().as_bytes(), [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(DataSeg::terminator().is_terminator() && !data.is_terminator());
    assert_eq!(InlineSeg::new(28).as_bytes(), [0x80, 0, 0, 28]);
    assert!(InlineSeg::is_inline([0x80, 0, 0, 28]) && !InlineSeg::is_inline([0, 0, 0, 28]));
    assert_eq!(AtomicSeg::new(1, 2).as_bytes(), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
}

#[test]
fn segments_print_on_one_line() {
    assert_eq!(RemoteAddrSeg::new(0x1000, 0x22).to_string(), "remote 0x1000 rkey 0x22");
    assert_eq!(DataSeg::new(8, 0x33, 0x2000).to_string(), "data 0x2000 lkey 0x33 bytes 8");
    assert_eq!(DataSeg::terminator().to_string(), "end of list");
    assert_eq!(InlineSeg::new(28).to_string(), "inline bytes 28");
    assert_eq!(AtomicSeg::new(0x10, 0x20).to_string(), "atomic swap/add 0x10 compare 0x20");
}

proptest! {
    #[test]
    fn control_segments_round_trip(opcode in proptest::sample::select(Opcode::ALL), index: u16, qpn in 0u32..1 << 24,
                                   ds in 0u8..64, flags: u8, imm: [u8; 4]) {
        let flags = CtrlFlags::from_bits_retain(flags);
        let ctrl = CtrlSeg::new(opcode, index, qpn, ds, flags, imm);
        prop_assert_eq!(ctrl.opcode(), Ok(opcode));
        prop_assert_eq!((ctrl.index(), ctrl.qpn(), ctrl.ds()), (index, qpn, ds));
        prop_assert_eq!((ctrl.flags(), ctrl.imm()), (flags, imm));
    }

    #[test]
    fn any_bytes_are_a_control_segment(bytes: [u8; 16]) {
        let ctrl = CtrlSeg::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(ctrl.as_bytes(), bytes);
        prop_assert!(!ctrl.to_string().is_empty());
    }

    #[test]
    fn segments_round_trip(a: u64, b: u64, c: u32, d: u32) {
        let raddr = RemoteAddrSeg::new(a, c);
        prop_assert_eq!((raddr.addr(), raddr.rkey()), (a, c));
        let data = DataSeg::new(c, d, a);
        prop_assert_eq!((data.byte_count(), data.lkey(), data.addr()), (c, d, a));
        let atomic = AtomicSeg::new(a, b);
        prop_assert_eq!((atomic.swap_add(), atomic.compare()), (a, b));
        prop_assert_eq!(InlineSeg::new(c).byte_count(), c & 0x7fff_ffff);
    }
}
