//! Scatter-to-CQE: small payloads inside completion entries, instead of the memory of the receive or read. Enabled
//! per queue pair, in libmlx5 by default (`MLX5_QP_FLAG_SCATTER_CQE`); the poller of the entry copies the data to the
//! memory.
//!
//! A 64-byte entry holds 32 bytes at its start, instead of the path fields (`MLX5_INLINE_SCATTER_32` in libmlx5's
//! `mlx5.h`; `cq.c` for the position). A 128-byte entry holds 64 in the half before its fields
//! (`MLX5_INLINE_SCATTER_64`).

use super::cqe::Cqe64;
use zerocopy::IntoBytes;

/// Most payload bytes in a 64-byte entry.
pub const SCATTER_BYTES: usize = 32;
/// Bit of `op_own`: data is in the first 32 bytes of the entry.
const SCATTER_32: u8 = 1 << 2;
/// Most payload bytes before the fields of a 128-byte entry.
pub const SCATTER_LONG_BYTES: usize = 64;
/// Bit of `op_own`: data is in the first half of a 128-byte entry, of which this is the second.
const SCATTER_64: u8 = 1 << 3;

impl Cqe64 {
    /// Returns the entry with data inside, at most [`SCATTER_BYTES`]; the byte count must match. More is dropped.
    pub fn with_data(mut self, data: &[u8]) -> Self {
        let count = data.len().min(SCATTER_BYTES);
        self.as_mut_bytes()[..count].copy_from_slice(&data[..count]);
        self.op_own |= SCATTER_32;
        self
    }

    /// Returns the entry as the second half of a 128-byte entry with data in its first half.
    pub fn with_data_before(mut self) -> Self {
        self.op_own |= SCATTER_64;
        self
    }

    /// Returns true if the first half of the 128-byte entry holds data.
    pub fn has_data_before(&self) -> bool {
        self.op_own & SCATTER_64 != 0 && !self.is_error()
    }

    /// Returns the data inside the entry, if any.
    pub fn data(&self) -> Option<&[u8]> {
        let count = (self.byte_count() as usize).min(SCATTER_BYTES);
        let has_data = self.op_own & SCATTER_32 != 0 && !self.is_error();
        has_data.then(|| &self.as_bytes()[..count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prm::cqe::CqeOpcode;

    #[test]
    fn data_lies_at_the_start_and_the_rest_of_the_entry_stays() {
        let plain = Cqe64::responder(CqeOpcode::RespSendImm, 5, 6, 7, 20, [1, 2, 3, 4], true);
        let cqe = plain.with_data(&[9; 20]).with_user_index(0x123).with_owner(true);
        assert_eq!((plain.data(), cqe.data()), (None, Some(&[9; 20][..])));
        assert_eq!((cqe.opcode(), cqe.owner(), cqe.is_solicited()), (Ok(CqeOpcode::RespSendImm), true, true));
        assert_eq!((cqe.qpn(), cqe.wqe_counter(), cqe.byte_count()), (5, 7, 20));
        assert_eq!((cqe.imm(), cqe.user_index()), ([1, 2, 3, 4], 0x123));
        assert_eq!(cqe.op_own & 0xf, SCATTER_32 | 2 | 1);
        let whole = Cqe64::responder(CqeOpcode::RespSend, 5, 6, 7, 32, [0; 4], false).with_data(&[8; 40]);
        assert_eq!((whole.data(), whole.byte_count()), (Some(&[8; 32][..]), 32));
        let before = plain.with_data_before();
        assert_eq!((plain.has_data_before(), before.has_data_before(), before.data()), (false, true, None));
        assert_eq!((before.opcode(), before.imm()), (plain.opcode(), plain.imm()));
    }
}
