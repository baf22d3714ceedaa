//! The operands of atomic operations in send WQEs.

use super::wqe::WqeError;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{AtomicSeg, CtrlSeg, Opcode, SEGMENT};
use zerocopy::FromBytes;

/// The opcode modifier of an extended operation on `4 << n` bytes is this plus `n`.
const EXTENDED: u8 = 8;
/// Bytes of an operation that is not extended.
const PLAIN_BYTES: u32 = 8;

/// The operands of an atomic operation, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operands {
    /// Bytes that it changes: 4 or 8.
    pub(crate) bytes: u32,
    /// The value to swap in or to add.
    pub(crate) swap_add: u64,
    /// The value to compare.
    pub(crate) compare: u64,
    /// Masks of a masked operation. Compare-and-swap: the bits to swap and the bits to compare. Fetch-and-add: the
    /// highest bits of the fields to add, and 0.
    pub(crate) masks: Option<[u64; 2]>,
}

/// Returns whether an opcode is that of an atomic operation.
pub(super) fn is_atomic(opcode: Opcode) -> bool {
    use Opcode::{AtomicCs, AtomicFa, AtomicMaskedCs, AtomicMaskedFa};
    matches!(opcode, AtomicCs | AtomicFa | AtomicMaskedCs | AtomicMaskedFa)
}

/// Parses the operand segments. Returns the bytes after them. (`struct mlx5_wqe_atomic_seg` and `struct
/// mlx5_wqe_masked_atomic_seg` of libmlx5; those of 4 bytes as UCX and NVSHMEM post them.)
pub(super) fn parse<'a>(
    ctrl: &CtrlSeg,
    opcode: Opcode,
    rest: &'a [u8],
) -> Result<(Operands, &'a [u8]), WqeError> {
    let error = |field, message| WqeError { syndrome: Syndrome::LocalQpOperation, field, message };
    let is_masked = matches!(opcode, Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa);
    let bytes = match (is_masked, ctrl.opmod()) {
        (false, 0) => PLAIN_BYTES,
        (true, EXTENDED) => 4,
        (true, modifier) if modifier == EXTENDED + 1 => 8,
        (_, modifier) => {
            let message = format!("{opcode:?} with modifier {modifier}: 8 bytes, masked also 4, are there");
            return Err(error("opmod", message));
        }
    };
    let missing = || error("ds", format!("{opcode:?} with ds {} has no whole atomic segment", ctrl.ds()));
    let (first, behind) = AtomicSeg::read_from_prefix(rest).map_err(|_| missing())?;
    let plain = Operands { bytes, swap_add: first.swap_add(), compare: first.compare(), masks: None };
    let operands = match (opcode, bytes) {
        (Opcode::AtomicMaskedCs, 4) | (Opcode::AtomicMaskedFa, 4) => {
            let words = rest[..SEGMENT]
                .chunks_exact(4)
                .map(|word| u64::from(word.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte))));
            let words: Vec<u64> = words.collect();
            match opcode {
                Opcode::AtomicMaskedCs => Operands {
                    swap_add: words[0],
                    compare: words[1],
                    masks: Some([words[2], words[3]]),
                    ..plain
                },
                _ => Operands { swap_add: words[0], compare: 0, masks: Some([words[1], 0]), ..plain },
            }
        }
        (Opcode::AtomicMaskedCs, _) => {
            let (second, behind) = AtomicSeg::read_from_prefix(behind).map_err(|_| missing())?;
            let masks = Some([second.swap_add(), second.compare()]);
            return Ok((Operands { masks, ..plain }, behind));
        }
        (Opcode::AtomicMaskedFa, _) => Operands { compare: 0, masks: Some([first.compare(), 0]), ..plain },
        _ => plain,
    };
    Ok((operands, behind))
}
