//! Signals: forwarded to a command, and those that end a view.

use crate::failure::Failure;
use crate::text;
use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Forwarded signals. Others keep their effect: SIGTSTP stops this process and the command together, as the terminal
/// sends it.
const PASSED_ON: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// A shell's exit status for a command that does not exist, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// The last signal that asked to end the view; 0 before.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    ENDED_BY.store(signal, Ordering::Relaxed);
}

/// Makes `handler` take the next signal of this number; the one after it meets the default action. A signal that the
/// process was started to ignore, as background jobs of a shell are, stays ignored.
pub(crate) fn take_next(
    signal: libc::c_int,
    handler: extern "C" fn(libc::c_int),
    flags: libc::c_int,
) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let (mut before, mut now): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    now.sa_sigaction = handler as usize;
    now.sa_flags = libc::SA_RESETHAND | flags;
    // SAFETY: valid places; the handlers of this crate only use atomics and write, which is async-signal-safe.
    let result = unsafe {
        match libc::sigaction(signal, std::ptr::null(), &mut before) {
            0 if before.sa_sigaction == libc::SIG_IGN => 0,
            0 => libc::sigaction(signal, &now, std::ptr::null_mut()),
            failed => failed,
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes all threads allocate from one arena where the address space has a limit. glibc reserves 64 MiB of it for each other
/// arena, and leaves none for what is needed.
pub(crate) fn save_address_space() {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the place is valid, and of the type that the call writes; there are no other threads yet.
    unsafe {
        libc::getrlimit(libc::RLIMIT_AS, &mut limit);
        #[cfg(target_env = "gnu")]
        if limit.rlim_cur != libc::RLIM_INFINITY {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
}

/// A write beyond the limit on the size of files becomes an error, and no longer ends the program. Commands that it
/// executes start with the signal's default action, as the system resets handlers.
pub(crate) fn survive_large_files() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: a handler that does nothing.
    unsafe {
        if libc::signal(libc::SIGXFSZ, nothing as *const () as usize) == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }
}

/// From now on the first SIGINT, SIGTERM or SIGHUP is only recorded for [`ended_by`], so that the terminal can be
/// restored. The same signal again ends the process at once: a blocked terminal could hold it forever.
pub fn note_ends() -> io::Result<()> {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().try_for_each(|signal| take_next(signal, note, 0))
}

pub fn ended_by() -> Option<libc::c_int> {
    Some(ENDED_BY.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Signals that stay pending until this process, which has one thread, waits for them.
#[derive(Clone, Copy)]
pub struct Held {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl Held {
    pub fn new() -> io::Result<Self> {
        // SAFETY: all-zero bytes are a valid value of this plain C structure.
        let mut held: Held = unsafe { std::mem::zeroed() };
        // SAFETY: valid places, and signal numbers.
        let result = unsafe {
            libc::sigemptyset(&mut held.set);
            for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut held.set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &held.set, &mut held.before)
        };
        if result == 0 { Ok(held) } else { Err(io::Error::last_os_error()) }
    }

    /// Runs a user's command, which gets the signals. Returns its exit status, or 128 plus the number of the signal
    /// that ended it.
    pub fn run(&self, command: &mut Command) -> Result<u8, Failure> {
        match self.spawn(command) {
            Ok(mut child) => Ok(code_of(self.pass_on_until_it_ends(&mut child)?)),
            Err(status) => Ok(status),
        }
    }

    /// Starts a user's command. If the system refuses, reports why, and returns a shell's exit status for that.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, u8> {
        self.release_in(command);
        command.spawn().map_err(|error| {
            text::complain(format_args!("{}: {error}", command.get_program().to_string_lossy()));
            if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE }
        })
    }

    /// Makes the command start with the original signal mask.
    fn release_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: a valid set.
            match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec, this makes one system call.
        unsafe { command.pre_exec(restore) };
    }

    /// Waits for the command and forwards signals to it.
    fn pass_on_until_it_ends(&self, child: &mut Child) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            // The terminal sends its signals to the command as well.
            if let Some(taken) = self.take(None)
                && PASSED_ON.contains(&taken.si_signo)
                && taken.si_code != libc::SI_KERNEL
            {
                // SAFETY: no memory is involved; the child has not been waited for, so the number is still its own.
                unsafe { libc::kill(child.id() as libc::pid_t, taken.si_signo) };
            }
        }
    }

    /// Waits for a signal, SIGCHLD among them, up to `limit`. `None`: none has come.
    pub fn next(&self, limit: Option<Duration>) -> Option<libc::c_int> {
        self.take(limit).map(|taken| taken.si_signo)
    }

    fn take(&self, limit: Option<Duration>) -> Option<libc::siginfo_t> {
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: all-zero bytes are a valid value of this plain C structure.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: valid places; without a limit, the pointer is null.
        let signal = unsafe { libc::sigtimedwait(&self.set, &mut info, limit) };
        (signal > 0).then_some(info)
    }
}

/// Sends a signal to the processes of the group that the child `leader` has begun. The group's number is in use as long as
/// one of its processes is there; if none is, nothing happens.
pub fn send_to_group(leader: u32, signal: libc::c_int) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(-(leader as libc::pid_t), signal) };
}

/// Sends a signal to this process, in which [`Held`] has it wait for the main thread.
pub fn send_to_self(signal: libc::c_int) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(std::process::id() as libc::pid_t, signal) };
}

/// Returns a command's exit status, or 128 plus the number of the signal that ended it.
pub fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_told_as_a_shell_tells_them() {
        assert_eq!(code_of(ExitStatus::from_raw(0)), 0);
        assert_eq!(code_of(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code_of(ExitStatus::from_raw(libc::SIGKILL)), 137);
    }
}
