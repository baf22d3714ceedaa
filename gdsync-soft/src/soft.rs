//! `gdsync soft`: runs a command on the software card, through the machine's own libibverbs and libmlx5.

mod explore;
mod job;
mod library;
mod sights;

use gdsync_cli::child;
use gdsync_cli::cli::SoftOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::folder::Folder;
use gdsync_cli::signals::Held;
use gdsync_cli::{log, text};
use softhca::card::{CHECKS_VARIABLE, LinkLayer, PkeyTable};
use softhca::devices::{DEVICES_VARIABLE, on_fabric};
use softhca::faults::FAULTS_VARIABLE;
use softhca::liberties::journal::JOURNALS;
use softhca::liberties::{JOB_VARIABLE, LIBERTIES_VARIABLE, REFUSALS, SCHEDULE_VARIABLE, Schedule};
use softhca::program;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Environment variable with the folder of the stand-ins for system files.
const FILES_VARIABLE: &str = "SOFTHCA_FILES";
/// Environment variable with the filter of the card's log.
const CARD_LOG_VARIABLE: &str = "SOFTHCA_LOG";

/// Runs the command, and returns its exit status, or 128 plus the number of the signal that ended it.
pub(crate) fn run(options: &SoftOptions) -> Result<ExitCode, Failure> {
    let devices = on_fabric(options.devices.layers.clone());
    check_environment(&devices)?;
    // Signals are blocked before the folder is made: a signal that would end this process ends the command
    // instead, and the folder is removed.
    let signals = if options.explore { None } else { Some(Held::new()?) };
    let folder = Folder::new()?;
    let library = library::provide(folder.path())?;
    // Without links in its path, as the library compares it with paths from the system.
    let files = folder.path().canonicalize()?;
    softhca::sysfs::write(&files, &devices, &PkeyTable::of_devices(&devices)?)?;
    let Some((name, _)) = options.command.split_first() else {
        return Err("no command is given: gdsync soft COMMAND".into());
    };
    let folders = std::env::var_os("PATH").unwrap_or_default();
    if let Some((program, obstacle)) = program::find(name, &folders).and_then(|path| program::obstacle(&path))
    {
        text::complain(format_args!("no software card: {} {obstacle}", program.display()));
    }
    let Some(signals) = signals else {
        let make = || command(options, &files, &library);
        return explore::run(options, job::Command { make: &make, folder: folder.path() });
    };
    let mut command = command(options, &files, &library);
    if let Some(schedule) = &options.schedule {
        Schedule::read(schedule).map_err(|problem| format!("{}: {problem}", schedule.display()))?;
        command.env(SCHEDULE_VARIABLE, schedule.canonicalize()?).env_remove(LIBERTIES_VARIABLE);
    }
    let job = folder.path().join("job");
    let is_checked = checks(options).is_some();
    if is_checked
        || options.strict
        || options.schedule.is_some()
        || std::env::var_os(SCHEDULE_VARIABLE).is_some()
    {
        std::fs::create_dir(&job)?;
        command.env(JOB_VARIABLE, &job);
    }
    if is_checked {
        std::fs::create_dir(job.join(JOURNALS))?;
    }
    if options.strict {
        std::fs::create_dir(job.join(REFUSALS))?;
    }
    let status = signals.run(&mut command)?;
    if is_checked {
        sights::complain(&job.join(JOURNALS))?;
    }
    Ok(ExitCode::from(if options.strict { sights::verdict(&job.join(REFUSALS), status)? } else { status }))
}

/// Returns the command with the environment of the software card, whose stand-ins for system files are in `files`.
fn command(options: &SoftOptions, files: &Path, library: &Path) -> Command {
    let mut words = options.command.iter();
    let mut command = Command::new(words.next().unwrap_or(&OsString::new()));
    command
        .args(words)
        .env(FILES_VARIABLE, files)
        // Another sysfs would lack the card.
        .env_remove("SYSFS_PATH")
        .env(DEVICES_VARIABLE, &options.devices.text)
        .env("LD_PRELOAD", preload(library.as_os_str().to_owned()));
    child::for_cuda(&mut command);
    if let Some(plan) = &options.faults {
        command.env(FAULTS_VARIABLE, plan.to_string());
    }
    if let Some(liberties) = &options.liberties {
        command.env(LIBERTIES_VARIABLE, liberties).env_remove(SCHEDULE_VARIABLE);
    }
    if let Some(checks) = checks(options) {
        command.env(CHECKS_VARIABLE, checks);
    }
    if options.log && std::env::var_os(CARD_LOG_VARIABLE).is_none() {
        command.env(CARD_LOG_VARIABLE, "info");
    }
    command
}

/// Returns the checks that are asked for, as the card names them.
fn checks(options: &SoftOptions) -> Option<&'static str> {
    match (options.check_use, options.watch) {
        (true, true) => Some("use,watch"),
        (true, false) => Some("use"),
        (false, true) => Some("watch"),
        (false, false) => None,
    }
}

/// Refuses malformed settings of the card before anything starts: the command would run without its faults,
/// or find no device.
fn check_environment(devices: &[LinkLayer]) -> Result<(), Failure> {
    softhca::environment::check_of(devices)?;
    match std::env::var_os(CARD_LOG_VARIABLE).filter(|value| !value.is_empty()) {
        Some(value) => log::filter(CARD_LOG_VARIABLE, &value.to_string_lossy()).map(drop),
        None => Ok(()),
    }
}

/// Returns the value of LD_PRELOAD. The library is first, so that no other preloaded library hides the card.
fn preload(library: OsString) -> OsString {
    let mut list = library;
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}
