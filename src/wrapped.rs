//! A command of the user's that a command of gdsync runs: it gets the signals, and its exit status is the answer.

use crate::failure::Failure;
use crate::signals::Held;
use crate::text;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// What a shell answers for a command that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Runs a command until it ends. Answers with its exit status; 128 and the number where a signal ended it.
pub fn run(command: &mut Command, signals: &Held) -> Result<u8, Failure> {
    signals.release_in(command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            text::complain(format_args!("{}: {error}", command.get_program().to_string_lossy()));
            return Ok(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE });
        }
    };
    Ok(code_of(signals.pass_on_until_it_ends(&mut child)?))
}

fn code_of(status: ExitStatus) -> u8 {
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
