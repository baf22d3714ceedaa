//! The private folder of a run, removed when the run ends, even by a kill. If the process that removes it was killed, too,
//! the next run does.

use crate::child;
use crate::cli::Process;
use crate::failure::Failure;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Prefix of the folders' names: the watcher removes no others.
const PREFIX: &str = "gdsync-run-";

/// A folder for this user alone. A watcher process removes it if this process is killed.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    watcher: Child,
    /// The folder, locked: the lock ends with this process.
    _lock: File,
}

impl Folder {
    pub fn new() -> Result<Self, Failure> {
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let (path, lock) = make(&parent)?;
        match child::watcher(Process::SoftWatch, path.as_os_str(), Stdio::null()) {
            Ok(watcher) => Ok(Folder { path, watcher, _lock: lock }),
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

/// Makes a folder and locks it.
fn make(parent: &Path) -> Result<(PathBuf, File), Failure> {
    for attempt in 0..1000 {
        let path = parent.join(format!("{PREFIX}{}-{attempt}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            // Another run may take the folder for abandoned before it is locked, and removes it: then the next one.
            Ok(()) => match lock(&path) {
                Some(lock) if path.exists() => return Ok((path, lock)),
                _ => {}
            },
            // Left by an earlier process with this number, or made by another program.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("{} cannot be made: {error}", path.display()).into()),
        }
    }
    Err(format!(
        "{} has a thousand folders named {PREFIX}{}-N: remove them",
        parent.display(),
        std::process::id()
    )
    .into())
}

/// Locks a folder; `None` if it is gone, or another process holds the lock.
fn lock(path: &Path) -> Option<File> {
    let folder =
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path).ok()?;
    // SAFETY: a plain system call on our own descriptor.
    let locked = unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    (locked == 0).then_some(folder)
}

/// Removes the folders of this user's runs that have ended without removing them. What cannot be removed stays.
fn remove_abandoned(parent: &Path) {
    // SAFETY: a system call without arguments.
    let user = unsafe { libc::geteuid() };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_run = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let is_own = || entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        if is_run
            && is_own()
            && let Some(_lock) = lock(&entry.path())
        {
            let _ = fs::remove_dir_all(entry.path());
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
        let ((one, _first), (two, _second)) = (make(&parent).unwrap(), make(&parent).unwrap());
        assert_ne!(one, two);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o700);
        for folder in [one, two] {
            fs::remove_dir(folder).unwrap();
        }
        assert!(make(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere/gdsync-run-"));
    }

    #[test]
    fn what_has_no_owner_is_removed() {
        let parent = std::env::temp_dir().join(format!("gdsync-abandoned-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let ((kept, _lock), (left, ended)) = (make(&parent).unwrap(), make(&parent).unwrap());
        let other = parent.join("gdsync-walk");
        fs::create_dir(&other).unwrap();
        fs::write(left.join("part"), "of a trace").unwrap();
        remove_abandoned(&parent);
        assert!(kept.exists() && left.exists() && other.exists(), "both have owners");
        drop(ended);
        remove_abandoned(&parent);
        assert!(kept.exists() && !left.exists() && other.exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn only_own_folders_are_removed() {
        assert!(watch(Path::new("/home")).is_err());
        assert!(watch(Path::new("/")).is_err());
    }
}
