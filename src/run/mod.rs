//! `gdsync run`: starts the ranks of a job, on this host or on several, and ends all of them when one fails.

mod hosts;
mod hosts_file;
mod output;
mod ranks;
mod remote;
#[allow(unsafe_code)]
mod reserved_port;

use crate::cli::RunOptions;
use crate::failure::Failure;
use crate::signals::{self, Held};
use crate::text;
use hosts::Hosts;
use output::LastLines;
use ranks::{NotStarted, Ranks};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use ranks::watch;
pub(crate) use remote::run as run_host;

/// Time between the request to end (SIGTERM) and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the job. Returns the exit status of the rank that failed first, or 128 plus the number of the signal that ended
/// it.
pub(crate) fn run(options: &RunOptions) -> Result<ExitCode, Failure> {
    let hosts = options.hosts.as_deref().map(|path| hosts_file::placed(path, options.ranks)).transpose()?;
    // Signals are blocked before anything starts: one that would end this process ends the ranks first.
    let signals = Held::new()?;
    let (ended, all_ended) = mpsc::channel();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("gdsync-run-{}-{:x}", std::process::id(), since.as_nanos());
    let last_lines = LastLines::default();
    let outcome = match hosts {
        Some(hosts) => match Hosts::start(&signals, options, hosts, &name, &ended, &last_lines)? {
            Ok(hosts) => wait(&signals, hosts, |_| {})?,
            Err(status) => return Ok(ExitCode::from(status)),
        },
        None => {
            let variables = [
                ("GDSYNC_SIZE", Some(options.ranks.to_string())),
                ("GDSYNC_JOB", Some(name)),
                // The ranks meet on this host, where their user's key serves.
                ("GDSYNC_ROOT", None),
            ];
            let all = 0..options.ranks;
            match Ranks::start(&signals, &options.program, all, &variables, &ended, &last_lines)? {
                Ok(ranks) => wait(&signals, ranks, |_| {})?,
                Err(NotStarted { status, .. }) => return Ok(ExitCode::from(status)),
            }
        }
    };
    drop(ended);
    output::rest(&all_ended);
    let Some(Outcome { first, passed_on }) = outcome else {
        return Ok(ExitCode::SUCCESS);
    };
    let of_rank = first.rank.and_then(|rank| last_lines.of(&output::prefix(rank)));
    let last = match of_rank.or_else(|| last_lines.of(first.host.as_deref()?)) {
        Some(line) => format!("its last line of standard error: {line}"),
        None => "it wrote nothing to standard error".to_owned(),
    };
    let after =
        passed_on.map_or(String::new(), |signal| format!("signal {signal} was passed on to all ranks; "));
    text::complain(format_args!("{after}{first} was the first to fail ({}); {last}", first.status));
    if let Some(remedy) = &first.remedy {
        text::complain(remedy);
    }
    Ok(ExitCode::from(signals::code_of(first.status)))
}

/// A rank, or the way to a host, that has failed.
#[derive(Clone, Debug)]
struct Failed {
    rank: Option<u32>,
    host: Option<String>,
    status: ExitStatus,
    remedy: Option<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rank, &self.host) {
            (Some(rank), None) => write!(f, "rank {rank}"),
            (Some(rank), Some(host)) => write!(f, "rank {rank} on {host}"),
            (None, host) => write!(f, "host {}", host.as_deref().unwrap_or_default()),
        }
    }
}

/// Ranks that have been started, here or elsewhere. SIGCHLD announces that one may have ended.
trait Running {
    /// Returns what has failed since the last call.
    fn failed(&mut self) -> Result<Vec<Failed>, Failure>;

    fn have_ended(&self) -> bool;

    /// Sends a signal to all of them.
    fn send(&mut self, signal: libc::c_int);
}

/// The first failure, and the signal that was passed on before it, if any.
struct Outcome {
    first: Failed,
    passed_on: Option<libc::c_int>,
}

/// Waits until all ranks have ended. When the first fails, the others are asked to end, and after a time made to.
fn wait(
    signals: &Held,
    mut ranks: impl Running,
    at_failure: impl Fn(&Failed),
) -> Result<Option<Outcome>, Failure> {
    let (mut outcome, mut passed_on, mut deadline) = (None, None, None);
    let after = |time| Some(Instant::now() + time);
    loop {
        // Of failures seen at once, a signal is more likely the cause than the effect.
        let first = ranks.failed()?.into_iter().min_by_key(|failed| failed.status.signal().is_none());
        if let Some(first) = first
            && outcome.is_none()
        {
            at_failure(&first);
            outcome = Some(Outcome { first, passed_on });
            // A signal that was passed on has asked them.
            if passed_on.is_none() {
                ranks.send(libc::SIGTERM);
            }
            deadline = deadline.or(after(GRACE));
        }
        if ranks.have_ended() {
            return Ok(outcome);
        }
        let left = deadline.map(|deadline: Instant| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            ranks.send(libc::SIGKILL);
            deadline = after(GRACE);
            continue;
        }
        match signals.next(left) {
            None | Some(libc::SIGCHLD) => {}
            Some(libc::SIGINT) if passed_on == Some(libc::SIGINT) => {
                ranks.send(libc::SIGKILL);
                deadline = after(GRACE);
            }
            Some(signal) => {
                ranks.send(signal);
                if [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&signal) {
                    passed_on = passed_on.or(Some(signal));
                }
                if [libc::SIGTERM, libc::SIGHUP].contains(&signal) {
                    deadline = deadline.or(after(GRACE));
                }
            }
        }
    }
}
