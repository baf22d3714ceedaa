use super::*;
use proptest::prelude::*;

#[test]
fn requester_bytes() {
    // mlx5dv.h, struct mlx5_cqe64; sop_drop_qpn = opcode << 24 | qpn in requester entries (libmlx5 cq.c).
    let cqe = Cqe64::requester(Opcode::RdmaRead, 0x010203, 0x4567, 0x1000).with_owner(true);
    let mut bytes = [0; 64];
    bytes[44..48].copy_from_slice(&[0, 0, 0x10, 0]);
    bytes[56..64].copy_from_slice(&[0x10, 1, 2, 3, 0x45, 0x67, 0, 0x01]);
    assert_eq!(cqe.as_bytes(), bytes);
    assert_eq!(cqe.to_string(), "Requester owner 1 qpn 0x10203 counter 17767 bytes 4096");
}

#[test]
fn responder_bytes() {
    // mlx5dv.h, struct mlx5_cqe64; the remote queue pair is the low 24 bits of flags_rqpn, solicited is bit 1 of
    // op_own.
    let cqe = Cqe64::responder(CqeOpcode::RespSendImm, 0x0a0b0c, 0x0d0e0f, 7, 5, [1, 2, 3, 4], true);
    let mut bytes = [0; 64];
    bytes[25..28].copy_from_slice(&[0x0d, 0x0e, 0x0f]);
    bytes[36..40].copy_from_slice(&[1, 2, 3, 4]);
    bytes[47] = 5;
    bytes[57..64].copy_from_slice(&[0x0a, 0x0b, 0x0c, 0, 7, 0, 0x32]);
    assert_eq!(cqe.as_bytes(), bytes);
    assert!(cqe.is_solicited() && !cqe.is_error());
}

#[test]
fn error_bytes() {
    // mlx5dv.h, struct mlx5_err_cqe: vendor syndrome at 54, syndrome at 55.
    let cqe = Cqe64::error(CqeOpcode::RequesterError, 8, 0x11, 3, Syndrome::RemoteAccess, 0x88);
    let mut bytes = [0; 64];
    bytes[54..56].copy_from_slice(&[0x88, 0x13]);
    bytes[56..64].copy_from_slice(&[8, 0, 0, 0x11, 0, 3, 0, 0xd0]);
    assert_eq!(cqe.as_bytes(), bytes);
    assert!(cqe.is_error() && cqe.syndrome() == Ok(Syndrome::RemoteAccess));
    assert_eq!(cqe.to_string(), "RequesterError owner 0 qpn 0x11 counter 3 syndrome 0x13 vendor 0x88");
}

#[test]
fn path_bytes() {
    // mlx5dv.h: slid at 22; flags_rqpn bits 29:28 GRH, 27:24 service level (libmlx5 cq.c), on RoCE the header's type.
    let cqe = Cqe64::responder(CqeOpcode::RespSend, 1, 0x0a_0b0c, 0, 0, [0; 4], false);
    let path = PathFields { slid: 0x0102, level_or_l3_type: 5, has_grh: true };
    let with = cqe.with_path(path);
    assert_eq!(with.as_bytes()[22..28], [1, 2, 0x15, 0x0a, 0x0b, 0x0c]);
    assert_eq!((with.path(), with.remote_qpn()), (path, 0x0a_0b0c));
    assert_eq!(with.with_path(PathFields::default()), cqe);
}

#[test]
fn the_user_index_is_in_every_kind_of_entry() {
    // mlx5dv.h: srqn_uidx at 32, in struct mlx5_err_cqe, too.
    let good = Cqe64::requester(Opcode::Send, 1, 2, 3);
    let bad = Cqe64::error(CqeOpcode::ResponderError, 0, 1, 2, Syndrome::WrFlush, 0);
    for cqe in [good, bad] {
        let marked = cqe.with_user_index(0xff01_0203);
        assert_eq!(marked.as_bytes()[32..36], [0, 1, 2, 3]);
        assert_eq!((marked.user_index(), cqe.user_index()), (0x01_0203, 0));
        assert_eq!(marked.with_user_index(0), cqe);
    }
}

#[test]
fn the_time_is_in_entries_without_an_error() {
    // mlx5dv.h: timestamp at 48; struct mlx5_err_cqe has its syndromes there.
    let good = Cqe64::requester(Opcode::Send, 1, 2, 3).with_timestamp(0x0102_0304_0506_0708);
    assert_eq!(good.as_bytes()[48..56], [1, 2, 3, 4, 5, 6, 7, 8]);
    let bad = Cqe64::error(CqeOpcode::ResponderError, 0, 1, 2, Syndrome::WrFlush, 0);
    assert_eq!(bad.with_timestamp(7), bad);
    assert_eq!(Cqe64::resize().op_own, 0x50);
}

#[test]
fn invalid_entries_look_like_owner_one() {
    let cqe = Cqe64::invalid();
    assert_eq!((cqe.op_own, cqe.opcode(), cqe.owner()), (0xf1, Ok(CqeOpcode::Invalid), true));
    let last = &cqe.as_bytes()[LAST_DWORD..];
    assert_eq!(u32::from_le_bytes([last[0], last[1], last[2], last[3]]) & OWNER_MASK_DWORD, OWNER_MASK_DWORD);
}

#[test]
fn unknown_codes_keep_their_value() {
    assert_eq!(CqeOpcode::try_from(9), Err(UnknownCode { what: "CQE opcode", code: 9 }));
    assert_eq!(Syndrome::try_from(0x33).unwrap_err().to_string(), "CQE syndrome 0x33 is not known");
    let codes: Vec<u8> = Syndrome::ALL.iter().map(|syndrome| *syndrome as u8).collect();
    assert_eq!(codes, [1, 2, 4, 5, 6, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22]);
}

proptest! {
    #[test]
    fn any_bytes_can_be_read_and_printed(bytes in proptest::collection::vec(any::<u8>(), 64)) {
        let cqe = Cqe64::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(cqe.as_bytes(), &bytes[..]);
        prop_assert!(!cqe.to_string().is_empty());
        prop_assert_eq!(cqe.with_owner(!cqe.owner()).owner(), !cqe.owner());
    }

    #[test]
    fn fields_round_trip(qpn in 0u32..1 << 24, remote in 0u32..1 << 24, counter: u16, bytes: u32, imm: [u8; 4]) {
        let cqe = Cqe64::responder(CqeOpcode::RespWriteImm, qpn, remote, counter, bytes, imm, false);
        prop_assert_eq!((cqe.qpn(), cqe.remote_qpn(), cqe.wqe_counter()), (qpn, remote, counter));
        prop_assert_eq!((cqe.byte_count(), cqe.imm()), (bytes, imm));
        prop_assert_eq!((cqe.opcode(), cqe.is_solicited(), cqe.is_error()), (Ok(CqeOpcode::RespWriteImm), false, false));
        let cqe = Cqe64::requester(Opcode::Send, qpn, counter, bytes);
        prop_assert_eq!((cqe.wqe_opcode(), cqe.qpn()), (0x0a, qpn));
    }

    #[test]
    fn errors_round_trip(syndrome in proptest::sample::select(Syndrome::ALL), opcode: u8, qpn in 0u32..1 << 24,
                         counter: u16, vendor: u8, owner: bool) {
        for kind in [CqeOpcode::RequesterError, CqeOpcode::ResponderError] {
            let cqe = Cqe64::error(kind, opcode, qpn, counter, syndrome, vendor).with_owner(owner);
            prop_assert_eq!((cqe.opcode(), cqe.owner(), cqe.is_error()), (Ok(kind), owner, true));
            prop_assert_eq!((cqe.syndrome(), cqe.vendor_syndrome()), (Ok(syndrome), vendor));
            prop_assert_eq!((cqe.wqe_opcode(), cqe.qpn(), cqe.wqe_counter()), (opcode, qpn, counter));
        }
    }
}
