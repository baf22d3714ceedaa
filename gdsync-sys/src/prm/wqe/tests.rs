use super::*;
use proptest::prelude::*;

#[test]
fn control_segment_bytes() {
    // mlx5dv.h, struct mlx5_wqe_ctrl_seg: opmod<<24 | index<<8 | opcode; qpn<<8 | ds; signature, stream, fm_ce_se; imm.
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

#[test]
fn address_vector_bytes() {
    // mlx5dv.h, struct mlx5_wqe_av; libmlx5 sets bit 31 of dqp_dct and bit 30 of grh_gid_fl.
    let grh =
        GrhFields { traffic_class: 7, hop_limit: 64, gid_index: 3, flow_label: 0x12345, gid: [0xee; 16] };
    let fields = AddressFields {
        qkey: 0x1111_2222,
        qpn: 0x33_4455,
        static_rate: 2,
        service_level: 5,
        path_bits: 1,
        dlid: 0x6677,
        mac: [1, 2, 3, 4, 5, 6],
        grh: Some(grh),
    };
    let vector = AddressVector::new(&fields);
    let mut bytes = vec![0x11, 0x11, 0x22, 0x22, 0, 0, 0, 0, 0x80, 0x33, 0x44, 0x55, 0x25, 0x01, 0x66, 0x77];
    bytes.extend([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 64, 0x40, 0x31, 0x23, 0x45]);
    bytes.extend([0xee; 16]);
    assert_eq!(vector.as_bytes(), bytes);
    assert_eq!(vector.fields(), fields);
    assert!(vector.is_extended());
    // On RoCE the route's bit is 0 although its fields are valid.
    bytes[28] = 0;
    let roce = AddressVector::read_from_bytes(&bytes).unwrap();
    assert_eq!((roce.fields().grh, roce.route()), (None, grh));
    bytes[8] = 0;
    assert!(!AddressVector::read_from_bytes(&bytes).unwrap().is_extended());
    let other = vector.with_destination(0xff0b_0c0d, 0x44);
    assert_eq!(other.fields(), AddressFields { qpn: 0x0b_0c0d, qkey: 0x44, ..fields });
    assert!(AddressVector::read_from_bytes(&[0; 48]).unwrap().with_destination(1, 2).is_extended());
    let local = AddressFields { grh: None, ..fields };
    assert_eq!(AddressVector::new(&local).fields(), local);
}

#[test]
fn an_access_key_takes_the_first_8_bytes() {
    // mlx5dv.h, struct mlx5_wqe_av: `dc_key` shares a union with the Q_Key and the word after it.
    let vector = AddressVector::new(&AddressFields { dlid: 7, ..AddressFields::default() });
    let vector = vector.with_destination(0x12_3456, 0).with_dc_key(0x0102_0304_0506_0708);
    assert_eq!(vector.as_bytes()[..16], [1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x12, 0x34, 0x56, 0, 0, 0, 7]);
    assert_eq!((vector.dc_key(), vector.fields().qpn), (0x0102_0304_0506_0708, 0x12_3456));
    assert!(vector.is_extended());
}

#[test]
fn a_vector_prints_on_one_line() {
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[15] = 1;
    let grh = GrhFields { gid, ..GrhFields::default() };
    let fields = AddressFields { qpn: 0x11, qkey: 0x22, dlid: 3, service_level: 4, ..Default::default() };
    assert_eq!(AddressVector::new(&fields).to_string(), "to qpn 0x11 qkey 0x22 lid 3 sl 4");
    let global = AddressVector::new(&AddressFields { grh: Some(grh), ..fields });
    assert_eq!(global.to_string(), "to qpn 0x11 qkey 0x22 lid 3 sl 4 gid fe80::1");
}

proptest! {
    #[test]
    fn vectors_round_trip(qkey: u32, qpn in 0u32..1 << 24, rate in 0u8..16, level in 0u8..16, path in 0u8..128,
                          dlid: u16, mac: [u8; 6], global: bool, tclass: u8, hops: u8, index: u8,
                          flow in 0u32..1 << 20, gid: [u8; 16]) {
        let grh = GrhFields { traffic_class: tclass, hop_limit: hops, gid_index: index, flow_label: flow, gid };
        let fields = AddressFields {
            qkey, qpn, static_rate: rate, service_level: level, path_bits: path, dlid, mac, grh: global.then_some(grh),
        };
        prop_assert_eq!(AddressVector::new(&fields).fields(), fields);
    }

    #[test]
    fn any_bytes_are_a_vector(bytes: [u8; 48]) {
        let vector = AddressVector::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(vector.as_bytes(), bytes);
        prop_assert!(!vector.to_string().is_empty());
    }
}
