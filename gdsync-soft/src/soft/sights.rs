//! Findings of the cards' checks in a run of the command, and what the cards refused.

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

/// Exit status of a command that has succeeded, but did what a card would not accept.
const REFUSED: u8 = 3;

/// Writes to stderr what the cards of a run refused, and in the last line how much that is. Returns the exit status for a
/// command that ended with `status`.
pub(crate) fn verdict(refusals: &Path, status: u8) -> Result<u8, Failure> {
    let refused = sights(&read_journals(refusals)?);
    for sight in &refused {
        text::complain(format_args!("a card would not accept: {sight}"));
    }
    let acts = text::count(refused.iter().map(|sight| sight.times).sum::<u64>(), "act");
    match refused.len() as u64 {
        0 => text::complain("strict: the command did nothing that a card would not accept"),
        kinds => text::complain(format_args!(
            "strict: a card would not accept {acts} of the command, of {}",
            text::count(kinds, "kind")
        )),
    }
    Ok(if status == 0 && !refused.is_empty() { REFUSED } else { status })
}
