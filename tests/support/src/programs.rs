//! Programs under `gdsync soft`; every wait has a limit.

use crate::command;
use crate::folder::Folder;
pub use crate::networks::free_port;
use crate::skipped_unless_required;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a program: much longer than any takes, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Skips a test that lacks a package; with `GDSYNC_REQUIRE_RDMA=1` that is a failure.
pub fn lacks(test: &str, why: &str) {
    skipped_unless_required("GDSYNC_REQUIRE_RDMA", test, why);
}

/// Returns the tool's path. `None` if it is not installed: the test is skipped.
pub fn tool(test: &str, name: &str) -> Option<PathBuf> {
    let package = match name {
        "ibstat" => "infiniband-diags",
        "rdma" => "iproute2",
        "mpirun" => "openmpi-bin",
        _ if name.starts_with("ibv_") => "ibverbs-utils",
        _ if name.starts_with("ucx_") => "ucx-utils",
        _ => "perftest",
    };
    program(test, name, package)
}

/// Returns a program's path. `None` if its package is not installed: the test is skipped.
pub fn program(test: &str, name: &str, package: &str) -> Option<PathBuf> {
    let found = on_path(name);
    if found.is_none() {
        lacks(test, &format!("{name} is not there (package {package})"));
    }
    found
}

/// Returns a program of the search path, or of the system's folders, which the path of few users has.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns `gdsync soft --devices DEVICES -- PROGRAM`, in a separate process group and with a separate temporary
/// folder.
pub fn soft(devices: &str, program: &Path, temporary: &Path) -> Command {
    soft_with(&["--devices", devices], program, temporary)
}

/// As [`soft`], with any options.
pub fn soft_with(options: &[&str], program: &Path, temporary: &Path) -> Command {
    // `gdsync` starts this program, which must be in the same folder.
    command::program("gdsync-soft");
    let mut command = Command::new(command::program("gdsync"));
    command.arg("soft").args(options).arg("--").arg(program).process_group(0);
    for name in ["GDSYNC_LOG", "SOFTHCA_LOG", "SOFTHCA_DEVICES", "SOFTHCA_WAITS", "LD_PRELOAD", "SYSFS_PATH"]
    {
        command.env_remove(name);
    }
    command.env("TMPDIR", temporary);
    command
}

/// Exit code and output of a program.
#[derive(Debug)]
pub struct Ended {
    /// The exit status, or 128 plus the number of the signal.
    pub code: Option<i32>,
    /// Its stdout and stderr.
    pub text: String,
}

impl Ended {
    /// Fails unless the exit status is 0; returns the output.
    pub fn succeeded(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}", self.text);
        &self.text
    }
}

/// A running program. Dropping it kills its process group.
pub struct Running {
    /// The process.
    pub child: Child,
    reader: Option<std::thread::JoinHandle<String>>,
}

impl Running {
    /// Starts the program.
    pub fn start(mut command: Command) -> Self {
        let (mut reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap();
        // Only the child has the write ends.
        drop(command);
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = reader.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Running { child, reader: Some(reader) }
    }

    fn signal_group(&self, signal: i32) {
        // SAFETY: no memory is involved; the group is the child's, which has not been waited for.
        unsafe { libc::kill(-(self.child.id() as libc::pid_t), signal) };
    }

    /// Kills the program and all processes that it started.
    pub fn kill(&self) {
        self.signal_group(libc::SIGKILL);
    }

    /// Waits for the end; fails if it does not come.
    pub fn end(mut self) -> Ended {
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > end {
                self.kill();
                let text = self.reader.take().unwrap().join().unwrap();
                panic!("it did not end: {text}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Ended { code, text: self.reader.take().unwrap().join().unwrap() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a program to its end.
pub fn run(command: Command) -> Ended {
    Running::start(command).end()
}

/// Waits until a program of the server's network namespace listens on a TCP port, or none does any more, without connecting:
/// the tools take the first connection for their client. An ended server changes nothing any more and ends the wait, too.
pub fn wait_for_listener(port: u16, server: &mut Running, wanted: bool) {
    let (place, end) = (format!(":{port:04X}"), Instant::now() + LIMIT);
    let namespace = format!("/proc/{}/net", server.child.id());
    let listens = |table: &str| {
        let table = std::fs::read_to_string(format!("{namespace}/{table}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|local| local.ends_with(&place));
            // 0A is TCP_LISTEN.
            local && words.nth(1) == Some("0A")
        })
    };
    while (listens("tcp") || listens("tcp6")) != wanted {
        assert!(Instant::now() < end, "port {port}: that a program listens is not {wanted}");
        if server.child.try_wait().unwrap().is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// perftest's option to go on if the ratio of processor cycles to time is not steady, as on a busy machine. Without
/// it the tool exits before its last handshake, and its peer waits for that handshake.
pub const ANY_CLOCK: &str = "-F";

/// Server and client of a tool that runs as two processes.
pub struct Pair {
    /// The listening side.
    pub server: Running,
    /// The connecting side.
    pub client: Running,
    port: u16,
}

impl Pair {
    /// Starts a tool as server, and as client once the server listens.
    pub fn start(tool: &Path, devices: &str, arguments: &[&str], temporary: &Path) -> Self {
        Pair::start_after(&[tool], devices, arguments, temporary, || {})
    }

    /// Like [`Self::start`]; another command may start the tool, and `between` runs between the server's and the
    /// client's start.
    pub fn start_after(
        program: &[&Path],
        devices: &str,
        arguments: &[&str],
        temporary: &Path,
        between: impl FnOnce(),
    ) -> Self {
        let port = free_port();
        let is_perftest = program
            .last()
            .and_then(|tool| tool.file_name())
            .is_some_and(|name| name.as_bytes().starts_with(b"ib_"));
        let command = || {
            let mut command = soft(devices, program[0], temporary);
            command.args(&program[1..]).args(["-p", &port.to_string()]).args(arguments);
            command.args(is_perftest.then_some(ANY_CLOCK));
            command
        };
        let mut server = Running::start(command());
        wait_for_listener(port, &mut server, true);
        between();
        let mut client = command();
        client.arg("localhost");
        Pair { server, client: Running::start(client), port }
    }

    /// Waits until the client has connected, when the tools close their port.
    pub fn has_met(&mut self) {
        wait_for_listener(self.port, &mut self.server, false);
    }

    /// Waits for the ends of client and server.
    pub fn end(self) -> [Ended; 2] {
        [self.client.end(), self.server.end()]
    }
}

/// Runs a tool as server and client; both must succeed, and leave nothing behind.
pub fn succeeds(test: &str, name: &str, devices: &str, arguments: &[&str]) {
    succeeds_with(test, name, &[], devices, arguments);
}

/// Like [`succeeds`], with additional environment variables.
pub fn succeeds_with(test: &str, name: &str, environment: &[&str], devices: &str, arguments: &[&str]) {
    assert_eq!(leftover(test, name, environment, devices, arguments), 0, "{name} has left something behind");
}

/// Runs a tool as server and client with additional environment variables; both must succeed. Returns the number of
/// files left behind.
pub fn leftover(test: &str, name: &str, environment: &[&str], devices: &str, arguments: &[&str]) -> usize {
    let Some(tool) = tool(test, name) else { return 0 };
    let mut program = vec![Path::new("/usr/bin/env")];
    program.extend(environment.iter().map(Path::new));
    program.push(&tool);
    let temporary = Folder::new(&format!("{test}-{}", arguments.join("")));
    for Ended { code, text } in Pair::start_after(&program, devices, arguments, temporary.path(), || {}).end()
    {
        assert_eq!(code, Some(0), "{name} {arguments:?} on {devices} {environment:?}: {text}");
    }
    temporary.content()
}
