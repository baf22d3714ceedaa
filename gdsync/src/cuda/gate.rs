//! A gate between submitting operations and calls that wait for the GPU.
//!
//! Submitting is frequent and must cost next to nothing; the other calls are rare and can be deferred, so they bear the
//! cost. A submitting thread only writes a flag of its stream and reads one of its context, without a read-modify-write
//! or a fence. The thread that closes the gate makes all other threads execute a fence (`membarrier(2)`).
//!
//! Correctness: a submitter stores `busy`, then loads `closed`. The closer stores `closed`, has every thread execute
//! a full fence, then loads every `busy`. If the fence falls before the submitter's load of `closed`, that load sees
//! the store, and the submitter backs off. If it falls after that load, it also falls after the store of `busy`,
//! which the closer then sees. They cannot miss each other. Without the system call, both sides execute a fence.

use crate::util::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use crate::util::sync::yield_now;
use std::sync::LazyLock;

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration (`linux/membarrier.h`).
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointers, and only executes fences.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// True if `membarrier(2)` is available. It registers the process once, before the first gate is used.
static FENCED_BY_SYSTEM: LazyLock<bool> = LazyLock::new(|| membarrier(REGISTER_PRIVATE_EXPEDITED));

#[derive(Debug)]
pub(crate) struct Gate {
    closed: AtomicBool,
    fenced_by_system: bool,
}

/// A stream's flag of the gate, set while a thread submits there. One thread at a time sets it.
#[derive(Debug, Default)]
pub(crate) struct Busy(AtomicBool);

/// Keeps the gate open until it is dropped.
#[derive(Debug)]
pub(crate) struct Submitting<'a>(&'a Busy);

/// Keeps the gate closed until it is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    pub(crate) fn new() -> Self {
        Self::fenced(*FENCED_BY_SYSTEM)
    }

    /// `fenced_by_system`: the closer calls `membarrier(2)`; otherwise both sides execute fences.
    pub(crate) fn fenced(fenced_by_system: bool) -> Self {
        Gate { closed: AtomicBool::new(false), fenced_by_system }
    }

    /// Passes the gate, as soon as it is open. `busy` is the flag of the stream.
    #[inline]
    pub(crate) fn enter<'a>(&self, busy: &'a Busy) -> Submitting<'a> {
        loop {
            busy.0.store(true, Ordering::Relaxed);
            if self.fenced_by_system {
                compiler_fence(Ordering::SeqCst);
            } else {
                fence(Ordering::SeqCst);
            }
            if !self.closed.load(Ordering::Acquire) {
                return Submitting(busy);
            }
            busy.0.store(false, Ordering::Release);
            while self.closed.load(Ordering::Relaxed) {
                yield_now();
            }
        }
    }

    /// Closes the gate, unless it is closed. The caller then checks which streams are still submitting
    /// ([`Busy::is_set`]).
    pub(crate) fn try_close(&self) -> Option<Closed<'_>> {
        if self.closed.swap(true, Ordering::Acquire) {
            return None;
        }
        if self.fenced_by_system {
            membarrier(PRIVATE_EXPEDITED);
        }
        fence(Ordering::SeqCst);
        Some(Closed(self))
    }
}

impl Busy {
    /// True while a thread submits. Acquire: if it is false, every earlier submission has reached the driver.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Submitting<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::Release);
    }
}

static DEFERRALS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// While a value lives, gdsync does not unregister or free memory that a GPU knows. Doing so waits for the GPU, and
/// gdsync does it while the streams that it knows are idle: a wait on another stream, for example in a graph that the
/// program launches, would block the calling thread. Dropping a value calls no CUDA function.
#[derive(Debug)]
pub struct DeferReleaseGuard(());

/// Defers the release of memory that a GPU knows: see [`DeferReleaseGuard`].
pub fn defer_release() -> DeferReleaseGuard {
    // AcqRel, as in `is_release_deferred`: later launches are not reordered before this, nor the check after it.
    DEFERRALS.fetch_add(1, Ordering::AcqRel);
    DeferReleaseGuard(())
}

impl Drop for DeferReleaseGuard {
    fn drop(&mut self) {
        DEFERRALS.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(super) fn is_release_deferred() -> bool {
    DEFERRALS.load(Ordering::Acquire) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    /// Submitters change a variable that only they may change while the gate is open; the closer reads it repeatedly.
    fn exclude(fenced_by_system: bool) {
        let gate = Gate::fenced(fenced_by_system);
        let (busy, inside, stop) = (Busy::default(), AtomicU64::new(0), AtomicBool::new(false));
        let mut closed = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _submitting = gate.enter(&busy);
                    inside.store(1, Ordering::Relaxed);
                    std::hint::black_box(&inside);
                    inside.store(0, Ordering::Relaxed);
                }
            });
            while closed < 2000 {
                let Some(_closed) = gate.try_close() else { continue };
                if busy.is_set() {
                    continue;
                }
                for _ in 0..10 {
                    assert_eq!(inside.load(Ordering::Relaxed), 0, "submitting through a closed gate");
                }
                closed += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn no_thread_submits_through_a_closed_gate() {
        if *FENCED_BY_SYSTEM {
            exclude(true);
        }
        exclude(false);
    }

    #[test]
    fn a_gate_is_closed_once_at_a_time() {
        let gate = Gate::new();
        let closed = gate.try_close().unwrap();
        assert!(gate.try_close().is_none());
        drop(closed);
        let busy = Busy::default();
        let submitting = gate.enter(&busy);
        assert!(busy.is_set() && gate.try_close().is_some());
        drop(submitting);
        assert!(!busy.is_set());
    }

    #[test]
    fn each_counts_until_it_is_dropped() {
        let (one, other) = (defer_release(), defer_release());
        drop(one);
        assert!(is_release_deferred());
        drop(other);
        assert!(!is_release_deferred());
    }
}
