//! The gate between submitting operations and calls that wait for the GPU.
//!
//! Submitting happens all the time and must cost next to nothing; the other calls are rare and may
//! be put off. So the cost lies with them: a submitting thread only writes a flag of its stream and
//! reads one of its context, with no read-modify-write and no fence, and the thread that closes the
//! gate makes all other threads pass a fence first (`membarrier(2)`).
//!
//! The argument: submitting stores `busy` and then loads `closed`; closing stores `closed`, has
//! every thread pass a full fence, and then loads every `busy`. If that fence falls, in the
//! submitting thread, before its load of `closed`, the load sees the store and the thread steps
//! back; if it falls after it, it falls after the store of `busy`, too, which the closing thread
//! then sees. Both cannot miss each other. Without the system call, both sides fence themselves.

use crate::util::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use crate::util::sync::yield_now;
use std::sync::LazyLock;

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration (`linux/membarrier.h`).
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call has no pointers, and does nothing but fence.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// True where the system fences for us. Registered once, and asked for before the first gate is
/// used.
static FENCED_BY_SYSTEM: LazyLock<bool> = LazyLock::new(|| membarrier(REGISTER_PRIVATE_EXPEDITED));

/// A context's gate.
#[derive(Debug)]
pub(crate) struct Gate {
    closed: AtomicBool,
    fenced_by_system: bool,
}

/// A stream's part of the gate: set while a thread submits there. One thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Busy(AtomicBool);

/// Submitting; the gate stays open until it is dropped.
#[derive(Debug)]
pub(crate) struct Submitting<'a>(&'a Busy);

/// The gate is closed until it is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    pub(crate) fn new() -> Self {
        Self::fenced(*FENCED_BY_SYSTEM)
    }

    /// With the system's fences, where it has them, or with its own.
    pub(crate) fn fenced(fenced_by_system: bool) -> Self {
        Gate { closed: AtomicBool::new(false), fenced_by_system }
    }

    /// Goes through, as soon as the gate is open. `busy` is that of the stream submitted to.
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

    /// Closes the gate, unless another thread has. The caller then asks which streams are still
    /// submitting ([`Busy::is_set`]).
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
    /// True while a thread submits. Acquire: if it is false, every earlier submission has reached
    /// the driver.
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

static HELD: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// While one lives, gdsync gives back no memory that a GPU knows. Giving it back waits for the GPU, and gdsync does so while
/// the streams that it knows are idle: a wait of another stream, of a graph that the program launches say, would block the
/// thread that does it. Dropping one calls no function of CUDA.
#[derive(Debug)]
pub struct HeldBack(());

/// Has gdsync hold back what waits for the GPU: see [`HeldBack`].
pub fn hold_back() -> HeldBack {
    // AcqRel, as in `is_held_back`: what is launched after this is not overtaken by what looks before it.
    HELD.fetch_add(1, Ordering::AcqRel);
    HeldBack(())
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether one lives.
pub(super) fn is_held_back() -> bool {
    HELD.load(Ordering::Acquire) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    /// Submitters add to a counter that only they may touch while the gate is open; the closer
    /// reads it twice.
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
        let (one, other) = (hold_back(), hold_back());
        drop(one);
        assert!(is_held_back());
        drop(other);
        assert!(!is_held_back());
    }
}
