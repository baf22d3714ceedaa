//! The state of a queue pair, and its first error.

use crate::queue::{FailureCause, QueueError, StateError, WorkError};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// The state of a queue pair, which every post reads without a lock.
#[derive(Debug)]
pub(crate) struct Life {
    /// The queue pair's number, for errors.
    qpn: u32,
    /// `IBV_QPS_*`, with the first error.
    status: Mutex<QpState>,
    /// True if it takes posts: connected, not failed, and not driven by kernels. Changes under the status lock, and
    /// is read without it.
    pub(crate) is_ready: AtomicBool,
    /// True once the card has it in the error state: outstanding work is flushed. An aborted queue pair fails a
    /// moment earlier.
    pub(crate) is_flushed: AtomicBool,
    /// First packet sequence number of its sends. A reset changes it.
    pub(crate) psn: AtomicU32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum QpState {
    Initialised,
    Connected,
    /// With the first error, and the time at which it was found.
    Failed(FailureCause, Instant),
}

/// Source of initial packet sequence numbers. Any value works, but one of an earlier connection should not recur soon.
static NEXT_PSN: AtomicU32 = AtomicU32::new(0);

pub(super) fn next_psn() -> u32 {
    NEXT_PSN.fetch_add(0x1_0001, Ordering::Relaxed) & 0xff_ffff
}

impl Life {
    /// The state of a new queue pair.
    pub(super) fn new(qpn: u32) -> Self {
        let (status, psn) = (Mutex::new(QpState::Initialised), AtomicU32::new(next_psn()));
        Life { qpn, status, is_ready: AtomicBool::new(false), is_flushed: AtomicBool::new(false), psn }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, QpState> {
        self.status.lock()
    }

    /// Records that it is connected.
    pub(crate) fn connected(&self, status: &mut QpState) {
        *status = QpState::Connected;
        self.is_ready.store(true, Ordering::Release);
    }

    /// Refuses sends unless it is connected, has not failed, and is not driven by kernels.
    #[inline(always)]
    pub(crate) fn check_connected(&self) -> Result<(), QueueError> {
        if self.is_ready.load(Ordering::Acquire) { Ok(()) } else { self.why_not_connected() }
    }

    #[cold]
    #[inline(never)]
    fn why_not_connected(&self) -> Result<(), QueueError> {
        let qpn = self.qpn;
        match *self.lock() {
            // A connected queue pair is not ready only while kernels drive it.
            QpState::Connected => Err(QueueError::State(StateError::DeviceAttached { qpn })),
            QpState::Initialised => Err(QueueError::State(StateError::NotConnected { qpn })),
            QpState::Failed(cause, _) => Err(QueueError::State(StateError::Failed { qpn, cause })),
        }
    }

    /// Refuses receives of a failed queue pair.
    pub(crate) fn check_not_failed(&self) -> Result<(), QueueError> {
        match self.failure() {
            Some(cause) => Err(QueueError::State(StateError::Failed { qpn: self.qpn, cause })),
            None => Ok(()),
        }
    }

    pub(crate) fn failure(&self) -> Option<FailureCause> {
        if self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        match *self.lock() {
            QpState::Failed(cause, _) => Some(cause),
            _ => None,
        }
    }

    /// Returns a flush with the failure that it follows, unless the queue pair has been reset since it had `psn`.
    #[cold]
    pub(crate) fn followed_by(&self, psn: u32, flush: WorkError) -> WorkError {
        match *self.lock() {
            QpState::Failed(cause, at) if self.psn.load(Ordering::Relaxed) == psn => {
                flush.after(cause, at.elapsed())
            }
            _ => flush,
        }
    }

    /// Records the first error. A later error report of the card replaces a flush.
    pub(crate) fn fail(&self, status: &mut QpState, cause: FailureCause) {
        let at = match *status {
            QpState::Failed(known, at) => {
                let is_news = known.is_flush() && !cause.is_flush() && cause != FailureCause::Aborted;
                if !is_news {
                    return;
                }
                at
            }
            _ => Instant::now(),
        };
        match cause {
            FailureCause::Work(_) | FailureCause::Event(_) | FailureCause::Master => {
                tracing::warn!(qpn = self.qpn, %cause, "queue pair failed")
            }
            FailureCause::Aborted => tracing::debug!(qpn = self.qpn, "queue pair aborted"),
        }
        *status = QpState::Failed(cause, at);
        self.is_ready.store(false, Ordering::Release);
    }
}
