//! The library's log on stderr, as libgdsync's: errors and warnings, and more if the environment asks for it.

use gdsync_sys::host::origin;
use std::sync::Once;
use std::{fmt, io};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::prelude::*;

/// The variable with the filter, as `tracing_subscriber::filter::Targets` reads it.
const VARIABLE: &str = "GDSYNC_LOG";

/// Returns whether a switch of libgdsync is a number other than 0.
fn is_on(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value.trim().parse::<i64>().is_ok_and(|number| number != 0))
}

fn filter() -> Targets {
    if let Some(filter) = std::env::var(VARIABLE).ok().and_then(|value| value.parse().ok()) {
        return filter;
    }
    let level = if is_on("GDS_ENABLE_DEBUG") { "debug" } else { "warn" };
    let memops = if is_on("GDS_ENABLE_DUMP_MEMOPS") {
        ",gdsync::stream::post=trace,gdsync::stream::state=trace"
    } else {
        ""
    };
    format!("{level}{memops}").parse().unwrap_or_default()
}

/// Writes what precedes each message: the time, and the process.
const STAMP: fn(&mut Writer<'_>) -> fmt::Result = |writer| {
    SystemTime.format_time(writer)?;
    write!(writer, " {}", origin())
};

/// Starts the log, unless the process has one, such as a Rust program that links the static library.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let written = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_timer(STAMP)
            // The layer would report a failed write by `eprintln!`, which panics.
            .log_internal_errors(false)
            .with_ansi(false);
        let log = tracing_subscriber::registry().with(written).with(filter());
        // The program's own log takes precedence.
        drop(log.try_init());
    });
}
