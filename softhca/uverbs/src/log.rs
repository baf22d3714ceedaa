//! The log on stderr.

use crate::errno::Errno;
use gdsync_sys::file_limit::within_file_limit;
use gdsync_sys::host::origin;
use softhca::setting::SettingError;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::prelude::*;

/// True once this process, or an ancestor that forked it, has started the log.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The file descriptor, without the standard library's lock: the card's thread may hold that lock during a
/// fork, and the child would then wait for it forever. Each message is one write.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        within_file_limit(|| {
            // SAFETY: the slice keeps the bytes readable.
            let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
            usize::try_from(written).map_err(|_| std::io::Error::last_os_error())
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes what precedes each message: the time, and the process.
const STAMP: fn(&mut Writer<'_>) -> fmt::Result = |writer| {
    SystemTime.format_time(writer)?;
    write!(writer, " {}", origin())
};

/// The setting with the filter of the log.
const VARIABLE: &str = "SOFTHCA_LOG";

/// Starts the log with the filter in `SOFTHCA_LOG`, in the syntax of `tracing_subscriber::filter::Targets`.
///
/// # Errors
/// The syntax is wrong.
pub(crate) fn start() -> Result<(), SettingError> {
    let value = std::env::var_os(VARIABLE).unwrap_or_default();
    if value.is_empty() {
        return Ok(());
    }
    let value = value.to_string_lossy();
    let filter =
        value.parse::<Targets>().map_err(|error| SettingError::malformed(VARIABLE, &value, error))?;
    if STARTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // The layer would report a failed write by `eprintln!`, which panics.
    let written =
        tracing_subscriber::fmt::layer().with_writer(|| Stderr).with_timer(STAMP).log_internal_errors(false);
    let log = tracing_subscriber::registry().with(written).with(filter);
    // Fails if a program that links this library has installed a log, which then gets the messages.
    let _ = log.try_init();
    Ok(())
}

/// Writes a message to stderr, regardless of `SOFTHCA_LOG`.
pub(crate) fn say(message: &str) {
    // If stderr is closed, the message is lost.
    let _ = Stderr.write_all(format!("softhca: {message}\n").as_bytes());
}

/// Logs why no device opens, as a program sees only the error number, and returns that number.
pub(crate) fn refuse(error: &SettingError) -> Errno {
    say(&error.to_string());
    Errno::INVALID
}
