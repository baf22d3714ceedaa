//! Ranks on several hosts: a remote shell for each host, in which `gdsync run-host` ([`super::remote`]) starts its ranks.

use super::hosts_file::Host;
use super::output::{self, LastLines};
use super::remote::{HostJob, Order, Said};
use super::{Failed, Running};
use crate::child::{self, Guarded};
use crate::cli::{self, Process, RunOptions};
use crate::failure::Failure;
use crate::signals::{Held, send_to_self};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::{env, thread};

/// The remote shell, as words: the host and the command follow. Without a terminal it asks for no password, and says why.
pub(super) const SHELL_VARIABLE: &str = "GDSYNC_RSH";
const SHELL: &str = "ssh -x -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=5";
/// Runs the program at the same path as here or, if there is none, the one of the host's search path.
const START: &str = r#"p=$0; [ -x "$p" ] || p=$(command -v gdsync) || { echo "there is neither $0 nor gdsync in the search path $PATH: install it there" >&2; exit 127; }; exec "$p""#;
/// The exit status of ssh if it has not connected.
const NOT_CONNECTED: i32 = 255;

/// Variables of the environment that are for all ranks, and those of them that each job has its own value for.
const PASSED: [&str; 2] = ["GDSYNC_", "SOFTHCA_"];
const OWN: [&str; 9] = [
    "GDSYNC_RANK",
    "GDSYNC_SIZE",
    "GDSYNC_JOB",
    "GDSYNC_ROOT",
    "GDSYNC_KEY",
    "GDSYNC_KEY_FILE",
    "SOFTHCA_KEY",
    "SOFTHCA_KEY_FILE",
    SHELL_VARIABLE,
];

/// A host, and the shell on it. Dropped, the shell's input ends, and so do the ranks.
struct Shell {
    host: Host,
    /// The remote shell and the host, as words.
    way: String,
    orders: Sender<Order>,
    at: Option<SocketAddr>,
    /// It has said that its ranks have ended.
    is_done: bool,
    /// Its output has ended.
    is_closed: bool,
    /// The shell's process has ended, as it was found.
    is_over: bool,
    process: Guarded,
}

/// A message from the shell with this index; `None` at the end of its output.
type Heard = (usize, Option<Said>);

pub(super) struct Hosts {
    shells: Vec<Shell>,
    heard: Receiver<Heard>,
    have_begun: bool,
    were_killed: bool,
}

impl Hosts {
    /// Starts a shell on each host.
    ///
    /// # Errors
    /// The inner one, after the cause has been reported, is a shell's exit status: the remote shell cannot be started.
    pub(super) fn start(
        signals: &Held,
        options: &RunOptions,
        hosts: Vec<Host>,
        name: &str,
        ended: &Sender<()>,
        last_lines: &LastLines,
    ) -> Result<Result<Self, u8>, Failure> {
        let environment = environment(&options.env)?;
        let key = gdsync_auth::new_key_text()?;
        let given = env::var(SHELL_VARIABLE).unwrap_or_default();
        let shell = if given.trim().is_empty() { SHELL } else { &given };
        let (hear, heard) = mpsc::channel();
        let mut shells = Vec::new();
        for (index, host) in hosts.into_iter().enumerate() {
            let mut command = shell_command(shell, &host.name)?;
            let mut process = match signals.spawn(&mut command) {
                Ok(process) => Guarded(process),
                Err(status) => return Ok(Err(status)),
            };
            let job = HostJob {
                host: host.name.clone(),
                ranks: host.ranks.clone(),
                size: options.ranks,
                name: name.to_owned(),
                key: key.clone(),
                folder: env::current_dir()?.into(),
                environment: environment.clone(),
                program: options.program.clone(),
            };
            let (orders, to_write) = mpsc::channel();
            let _ = orders.send(Order::Job(Box::new(job)));
            if let Some(input) = process.0.stdin.take() {
                write(input, to_write)?;
            }
            copy(index, &host.name, &mut process, &hear, ended, last_lines)?;
            let way = format!("{shell} {}", host.name);
            let (at, is_done, is_closed, is_over) = (None, false, false, false);
            shells.push(Shell { host, way, orders, at, is_done, is_closed, is_over, process });
        }
        Ok(Ok(Hosts { shells, heard, have_begun: false, were_killed: false }))
    }

    /// Tells all hosts to start their ranks, once their addresses are known.
    fn begin(&mut self) -> Result<(), Failure> {
        let Some(all) = self.shells.iter().map(|shell| shell.at).collect::<Option<Vec<SocketAddr>>>() else {
            return Ok(());
        };
        if self.have_begun {
            return Ok(());
        }
        let is_loopback = |at: &SocketAddr| at.ip().to_canonical().is_loopback();
        let inner = self.shells.iter().zip(&all).find(|(_, at)| is_loopback(at));
        if let Some((shell, at)) = inner
            && !all.iter().all(is_loopback)
        {
            return Err(format!(
                "host {} has the address {} for itself, which no other host reaches: name it in the file of --hosts by an address that all reach",
                shell.host.name,
                at.ip()
            )
            .into());
        }
        self.have_begun = true;
        // The first host has rank 0.
        for shell in &self.shells {
            let _ = shell.orders.send(Order::Start { root: all[0] });
        }
        Ok(())
    }
}

impl Running for Hosts {
    fn failed(&mut self) -> Result<Vec<Failed>, Failure> {
        let mut failed = Vec::new();
        while let Ok((index, said)) = self.heard.try_recv() {
            let shell = &mut self.shells[index];
            match said {
                Some(Said::At(at)) => shell.at = Some(at),
                Some(Said::Failed { rank, status }) => failed.push(Failed {
                    rank: Some(rank),
                    host: Some(shell.host.name.clone()),
                    status: ExitStatus::from_raw(status),
                    remedy: None,
                }),
                Some(Said::Ended) => shell.is_done = true,
                None => shell.is_closed = true,
            }
        }
        self.begin()?;
        for shell in self.shells.iter_mut().filter(|shell| !shell.is_over) {
            // All its messages have been read once its output has ended.
            let Some(status) = shell.process.0.try_wait()?.filter(|_| shell.is_closed) else { continue };
            shell.is_over = true;
            if !shell.is_done {
                // A shell that ends with success has cut its ranks off, too.
                let status = if status.success() { ExitStatus::from_raw(1 << 8) } else { status };
                let is_cut_off = shell.at.is_none() && status.code() == Some(NOT_CONNECTED);
                let remedy = is_cut_off.then(|| format!("the ranks need that `{} true` succeeds", shell.way));
                failed.push(Failed { rank: None, host: Some(shell.host.name.clone()), status, remedy });
            }
        }
        Ok(failed)
    }

    fn have_ended(&self) -> bool {
        self.shells.iter().all(|shell| shell.is_over)
    }

    fn send(&mut self, signal: libc::c_int) {
        // Hosts that do not end their ranks do not hear this.
        let is_last_resort = signal == libc::SIGKILL && std::mem::replace(&mut self.were_killed, true);
        for shell in &mut self.shells {
            let _ = shell.orders.send(Order::Signal(signal));
            if is_last_resort || (!self.have_begun && signal == libc::SIGKILL) {
                let _ = shell.process.0.kill();
            }
        }
    }
}

/// Returns the variables for ranks on other hosts: this process's settings, and those that `-x` names.
fn environment(named: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut variables = Vec::new();
    for (name, value) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if PASSED.iter().any(|prefix| name.starts_with(prefix)) && !OWN.contains(&name) {
            let value = value.into_string().map_err(|_| format!("the value of {name} is not UTF-8"))?;
            variables.push((name.to_owned(), value));
        }
    }
    for one in named {
        let variable = match one.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = env::var(one).map_err(|error| {
                    format!("-x {one}: {error}; set the variable, or give its value as `-x {one}=VALUE`")
                })?;
                (one.clone(), value)
            }
        };
        if variable.0.is_empty() || variable.0.contains('\0') || OWN.contains(&variable.0.as_str()) {
            return Err(format!("-x {one}: gdsync run sets {} itself", OWN[..8].join(", ")).into());
        }
        variables.push(variable);
    }
    Ok(variables)
}

/// Returns the command that starts `gdsync run-host` on a host. The terminal's signals do not reach it.
fn shell_command(shell: &str, host: &str) -> Result<Command, Failure> {
    let mut words = shell.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    let own = env::current_exe()?;
    let own = own.to_str().ok_or("the path of gdsync is not UTF-8")?;
    let process = cli::word(&Process::RunHost);
    let on_host = format!("exec sh -c '{START} {process}' '{}'", own.replace('\'', r"'\''"));
    command.args(words).arg(host).arg(on_host);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    child::is_killed_with_this_process(&mut command);
    Ok(command)
}

/// Writes orders by a thread: a shell that does not connect yet takes none.
fn write(mut input: ChildStdin, orders: Receiver<Order>) -> io::Result<()> {
    let body = move || {
        for order in orders {
            let Ok(line) = serde_json::to_string(&order) else { return };
            if writeln!(input, "{line}").and_then(|()| input.flush()).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("orders".to_owned()).spawn(body).map(drop)
}

/// Copies a shell's output: lines with a rank unchanged, others with the host before them. Passes on its messages.
fn copy(
    index: usize,
    host: &str,
    process: &mut Guarded,
    hear: &Sender<Heard>,
    ended: &Sender<()>,
    last_lines: &LastLines,
) -> Result<(), Failure> {
    let announce = move |hear: &Sender<Heard>, said| {
        let _ = hear.send((index, said));
        send_to_self(libc::SIGCHLD);
    };
    let of_host = format!("{host}: ");
    if let Some(pipe) = process.0.stdout.take() {
        let (of_host, hear, at_end) = (of_host.clone(), hear.clone(), hear.clone());
        let edit = move |line: &[u8]| {
            if let Ok(said) = serde_json::from_slice(line) {
                announce(&hear, Some(said));
                return None;
            }
            Some(rank_of(line).map_or_else(|| [of_host.as_bytes(), line].concat(), |_| line.to_vec()))
        };
        output::copy(pipe, output::MAX_PREFIXED, io::stdout, ended, edit, move || announce(&at_end, None))?;
    }
    if let Some(pipe) = process.0.stderr.take() {
        let (host, last_lines) = (host.to_owned(), last_lines.clone());
        let edit = move |line: &[u8]| match rank_of(line) {
            Some((rank, text)) => {
                last_lines.note(&output::prefix(rank), text);
                Some(line.to_vec())
            }
            None => {
                // ssh ends its own lines as for a terminal in raw mode.
                let line = line.trim_ascii_end();
                last_lines.note(&host, line);
                Some([of_host.as_bytes(), line, b"\n"].concat())
            }
        };
        output::copy(pipe, output::MAX_PREFIXED, io::stderr, ended, edit, || {})?;
    }
    Ok(())
}

/// Returns the rank before a line, and the text after it.
fn rank_of(line: &[u8]) -> Option<(u32, &[u8])> {
    let line = line.strip_prefix(b"[")?;
    let end = line.iter().position(|byte| *byte == b']')?;
    let text = line[end + 1..].strip_prefix(b" ")?;
    Some((std::str::from_utf8(&line[..end]).ok()?.parse().ok()?, text))
}
