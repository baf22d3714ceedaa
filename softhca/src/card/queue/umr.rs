//! Changes of memory keys in send WQEs.

use super::wqe::WqeError;
use crate::card::memory::indirect::KeyChange;
use crate::card::memory::translation::Translation;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::umr::{KeyContextSeg, KeyMask, UmrCtrlSeg, UmrFlags};
use gdsync_sys::prm::wqe::{CtrlSeg, SEGMENT};
use zerocopy::FromBytes;

/// Parses the segments after the control segment.
pub(super) fn parse(ctrl: &CtrlSeg, body: &[u8]) -> Result<KeyChange, WqeError> {
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
        parse(&ctrl, &body)
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
        assert_eq!(parse(&ctrl, &[0; 47]).unwrap_err().field, "ds");
        assert_eq!(parse(&ctrl, &[0; 111]).unwrap_err().field, "ds");
    }
}
