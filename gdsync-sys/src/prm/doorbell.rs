//! Doorbell records and doorbell registers.
//!
//! A *record* is a word of host memory with a queue's producer or consumer index; a *register* is a word of a UAR
//! page (user access region): a store to it notifies the card.

use super::getters;

/// Word of a queue pair's doorbell record with the count of receives (`MLX5_RCV_DBR`).
pub const DBR_RECV: usize = 0;
/// Word of a queue pair's doorbell record with the count of send blocks (`MLX5_SND_DBR`).
pub const DBR_SEND: usize = 1;
/// Word of a completion queue's doorbell record with the consumer index.
pub const DBR_CQ_CI: usize = 0;
/// Word of a completion queue's doorbell record that arms it.
pub const DBR_CQ_ARM: usize = 1;

/// Bytes of a UAR page (`MLX5_ADAPTER_PAGE_SIZE`).
pub const UAR_PAGE: usize = 4096;
/// Offsets of a UAR page's doorbell registers (`MLX5_BF_OFFSET` and its multiples).
pub const UAR_DOORBELLS: [usize; 4] = [0x800, 0x900, 0xa00, 0xb00];
/// Offset of the register of queue pairs without a send doorbell record (`send_dbr_mode`;
/// `DOCA_VERBS_UAR_DBR_LESS_DB_OFFSET` of DOCA's `doca_verbs_uar.cpp`): [`Doorbell::without_record`].
pub const UAR_NO_RECORD: usize = 0x600;
/// Offset of the register that arms completion queues (`MLX5_CQ_DOORBELL`).
pub const UAR_CQ_ARM: usize = 0x20;

/// Returns the memory word of a queue pair's record: the low 16 bits of a counter, big endian.
pub fn record(counter: u32) -> u32 {
    (counter & 0xffff).to_be()
}

/// Returns the counter in a queue pair's record.
pub fn record_value(word: u32) -> u16 {
    u32::from_be(word) as u16
}

/// Returns the memory word of a completion queue's consumer index: 24 bits, big endian.
pub fn ci_record(index: u32) -> u32 {
    (index & 0xff_ffff).to_be()
}

/// Returns the consumer index in a completion queue's record, 24 bits.
pub fn ci_value(word: u32) -> u32 {
    u32::from_be(word) & 0xff_ffff
}

/// The value of a doorbell register: the first 8 bytes of a control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Doorbell(u64);

impl Doorbell {
    /// Creates a doorbell from the stored native word.
    pub fn from_raw(raw: u64) -> Self {
        Doorbell(raw)
    }

    /// Creates a doorbell for [`UAR_NO_RECORD`]: its index is the producer index, one past the last announced block,
    /// instead of the index of the last WQE. Only the two fields are set (`doca_gpu_dev_verbs_prepare_db` and
    /// `submit_db_no_dbr` of DOCA GPUNetIO).
    pub fn without_record(producer: u16, qpn: u32) -> Self {
        Doorbell((u64::from(producer) << 40 | u64::from(qpn & 0xff_ffff) << 8).to_be())
    }

    fn words(self) -> (u32, u32) {
        let big = u64::from_be(self.0);
        ((big >> 32) as u32, big as u32)
    }
}

getters! { Doorbell, self:
    /// The native word.
    raw -> u64 { self.0 }
    /// Index of the WQE's first block, modulo 2^16.
    index -> u16 { (self.words().0 >> 8) as u16 }
    /// Queue pair number, 24 bits.
    qpn -> u32 { self.words().1 >> 8 }
}

/// The command that arms a completion queue: word [`DBR_CQ_ARM`] of its record and then, with the queue's number, the
/// doorbell at [`UAR_CQ_ARM`] (libmlx5, `mlx5_arm_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqArm(u32);

/// Command bit: only solicited entries and errors raise an event (`MLX5_CQ_DB_REQ_NOT_SOL`).
const ARM_SOLICITED_ONLY: u32 = 1 << 24;

impl CqArm {
    /// Arms for entries from the consumer index (24 bits) on. `sequence` is the count of the queue's events, 2 bits.
    pub fn new(sequence: u8, solicited_only: bool, consumer_index: u32) -> Self {
        let command = if solicited_only { ARM_SOLICITED_ONLY } else { 0 };
        CqArm(u32::from(sequence & 3) << 28 | command | consumer_index & 0xff_ffff)
    }

    /// Decodes the memory word of the record.
    pub fn from_record(word: u32) -> Self {
        CqArm(u32::from_be(word))
    }

    /// Decodes the native word of the register, with the queue's number (24 bits).
    pub fn from_doorbell(raw: u64) -> (Self, u32) {
        let big = u64::from_be(raw);
        (CqArm((big >> 32) as u32), big as u32 & 0xff_ffff)
    }

    /// Returns the register value for a queue.
    pub fn doorbell(self, cqn: u32) -> u64 {
        (u64::from(self.0) << 32 | u64::from(cqn & 0xff_ffff)).to_be()
    }
}

getters! { CqArm, self:
    /// The memory word of the record.
    record -> u32 { self.0.to_be() }
    /// Count of the queue's events, 2 bits.
    sequence -> u8 { (self.0 >> 28 & 3) as u8 }
    /// True if only solicited entries and errors raise an event.
    is_solicited_only -> bool { self.0 & ARM_SOLICITED_ONLY != 0 }
    /// The first entry that raises an event, 24 bits.
    consumer_index -> u32 { self.0 & 0xff_ffff }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prm::wqe::{CtrlFlags, CtrlSeg, Opcode};
    use proptest::prelude::*;

    #[test]
    fn records_are_big_endian() {
        assert_eq!(record(0x12345).to_ne_bytes(), [0, 0, 0x23, 0x45]);
        assert_eq!(ci_record(0x1234_5678).to_ne_bytes(), [0, 0x34, 0x56, 0x78]);
        assert_eq!(record_value(u32::from_ne_bytes([9, 9, 0x23, 0x45])), 0x2345);
        assert_eq!(ci_value(u32::from_ne_bytes([9, 1, 2, 3])), 0x01_0203);
    }

    #[test]
    fn arming_bytes() {
        // libmlx5, mlx5_arm_cq: sn << 28 | command | consumer index; the doorbell appends the queue's number.
        let arm = CqArm::new(2, true, 0x0102_0304);
        assert_eq!(arm.record().to_ne_bytes(), [0x21, 2, 3, 4]);
        assert_eq!(arm.doorbell(0x0a_0b0c).to_ne_bytes(), [0x21, 2, 3, 4, 0, 0x0a, 0x0b, 0x0c]);
        assert_eq!(CqArm::new(0, false, 0).record(), 0, "as a new record is");
    }

    #[test]
    fn a_doorbell_without_a_record_has_the_producer_index_and_the_number() {
        // DOCA GPUNetIO, doca_gpu_dev_verbs_prepare_db: be32(index << 8), be32(number << 8).
        let doorbell = Doorbell::without_record(0x1234, 0xabcdef);
        assert_eq!(doorbell.raw().to_ne_bytes(), [0, 0x12, 0x34, 0, 0xab, 0xcd, 0xef, 0]);
        assert_eq!((doorbell.index(), doorbell.qpn()), (0x1234, 0xabcdef));
    }

    proptest! {
        #[test]
        fn arming_round_trips(sequence in 0u8..4, solicited: bool, index in 0u32..1 << 24, cqn in 0u32..1 << 24) {
            let arm = CqArm::new(sequence, solicited, index);
            prop_assert_eq!((arm.is_solicited_only(), arm.consumer_index()), (solicited, index));
            prop_assert_eq!(CqArm::from_record(arm.record()), arm);
            prop_assert_eq!(CqArm::from_doorbell(arm.doorbell(cqn)), (arm, cqn));
        }

        #[test]
        fn a_doorbell_is_the_start_of_a_control_segment(index: u16, qpn in 0u32..1 << 24, ds in 0u8..64) {
            let ctrl = CtrlSeg::new(Opcode::RdmaWrite, index, qpn, ds, CtrlFlags::empty(), [0; 4]);
            let doorbell = Doorbell::from_raw(ctrl.doorbell());
            prop_assert_eq!((doorbell.index(), doorbell.qpn()), (index, qpn));
            prop_assert_eq!(doorbell.raw(), ctrl.doorbell());
        }

        #[test]
        fn records_round_trip(counter: u32) {
            prop_assert_eq!(record_value(record(counter)), counter as u16);
            prop_assert_eq!(ci_value(ci_record(counter)), counter & 0xff_ffff);
        }
    }
}
