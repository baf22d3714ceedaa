//! Trace events of streams ([`gdsync_trace`]): submissions, and their performance by a thread.

use crate::memop::MemOp;
use gdsync_trace::{EventKind, Span, event, span};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the next software stream, from 1 on; 0 is the caller's thread as a stream.
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(super) fn next_stream() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The number of the next recorded submission, from 1 on.
static SUBMISSIONS: AtomicU64 = AtomicU64::new(1);

pub(super) struct PostSpan {
    _span: Span,
    /// The submission's number; 0 if nothing is recorded.
    pub(super) number: u64,
}

#[inline(always)]
pub(super) fn posting(stream: u64, ops: &[MemOp]) -> PostSpan {
    if gdsync_trace::enabled() {
        begin_posting(stream, ops)
    } else {
        PostSpan { _span: Span::none(), number: 0 }
    }
}

#[cold]
#[inline(never)]
fn begin_posting(stream: u64, ops: &[MemOp]) -> PostSpan {
    let number = SUBMISSIONS.fetch_add(1, Ordering::Relaxed);
    let span = span(EventKind::Posted, || [stream, ops.len() as u64, number]);
    // Doorbells are recognized by their address.
    for op in ops {
        if let MemOp::Write64 { addr, value } = op {
            event(EventKind::PostedDoorbell, || [addr.get(), *value, number]);
        }
    }
    PostSpan { _span: span, number }
}

/// Records a wait of a thread, until the returned value is dropped.
#[inline(always)]
pub(super) fn waiting(op: &MemOp) -> Waiting<'_> {
    let waits = gdsync_trace::enabled() && op.is_wait();
    if waits {
        event(EventKind::WaitBegin, || words(op));
    }
    Waiting(waits.then_some(op))
}

pub(super) struct Waiting<'a>(Option<&'a MemOp>);

impl Drop for Waiting<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(op) = self.0 {
            event(EventKind::WaitEnd, || words(op));
        }
    }
}

/// Records a store of a thread, until the returned value is dropped.
#[inline(always)]
pub(super) fn storing(op: &MemOp) -> Span {
    span(EventKind::Stored, || words(op))
}

/// Returns address, value, and bits of an operation's word.
fn words(op: &MemOp) -> [u64; 3] {
    match *op {
        MemOp::Write32 { addr, value } | MemOp::Wait32 { addr, value, .. } => [addr.get(), value.into(), 32],
        MemOp::Write64 { addr, value } | MemOp::Wait64 { addr, value, .. } => [addr.get(), value, 64],
        MemOp::Barrier | MemOp::FlushRemote => [0; 3],
    }
}
