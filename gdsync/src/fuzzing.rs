//! What fuzz targets call. Built only for them (`cfg(fuzzing)`, which cargo-fuzz sets).

use crate::batch::proof::{Case, Mode};
use crate::qp::CompletionQueue;
use crate::queue::doorbell::PeerOp;
use gdsync_sys::prm::cqe::{CQE_SIZE, LAST_DWORD};
use gdsync_sys::shared::SharedU8;
use std::sync::atomic::Ordering;

/// Writes a completion entry as the card does: the owner bit last.
pub fn write_entry(queue: &CompletionQueue, index: u32, entry: &[u8; CQE_SIZE]) {
    let (PeerOp::PollAnd { addr, .. } | PeerOp::PollNor { addr, .. }) = queue.inner.lock().wait_op(index)
    else {
        return;
    };
    let first = addr.get() - LAST_DWORD as u64;
    for (at, byte) in (first..).zip(entry) {
        // SAFETY: the entry belongs to the queue's ring, which lives as long as the queue; a card
        // may write there at any time.
        unsafe { SharedU8::from_ptr(at as *mut u8) }.store(*byte, Ordering::Release);
    }
}

/// Runs a system of streams that these bytes describe, merged and unmerged, by doorbells and by the card.
///
/// # Errors
/// The difference.
pub fn compare_merged_and_unmerged(bytes: &[u8]) -> Result<(), String> {
    let case = Case::new(bytes);
    case.check(&Mode::ALL).map_err(|what| format!("{what}\n{case:#?}"))
}
