//! The log on stderr.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set once this process, or an ancestor that forked it, has started the log.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The file descriptor, without the standard library's lock: the card's thread may hold that lock
/// during a fork, and the child would then wait for it forever. Each message is one write.
struct Stderr;

impl std::io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // SAFETY: the slice keeps the bytes readable.
        let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| std::io::Error::last_os_error())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Logs what `SOFTHCA_LOG` selects, in the syntax of `tracing_subscriber::EnvFilter`.
pub(crate) fn start() {
    let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("SOFTHCA_LOG") else { return };
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Stderr);
    // Fails if a program that links this library has installed a log, which then has the messages.
    let _ = log.try_init();
}
