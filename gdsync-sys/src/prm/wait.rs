//! Work requests by which the card itself waits, and by which one queue releases another.
//!
//! Each is a control segment, with a modifier of its opcode, and one segment of this module:
//!
//! | [`Kind`] | opcode, modifier | `ds` | segment |
//! |---|---|---|---|
//! | [`Kind::Completions`] | WAIT, 0 | 2 | [`IndexSeg`]: the last entry awaited, the completion queue |
//! | [`Kind::Data`] | WAIT, 1 | 3 | [`WaitDataSeg`] |
//! | [`Kind::Time`] | WAIT, 2 | 3 | [`WaitDataSeg`] without key and address |
//! | [`Kind::SendEnable`] | SEND_EN, 0 | 2 | [`IndexSeg`]: the new producer index, the queue pair |
//!
//! A queue executes nothing behind a WAIT before it is met. WAIT for data runs on ordinary queue pairs; SEND_EN needs
//! queue pairs that commands have made with `cd_master` and `cd_slave_send` ([`super::command::qpc`]). Capabilities:
//! `wait_on_data`, `wait_on_time` and `cd` of [`super::command::cap`].
//!
//! Sources. Layout and codes: DPDK's `mlx5_prm.h` (`mlx5_wqe_wseg`, `mlx5_wqe_qseg`, `MLX5_WAIT_COND_*`),
//! `mlx5_txpp.c` and `mlx5_crypto_gcm.c`; UCC's `tl_mlx5_wqe.c`. What is compared with what ([`WaitDataSeg::is_met`],
//! [`word`]): the device code of NVIDIA's LDO library (2025), which waits for one counter both ways: by a loop that
//! reads it as a big-endian number until it is at least a threshold, and by WAIT with operation *bigger*, inverted,
//! and that threshold. So the value stands on the left: *value bigger than word*. DPDK's wait for a time agrees: *value
//! cyclic smaller than clock*.

use super::wqe::{CtrlFlags, CtrlSeg, Opcode};
use super::{UnknownCode, getters, wire_codes};
use std::fmt;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_codes! {
    /// Comparisons of the value in a WAIT with the word in memory (`MLX5_WAIT_COND_*`).
    WaitOperation, "WAIT operation" {
        /// True without looking.
        Always = 0,
        /// The value equals the word.
        Equal = 1,
        /// The value is bigger than the word.
        Bigger = 2,
        /// The value is smaller than the word.
        Smaller = 3,
        /// The value is ahead of the word by less than half a lap.
        CyclicBigger = 4,
        /// The value is behind the word by less than half a lap.
        CyclicSmaller = 5,
    }
}

wire_codes! {
    /// What the card does when a WAIT for data is not met: the low 3 bits of its address.
    WaitAction, "WAIT action" {
        /// Looks again.
        Retry = 0,
        /// Writes an error entry.
        Fail = 1,
    }
}

/// Bit of the operation that inverts it (`MLX5_WAIT_COND_INVERT`).
const INVERT: u32 = 0x10;
/// Bits of an address that hold the action: words are aligned to 8 bytes.
const ACTION: u64 = 7;

/// The number that the card compares, of a native word in memory; and the native word of a number, as which a
/// program, a stream or a kernel stores it.
///
/// Big endian, like all that WQEs hold. This is the only place that says so: for a card with another order, change
/// this line.
pub const fn word(native: u64) -> u64 {
    u64::from_be(native)
}

/// A work request that waits, or that releases another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// WAIT for an entry of a completion queue.
    Completions,
    /// WAIT for a word of memory.
    Data,
    /// WAIT for a time.
    Time,
    /// SEND_EN.
    SendEnable,
}

impl Kind {
    /// That of a control segment; `None` for other opcodes.
    ///
    /// # Errors
    /// [`UnknownCode`]: the modifier of the opcode.
    pub fn of(ctrl: &CtrlSeg) -> Result<Option<Self>, UnknownCode> {
        let what = match ctrl.opcode() {
            Ok(Opcode::Wait) => "WAIT modifier",
            Ok(Opcode::SendEnable) => "SEND_EN modifier",
            _ => return Ok(None),
        };
        let is_it = |kind: &Kind| Ok(kind.opcode()) == ctrl.opcode() && kind.opmod() == ctrl.opmod();
        let known = [Kind::Completions, Kind::Data, Kind::Time, Kind::SendEnable].into_iter().find(is_it);
        known.map(Some).ok_or(UnknownCode { what, code: ctrl.opmod() })
    }

    /// Its opcode.
    pub fn opcode(self) -> Opcode {
        if self == Kind::SendEnable { Opcode::SendEnable } else { Opcode::Wait }
    }

    /// The modifier of its opcode (`MLX5_OPC_MOD_WAIT_*`).
    pub fn opmod(self) -> u8 {
        match self {
            Kind::Completions | Kind::SendEnable => 0,
            Kind::Data => 1,
            Kind::Time => 2,
        }
    }

    /// Its size in 16-byte units: control segment and the other one. It takes one basic block.
    pub fn ds(self) -> u8 {
        match self {
            Kind::Completions | Kind::SendEnable => 2,
            Kind::Data | Kind::Time => 3,
        }
    }

    /// Its control segment, at block `index` of queue pair `qpn`.
    pub fn control(self, index: u16, qpn: u32, flags: CtrlFlags) -> CtrlSeg {
        CtrlSeg::new(self.opcode(), index, qpn, self.ds(), flags, [0; 4]).with_opmod(self.opmod())
    }
}

/// The segment of a WAIT for data or for a time: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WaitDataSeg {
    operation: U32,
    lkey: U32,
    address_action: U64,
    value: U64,
    mask: U64,
}

impl WaitDataSeg {
    /// Waits for a word of 8 bytes at `addr`, a multiple of 8 (lower bits are dropped), of the region with that local
    /// key. Only the bits of `mask` are compared.
    pub fn new(
        (operation, inverted): (WaitOperation, bool),
        lkey: u32,
        addr: u64,
        action: WaitAction,
        value: u64,
        mask: u64,
    ) -> Self {
        let invert = if inverted { INVERT } else { 0 };
        WaitDataSeg {
            operation: U32::new(operation as u32 | invert),
            lkey: U32::new(lkey),
            address_action: U64::new(addr & !ACTION | action as u64),
            value: U64::new(value),
            mask: U64::new(mask),
        }
    }

    /// Waits until the word has reached a number, in a sequence that may wrap: `word(..)` of it is `ticket`, or ahead
    /// by less than 2^63.
    pub fn reached(lkey: u32, addr: u64, ticket: u64) -> Self {
        let condition = (WaitOperation::CyclicBigger, true);
        WaitDataSeg::new(condition, lkey, addr, WaitAction::Retry, ticket, u64::MAX)
    }

    /// Waits until the card's clock is past a time: `ticks` of the card's own clock.
    pub fn past(ticks: u64) -> Self {
        let condition = (WaitOperation::CyclicSmaller, false);
        WaitDataSeg::new(condition, 0, 0, WaitAction::Retry, ticks, u64::MAX)
    }

    /// The comparison, and whether it is inverted.
    ///
    /// # Errors
    /// [`UnknownCode`].
    pub fn condition(&self) -> Result<(WaitOperation, bool), UnknownCode> {
        let code = self.operation.get();
        let what = u8::try_from(code & !INVERT).unwrap_or(u8::MAX);
        Ok((WaitOperation::try_from(what)?, code & INVERT != 0))
    }

    /// Whether it is met by a number, which is [`word`] of what memory holds, or a time.
    ///
    /// A lap of the cyclic comparisons has as many numbers as the mask has bits up to its highest: DPDK waits for
    /// times that wrap at a power of two below 2^64 that way. (A comment in public code calls the two operations *signed*.
    /// For a full mask and numbers below 2^63, that is the same.)
    ///
    /// # Errors
    /// [`UnknownCode`]: the operation.
    pub fn is_met(&self, number: u64) -> Result<bool, UnknownCode> {
        let (operation, inverted) = self.condition()?;
        let mask = self.mask();
        let (value, number) = (self.value() & mask, number & mask);
        // Zeros above the mask are shifted out: the sign is the lap's.
        let ahead = (value.wrapping_sub(number) << mask.leading_zeros().min(63)) as i64;
        let met = match operation {
            WaitOperation::Always => true,
            WaitOperation::Equal => value == number,
            WaitOperation::Bigger => value > number,
            WaitOperation::Smaller => value < number,
            WaitOperation::CyclicBigger => ahead > 0,
            WaitOperation::CyclicSmaller => ahead < 0,
        };
        Ok(met != inverted)
    }
}

getters! { WaitDataSeg, self:
    /// The field of the comparison.
    raw_operation -> u32 { self.operation.get() }
    /// Local key of the region.
    lkey -> u32 { self.lkey.get() }
    /// Address of the word, a multiple of 8.
    addr -> u64 { self.address_action.get() & !ACTION }
    /// What the card does when it is not met.
    ///
    /// # Errors
    /// [`UnknownCode`]: also the sign of an address that is not aligned.
    action -> Result<WaitAction, UnknownCode> {
        WaitAction::try_from((self.address_action.get() & ACTION) as u8)
    }
    /// The value to compare.
    value -> u64 { self.value.get() }
    /// The bits that are compared.
    mask -> u64 { self.mask.get() }
}

/// The segment of a WAIT for a completion queue, and of SEND_EN: `mlx5_wqe_qseg`, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndexSeg {
    reserved: U64,
    index: U32,
    number: U32,
}

impl IndexSeg {
    /// WAIT: `index` counts all entries that the card has ever written to completion queue `number`, from 0 on, and
    /// names the last one awaited; the card compares 24 bits.
    ///
    /// SEND_EN: `index` is one past the last 64-byte block that queue pair `number` may execute; the card compares 16
    /// bits.
    pub fn new(index: u32, number: u32) -> Self {
        IndexSeg { reserved: U64::ZERO, index: U32::new(index), number: U32::new(number) }
    }
}

getters! { IndexSeg, self:
    /// The index.
    index -> u32 { self.index.get() }
    /// Number of the completion queue, or of the queue pair.
    number -> u32 { self.number.get() }
}

/// Bits of the index of a completion queue that the card compares (`MLX5_CQ_INDEX_WIDTH` of DPDK).
pub const CQ_INDEX: u32 = 0xff_ffff;

/// Whether a completion queue to which the card has written `produced` entries has the entry `index`: cyclically, in
/// 24 bits.
pub fn has_entry(produced: u32, index: u32) -> bool {
    let behind = produced.wrapping_sub(1).wrapping_sub(index) & CQ_INDEX;
    behind <= CQ_INDEX / 2
}

impl fmt::Display for WaitDataSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition() {
            Ok((operation, inverted)) => write!(f, "{}{operation:?}", if inverted { "not " } else { "" })?,
            Err(_) => write!(f, "operation {:#x}", self.raw_operation())?,
        }
        write!(f, " value {:#x} mask {:#x}", self.value(), self.mask())?;
        write!(f, " address {:#x} lkey {:#x}", self.addr(), self.lkey())
    }
}

impl fmt::Display for IndexSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index {} of {:#x}", self.index(), self.number())
    }
}

#[cfg(test)]
mod tests;
