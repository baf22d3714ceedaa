//! Signals on their way to the command, and those that end a view.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

/// What is passed on. Others keep what they do: SIGTSTP stops this process and the command
/// together, as the terminal sends it.
const PASSED_ON: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The last signal of those that end a view; 0 before one has come.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    ENDED_BY.store(signal, Ordering::Relaxed);
}

/// From now on the first SIGINT, SIGTERM and SIGHUP only have [`ended_by`] name them, so that the terminal can be left as
/// it was. The same signal again ends the process at once: a terminal that takes no bytes could hold it up for ever. One
/// that the process was started to ignore stays ignored.
pub fn note_ends() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all-zero bytes are a valid value of this plain C structure.
        let (mut before, mut now): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        now.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        now.sa_flags = libc::SA_RESETHAND;
        // SAFETY: valid places; `note` does only what a handler may do: it stores to an atomic.
        let result = unsafe {
            match libc::sigaction(signal, std::ptr::null(), &mut before) {
                0 if before.sa_sigaction == libc::SIG_IGN => 0,
                0 => libc::sigaction(signal, &now, std::ptr::null_mut()),
                failed => failed,
            }
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The signal that is to end the view.
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
        // SAFETY: valid places; the numbers are signals'.
        let result = unsafe {
            libc::sigemptyset(&mut held.set);
            for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut held.set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &held.set, &mut held.before)
        };
        if result == 0 { Ok(held) } else { Err(io::Error::last_os_error()) }
    }

    /// The command starts with the signals as they were.
    pub fn release_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: a valid set.
            match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec this only makes a system call.
        unsafe { command.pre_exec(restore) };
    }

    /// Waits for the command, and sends it whatever is sent here.
    pub fn pass_on_until_it_ends(&self, child: &mut Child) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            // SAFETY: all-zero bytes are a valid value of this plain C structure.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: valid places.
            let signal = unsafe { libc::sigwaitinfo(&self.set, &mut info) };
            // What the terminal sends it sends to the command, too.
            if PASSED_ON.contains(&signal) && info.si_code != libc::SI_KERNEL {
                // SAFETY: no memory is involved; the child has not been waited for, so the number
                // is its own.
                unsafe { libc::kill(child.id() as libc::pid_t, signal) };
            }
        }
    }
}
