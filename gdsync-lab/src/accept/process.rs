//! Processes of steps, on the card or on the software card.

use super::probe::{Assignment, CannotRun, Probe};
use super::record::{Fact, Outcome, Record};
use super::steps::{self, Step};
use gdsync::verbs::LinkLayer;
use gdsync_cli::child::{self, Guarded};
use gdsync_cli::cli::Process;
use gdsync_cli::failure::Failure;
use gdsync_cli::tools::{self, SOFT};
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The library that puts a software card under a program.
const PRELOADED: &str = "libsofthca_uverbs.so";
/// Settings of a software card begin so.
const SETTINGS: &str = "SOFTHCA_";

/// A line of a step's process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Fact(Fact),
    End(Outcome),
}

/// The card that a step runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The system's libraries, as they are.
    Card,
    /// The system's libraries on the software card, in one device of this link layer.
    Model(LinkLayer),
}

/// A step that runs.
pub(super) struct Running {
    child: Guarded,
    _input: ChildStdin,
    lines: Receiver<Line>,
    deadline: Instant,
    limit_s: u64,
}

/// Starts a step. It must be called by a thread that lives as long as this process.
pub(super) fn start(step: &Step, side: Side, assignment: &Assignment) -> Result<Running, Failure> {
    let own = child::of(Process::AcceptStep)?;
    let mut command = match side {
        Side::Card => own,
        Side::Model(link) => on_software_card(own, link)?,
    };
    child::for_cuda(&mut command);
    watch(command, step.name, assignment, Duration::from_secs(step.limit_s))
}

/// Starts a process that writes lines, and must end within the limit.
fn watch(
    mut command: Command,
    name: &str,
    assignment: &Assignment,
    limit: Duration,
) -> Result<Running, Failure> {
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let (mut child, input) = child::start(command, &format!("step {name}"), assignment)?;
    let output = child.0.stdout.take().ok_or("a step has no output")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Other output of libraries is none of the step's.
            let Ok(line) = serde_json::from_str(&line) else { continue };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    Ok(Running { child, _input: input, lines, deadline: Instant::now() + limit, limit_s: limit.as_secs() })
}

/// Returns the same command on a separate software card, without the settings of the one that this process may use.
fn on_software_card(own: Command, link: LinkLayer) -> Result<Command, Failure> {
    let mut command = tools::command(SOFT)?;
    let devices = match link {
        LinkLayer::Ethernet => "roce",
        _ => "ib",
    };
    command.args(["soft", "--devices", devices, "--"]).arg(own.get_program()).args(own.get_args());
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with(SETTINGS) {
            command.env_remove(name);
        }
    }
    match env::var("LD_PRELOAD").map(|list| without_card(&list)) {
        Ok(list) if !list.is_empty() => command.env("LD_PRELOAD", list),
        _ => command.env_remove("LD_PRELOAD"),
    };
    command.stdin(Stdio::piped());
    child::dies_with_this_process(&mut command);
    Ok(command)
}

/// Returns a list of preloaded libraries without a software card's.
fn without_card(list: &str) -> OsString {
    let others: Vec<_> = list.split([':', ' ']).filter(|path| !path.ends_with(PRELOADED)).collect();
    others.join(":").into()
}

impl Running {
    /// Waits for the end of the step, and ends it at its limit.
    pub(super) fn record(mut self) -> Result<Record, Failure> {
        let (mut facts, mut outcome) = (Vec::new(), None);
        loop {
            let rest = self.deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(rest) {
                Ok(Line::Fact(fact)) => facts.push(fact),
                Ok(Line::End(end)) => outcome = Some(end),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let after = facts.last().map(|fact: &Fact| fact.name.clone()).unwrap_or_default();
                    let outcome = Outcome::Hung { limit_s: self.limit_s, after };
                    return Ok(Record { outcome, facts });
                }
            }
        }
        let status = self.child.0.wait()?;
        let outcome = outcome.unwrap_or_else(|| Outcome::Crashed { how: described(status) });
        Ok(Record { outcome, facts })
    }
}

fn described(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("the step's process ended by signal {signal}"),
        None => format!("the step's process ended without a word ({status})"),
    }
}

/// Runs a step in this process, which was started for it.
///
/// # Errors
/// The ladder cannot be told. An error of the step is part of its record.
pub(crate) fn run_step() -> Result<(), Failure> {
    let assignment: Assignment = child::options()?;
    let step =
        steps::named(&assignment.step).ok_or_else(|| format!("there is no step {}", assignment.step))?;
    let outcome = match Probe::new(&assignment).and_then(|probe| (step.run)(&probe)) {
        Ok(()) => Outcome::Passed,
        Err(error) => match error.downcast_ref::<CannotRun>() {
            Some(CannotRun { why, remedy }) => {
                Outcome::Skipped { why: why.clone(), remedy: (*remedy).to_owned() }
            }
            None => Outcome::Failed { why: error.to_string() },
        },
    };
    Ok(writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(&outcome)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_on_no_other_software_card() {
        let list = "/tmp/a/libsofthca_uverbs.so:/usr/lib/libfirst.so /opt/libsofthca_uverbs.so";
        assert_eq!(without_card(list), "/usr/lib/libfirst.so");
        assert_eq!(without_card("/x/libsofthca_uverbs.so"), "");
    }

    fn record_of(script: &str) -> Record {
        let assignment = Assignment { step: String::new(), hca: None, gpu: None };
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        watch(command, "test", &assignment, Duration::from_secs(1)).unwrap().record().unwrap()
    }

    const FACT: &str = r#"echo '{"name":"last","value":1}'; read x; "#;

    #[test]
    fn a_step_that_hangs_is_ended_and_named_with_its_last_fact() {
        let record = record_of(&format!("{FACT} sleep 600"));
        assert_eq!(record.outcome, Outcome::Hung { limit_s: 1, after: "last".to_owned() });
        assert_eq!(record.facts.len(), 1);
    }

    #[test]
    fn a_step_that_crashes_keeps_its_facts() {
        let record = record_of(&format!("{FACT} kill -SEGV $$"));
        assert_eq!((record.outcome.word(), record.facts.len()), ("crashed", 1));
        assert!(record.outcome.reason().contains("signal 11"), "{record:?}");
        let record = record_of(&format!("{FACT} exit 0"));
        assert!(record.outcome.reason().contains("without a word"), "{record:?}");
    }

    #[test]
    fn other_output_is_left_out() {
        let record = record_of(&format!(r#"echo noise; {FACT} echo '{{"outcome":"passed"}}'"#));
        assert_eq!((record.outcome, record.facts.len()), (Outcome::Passed, 1));
    }

    #[test]
    fn lines_are_facts_or_the_end() {
        let fact: Line = serde_json::from_str(r#"{"name":"a.b","value":3}"#).unwrap();
        assert!(matches!(fact, Line::Fact(Fact { name, .. }) if name == "a.b"));
        let end: Line = serde_json::from_str(r#"{"outcome":"failed","why":"x"}"#).unwrap();
        assert!(matches!(end, Line::End(Outcome::Failed { why }) if why == "x"));
    }
}
