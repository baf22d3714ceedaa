//! The parser of work requests that wait, or that release another queue.

use super::WqeError;
use crate::card::config::WaitRules;
use gdsync_sys::prm::UnknownCode;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wait::{IndexSeg, WaitAction, WaitDataSeg, WaitKind, WaitOperation};
use gdsync_sys::prm::wqe::CtrlSeg;
use zerocopy::FromBytes;

/// The condition of a work request that waits, or the queue that it releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// WAIT for entry `index` of a completion queue, and all before it.
    Completions {
        cqn: u32,
        index: u32,
    },
    Data(WaitDataSeg),
    Time(WaitDataSeg),
    /// SEND_EN: releases the blocks before `index` of a queue pair.
    SendEnable {
        qpn: u32,
        index: u16,
    },
}

impl Wait {
    /// Refuses work requests that a card with these rules does not have.
    pub(crate) fn check(&self, ctrl: &CtrlSeg, rules: WaitRules) -> Result<(), WqeError> {
        let has = match self {
            Wait::Data(_) | Wait::Time(_) => rules.supported,
            Wait::Completions { .. } | Wait::SendEnable { .. } => rules.has_cross_channel(),
        };
        let missing =
            || malformed("opcode", format!("{ctrl}: this card has no such work requests (SOFTHCA_WAITS)"));
        if has { Ok(()) } else { Err(missing()) }
    }
}

fn malformed(field: &'static str, message: String) -> WqeError {
    WqeError { syndrome: Syndrome::LocalQpOperation, field, message }
}

/// Parses the segment after the control segment; `None` for other opcodes.
pub(super) fn parse(ctrl: &CtrlSeg, body: &[u8]) -> Result<Option<Wait>, WqeError> {
    let kind = WaitKind::of(ctrl).map_err(|unknown| malformed("opmod", unknown.to_string()))?;
    let Some(kind) = kind else { return Ok(None) };
    let whole = || {
        let (opcode, ds) = (kind.opcode(), kind.ds());
        malformed("ds", format!("{opcode:?} of modifier {} has ds {ds}, not {}", kind.opmod(), ctrl.ds()))
    };
    if ctrl.ds() != kind.ds() {
        return Err(whole());
    }
    Ok(Some(match kind {
        WaitKind::Completions | WaitKind::SendEnable => {
            let segment = IndexSeg::read_from_bytes(body).map_err(|_| whole())?;
            let (number, index) = (segment.number(), segment.index());
            match kind {
                WaitKind::Completions => Wait::Completions { cqn: number, index },
                _ => Wait::SendEnable { qpn: number, index: index as u16 },
            }
        }
        WaitKind::Data | WaitKind::Time => {
            let segment = WaitDataSeg::read_from_bytes(body).map_err(|_| whole())?;
            check(&segment, kind)?;
            if kind == WaitKind::Data { Wait::Data(segment) } else { Wait::Time(segment) }
        }
    }))
}

fn check(segment: &WaitDataSeg, kind: WaitKind) -> Result<(), WqeError> {
    if segment.condition().is_err() {
        let message = format!("{:#x}: 0 to 5 are there, and 0x10 inverts them", segment.raw_operation());
        return Err(malformed("operation", message));
    }
    if let Err(UnknownCode { code, .. }) = segment.action() {
        let message = format!(
            "its low 3 bits are {code}: an address is a multiple of 8, and 0 (look again) or 1 (error entry) is \
             added"
        );
        return Err(malformed("address", message));
    }
    if kind == WaitKind::Time && (segment.lkey(), segment.addr()) != (0, 0) {
        let message = "a WAIT for a time names no memory: key and address are 0".to_owned();
        return Err(malformed("lkey", message));
    }
    Ok(())
}

/// Returns the reason why no number meets a condition; `None` if one does.
pub(crate) fn never_met(segment: &WaitDataSeg) -> Option<&'static str> {
    let (operation, inverted) = segment.condition().ok()?;
    let mask = segment.mask();
    let value = segment.value() & mask;
    match (operation, inverted) {
        (WaitOperation::Always, true) => Some("operation 0 inverted is never true"),
        (WaitOperation::Bigger, false) if value == 0 => Some("no value is smaller than 0"),
        (WaitOperation::Smaller, false) if value == mask => {
            Some("no value is bigger than all bits of the mask")
        }
        (WaitOperation::Equal, true) if mask == 0 => Some("an empty mask makes all values equal"),
        (WaitOperation::CyclicBigger, false) if mask & mask.wrapping_sub(1) == 0 => {
            Some("a lap of so few values has none that is ahead")
        }
        (WaitOperation::CyclicSmaller, false) if mask == 0 => Some("an empty mask makes all values equal"),
        _ => None,
    }
}

/// Returns whether the word of a WAIT is expected only to grow, so that going backwards is a mistake.
pub(crate) fn is_ordered(segment: &WaitDataSeg) -> bool {
    use WaitOperation::{Bigger, CyclicBigger, CyclicSmaller, Smaller};
    matches!(segment.condition(), Ok((Bigger | CyclicBigger, true) | (Smaller | CyclicSmaller, false)))
}

pub(crate) fn fails_at_once(segment: &WaitDataSeg) -> bool {
    segment.action() == Ok(WaitAction::Fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::wqe::CtrlFlags;
    use zerocopy::IntoBytes;

    fn refused(kind: WaitKind, body: &[u8]) -> WqeError {
        parse(&kind.control(0, 1, CtrlFlags::empty()), body).unwrap_err()
    }

    #[test]
    fn every_kind_is_parsed() {
        let parsed =
            |kind: WaitKind, body: &[u8]| parse(&kind.control(0, 1, CtrlFlags::empty()), body).unwrap();
        let (index, data) = (IndexSeg::new(0x1_0005, 7), WaitDataSeg::reached(1, 8, 2));
        let expected = Wait::Completions { cqn: 7, index: 0x1_0005 };
        assert_eq!(parsed(WaitKind::Completions, index.as_bytes()), Some(expected));
        assert_eq!(
            parsed(WaitKind::SendEnable, index.as_bytes()),
            Some(Wait::SendEnable { qpn: 7, index: 5 })
        );
        assert_eq!(parsed(WaitKind::Data, data.as_bytes()), Some(Wait::Data(data)));
        let time = WaitDataSeg::past(9);
        assert_eq!(parsed(WaitKind::Time, time.as_bytes()), Some(Wait::Time(time)));
    }

    #[test]
    fn malformed_entries_are_named() {
        let patched = |at: usize, byte: u8| {
            let mut bytes = WaitDataSeg::reached(0, 0, 2).as_bytes().to_vec();
            bytes[at] = byte;
            bytes
        };
        assert_eq!(refused(WaitKind::Data, &patched(3, 6)).field, "operation");
        assert_eq!(refused(WaitKind::Data, &patched(2, 1)).field, "operation");
        assert_eq!(refused(WaitKind::Data, &patched(15, 2)).field, "address");
        assert_eq!(refused(WaitKind::Data, &patched(15, 4)).field, "address");
        assert_eq!(refused(WaitKind::Time, &patched(7, 1)).field, "lkey");
        assert_eq!(refused(WaitKind::Time, &patched(14, 1)).field, "lkey");
        let ctrl = WaitKind::Data.control(0, 1, CtrlFlags::empty()).with_opmod(3);
        assert_eq!(parse(&ctrl, &patched(0, 0)).unwrap_err().field, "opmod");
        let short = WaitKind::Data.control(0, 1, CtrlFlags::empty()).with_opmod(0);
        assert_eq!(parse(&short, &patched(0, 0)).unwrap_err().field, "ds");
        assert_eq!(refused(WaitKind::SendEnable, &[0; 8]).field, "ds");
    }

    proptest::proptest! {
        /// A mask of 4 bits leaves 16 numbers, which can all be tried.
        #[test]
        fn what_is_never_met_is_met_by_no_number(operation in 0u32..6, inverted: bool, value in 0u64..16, mask in 0u64..16) {
            let operation = WaitOperation::try_from(operation as u8).unwrap();
            let segment = WaitDataSeg::new((operation, inverted), 0, 0, WaitAction::Retry, value, mask);
            let met = (0..16).any(|number| segment.is_met(number).unwrap());
            proptest::prop_assert_eq!(never_met(&segment).is_none(), met, "{}", segment);
        }
    }
}
