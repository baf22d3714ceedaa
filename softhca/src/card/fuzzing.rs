//! Entry points of fuzz targets, compiled only under `cfg(fuzzing)`, which cargo-fuzz sets.

use super::config::Transport;
use super::queue::wqe::{Payload, parse};
use gdsync_sys::prm::wqe::{CtrlSeg, SEGMENT};
use zerocopy::FromBytes;

/// Parses a work request: a byte for the transport, the control segment, and the rest.
pub fn work_request(bytes: &[u8]) {
    let Some((transport, bytes)) = bytes.split_first() else { return };
    let transport =
        [Transport::Rc, Transport::Uc, Transport::Ud, Transport::XrcInitiator, Transport::DcInitiator]
            [usize::from(transport % 5)];
    let Ok((ctrl, body)) = CtrlSeg::read_from_prefix(bytes) else { return };
    // The engine passes as many bytes as `ds` says.
    let body = &body[..body.len() / SEGMENT * SEGMENT];
    match parse(&ctrl, body, transport) {
        Ok(work) if work.wait.is_some() => assert_eq!(work.length, 0, "{work:?}"),
        Ok(work) => {
            let (parts, length) = match &work.payload {
                Payload::Inline(inline) => (inline.len().div_ceil(SEGMENT), inline.len() as u64),
                Payload::Mixed(inline, list) => {
                    let parts = inline.len().div_ceil(SEGMENT) + list.len();
                    let places: u64 = list.iter().map(|part| u64::from(part.byte_count())).sum();
                    (parts, inline.len() as u64 + places)
                }
                Payload::Segments(list) => {
                    (list.len(), list.iter().map(|part| u64::from(part.byte_count())).sum())
                }
            };
            assert!(parts * SEGMENT <= body.len() && length == u64::from(work.length), "{work:?}");
        }
        Err(error) => assert!(!error.field.is_empty() && !error.message.is_empty()),
    }
}
