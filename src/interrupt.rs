//! Interrupts by the user (SIGINT). The first ends a run early, which then prints what it has; the second ends the
//! process at once, as without this module.

use crate::signals;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status of an interrupted run: 128 plus the signal's number, as in shells.
pub const STATUS: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

const NOTE: &[u8] =
    b"gdsync: interrupted: the run ends after what is under way; interrupt again to end it at once\n";

extern "C" fn note(_: libc::c_int) {
    REQUESTED.store(true, Ordering::Relaxed);
    // SAFETY: the bytes are a static's, and signal handlers may call write. A failure has no remedy here.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, NOTE.as_ptr().cast(), NOTE.len()) };
}

/// From now on the first SIGINT only makes [`requested`] true, and says so at once, unless the process was started with SIGINT ignored.
///
/// # Errors
/// The system's.
pub fn catch() -> std::io::Result<()> {
    // Interrupted system calls are restarted.
    signals::take_next(libc::SIGINT, note, libc::SA_RESTART)
}

/// True if the user has asked the run to end.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Yields the rounds of a measurement until an interrupt. The first round always runs, so that there is something to
/// print.
pub fn rounds<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    until(all, requested)
}

fn until<T>(all: impl IntoIterator<Item = T>, ends: impl Fn() -> bool) -> impl Iterator<Item = T> {
    let kept = all.into_iter().enumerate().take_while(move |(number, _)| *number == 0 || !ends());
    kept.map(|(_, round)| round)
}

/// The error of a run that was interrupted before it had a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NothingYet;

impl fmt::Display for NothingYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted before anything was measured")
    }
}

impl std::error::Error for NothingYet {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_first_round_is_measured_and_none_after_an_interrupt() {
        assert_eq!(until(0..5, || false).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(until(0..5, || true).collect::<Vec<_>>(), [0]);
        let interrupted = Cell::new(false);
        let rounds = until(0..5, || interrupted.get()).inspect(|round| interrupted.set(*round == 2));
        assert_eq!(rounds.collect::<Vec<_>>(), [0, 1, 2]);
    }
}
