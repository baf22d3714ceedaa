//! A command as a job that runs again and again, each time in a fresh folder.

use gdsync_cli::child::{Guarded, dies_with_this_process};
use gdsync_cli::failure::Failure;
use gdsync_cli::signals;
use softhca::explore::{Job, Run, read_journals};
use softhca::liberties::journal::JOURNALS;
use softhca::liberties::{JOB_VARIABLE, LIBERTIES_VARIABLE, SCHEDULE_VARIABLE, Schedule};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{self, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time between two looks at a running command.
const LOOK: Duration = Duration::from_millis(1);
/// Number of bytes of the last line of output that a failure repeats.
const SHOWN: usize = 200;

/// A command that can be started again and again.
pub(crate) struct Command<'a> {
    /// Makes the command with its environment.
    pub(crate) make: &'a dyn Fn() -> process::Command,
    /// The private folder of this process.
    pub(crate) folder: &'a Path,
}

pub(crate) struct CommandJob<'a> {
    command: Command<'a>,
    /// Text that the output of a run that has not failed contains.
    expect: Option<String>,
}

impl<'a> CommandJob<'a> {
    pub(crate) fn new(command: Command<'a>, expect: Option<String>) -> Self {
        CommandJob { command, expect }
    }

    /// Returns how a run has failed.
    fn failure(
        &self,
        ended: Option<ExitStatus>,
        limit: Duration,
        output: &Path,
    ) -> Result<Option<String>, Failure> {
        let text = String::from_utf8_lossy(&fs::read(output)?).into_owned();
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
        let last: String = last.chars().take(SHOWN).collect();
        let how = match ended {
            None => format!("it has not ended after {} s", limit.as_secs()),
            Some(status) => match (status.code(), status.signal(), &self.expect) {
                (Some(0), _, Some(expected)) if !text.contains(expected.as_str()) => {
                    format!("its output lacks `{expected}`")
                }
                (Some(0), ..) => return Ok(None),
                (Some(code), ..) => format!("status {code}"),
                (None, Some(signal), _) => format!("signal {signal}"),
                (None, None, _) => status.to_string(),
            },
        };
        Ok(Some(format!("{how}; its last line is: {last}")))
    }
}

impl Job for CommandJob<'_> {
    type Error = Failure;

    fn run(&mut self, schedule: &Schedule, limit: Duration) -> Result<Run, Failure> {
        let folder = self.command.folder.join("job");
        let journals = folder.join(JOURNALS);
        fs::create_dir_all(&journals)?;
        let (file, output) = (self.command.folder.join("schedule"), self.command.folder.join("output"));
        fs::write(&file, schedule.to_string())?;
        let written = File::create(&output)?;
        let mut command = (self.command.make)();
        command.env(JOB_VARIABLE, &folder).env(SCHEDULE_VARIABLE, &file).env_remove(LIBERTIES_VARIABLE);
        command.stdin(Stdio::null()).stdout(written.try_clone()?).stderr(written).process_group(0);
        dies_with_this_process(&mut command);
        let child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
        let mut group = Group(Guarded(child));
        let ended = group.wait(limit)?;
        drop(group);
        let failure = match signals::ended_by() {
            // The run was ended from outside.
            Some(_) => None,
            None => self.failure(ended, limit, &output)?,
        };
        let journals = read_journals(&journals)?;
        fs::remove_dir_all(&folder)?;
        Ok(Run { failure, journals })
    }
}

/// The process group of a run, killed when this is dropped: a job may leave processes behind.
struct Group(Guarded);

impl Group {
    /// Waits until its first process ends. `None`: it has not after `limit`, or a signal has asked for the end.
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, Failure> {
        let began = Instant::now();
        while began.elapsed() < limit && signals::ended_by().is_none() {
            if let Some(status) = self.0.0.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(LOOK);
        }
        Ok(None)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        signals::send_to_group(self.0.0.id(), libc::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script of a shell. Returns how it has failed.
    fn failure(script: &'static str, expect: Option<&str>, limit: Duration) -> Option<String> {
        let folder = std::env::temp_dir().join(format!("gdsync-job-{}-{}", process::id(), script.len()));
        fs::create_dir(&folder).unwrap();
        let make = || {
            let mut command = process::Command::new("/bin/sh");
            command.args(["-c", script]);
            command
        };
        let mut job = CommandJob::new(Command { make: &make, folder: &folder }, expect.map(str::to_owned));
        let run = job.run(&Schedule::default(), limit).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        run.failure
    }

    #[test]
    fn a_run_fails_by_its_status_a_signal_its_output_or_its_time() {
        let long = Duration::from_secs(600);
        assert_eq!(failure("echo done", Some("done"), long), None);
        for (script, said) in [
            ("echo one; echo two >&2; exit 7", "status 7; its last line is: two"),
            ("kill -KILL $$", "signal 9; its last line is: no output"),
            ("echo no", "its output lacks `done`; its last line is: no"),
        ] {
            assert_eq!(failure(script, Some("done"), long).as_deref(), Some(said));
        }
        let said = failure("echo begins; sleep 1000 & wait", None, Duration::from_millis(200));
        assert_eq!(said.as_deref(), Some("it has not ended after 0 s; its last line is: begins"));
    }
}
