//! Programs of other verbs. `gdsync VERB` starts `gdsync-TOOL VERB` from this program's folder or PATH, as cargo starts
//! its own.

use crate::failure::Failure;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

/// The program of `bench`, `soak`, `man` and the checks of mapped GPU memory; it draws all pictures.
pub const LAB: &str = "gdsync-lab";
pub const SOFT: &str = "gdsync-soft";
pub const TOP: &str = "gdsync-top";

/// Returns the program of a verb; none for those of `gdsync` itself.
pub(crate) fn of_verb(verb: &str) -> Option<&'static str> {
    match verb {
        "accept" | "bench" | "lab" | "soak" | "simulate" | "copybw" | "copylat" | "sanity" | "man" => {
            Some(LAB)
        }
        "soft" => Some(SOFT),
        "top" => Some(TOP),
        _ => None,
    }
}

/// Finds a program in this program's folder, or else on PATH.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok()?.parent().map(|folder| folder.join(name));
    own.filter(|path| is_program(path)).or_else(|| on_path(name))
}

/// Finds a program on PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

/// Like [`installed`].
///
/// # Errors
/// The program is not installed: the command that installs it.
pub(crate) fn find(name: &str) -> Result<PathBuf, Failure> {
    installed(name).ok_or_else(|| {
        format!(
            "{name} is not installed, beside gdsync or on PATH: `cargo install --locked --path {name}` in gdsync's sources installs it"
        )
        .into()
    })
}

/// Returns a command of a gdsync program, without arguments.
///
/// # Errors
/// The program is not installed: the command that installs it.
pub fn command(name: &str) -> Result<process::Command, Failure> {
    find(name).map(process::Command::new)
}

/// Makes the program perform this process's command line.
///
/// # Errors
/// The program is not installed, or the system does not start it.
pub(crate) fn start(name: &str) -> Result<process::ExitCode, Failure> {
    let path = find(name)?;
    let words: Vec<OsString> = env::args_os().collect();
    Err(format!("{} cannot be started: {}", path.display(), replace(&path, &words)).into())
}

/// Replaces this process with the program. Returns only if the system does not start it.
fn replace(path: &Path, words: &[OsString]) -> std::io::Error {
    let mut command = process::Command::new(path);
    if let Some(own) = words.first() {
        command.arg0(own);
    }
    command.args(words.iter().skip(1)).exec()
}

/// Makes another program perform the command line, if its first word is no verb of gdsync's but names an installed
/// program: `gdsync-WORD` for `gdsync WORD`.
///
/// # Errors
/// The system does not start it.
pub(crate) fn start_foreign(words: &[OsString]) -> Result<(), Failure> {
    let Some(path) = words.get(1).and_then(|word| foreign(word)) else { return Ok(()) };
    Err(format!("{} cannot be started: {}", path.display(), replace(&path, words)).into())
}

fn foreign(word: &OsStr) -> Option<PathBuf> {
    let word = word.to_str()?;
    let is_name = word.starts_with(|first: char| first.is_ascii_alphanumeric())
        && word.chars().all(|one| one.is_ascii_alphanumeric() || one == '-' || one == '_');
    if is_name { installed(&format!("gdsync-{word}")) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_no_file_of_their_own_start_nothing() {
        for word in ["../sh", "", "-x", "a/b", "no-such-program-of-gdsync"] {
            assert_eq!(foreign(OsStr::new(word)), None, "{word}");
        }
    }

    #[test]
    fn what_is_not_installed_is_named_with_its_remedy() {
        let said = find("gdsync-nowhere").unwrap_err().to_string();
        assert!(said.contains("gdsync-nowhere is not installed") && said.contains("cargo install"), "{said}");
        assert!(!said.contains('\n'), "{said}");
    }
}
