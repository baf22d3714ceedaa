use super::*;
use crate::prm::command::{cap, cqc, qpc};
use crate::prm::field::Field;
use proptest::prelude::*;

fn data(condition: (WaitOperation, bool), value: u64, mask: u64) -> WaitDataSeg {
    WaitDataSeg::new(condition, 1, 8, WaitAction::Retry, value, mask)
}

fn met(condition: (WaitOperation, bool), value: u64, mask: u64, number: u64) -> bool {
    data(condition, value, mask).is_met(number).unwrap()
}

#[test]
fn a_wait_for_data_has_the_bytes_of_the_sources() {
    // UCC's tl_mlx5_wqe.c, ucc_tl_mlx5_post_wait_on_data: opcode 0xf, opmod 1, 3 units, fence and CQ_UPDATE. DPDK's
    // mlx5_prm.h, struct mlx5_wqe_wseg: operation, lkey, va_high, va_low (the low 3 bits are the action), value, mask.
    let flags = CtrlFlags::FENCE | CtrlFlags::CQ_UPDATE;
    let control = WaitKind::Data.control(0x1234, 0xabcdef, flags);
    let expected = [1, 0x12, 0x34, 0x0f, 0xab, 0xcd, 0xef, 3, 0, 0, 0, 0x88, 0, 0, 0, 0];
    assert_eq!(control.as_bytes(), expected);
    let segment = WaitDataSeg::new(
        (WaitOperation::CyclicBigger, true),
        0x0102_0304,
        0x1112_1314_1516_1718,
        WaitAction::Fail,
        0x2122_2324_2526_2728,
        0x3132_3334_3536_3738,
    );
    let mut expected = vec![0, 0, 0, 0x14, 1, 2, 3, 4];
    expected.extend([0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x19]);
    expected.extend(0x21..=0x28);
    expected.extend(0x31..=0x38);
    assert_eq!(segment.as_bytes(), expected);
    assert_eq!(segment.condition(), Ok((WaitOperation::CyclicBigger, true)));
    assert_eq!((segment.lkey(), segment.addr()), (0x0102_0304, 0x1112_1314_1516_1718));
    assert_eq!(segment.action(), Ok(WaitAction::Fail));
}

#[test]
fn a_wait_for_a_time_names_no_memory() {
    // DPDK's mlx5_tx.h, mlx5_tx_wseg_init: operation 5, lkey and address 0, value the timestamp.
    assert_eq!(WaitKind::Time.control(0, 1, CtrlFlags::empty()).as_bytes()[..8], [2, 0, 0, 0x0f, 0, 0, 1, 3]);
    let mut expected = vec![0, 0, 0, 5];
    expected.extend([0; 12]);
    expected.extend([0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    expected.extend([0xff; 8]);
    let segment = WaitDataSeg::past(0x1234);
    assert_eq!(segment.as_bytes(), expected);
    assert_eq!([0x1233, 0x1234, 0x1235].map(|now| segment.is_met(now).unwrap()), [false, false, true]);
}

#[test]
fn index_segments_have_the_bytes_of_the_sources() {
    // DPDK's mlx5_txpp.c, mlx5_txpp_fill_wqe_rearm_queue, and mlx5_crypto_gcm.c, mlx5_crypto_gcm_build_send_en: 2
    // units; struct mlx5_wqe_qseg: 8 reserved bytes, max_index, qpn_cqn.
    for (kind, opcode) in [(WaitKind::Completions, 0x0f), (WaitKind::SendEnable, 0x17)] {
        let control = kind.control(7, 0x40, CtrlFlags::empty());
        assert_eq!(control.as_bytes()[..8], [0, 0, 7, opcode, 0, 0, 0x40, 2]);
    }
    let segment = IndexSeg::new(0x0102_0304, 0x0011_1213);
    assert_eq!(segment.as_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0x11, 0x12, 0x13]);
    assert_eq!((segment.index(), segment.number()), (0x0102_0304, 0x0011_1213));
}

#[test]
fn fields_of_contexts_and_capabilities_lie_where_the_headers_say() {
    // Byte and bit by hand, from the sums of the widths in rdma-core's mlx5_ifc.h (QPC, CQC, cmd_hca_cap), Linux'
    // mlx5_ifc.h (wait_on_data, wait_on_time) and rdma-core's tests/mlx5_prm_structs.py (send_dbr_mode, CmdHcaCap2).
    // An answer's capabilities begin at byte 16.
    let cases: [(Field, usize, u8); 12] = [
        (qpc::CD_SLAVE_RECEIVE, 147, 0x04),
        (qpc::CD_SLAVE_SEND, 147, 0x02),
        (qpc::CD_MASTER, 147, 0x01),
        (qpc::SEND_DBR_MODE, 16, 0xc0),
        (cqc::OI, 1, 0x02),
        (cap::CQ_OI, 16 + 68, 0x80),
        (cap::CD, 16 + 69, 0x08),
        (cap::DEVICE_FREQUENCY_KHZ, 16 + 156, 0xff),
        (cap::WAIT_ON_DATA, 16 + 209, 0x10),
        (cap::WAIT_ON_TIME, 16 + 209, 0x08),
        (cap::SEND_DBR_MODE_NO_DBR_EXT, 16 + 92, 0x40),
        (cap::LOG_MAX_SEND_DBR_LESS_QP_SQ, 16 + 92, 0x1f),
    ];
    for (field, byte, bits) in cases {
        let mut bytes = vec![0; cap::BYTES];
        field.put(&mut bytes, u64::MAX);
        let first = bytes.iter().position(|byte| *byte != 0);
        assert_eq!(first.map(|at| (at, bytes[at])), Some((byte, bits)), "{field:?}");
    }
}

#[test]
fn the_value_stands_on_the_left_and_the_word_is_big_endian() {
    use WaitOperation::{Always, Bigger, CyclicBigger, CyclicSmaller, Equal, Smaller};
    for (operation, below, same, above) in [
        (Always, true, true, true),
        (Equal, false, true, false),
        (Bigger, true, false, false),
        (Smaller, false, false, true),
        (CyclicBigger, true, false, false),
        (CyclicSmaller, false, false, true),
    ] {
        for inverted in [false, true] {
            let met = [9, 10, 11].map(|number| met((operation, inverted), 10, u64::MAX, number));
            assert_eq!(met, [below, same, above].map(|plain| plain != inverted), "{operation:?} {inverted}");
        }
    }
    assert_eq!(word(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8])), 0x0102_0304_0506_0708);
}

#[test]
fn what_the_sources_wait_for_is_met_as_they_expect() {
    // LDO, ldo_dev_hangup_trigger: not bigger, full mask; its loop waits for word >= threshold.
    let threshold = data((WaitOperation::Bigger, true), 100, u64::MAX);
    assert_eq!([99, 100, 101].map(|number| threshold.is_met(number).unwrap()), [false, true, true]);
    // UCC writes value and mask in host order, and stores the word so, too: equality does not care.
    let (value, mask) = (0x8877_6655u64, 0xffff_ffffu64);
    let segment = data((WaitOperation::Equal, false), value.to_be(), mask.to_be());
    let little = |number: u64| word(u64::from_ne_bytes(number.to_le_bytes()));
    let host = cfg!(target_endian = "little");
    assert_eq!(segment.is_met(little(0x1_8877_6655)).unwrap(), host);
    assert!(!segment.is_met(little(0x8877_6654)).unwrap());
}

#[test]
fn a_ticket_is_reached_across_the_end_of_the_numbers() {
    let reached = |ticket, number| WaitDataSeg::reached(1, 8, ticket).is_met(number).unwrap();
    assert!(!reached(5, 4) && reached(5, 5) && reached(5, 6) && reached(5, u64::MAX / 2));
    assert!(!reached(0, u64::MAX) && reached(0, 0) && reached(u64::MAX, 3) && !reached(3, u64::MAX));
    // A lap of 35 bits, as that of the times of DPDK.
    let mask = (1 << 35) - 1;
    let past = |number| met((WaitOperation::CyclicSmaller, false), mask - 1, mask, number);
    assert!(!past(mask - 2) && past(mask) && past(mask + 1) && past(mask + 100));
    assert!(!met((WaitOperation::CyclicBigger, false), 1, 0, 0), "an empty mask compares nothing");
}

#[test]
fn entries_of_completion_queues_are_counted_in_24_bits() {
    assert!(!has_entry(0, 0) && has_entry(1, 0) && !has_entry(1, 1) && has_entry(100, 0));
    assert!(has_entry(1 << 24, CQ_INDEX) && !has_entry((1 << 24) - 1, CQ_INDEX));
    assert!(has_entry((1 << 24) + 1, 0) && has_entry((1 << 24) + 1, CQ_INDEX));
    assert!(has_entry(5, 0xff00_0004), "higher bits are not compared");
    assert!(has_entry(0, CQ_INDEX), "a fresh queue has had the entries before its first");
}

#[test]
fn unknown_codes_keep_their_value() {
    let modified =
        |opcode, opmod| CtrlSeg::new(opcode, 0, 1, 2, CtrlFlags::empty(), [0; 4]).with_opmod(opmod);
    assert_eq!(WaitKind::of(&modified(Opcode::Wait, 3)).map_err(|error| error.code), Err(3));
    assert_eq!(WaitKind::of(&modified(Opcode::SendEnable, 1)).map_err(|error| error.code), Err(1));
    assert_eq!(WaitKind::of(&modified(Opcode::Send, 1)), Ok(None));
    for kind in [WaitKind::Completions, WaitKind::Data, WaitKind::Time, WaitKind::SendEnable] {
        assert_eq!(WaitKind::of(&kind.control(1, 2, CtrlFlags::empty())), Ok(Some(kind)));
    }
    let raw = |operation: u32, low: u8| {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&operation.to_be_bytes());
        bytes[15] = low;
        WaitDataSeg::read_from_bytes(&bytes).unwrap()
    };
    assert_eq!(raw(6, 0).is_met(0).map_err(|error| error.code), Err(6));
    assert_eq!(raw(0x21, 0).condition().map_err(|error| error.code), Err(0x21));
    assert!(raw(0x101, 0).condition().is_err() && raw(u32::MAX, 0).condition().is_err());
    assert_eq!(raw(1, 4).action().map_err(|error| error.code), Err(4));
    assert_eq!(raw(1, 9).addr(), 8);
}

#[test]
fn segments_print_on_one_line() {
    assert_eq!(
        WaitDataSeg::reached(0x33, 0x2000, 7).to_string(),
        "not CyclicBigger value 0x7 mask 0xffffffffffffffff address 0x2000 lkey 0x33"
    );
    assert_eq!(IndexSeg::new(9, 0x40).to_string(), "index 9 of 0x40");
}

proptest! {
    #[test]
    fn any_bytes_are_segments(bytes: [u8; 32], number: u64) {
        let wait = WaitDataSeg::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(wait.as_bytes(), bytes);
        prop_assert!(!wait.to_string().is_empty());
        prop_assert_eq!(wait.is_met(number).is_ok(), wait.condition().is_ok());
        prop_assert!(wait.addr().is_multiple_of(8));
    }

    #[test]
    fn segments_round_trip(
        operation in proptest::sample::select(WaitOperation::ALL),
        inverted: bool,
        (lkey, addr, value, mask) in any::<(u32, u64, u64, u64)>(),
        number: u64,
    ) {
        let segment = WaitDataSeg::new((operation, inverted), lkey, addr, WaitAction::Retry, value, mask);
        prop_assert_eq!(segment.condition(), Ok((operation, inverted)));
        prop_assert_eq!((segment.lkey(), segment.addr()), (lkey, addr & !7));
        prop_assert_eq!((segment.value(), segment.mask()), (value, mask));
        let other = WaitDataSeg::new((operation, !inverted), lkey, addr, WaitAction::Retry, value, mask);
        prop_assert_ne!(segment.is_met(number), other.is_met(number));
    }

    #[test]
    fn cyclic_comparisons_are_those_of_small_numbers(bits in 2u32..64, value: u64, distance in -100i64..100) {
        let mask = (1u64 << bits) - 1;
        let half = 1i64 << (bits - 1);
        prop_assume!(distance.abs() < half);
        let number = value.wrapping_sub(distance as u64);
        prop_assert_eq!(met((WaitOperation::CyclicBigger, false), value, mask, number), distance > 0);
        prop_assert_eq!(met((WaitOperation::CyclicSmaller, false), value, mask, number), distance < 0);
    }
}
