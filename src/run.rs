//! `gdsync run`: starts the ranks of a job on this host, and ends all of them when one fails.
//!
//! The ranks, and the processes that they start, are one process group. A watcher process leads the group and kills it
//! when this process has ended, however it has ended. As the watcher is a member, the group's number cannot be reused
//! before that.

use crate::child::{self, Guarded};
use crate::cli::{Process, RunOptions};
use crate::failure::Failure;
use crate::signals::{self, Held, send_to_group};
use crate::text;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between the request to end (SIGTERM) and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time without output after which no more is expected, once all ranks have ended. Only a process that has left the
/// group, which nothing ends, still holds a pipe then.
const REST: Duration = Duration::from_secs(1);
/// Longest line that is kept whole.
const MAX_LINE: u64 = 1 << 16;
/// Last line of a panic of Rust, which says nothing about its cause.
const HINT: &str = "note: run with `RUST_BACKTRACE=1`";

/// Number of threads that write output, and of lines that have been written.
static WRITING: AtomicUsize = AtomicUsize::new(0);
static LINES: AtomicUsize = AtomicUsize::new(0);

/// Runs the job. Returns the exit status of the rank that failed first, or 128 plus the number of the signal that ended
/// it.
pub(crate) fn run(options: &RunOptions) -> Result<ExitCode, Failure> {
    // Signals are blocked before anything starts: one that would end this process ends the ranks first.
    let signals = Held::new()?;
    let group = Group::start()?;
    let (output, all_ended) = mpsc::channel();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("gdsync-run-{}-{:x}", std::process::id(), since.as_nanos());
    let mut ranks = BTreeMap::new();
    let mut errors = Vec::new();
    for rank in 0..options.ranks {
        let mut command = command(options, rank, &name);
        command.process_group(group.id() as libc::pid_t);
        match signals.spawn(&mut command) {
            Ok(mut child) => {
                errors.push(read(rank, &mut child, &output)?);
                ranks.insert(rank, Guarded(child));
            }
            Err(status) => return Ok(ExitCode::from(status)),
        }
    }
    drop(output);
    let outcome = watch_ranks(&signals, &group, ranks)?;
    drop(group);
    rest(&all_ended);
    let Some(Outcome { rank, status, passed_on }) = outcome else {
        return Ok(ExitCode::SUCCESS);
    };
    let last =
        errors.get(rank as usize).map(|last| last.lock().unwrap_or_else(PoisonError::into_inner).clone());
    let last = match last.filter(|line| !line.is_empty()) {
        Some(line) => format!("its last line of standard error: {line}"),
        None => "it wrote nothing to standard error".to_owned(),
    };
    let after =
        passed_on.map_or(String::new(), |signal| format!("signal {signal} was passed on to all ranks; "));
    text::complain(format_args!("{after}rank {rank} was the first to fail ({status}); {last}"));
    Ok(ExitCode::from(signals::code_of(status)))
}

/// Waits for the rest of the output, as long as this process's own output takes it.
fn rest(all_ended: &Receiver<()>) {
    let mut before = None;
    while let Err(RecvTimeoutError::Timeout) = all_ended.recv_timeout(REST) {
        let lines = LINES.load(Ordering::Relaxed);
        if WRITING.load(Ordering::Relaxed) == 0 && before == Some(lines) {
            return;
        }
        before = Some(lines);
    }
}

/// The first failure of a rank, and the signal that was passed on before it, if any.
struct Outcome {
    rank: u32,
    status: ExitStatus,
    passed_on: Option<libc::c_int>,
}

/// Waits until all ranks have ended. When the first fails, the others are asked to end, and after a time made to.
fn watch_ranks(
    signals: &Held,
    group: &Group,
    mut ranks: BTreeMap<u32, Guarded>,
) -> io::Result<Option<Outcome>> {
    let (mut outcome, mut passed_on, mut deadline) = (None, None, None);
    loop {
        let mut failed = Vec::new();
        for (rank, Guarded(child)) in &mut ranks {
            if let Some(status) = child.try_wait()? {
                failed.push((*rank, status));
            }
        }
        ranks.retain(|rank, _| !failed.iter().any(|(ended, _)| ended == rank));
        failed.retain(|(_, status)| !status.success());
        // Of failures seen at once, a signal is more likely the cause than the effect.
        let first = failed.into_iter().min_by_key(|(_, status)| status.signal().is_none());
        if let Some((rank, status)) = first
            && outcome.is_none()
        {
            outcome = Some(Outcome { rank, status, passed_on });
            // A signal that was passed on has asked them.
            if passed_on.is_none() {
                group.send(libc::SIGTERM);
            }
            deadline = deadline.or(Some(Instant::now() + GRACE));
        }
        if ranks.is_empty() {
            return Ok(outcome);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            group.send(libc::SIGKILL);
            deadline = None;
            continue;
        }
        match signals.next(left) {
            None | Some(libc::SIGCHLD) => {}
            Some(libc::SIGINT) if passed_on == Some(libc::SIGINT) => group.send(libc::SIGKILL),
            Some(signal) => {
                group.send(signal);
                if [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&signal) {
                    passed_on = passed_on.or(Some(signal));
                }
                if [libc::SIGTERM, libc::SIGHUP].contains(&signal) {
                    deadline = deadline.or(Some(Instant::now() + GRACE));
                }
            }
        }
    }
}

/// Returns the command of a rank, described to [`gdsync_notify::bootstrap::Job::from_env`].
fn command(options: &RunOptions, rank: u32, job: &str) -> Command {
    let mut words = options.program.iter().map(OsStr::new);
    let mut command = Command::new(words.next().unwrap_or_default());
    command
        .args(words)
        .env("GDSYNC_RANK", rank.to_string())
        .env("GDSYNC_SIZE", options.ranks.to_string())
        .env("GDSYNC_JOB", job)
        // The ranks meet on this host, where their user's key serves.
        .env_remove("GDSYNC_ROOT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    child::is_killed_with_this_process(&mut command);
    command
}

/// Copies a rank's output, line by line, until it ends. Returns the last line of its standard error. `ended` is held
/// until the output has ended.
fn read(rank: u32, child: &mut Child, ended: &Sender<()>) -> io::Result<Arc<Mutex<String>>> {
    let last = Arc::new(Mutex::new(String::new()));
    if let Some(output) = child.stdout.take() {
        let ended = ended.clone();
        let body = move || {
            let _ended = ended;
            copy(rank, output, io::stdout, |_| {})
        };
        thread::Builder::new().name("stdout".to_owned()).spawn(body)?;
    }
    if let Some(output) = child.stderr.take() {
        let (ended, last) = (ended.clone(), last.clone());
        let keep = move |line: &str| {
            if !line.trim().is_empty() && !line.starts_with(HINT) {
                line.clone_into(&mut last.lock().unwrap_or_else(PoisonError::into_inner));
            }
        };
        let body = move || {
            let _ended = ended;
            copy(rank, output, io::stderr, keep)
        };
        thread::Builder::new().name("stderr".to_owned()).spawn(body)?;
    }
    Ok(last)
}

/// Copies lines with the rank before each. Each is written by one call, so that lines of several ranks do not mix. If
/// this process's own output is closed, the rank's is, too.
fn copy<W: Write>(rank: u32, from: impl Read, to: impl Fn() -> W, seen: impl Fn(&str)) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = format!("[{rank}] ").into_bytes();
        let begin = line.len();
        match from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        seen(String::from_utf8_lossy(&line[begin..]).trim_end());
        let mut to = to();
        WRITING.fetch_add(1, Ordering::Relaxed);
        let written = to.write_all(&line).and_then(|()| to.flush());
        LINES.fetch_add(1, Ordering::Relaxed);
        WRITING.fetch_sub(1, Ordering::Relaxed);
        if written.is_err() {
            return;
        }
    }
}

/// The process group of the ranks. Dropped, it ends whatever is left in it.
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
