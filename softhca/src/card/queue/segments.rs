//! Segments of send WQEs with their own parsers: operands of atomic operations, and changes of memory keys.

use super::WqeError;
use crate::card::memory::indirect::KeyChange;
use crate::card::memory::translation::Translation;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::umr::{KeyContextSeg, KeyMask, UmrCtrlSeg, UmrFlags};
use gdsync_sys::prm::wqe::{AtomicSeg, CtrlSeg, Opcode, SEGMENT};
use zerocopy::FromBytes;

/// The opcode modifier of an extended operation on `4 << n` bytes is this plus `n`.
const EXTENDED: u8 = 8;
const PLAIN_BYTES: u32 = 8;

/// The operands of an atomic operation, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operands {
    /// Bytes that it changes: 4 or 8.
    pub(crate) bytes: u32,
    /// The value to swap in or to add.
    pub(crate) swap_add: u64,
    pub(crate) compare: u64,
    /// Masks of a masked operation. Compare-and-swap: the bits to swap and the bits to compare. Fetch-and-add: the
    /// highest bits of the fields to add, and 0.
    pub(crate) masks: Option<[u64; 2]>,
}

pub(super) fn is_atomic(opcode: Opcode) -> bool {
    use Opcode::{AtomicCs, AtomicFa, AtomicMaskedCs, AtomicMaskedFa};
    matches!(opcode, AtomicCs | AtomicFa | AtomicMaskedCs | AtomicMaskedFa)
}

/// Parses the operand segments. Returns the bytes after them. (`struct mlx5_wqe_atomic_seg` and `struct
/// mlx5_wqe_masked_atomic_seg` of libmlx5; those of 4 bytes as UCX and NVSHMEM post them.)
pub(super) fn parse_operands<'a>(
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

pub(super) fn parse_key_change(ctrl: &CtrlSeg, body: &[u8]) -> Result<KeyChange, WqeError> {
    let error = |field, message| WqeError { syndrome: Syndrome::LocalQpOperation, field, message };
    let missing = |what| error("ds", format!("a change of a key with ds {} has no {what}", ctrl.ds()));
    let (umr, rest) = UmrCtrlSeg::read_from_prefix(body).map_err(|_| missing("UMR control segment"))?;
    let (context, rest) = KeyContextSeg::read_from_prefix(rest).map_err(|_| missing("key context"))?;
    let flags = umr.flags();
    if flags.bits() & !UmrFlags::all().bits() != 0 || umr.mask().bits() & !KeyMask::all().bits() != 0 {
        let message = format!("flags {flags:?}, attributes {:?}: there are no signatures", umr.mask());
        return Err(error("umr", message));
    }
    let translation = match usize::from(umr.entries()) {
        0 => None,
        _ if !flags.contains(UmrFlags::INLINE) || umr.offset() != 0 => {
            let message = "the new translation is not inline, or does not begin at entry 0".to_owned();
            return Err(error("umr", message));
        }
        count => {
            let bytes = rest.get(..count * SEGMENT).ok_or_else(|| missing("translation of that length"))?;
            Some(Translation::parse(bytes).map_err(|message| error("translation", message))?)
        }
    };
    Ok(KeyChange {
        key: u32::from_be_bytes(ctrl.imm()),
        flags,
        mask: umr.mask(),
        fields: context.fields(),
        translation,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::umr::{ANY_QP, KeyFields};
    use gdsync_sys::prm::wqe::{CtrlFlags, DataSeg, Opcode};
    use zerocopy::IntoBytes;

    fn parsed(flags: UmrFlags, mask: KeyMask, entries: u16, rest: &[u8]) -> Result<KeyChange, WqeError> {
        let context = KeyContextSeg::new(&KeyFields { qpn: ANY_QP, len: 8, ..KeyFields::default() });
        let umr = UmrCtrlSeg::new(flags, mask, entries);
        let body = [umr.as_bytes(), context.as_bytes(), rest].concat();
        let ctrl = CtrlSeg::new(Opcode::Umr, 0, 1, 12, CtrlFlags::empty(), 0x1234u32.to_be_bytes());
        parse_key_change(&ctrl, &body)
    }

    #[test]
    fn a_change_has_a_key_attributes_and_a_translation() {
        let entries = [DataSeg::new(8, 0x900, 0x10), DataSeg::new(0, 0, 0)];
        let change = parsed(UmrFlags::INLINE, KeyMask::LEN, 2, entries.as_bytes()).unwrap();
        assert_eq!((change.key, change.mask, change.fields.len), (0x1234, KeyMask::LEN, 8));
        assert_eq!(change.translation, Some(Translation::list(entries.as_bytes())));
        assert_eq!(parsed(UmrFlags::empty(), KeyMask::FREE, 0, &[]).unwrap().translation, None);
    }

    #[test]
    fn what_the_card_does_not_know_is_refused() {
        let refused = |flags, mask, entries| parsed(flags, mask, entries, &[0; 16]).unwrap_err().field;
        assert_eq!(refused(UmrFlags::INLINE, KeyMask::LEN, 2), "ds");
        assert_eq!(refused(UmrFlags::empty(), KeyMask::LEN, 1), "umr");
        assert_eq!(refused(UmrFlags::INLINE, KeyMask::from_bits_retain(1 << 12), 1), "umr");
        assert_eq!(refused(UmrFlags::from_bits_retain(1), KeyMask::LEN, 0), "umr");
        let ctrl = CtrlSeg::new(Opcode::Umr, 0, 1, 12, CtrlFlags::empty(), [0; 4]);
        assert_eq!(parse_key_change(&ctrl, &[0; 47]).unwrap_err().field, "ds");
        assert_eq!(parse_key_change(&ctrl, &[0; 111]).unwrap_err().field, "ds");
    }
}
