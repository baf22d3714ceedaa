//! Interrupts by the user (SIGINT). The first lets a run end early and print what it has; the second ends the process at
//! once, as it would have without this.

use crate::signals;
use std::fmt;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status of a run that was interrupted: 128 and the number of the signal, as shells have it.
pub const STATUS: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Somebody looks at stderr.
static ON_TERMINAL: AtomicBool = AtomicBool::new(false);

const NOTE: &[u8] =
    b"gdsync: interrupted: the run ends after what is under way; interrupt again to end it at once\n";

extern "C" fn note(_: libc::c_int) {
    REQUESTED.store(true, Ordering::Relaxed);
    if ON_TERMINAL.load(Ordering::Relaxed) {
        // SAFETY: the bytes are a static's, and signal handlers may call write. What it returns is of no use here.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, NOTE.as_ptr().cast(), NOTE.len()) };
    }
}

/// From now on the first SIGINT only makes [`requested`] true, unless the process has been started with SIGINT ignored.
///
/// # Errors
/// The system's.
pub fn catch() -> std::io::Result<()> {
    ON_TERMINAL.store(std::io::stderr().is_terminal(), Ordering::Relaxed);
    // Calls that sleep go on.
    signals::take_next(libc::SIGINT, note, libc::SA_RESTART)
}

/// Whether the user wants the run to end.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// The rounds of a measurement: after an interrupt no further one begins. The first always does, so that there is
/// something to print.
pub fn rounds<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    until(all, requested)
}

fn until<T>(all: impl IntoIterator<Item = T>, ends: impl Fn() -> bool) -> impl Iterator<Item = T> {
    let kept = all.into_iter().enumerate().take_while(move |(number, _)| *number == 0 || !ends());
    kept.map(|(_, round)| round)
}

/// The run was interrupted before there was anything to print.
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
