//! The search: orderly runs first, then schedules, then fewer and fewer decisions, then confirmation.

use super::census::{Census, Journal, taken};
use super::explain::{Cause, causes};
use super::plan::{Attempt, attempts};
use super::shrink::shrink;
use super::sights::{self, Sight, sights};
use crate::liberties::{LibertyKinds, Rule, Schedule};
use std::time::{Duration, Instant};

/// Orderly runs at the beginning, which must not fail.
const ORDERLY: usize = 3;
/// Runs in which a part of a schedule must fail once, while it is shrunk.
const TRIES: usize = 3;
/// Runs of the shrunk schedule.
const CONFIRMATIONS: usize = 10;

/// A run of a job.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// How it failed; `None` if it did not.
    pub failure: Option<String>,
    /// The journals of its cards.
    pub journals: Vec<Journal>,
}

/// A job that can be run again and again.
pub trait Job {
    /// The reason why it could not be run.
    type Error;

    /// Runs it under a schedule. A run that takes longer than `limit` has failed.
    ///
    /// # Errors
    /// It could not be run at all.
    fn run(&mut self, schedule: &Schedule, limit: Duration) -> Result<Run, Self::Error>;
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of runs, without those that shrink and confirm.
    pub runs: Option<u64>,
    /// Time, without that for shrinking and confirmation.
    pub time: Option<Duration>,
    /// Kinds of decisions. With those of [`LibertyKinds::FAULTS`] the search takes the faults to which a plan gives
    /// chances (`p`): no run has them by chance.
    pub kinds: LibertyKinds,
}

impl Default for Limits {
    /// A minute, with all liberties.
    fn default() -> Self {
        let kinds = LibertyKinds::all() - LibertyKinds::FAULTS;
        Limits { runs: None, time: Some(Duration::from_secs(60)), kinds }
    }
}

/// The present step of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It runs the job on a prompt and orderly card.
    Orderly,
    /// It begins to try schedules; the decisions that there are, by kind.
    Begins(Vec<(LibertyKinds, usize)>),
    /// It tries a schedule: the number of the run from 1, and a description of the schedule.
    Tries(u64, String),
    /// The job has failed; so many decisions were taken.
    Failed(usize),
    /// So many decisions are left.
    Shrinks(usize),
    /// It confirms the failure.
    Confirms,
}

/// Why there is no search.
#[derive(Debug, thiserror::Error)]
pub enum Refusal<E> {
    /// The job fails without any liberty.
    #[error("it fails on a prompt and orderly card, too: {0}; explore a program that works there")]
    Fails(String),
    /// The card made no decision: the job does not use it, or its processes have no names.
    #[error("no card of the job has decided anything: does it use the software card?")]
    NothingToDecide,
    /// The card made no decision of the kinds that may be taken.
    #[error("it leaves the card no choice of the kinds {}: explore others", .0.words())]
    NoSuchDecision(LibertyKinds),
    /// The job could not be run.
    #[error(transparent)]
    Job(#[from] E),
}

/// A failure that was found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The fewest decisions under which the job fails.
    pub schedule: Schedule,
    /// How it failed.
    pub failure: String,
    /// How often it failed in the confirmations, and their number: fewer if the search was ended.
    pub confirmed: (usize, usize),
    /// The effect of each decision.
    pub causes: Vec<Cause>,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The failure; `None` if nothing was found.
    pub finding: Option<Finding>,
    /// The decisions of the last orderly run.
    pub census: Census,
    /// Findings of the cards' checks, in any run.
    pub sights: Vec<Sight>,
    /// Number of runs under schedules, without those that shrink and confirm.
    pub runs: u64,
    /// Time from the first schedule to the first failure, or to the end.
    pub time: Duration,
    /// Failures that did not come again under the same schedule: those of the machine, such as a port in use.
    pub unrepeated: Vec<String>,
    /// True if every kind and queue pair that there is was tried.
    pub covered: bool,
}

/// A job, and what checks have found in all of its runs.
struct Observed<'a, J> {
    job: &'a mut J,
    sights: Vec<Sight>,
}

impl<J: Job> Job for Observed<'_, J> {
    type Error = J::Error;

    fn run(&mut self, schedule: &Schedule, limit: Duration) -> Result<Run, J::Error> {
        let run = self.job.run(schedule, limit)?;
        sights(&run.journals).into_iter().for_each(|sight| sights::add(&mut self.sights, sight));
        Ok(run)
    }
}

/// Searches for a schedule under which a job fails. `tell` gets each step, and ends the search by `false`.
///
/// # Errors
/// [`Refusal`].
pub fn search<J: Job>(
    job: &mut J,
    limits: Limits,
    tell: impl FnMut(Progress) -> bool,
) -> Result<Outcome, Refusal<J::Error>> {
    let mut observed = Observed { job, sights: Vec::new() };
    let mut outcome = search_observed(&mut observed, limits, tell)?;
    outcome.sights = observed.sights;
    Ok(outcome)
}

fn search_observed<J: Job>(
    job: &mut J,
    limits: Limits,
    mut tell: impl FnMut(Progress) -> bool,
) -> Result<Outcome, Refusal<J::Error>> {
    let none = Schedule { faults: limits.kinds & LibertyKinds::FAULTS, ..Schedule::default() };
    let Some((orderly, orderly_time)) = run_orderly(job, &none, &mut tell)? else {
        return Ok(Outcome::default());
    };
    let census = Census::of(&orderly, limits.kinds);
    if census.total() == 0 {
        let is_idle = Census::of(&orderly, LibertyKinds::all()).total() == 0;
        return Err(if is_idle { Refusal::NothingToDecide } else { Refusal::NoSuchDecision(limits.kinds) });
    }
    let limit = limit_of(orderly_time);
    let began = Instant::now();
    let mut goes_on = tell(Progress::Begins(census.counts()));
    let mut outcome = Outcome { census: census.clone(), ..Outcome::default() };
    for Attempt { schedule, what } in attempts(&census) {
        let schedule = Schedule { faults: none.faults, ..schedule };
        let is_over = limits.runs.is_some_and(|most| outcome.runs >= most)
            || limits.time.is_some_and(|most| began.elapsed() >= most);
        // The fourth round has taken every queue pair by itself.
        outcome.covered |= schedule.seed >= 4;
        if !goes_on || is_over {
            break;
        }
        outcome.runs += 1;
        goes_on = tell(Progress::Tries(outcome.runs, what));
        let run = job.run(&schedule, limit)?;
        outcome.time = began.elapsed();
        let Some(failure) = run.failure.clone() else { continue };
        outcome.finding = examine(job, schedule, run, &orderly, limit, &mut tell)?;
        if outcome.finding.is_some() {
            break;
        }
        outcome.unrepeated.push(failure);
    }
    Ok(outcome)
}

fn limit_of(orderly: Duration) -> Duration {
    // Plans hold back for 10 s at most, some lost packets cost a time-out each, and a machine may be busy.
    Duration::from_secs(20) + orderly * 20
}

/// The journals of the last orderly run, and the longest time of one.
type OrderlyRuns = (Vec<Journal>, Duration);

/// Runs the job under a schedule without rules. Returns the last run's journals, and the longest time of a run; `None` if the search was
/// ended.
fn run_orderly<J: Job>(
    job: &mut J,
    none: &Schedule,
    tell: &mut impl FnMut(Progress) -> bool,
) -> Result<Option<OrderlyRuns>, Refusal<J::Error>> {
    let (mut journals, mut longest) = (Vec::new(), Duration::ZERO);
    for _ in 0..ORDERLY {
        if !tell(Progress::Orderly) {
            return Ok(None);
        }
        let began = Instant::now();
        let run = job.run(none, Duration::from_secs(600))?;
        longest = longest.max(began.elapsed());
        if let Some(failure) = run.failure {
            return Err(Refusal::Fails(failure));
        }
        journals = run.journals;
    }
    // A run that was ended from outside tells nothing.
    Ok(tell(Progress::Orderly).then_some((journals, longest)))
}

/// Shrinks a schedule under which the job has failed, confirms it and explains it. `None` if the job does not fail again.
fn examine<J: Job>(
    job: &mut J,
    schedule: Schedule,
    first: Run,
    orderly: &[Journal],
    limit: Duration,
    tell: &mut impl FnMut(Progress) -> bool,
) -> Result<Option<Finding>, J::Error> {
    let with = |rules: &[Rule]| Schedule { rules: rules.to_vec(), ..schedule.clone() };
    let mut last = first.clone();
    let mut fails = |rules: &[Rule], job: &mut J| -> Result<bool, J::Error> {
        for _ in 0..TRIES {
            let run = job.run(&with(rules), limit)?;
            if run.failure.is_some() {
                last = run;
                return Ok(true);
            }
        }
        Ok(false)
    };
    let single = taken(&first.journals);
    tell(Progress::Failed(single.len()));
    // If its decisions have other names in another run, the rules as they are must do. A search that is ended cuts runs off:
    // what has failed is then told as it is.
    let rules = if fails(&single, job)? {
        single
    } else if fails(&schedule.rules, job)? {
        schedule.rules.clone()
    } else if tell(Progress::Failed(single.len())) {
        return Ok(None);
    } else {
        single
    };
    let rules = shrink(rules, |rules| fails(rules, job), |left| tell(Progress::Shrinks(left)))?;
    let (mut confirmed, mut runs) = (0, 0);
    while runs < CONFIRMATIONS && tell(Progress::Confirms) {
        let run = job.run(&with(&rules), limit)?;
        if run.failure.is_some() {
            (confirmed, runs) = (confirmed + 1, runs + 1);
            last = run;
        } else if tell(Progress::Confirms) {
            runs += 1;
        }
    }
    if (confirmed, runs) == (0, CONFIRMATIONS) {
        return Ok(None);
    }
    let shrunk = with(&rules);
    Ok(Some(Finding {
        causes: causes(&shrunk, &last.journals, orderly),
        schedule: shrunk,
        failure: last.failure.unwrap_or_default(),
        confirmed: (confirmed, runs),
    }))
}

#[cfg(test)]
mod tests;
