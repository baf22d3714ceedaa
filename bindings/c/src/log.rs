//! The library's log on stderr, as libgdsync has it: errors and warnings, and more where the
//! environment asks for it.

use std::io;
use std::sync::Once;
use tracing_subscriber::EnvFilter;

/// The variable with the filter, as `tracing_subscriber::EnvFilter` reads it.
const VARIABLE: &str = "GDSYNC_LOG";

/// A switch of libgdsync: on where it is a number other than 0.
fn is_on(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value.trim().parse::<i64>().is_ok_and(|number| number != 0))
}

fn filter() -> EnvFilter {
    if let Ok(filter) = EnvFilter::try_from_env(VARIABLE) {
        return filter;
    }
    let level = if is_on("GDS_ENABLE_DEBUG") { "debug" } else { "warn" };
    let memops = if is_on("GDS_ENABLE_DUMP_MEMOPS") { ",gdsync::stream::post=trace" } else { "" };
    EnvFilter::new(format!("{level}{memops}"))
}

/// Starts the log, unless the process has one already (a Rust program that links the static
/// library).
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter())
            .with_writer(io::stderr)
            // Reports a failed write by `eprintln!`, which panics.
            .log_internal_errors(false)
            .with_ansi(false);
        // Another log is the program's wish.
        drop(log.try_init());
    });
}
