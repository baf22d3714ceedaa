//! Findings of the cards' checks in a run of the command.

use gdsync_cli::failure::Failure;
use gdsync_cli::text;
use softhca::explore::{read_journals, sights};
use std::path::Path;

/// Writes what the journals of a run tell to stderr.
pub(crate) fn complain(journals: &Path) -> Result<(), Failure> {
    for sight in sights(&read_journals(journals)?) {
        text::complain(format_args!("found: {sight}"));
    }
    Ok(())
}
