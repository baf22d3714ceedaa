//! What streams give to the timeline ([`gdsync_trace`]): submissions, and what a thread performs of them.

use crate::memop::MemOp;
use gdsync_trace::{Kind, Span, event, span};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the next software stream, from 1 on; 0 is the caller's thread as a stream.
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(super) fn next_stream() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Operations are being submitted to a stream, until the answer is dropped.
#[inline(always)]
pub(super) fn posting(stream: u64, ops: &[MemOp]) -> Span {
    if gdsync_trace::enabled() { begin_posting(stream, ops) } else { Span::none() }
}

#[cold]
#[inline(never)]
fn begin_posting(stream: u64, ops: &[MemOp]) -> Span {
    let posting = span(Kind::Posted, || [stream, ops.len() as u64, 0]);
    // Those of them that ring are known by their address.
    for op in ops {
        if let MemOp::Write64 { addr, value } = op {
            event(Kind::PostedDoorbell, || [addr.get(), *value, 0]);
        }
    }
    posting
}

/// A thread has come to an operation, and has performed it when the answer is dropped: of those that wait, this is recorded.
#[inline(always)]
pub(super) fn waiting(op: &MemOp) -> Waiting<'_> {
    let waits = gdsync_trace::enabled() && op.is_wait();
    if waits {
        event(Kind::WaitBegin, || words(op));
    }
    Waiting(waits.then_some(op))
}

/// A wait that a thread is at.
pub(super) struct Waiting<'a>(Option<&'a MemOp>);

impl Drop for Waiting<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(op) = self.0 {
            event(Kind::WaitEnd, || words(op));
        }
    }
}

/// A thread stores, until the answer is dropped.
#[inline(always)]
pub(super) fn storing(op: &MemOp) -> Span {
    span(Kind::Stored, || words(op))
}

/// Address, value, and bits of an operation's word.
fn words(op: &MemOp) -> [u64; 3] {
    match *op {
        MemOp::Write32 { addr, value } | MemOp::Wait32 { addr, value, .. } => [addr.get(), value.into(), 32],
        MemOp::Write64 { addr, value } | MemOp::Wait64 { addr, value, .. } => [addr.get(), value, 64],
        MemOp::Barrier | MemOp::FlushRemote => [0; 3],
    }
}
