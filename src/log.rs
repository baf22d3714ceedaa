//! Log filters, and what precedes each message.

use crate::failure::Failure;
use gdsync_sys::host::origin;
use std::fmt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The environment variable of the command's log filter.
pub const VARIABLE: &str = "GDSYNC_LOG";

/// Writes what precedes each message: the time, and the process.
pub(crate) const STAMP: fn(&mut Writer<'_>) -> fmt::Result = |writer| {
    SystemTime.format_time(writer)?;
    write!(writer, " {}", origin())
};

/// Returns the filter of the command's log, with its default.
///
/// # Errors
/// The variable is malformed.
pub fn own_filter(default: &str) -> Result<Targets, Failure> {
    let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    filter(VARIABLE, &value.unwrap_or_else(|| default.into()).to_string_lossy())
}

/// Parses the filter `value` of the variable `variable`.
///
/// # Errors
/// The value is malformed: the variable, its value, and the reason.
pub fn filter(variable: &str, value: &str) -> Result<Targets, Failure> {
    value.parse::<Targets>().map_err(|error| {
        format!("{variable} is `{value}`: {error}; a filter is a level such as `info`, or `target=level` with `,` between")
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_named() {
        assert!(filter("GDSYNC_LOG", "error,softhca::faults=info").is_ok());
        let said = filter("GDSYNC_LOG", "softhca=loud").unwrap_err().to_string();
        assert!(said.starts_with("GDSYNC_LOG is `softhca=loud`: ") && said.contains("`info`"), "{said}");
    }
}
