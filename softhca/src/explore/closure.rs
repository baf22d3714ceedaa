//! A search with a closure of this process as the job.

use super::census::Journal;
use super::search::{Job, Limits, Outcome, Refusal, Run, search};
use crate::liberties::{self, Schedule, journal};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Searches for a schedule under which a closure fails: it panics, or returns an error.
///
/// The closure runs again and again. Each time it must open its own devices of the software card, and close them. Other
/// cards that this process starts meanwhile follow the same schedules: call this in a test program without other tests of
/// the card, or with `--test-threads 1`. Two searches at once wait for one another.
///
/// Unlike `gdsync soft --explore`, this ends no closure that takes too long: give it time limits.
///
/// # Errors
/// [`Refusal::Fails`] if it fails on a prompt and orderly card; [`Refusal::NothingToDecide`] if it uses no software card.
///
/// ```no_run
/// use softhca::explore::{Limits, explore};
/// # fn exchange_messages() -> Result<(), String> { Ok(()) }
/// let outcome = explore(Limits::default(), exchange_messages)?;
/// assert!(outcome.finding.is_none(), "{:#?}", outcome.finding);
/// # Ok::<(), softhca::explore::Refusal<std::convert::Infallible>>(())
/// ```
pub fn explore(
    limits: Limits,
    run: impl FnMut() -> Result<(), String>,
) -> Result<Outcome, Refusal<Infallible>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let outcome = search(&mut Closure(run), limits, |_| true);
    liberties::end_exploring();
    outcome
}

struct Closure<F>(F);

impl<F: FnMut() -> Result<(), String>> Job for Closure<F> {
    type Error = Infallible;

    fn run(&mut self, schedule: &Schedule, _: Duration) -> Result<Run, Infallible> {
        let kept = journal::keep_in_memory();
        liberties::begin_run(schedule.clone());
        let failure = match catch_unwind(AssertUnwindSafe(&mut self.0)) {
            Ok(result) => result.err(),
            Err(panic) => Some(text_of(panic.as_ref())),
        };
        let journals = kept.end().into_iter().map(|(card, text)| Journal::parse(card, &text)).collect();
        Ok(Run { failure, journals })
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

#[cfg(test)]
mod tests;
