//! The private folder of a run, removed when the run ends, even by a kill.

use crate::cli::{self, Process};
use crate::failure::Failure;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Prefix of the folders' names: the watcher removes no others.
const PREFIX: &str = "gdsync-run-";

/// A folder for this user alone. A watcher process removes it if this process is killed.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    watcher: Child,
}

impl Folder {
    pub fn new() -> Result<Self, Failure> {
        let path = make(&std::env::temp_dir())?;
        // The watcher holds nothing open but the pipe. It has its own process group, which the terminal's signals do
        // not reach.
        let watcher = Command::new(std::env::current_exe()?)
            .arg(cli::word(&Process::SoftWatch))
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn();
        match watcher {
            Ok(watcher) => Ok(Folder { path, watcher }),
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(error.into())
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The watcher could not remove what remains here either.
        let _ = fs::remove_dir_all(&self.path);
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}

fn make(parent: &Path) -> Result<PathBuf, Failure> {
    let mut attempt = 0u32;
    loop {
        let path = parent.join(format!("{PREFIX}{}-{attempt}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            // Left by an earlier process with this number, or made by another program.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            Err(error) => return Err(format!("{} cannot be made: {error}", path.display()).into()),
        }
    }
}

/// `gdsync soft-watch`: removes a folder when the other end of stdin closes.
pub fn watch(folder: &Path) -> Result<(), Failure> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(PREFIX) {
        return Err(format!("{} is no folder of a run of gdsync", folder.display()).into());
    }
    // An error ends the wait, too.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folders_are_private_and_never_shared() {
        let parent = std::env::temp_dir();
        let (one, two) = (make(&parent).unwrap(), make(&parent).unwrap());
        assert_ne!(one, two);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o700);
        for folder in [one, two] {
            fs::remove_dir(folder).unwrap();
        }
        assert!(make(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere/gdsync-run-"));
    }

    #[test]
    fn only_own_folders_are_removed() {
        assert!(watch(Path::new("/home")).is_err());
        assert!(watch(Path::new("/")).is_err());
    }
}
