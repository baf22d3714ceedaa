//! Processes that the command starts for itself, and that are of no use without it.

use crate::cli::{self, Process};
use crate::failure::{AlreadySaid, Failure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::{env, fmt, io};

/// A process that is killed if it is still there when this one is done with it.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Killing a process that has ended fails, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of this program that ends with this one, for [`start`].
pub fn of(process: Process) -> Result<Command, Failure> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(cli::word(&process)).stdin(Stdio::piped());
    dies_with_this_process(&mut command);
    Ok(command)
}

/// Starts it, and gives it its options. `what` says to the user what it is.
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

/// What the process that has started this one has this one do: the first line of standard input.
pub fn options<T: DeserializeOwned>() -> Result<T, Failure> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// How a process that this one has started has failed: it has said it itself, unless it was killed or could not be used.
pub fn failure(what: fmt::Arguments<'_>, status: ExitStatus) -> Failure {
    match status.code() {
        Some(1) => AlreadySaid.into(),
        _ => format!("{what} has failed: {status}").into(),
    }
}

/// The kernel kills the process that `command` starts as soon as this one has ended, however it
/// ends. Even a process that is stopped ends then. The process ignores SIGINT, which a terminal sends to both: this one
/// decides what becomes of a run that is interrupted.
///
/// The thread that starts the process must live as long as this process, as the main thread does:
/// the kernel counts the end of that thread as the parent's.
fn dies_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    let ask = move || {
        let signal = libc::SIGKILL as libc::c_ulong;
        // SAFETY: the call changes an attribute of the calling process only.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before the request: the kernel sends no signal then, and the
        // process has another parent already.
        // SAFETY: the call has no preconditions.
        if unsafe { libc::getppid() } as u32 != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: the call changes what a signal does to the calling process, and involves no handler.
        match unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) } {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec, `ask` makes three system calls, allocates nothing and takes no
    // lock.
    unsafe { command.pre_exec(ask) };
}

/// Every stream gets a channel of its own, as far as the driver has them.
const CHANNELS: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");
/// The first launch of a kernel has nothing left to load.
const LOADING: (&str, &str) = ("CUDA_MODULE_LOADING", "EAGER");

/// Settings of the CUDA driver, for programs that have none of their own. The software card reaches GPU memory by
/// copies of the program's own driver, also while a kernel of the program waits for the card. A driver that loads
/// a kernel at its first launch waits for that kernel first. A copy, or a stream, may stand in a channel behind
/// work that waits for it: then neither goes on (`docs/gpu-memory.md`).
pub fn for_cuda(command: &mut Command) {
    for (name, value) in [CHANNELS, LOADING] {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

/// Begins the command anew with a channel of the GPU for each stream, unless it has them by [`for_cuda`] or by its
/// program's own will: two streams that wait for each other go on in none that they share. Before the first call of the
/// CUDA driver, which reads its settings then.
///
/// # Errors
/// The system starts no program. Else this returns only where there is nothing to do.
pub fn with_channels() -> Result<(), Failure> {
    if env::var_os(CHANNELS.0).is_some() {
        return Ok(());
    }
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1));
    for_cuda(&mut command);
    Err(format!("the command cannot begin anew: {}", command.exec()).into())
}
