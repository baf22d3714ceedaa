//! Ranks on this host.
//!
//! The ranks, and the processes that they start, are one process group. A watcher process leads the group and kills it
//! when this process has ended, however it has ended. As the watcher is a member, the group's number cannot be reused
//! before that.

use super::output::{self, LastLines};
use super::{Failed, Running};
use crate::child::{self, Guarded};
use crate::cli::Process;
use crate::failure::Failure;
use crate::signals::{Held, send_to_group};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

/// The ranks that run.
pub(super) struct Ranks {
    // Dropped before the group, which kills the processes that remain.
    running: BTreeMap<u32, Guarded>,
    group: Group,
}

/// A shell's exit status for a program that cannot be started, and its rank.
pub(super) struct NotStarted {
    pub(super) rank: u32,
    pub(super) status: u8,
}

impl Ranks {
    /// Starts ranks. `variables` are set for all of them; those without a value are removed.
    ///
    /// # Errors
    /// The inner one, after the cause has been reported: the system does not start the program.
    pub(super) fn start(
        signals: &Held,
        program: &[OsString],
        ranks: impl Iterator<Item = u32>,
        variables: &[(&str, Option<String>)],
        ended: &Sender<()>,
        last_lines: &LastLines,
    ) -> Result<Result<Self, NotStarted>, Failure> {
        let group = Group::start()?;
        let mut running = BTreeMap::new();
        for rank in ranks {
            let mut words = program.iter().map(OsStr::new);
            let mut command = Command::new(words.next().unwrap_or_default());
            command.args(words).env("GDSYNC_RANK", rank.to_string());
            for (name, value) in variables {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            child::is_killed_with_this_process(&mut command);
            command.process_group(group.id() as libc::pid_t);
            match signals.spawn(&mut command) {
                Ok(mut child) => {
                    copy(rank, &mut child, ended, last_lines)?;
                    running.insert(rank, Guarded(child));
                }
                Err(status) => return Ok(Err(NotStarted { rank, status })),
            }
        }
        Ok(Ok(Ranks { running, group }))
    }

    pub(super) fn group(&self) -> u32 {
        self.group.id()
    }
}

impl Running for Ranks {
    fn failed(&mut self) -> Result<Vec<Failed>, Failure> {
        let mut failed = Vec::new();
        let mut ended = Vec::new();
        for (rank, Guarded(child)) in &mut self.running {
            if let Some(status) = child.try_wait()? {
                ended.push(*rank);
                if !status.success() {
                    failed.push(Failed { rank: Some(*rank), host: None, status, remedy: None });
                }
            }
        }
        self.running.retain(|rank, _| !ended.contains(rank));
        Ok(failed)
    }

    fn have_ended(&self) -> bool {
        self.running.is_empty()
    }

    fn send(&mut self, signal: libc::c_int) {
        self.group.send(signal);
    }
}

/// Copies a rank's output, with the rank before each line.
fn copy(rank: u32, child: &mut Child, ended: &Sender<()>, last_lines: &LastLines) -> io::Result<()> {
    let prefix = output::prefix(rank);
    let with_prefix = {
        let prefix = prefix.clone();
        move |line: &[u8]| Some([prefix.as_bytes(), line].concat())
    };
    if let Some(pipe) = child.stdout.take() {
        output::copy(pipe, output::MAX_LINE, io::stdout, ended, with_prefix.clone(), || {})?;
    }
    if let Some(pipe) = child.stderr.take() {
        let last_lines = last_lines.clone();
        let keep = move |line: &[u8]| {
            last_lines.note(&prefix, line);
            with_prefix(line)
        };
        output::copy(pipe, output::MAX_LINE, io::stderr, ended, keep, || {})?;
    }
    Ok(())
}

/// The process group of the ranks. Dropped, it kills the processes that remain in it.
struct Group(Child);

impl Group {
    fn start() -> Result<Self, Failure> {
        let mut watcher = child::watcher(Process::RunWatch, OsStr::new(""), Stdio::piped())?;
        let mut ready = [0];
        if let Some(mut output) = watcher.stdout.take() {
            output
                .read_exact(&mut ready)
                .map_err(|error| format!("the watcher of the ranks has not started: {error}"))?;
        }
        Ok(Group(watcher))
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn send(&self, signal: libc::c_int) {
        send_to_group(self.id(), signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It has killed itself with the group.
        let _ = self.0.wait();
    }
}

/// `gdsync run-watch`: kills the process group that it leads when the other end of stdin closes.
pub(crate) fn watch() -> Result<(), Failure> {
    // Signals that are passed on to the group are not for its leader.
    let _held = Held::new()?;
    let mut output = io::stdout();
    output.write_all(b"\n")?;
    output.flush()?;
    // An error ends the wait, too.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    send_to_group(std::process::id(), libc::SIGKILL);
    Ok(())
}
