//! `gdsync soft`: runs a command on the software card, through the machine's own libibverbs and
//! libmlx5.

mod folder;
mod library;
mod signals;

pub(crate) use folder::watch;

use crate::child;
use crate::cli::SoftOptions;
use crate::failure::Failure;
use crate::{log, text};
use folder::Folder;
use softhca::devices::{DEVICES_VARIABLE, on_fabric};
use softhca::faults::FAULTS_VARIABLE;
use softhca::liberties::LIBERTIES_VARIABLE;
use softhca::program;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

/// Environment variable with the folder of the stand-ins for files of the system.
const FILES_VARIABLE: &str = "SOFTHCA_FILES";
/// Environment variable with the filter of the card's log.
const CARD_LOG_VARIABLE: &str = "SOFTHCA_LOG";
/// What a shell answers for a command that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Runs the command, and answers with its exit status; 128 and the number where a signal ended it.
pub(crate) fn run(options: &SoftOptions) -> Result<ExitCode, Failure> {
    check_environment()?;
    // Signals are blocked before the folder is made: a signal that would end this process ends the
    // command instead, and the folder is removed.
    let signals = signals::Held::new()?;
    let folder = Folder::new()?;
    let library = library::provide(folder.path())?;
    // Without links in its path: the library compares it with paths that the system has found.
    let files = folder.path().canonicalize()?;
    softhca::sysfs::write(&files, &on_fabric(options.devices.layers.clone()))?;
    let Some((name, arguments)) = options.command.split_first() else {
        return Err("no command is given: gdsync soft -- COMMAND".into());
    };
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env(FILES_VARIABLE, &files)
        // Another place of sysfs would be without the card.
        .env_remove("SYSFS_PATH")
        .env(DEVICES_VARIABLE, &options.devices.text)
        .env("LD_PRELOAD", preload(library.into_os_string()));
    child::for_cuda(&mut command);
    if let Some(plan) = &options.faults {
        command.env(FAULTS_VARIABLE, plan.to_string());
    }
    if let Some(liberties) = &options.liberties {
        command.env(LIBERTIES_VARIABLE, liberties);
    }
    if options.log && std::env::var_os(CARD_LOG_VARIABLE).is_none() {
        command.env(CARD_LOG_VARIABLE, "info");
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    if let Some((program, obstacle)) = program::find(name, &folders).and_then(|path| program::obstacle(&path))
    {
        text::complain(format_args!("no software card: {} {obstacle}", program.display()));
    }
    signals.release_in(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            text::complain(format_args!("{}: {error}", name.to_string_lossy()));
            return Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound {
                NOT_FOUND
            } else {
                NOT_RUNNABLE
            }));
        }
    };
    let status = signals.pass_on_until_it_ends(&mut child)?;
    Ok(ExitCode::from(code_of(status)))
}

/// Refuses settings of the card that are not understood, before anything starts: the command would
/// run without its faults, or find no device.
fn check_environment() -> Result<(), Failure> {
    softhca::environment::check()?;
    match std::env::var_os(CARD_LOG_VARIABLE).filter(|value| !value.is_empty()) {
        Some(value) => log::filter(CARD_LOG_VARIABLE, &value.to_string_lossy()).map(drop),
        None => Ok(()),
    }
}

/// The value of LD_PRELOAD. The library stands first, so that no other preloaded library hides the
/// card.
fn preload(library: OsString) -> OsString {
    let mut list = library;
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
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
