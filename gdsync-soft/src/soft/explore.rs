//! `gdsync soft --explore`: searches for the order that a command lacks.

use super::job::{Command, CommandJob};
use gdsync_cli::cli::SoftOptions;
use gdsync_cli::failure::{Failure, WRONG_USAGE};
use gdsync_cli::{progress, signals, text};
use serde_json::{Value, json};
use softhca::explore::{Finding, Limits, Outcome, Progress, Refusal, search};
use softhca::liberties::LibertyKinds;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Status of a command that fails under a schedule, or of which a check has found something.
const FOUND: u8 = 1;

/// Explores the command. The status is 0 if nothing was found, 1 if something was, 2 if the command cannot be explored, and
/// 128 plus the number of a signal that ended the search before it found something.
pub(crate) fn run(options: &SoftOptions, command: Command<'_>) -> Result<ExitCode, Failure> {
    signals::note_ends()?;
    let mut job = CommandJob::new(command, options.expect.clone());
    let time = options.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let limits = Limits {
        runs: options.runs,
        time: time.or(if options.runs.is_some() { None } else { Limits::default().time }),
        kinds: options.kinds.unwrap_or(explored(options)),
    };
    let outcome = match search(&mut job, limits, |what| tell(options.json, what)) {
        Ok(outcome) => outcome,
        Err(Refusal::Job(error)) => return Err(error),
        Err(refusal) => {
            text::complain(format_args!("cannot explore the command: {refusal}"));
            return Ok(ExitCode::from(WRONG_USAGE));
        }
    };
    progress::clear();
    let written = match &outcome.finding {
        Some(finding) => std::fs::write(&options.output, finding.schedule.to_string()),
        None => Ok(()),
    };
    let is_stopped = signals::ended_by().is_some();
    text::print(options.json, &as_json(&outcome, options, is_stopped), || {
        as_text(&outcome, options, is_stopped)
    })?;
    // After the result, which took time.
    written.map_err(|error| format!("cannot write {}: {error}", options.output.display()))?;
    let is_found = outcome.finding.is_some() || !outcome.sights.is_empty();
    Ok(ExitCode::from(match signals::ended_by() {
        _ if is_found => FOUND,
        Some(signal) => 128u8.saturating_add(signal as u8),
        None => 0,
    }))
}

/// Shows what the search does, on a terminal. Returns false once a signal has asked for the end.
fn tell(json: bool, what: Progress) -> bool {
    let line = match what {
        Progress::Orderly => "runs the command on an orderly card".to_owned(),
        Progress::Begins(counts) => format!("explores {}", counted(&counts)),
        Progress::Tries(run, what) => format!("run {run}: {what}"),
        Progress::Failed(count) => format!("it has failed: shrinks {count} decisions"),
        Progress::Shrinks(count) => format!("shrinks: {count} decisions are left"),
        Progress::Confirms => "confirms".to_owned(),
    };
    progress::show(json, line);
    signals::ended_by().is_none()
}

fn counted(counts: &[(LibertyKinds, usize)]) -> String {
    let counts: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{count} {}", kind.words())).collect();
    format!("decisions: {}", counts.join(", "))
}

/// Kinds that are explored by default: faults where a plan is given.
fn explored(options: &SoftOptions) -> LibertyKinds {
    if options.faults.is_some() { LibertyKinds::all() } else { Limits::default().kinds }
}

/// Explored kinds of which the command has no decision.
fn absent(outcome: &Outcome, options: &SoftOptions) -> LibertyKinds {
    let there = outcome.census.counts().into_iter().fold(LibertyKinds::empty(), |all, (kind, _)| all | kind);
    options.kinds.unwrap_or(explored(options)) - there
}

fn as_text(outcome: &Outcome, options: &SoftOptions, is_stopped: bool) -> String {
    let (runs, seconds) = (outcome.runs, outcome.time.as_secs_f64());
    let mut text = match &outcome.finding {
        Some(finding) => found(finding, options),
        None if !outcome.sights.is_empty() => "the command has not failed\n".to_owned(),
        None if is_stopped => "nothing was found before the end was asked for\n".to_owned(),
        None => "nothing was found\n".to_owned(),
    };
    for sight in &outcome.sights {
        let _ = writeln!(text, "found: {sight}");
    }
    let _ = writeln!(text, "{runs} runs in {seconds:.1} s; {}", counted(&outcome.census.counts()));
    for failure in &outcome.unrepeated {
        let _ = writeln!(text, "one run failed, and not again under the same schedule: {failure}");
    }
    if outcome.finding.is_none() {
        if !outcome.covered {
            text += "not every queue pair was tried by itself: give it more --minutes\n";
        }
        let absent = absent(outcome, options);
        if !absent.is_empty() {
            let _ = writeln!(text, "the command leaves no choice of the kinds {}", absent.words());
        }
        for card in &outcome.census.incomplete {
            let _ = writeln!(
                text,
                "{card} has more decisions than are listed: the later ones were tried by kinds only"
            );
        }
    }
    text
}

fn found(finding: &Finding, options: &SoftOptions) -> String {
    let Finding { schedule, failure, confirmed: (failed, all), causes } = finding;
    let mut text = String::new();
    for (index, cause) in causes.iter().enumerate() {
        let lead = if index == 0 { "the command fails where" } else { "and where" };
        let _ = writeln!(text, "{lead} {cause}");
    }
    let often = match all {
        0 => "It has failed, unconfirmed,".to_owned(),
        _ => format!("It fails in {failed} of {all} runs"),
    };
    let decisions = if schedule.rules.len() == 1 { "decision" } else { "decisions" };
    let _ = writeln!(text, "{often} with {} {decisions}: {failure}", schedule.rules.len());
    let command: Vec<_> = options.command.iter().map(|word| word.to_string_lossy()).collect();
    let file = options.output.display();
    let faults = options.faults.as_ref().map(|plan| format!("--faults '{plan}' ")).unwrap_or_default();
    let _ = writeln!(text, "Repeat: gdsync soft {faults}--schedule {file} -- {}", command.join(" "));
    text
}

fn as_json(outcome: &Outcome, options: &SoftOptions, is_stopped: bool) -> Value {
    let decisions: serde_json::Map<String, Value> =
        outcome.census.counts().into_iter().map(|(kind, count)| (kind.words(), count.into())).collect();
    let finding = outcome.finding.as_ref().map(|finding| as_json_finding(finding, &options.output));
    let sights: Vec<Value> = outcome
        .sights
        .iter()
        .map(|sight| json!({ "card": sight.card, "text": sight.text, "times": sight.times }))
        .collect();
    json!({
        "found": finding,
        "sights": sights,
        "runs": outcome.runs,
        "seconds": outcome.time.as_secs_f64(),
        "decisions": decisions,
        "covered": outcome.covered,
        "stopped": is_stopped,
        "incomplete": outcome.census.incomplete,
        "unrepeated": outcome.unrepeated,
    })
}

fn as_json_finding(finding: &Finding, file: &Path) -> Value {
    let causes: Vec<Value> = finding
        .causes
        .iter()
        .map(|cause| {
            json!({
                "rule": cause.rule.to_string(),
                "what": cause.what,
                "why": cause.why,
                "orders": cause.orders,
                "breaks_on": cause.breaks_on,
            })
        })
        .collect();
    json!({
        "schedule": finding.schedule.to_string(),
        "file": file,
        "failure": finding.failure,
        "failed": finding.confirmed.0,
        "confirmations": finding.confirmed.1,
        "causes": causes,
    })
}
