//! Child processes, which the command starts for its own use.

use crate::cli::{self, Process};
use crate::failure::{AlreadySaid, Failure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::{env, fmt, io};

/// A process that is killed, if it still runs, when this is dropped.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Killing a process that has ended fails, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the command line of a process of this program, for [`start`]. The process ends with this one.
pub fn of(process: Process) -> Result<Command, Failure> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(cli::word(&process)).stdin(Stdio::piped());
    dies_with_this_process(&mut command);
    Ok(command)
}

/// Starts the process and passes its options. `what` describes the process to the user.
pub fn start(
    mut command: Command,
    what: &str,
    options: &impl Serialize,
) -> Result<(Guarded, ChildStdin), Failure> {
    let mut child = Guarded(command.spawn().map_err(|error| format!("cannot start {what}: {error}"))?);
    let mut input = child.0.stdin.take().ok_or_else(|| format!("{what} has no input"))?;
    writeln!(input, "{}", serde_json::to_string(options)?)?;
    Ok((child, input))
}

/// Reads the options that the parent process has passed: the first line of standard input.
pub fn options<T: DeserializeOwned>() -> Result<T, Failure> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Returns the error of a child that has failed. The child has printed its own error unless it was killed or did not
/// start.
pub fn failure(what: fmt::Arguments<'_>, status: ExitStatus) -> Failure {
    match status.code() {
        Some(1) => AlreadySaid.into(),
        _ => format!("{what} has failed: {status}").into(),
    }
}

/// Starts a process that outlives a kill of this one, to clean up after it: it ends when its standard input does, and
/// holds nothing else open. It has its own process group, which the terminal's signals do not reach.
pub fn watcher(process: Process, argument: &OsStr, output: Stdio) -> io::Result<Child> {
    Command::new(env::current_exe()?)
        .arg(cli::word(&process))
        .arg(argument)
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()
}

/// As [`is_killed_with_this_process`]. The child also ignores SIGINT, which a terminal sends to both: this process
/// decides how an interrupted run ends.
pub fn dies_with_this_process(command: &mut Command) {
    is_killed_with_this_process(command);
    let ignore = || {
        // SAFETY: the call changes what a signal does to the calling process, and involves no handler.
        match unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) } {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec, `ignore` makes one system call.
    unsafe { command.pre_exec(ignore) };
}

/// Makes the kernel kill the process that `command` starts as soon as this one ends, however it ends, even if the child
/// is stopped.
///
/// The thread that starts the process must live as long as this process, as the main thread does: the kernel takes the
/// end of that thread for the parent's.
pub fn is_killed_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    let ask = move || {
        let signal = libc::SIGKILL as libc::c_ulong;
        // SAFETY: the call changes an attribute of the calling process only.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // If the parent ended before the request, the kernel sends no signal, and the process already has another
        // parent.
        // SAFETY: the call has no preconditions.
        if unsafe { libc::getppid() } as u32 != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec, `ask` makes two system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

/// A hardware channel for each stream, as far as the driver has them.
const CHANNELS: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");
/// All kernels are loaded with their module, none at its first launch.
const LOADING: (&str, &str) = ("CUDA_MODULE_LOADING", "EAGER");

/// Settings of the CUDA driver for programs that do not set them. The software card accesses GPU memory by copies of
/// the program's driver, also while a kernel of the program waits for the card. With lazy loading, a kernel's first
/// launch would first wait for the running kernel. A copy, or a stream, that shares a channel with work that waits for
/// it would deadlock (`docs/gpu-memory.md`).
pub fn for_cuda(command: &mut Command) {
    for (name, value) in [CHANNELS, LOADING] {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

/// Restarts the command with a channel of the GPU for each stream, unless [`for_cuda`] or the user has set the number
/// of channels: two streams that wait for each other deadlock on a shared channel. To be called before the first call
/// of the CUDA driver, which then reads its settings.
///
/// # Errors
/// The system does not start the program. Otherwise this returns only if there is nothing to do.
pub fn with_channels() -> Result<(), Failure> {
    if env::var_os(CHANNELS.0).is_some() {
        return Ok(());
    }
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1));
    for_cuda(&mut command);
    Err(format!("the command cannot begin anew: {}", command.exec()).into())
}
