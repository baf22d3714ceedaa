//! Work requests that make the card wait (WAIT), or release another queue (SEND_EN).
//!
//! Each consists of a control segment with an opcode modifier, and one segment of this module:
//!
//! | [`WaitKind`] | opcode, modifier | `ds` | segment |
//! |---|---|---|---|
//! | [`WaitKind::Completions`] | WAIT, 0 | 2 | [`IndexSeg`]: the last entry awaited, the completion queue |
//! | [`WaitKind::Data`] | WAIT, 1 | 3 | [`WaitDataSeg`] |
//! | [`WaitKind::Time`] | WAIT, 2 | 3 | [`WaitDataSeg`] without key and address |
//! | [`WaitKind::SendEnable`] | SEND_EN, 0 | 2 | [`IndexSeg`]: the new producer index, the queue pair |
//!
//! A queue executes nothing after a WAIT before its condition is met. WAIT for data runs on ordinary queue pairs;
//! SEND_EN needs queue pairs created by commands with `cd_master` and `cd_slave_send` ([`super::command::qpc`]).
//! Capabilities: `wait_on_data`, `wait_on_time` and `cd` of [`super::command::cap`].
//!
//! Sources. Layout and codes: DPDK's `mlx5_prm.h` (`mlx5_wqe_wseg`, `mlx5_wqe_qseg`, `MLX5_WAIT_COND_*`),
//! `mlx5_txpp.c` and `mlx5_crypto_gcm.c`; UCC's `tl_mlx5_wqe.c`. Order of the comparison ([`WaitDataSeg::is_met`],
//! [`word`]): the device code of NVIDIA's LDO library (2025), which waits for a counter in two ways: by a loop that
//! reads it as a big-endian number until it is at least a threshold, and by WAIT with operation *bigger*, inverted,
//! and the same threshold. So the value is the left operand: *value bigger than word*. DPDK's wait for a time agrees: *value
//! cyclic smaller than clock*.

use super::wqe::{CtrlFlags, CtrlSeg, Opcode};
use super::{UnknownCode, getters, wire_codes};
use std::fmt;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_codes! {
    /// Comparisons of the value in a WAIT with the word in memory (`MLX5_WAIT_COND_*`).
    WaitOperation, "WAIT operation" {
        /// Always true, without a read.
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
    /// The card's action if a WAIT for data is not met: the low 3 bits of its address.
    WaitAction, "WAIT action" {
        /// Reads the word again.
        Retry = 0,
        /// Writes an error entry.
        Fail = 1,
    }
}

/// Bit of the operation: the result is inverted.
const INVERT: u32 = 0x10;
/// Address bits that hold the action: words are aligned to 8 bytes.
const ACTION: u64 = 7;

/// Converts between the number that the card compares and the native word in memory, as a program, a stream or a
/// kernel stores it.
///
/// Big endian, like everything in WQEs. Only this function defines the byte order.
pub const fn word(native: u64) -> u64 {
    u64::from_be(native)
}

/// A WAIT or SEND_EN work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitKind {
    /// WAIT for an entry of a completion queue.
    Completions,
    /// WAIT for a word of memory.
    Data,
    /// WAIT for a time.
    Time,
    /// SEND_EN.
    SendEnable,
}

impl WaitKind {
    /// Returns the kind of a control segment; `None` for other opcodes.
    ///
    /// # Errors
    /// [`UnknownCode`]: the modifier of the opcode.
    pub fn of(ctrl: &CtrlSeg) -> Result<Option<Self>, UnknownCode> {
        let what = match ctrl.opcode() {
            Ok(Opcode::Wait) => "WAIT modifier",
            Ok(Opcode::SendEnable) => "SEND_EN modifier",
            _ => return Ok(None),
        };
        let is_it = |kind: &WaitKind| Ok(kind.opcode()) == ctrl.opcode() && kind.opmod() == ctrl.opmod();
        let known = [Self::Completions, Self::Data, Self::Time, Self::SendEnable].into_iter().find(is_it);
        known.map(Some).ok_or(UnknownCode { what, code: ctrl.opmod() })
    }

    /// Returns its opcode.
    pub fn opcode(self) -> Opcode {
        if self == WaitKind::SendEnable { Opcode::SendEnable } else { Opcode::Wait }
    }

    /// Returns the modifier of its opcode (`MLX5_OPC_MOD_WAIT_*`).
    pub fn opmod(self) -> u8 {
        match self {
            WaitKind::Completions | WaitKind::SendEnable => 0,
            WaitKind::Data => 1,
            WaitKind::Time => 2,
        }
    }

    /// Returns its size in 16-byte units, with the control segment. It takes one basic block.
    pub fn ds(self) -> u8 {
        match self {
            WaitKind::Completions | WaitKind::SendEnable => 2,
            WaitKind::Data | WaitKind::Time => 3,
        }
    }

    /// Creates its control segment, at block `index` of queue pair `qpn`.
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
    /// Waits for a word of 8 bytes at `addr`, a multiple of 8 (lower bits are dropped), in the region with that lkey.
    /// Only the bits of `mask` are compared.
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

    /// Waits until the word has reached a number in a sequence that may wrap: `word(..)` of it is `ticket`, or ahead
    /// by less than 2^63.
    pub fn reached(lkey: u32, addr: u64, ticket: u64) -> Self {
        let condition = (WaitOperation::CyclicBigger, true);
        WaitDataSeg::new(condition, lkey, addr, WaitAction::Retry, ticket, u64::MAX)
    }

    /// Waits until the card's clock is past `ticks`.
    pub fn past(ticks: u64) -> Self {
        let condition = (WaitOperation::CyclicSmaller, false);
        WaitDataSeg::new(condition, 0, 0, WaitAction::Retry, ticks, u64::MAX)
    }

    /// Returns the comparison, and whether it is inverted.
    ///
    /// # Errors
    /// [`UnknownCode`].
    pub fn condition(&self) -> Result<(WaitOperation, bool), UnknownCode> {
        let code = self.operation.get();
        let what = u8::try_from(code & !INVERT).unwrap_or(u8::MAX);
        Ok((WaitOperation::try_from(what)?, code & INVERT != 0))
    }

    /// Returns true if the condition is met by a number, which is [`word`] of the memory's value, or a time.
    ///
    /// The cyclic comparisons wrap at the power of two above the mask's highest bit: DPDK waits this way for times
    /// that wrap below 2^64. (A comment in public code calls the two operations *signed*, which is the same for a
    /// full mask and numbers below 2^63.)
    ///
    /// # Errors
    /// [`UnknownCode`]: the operation.
    pub fn is_met(&self, number: u64) -> Result<bool, UnknownCode> {
        let (operation, inverted) = self.condition()?;
        let mask = self.mask();
        let (value, number) = (self.value() & mask, number & mask);
        // Shifts out the zeros above the mask, so that the sign is that of the cyclic difference.
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
    /// The raw operation field.
    raw_operation -> u32 { self.operation.get() }
    /// Local key of the region.
    lkey -> u32 { self.lkey.get() }
    /// Address of the word, a multiple of 8.
    addr -> u64 { self.address_action.get() & !ACTION }
    /// The card's action if the condition is not met.
    ///
    /// # Errors
    /// [`UnknownCode`], also for an unaligned address.
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
    /// WAIT: `index` is the number, counted from 0, of the awaited entry among all entries that the card has ever
    /// written to completion queue `number`; the card compares 24 bits.
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

/// Bits of a completion queue's index that the card compares (`MLX5_CQ_INDEX_WIDTH` of DPDK).
pub const CQ_INDEX: u32 = 0xff_ffff;

/// Returns true if entry `index` is among the `produced` entries of a completion queue: cyclically, in 24 bits.
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
