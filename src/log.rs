//! The filters of logs.

use crate::failure::Failure;
use tracing_subscriber::filter::Targets;

/// Environment variable with the filter of the command's log.
pub const VARIABLE: &str = "GDSYNC_LOG";
/// What is logged without it.
const DEFAULT: &str = "warn";

/// The filter of the command's log.
///
/// # Errors
/// The variable is malformed.
pub fn own_filter() -> Result<Targets, Failure> {
    let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    filter(VARIABLE, &value.unwrap_or_else(|| DEFAULT.into()).to_string_lossy())
}

/// The filter that `value` describes, which `variable` has.
///
/// # Errors
/// It describes none: the variable, its value, and what is wrong with it.
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
