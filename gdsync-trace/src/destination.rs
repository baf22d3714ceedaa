//! The destination of a trace, from [`TRACE_VARIABLE`].

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Environment variable that enables a trace, and names a file or a folder.
///
/// - A file: the process writes its trace there when it ends. `%p` in the name is replaced by the process id. If
///   another process, or another copy of the library in this one, holds the file, `.` and the id are appended. Until
///   the end, the records are in a file with `.part` appended to the name.
/// - A folder, which exists or whose name ends with `/`: the process writes a part there, for [`merge`](crate::merge).
///
/// An empty value disables tracing.
pub const TRACE_VARIABLE: &str = "GDSYNC_TRACE";

/// Environment variable that adds the times of GPU streams to a trace: `1`. The CUDA events cost time on GPU and CPU
/// (see docs/trace.md).
pub const GPU_VARIABLE: &str = "GDSYNC_TRACE_GPU";

/// File name extension of parts.
pub(crate) const PART: &str = "part";
/// Number of names to try for a part.
const MAX_ATTEMPTS: u32 = 64;

/// The destination of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A trace of this process alone.
    File(PathBuf),
    /// A part in this folder.
    Folder(PathBuf),
}

/// A part, open and locked.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// The trace to write at the end.
    pub(crate) trace: Option<PathBuf>,
}

impl Destination {
    pub(crate) fn from_environment() -> Option<Destination> {
        Self::of(&std::env::var_os(TRACE_VARIABLE)?, std::process::id())
    }

    fn of(value: &OsStr, pid: u32) -> Option<Destination> {
        if value.is_empty() {
            return None;
        }
        // The program may change its working directory before it ends.
        let path = std::path::absolute(value).unwrap_or_else(|_| PathBuf::from(value));
        if value.as_encoded_bytes().ends_with(b"/") || path.is_dir() {
            return Some(Destination::Folder(path));
        }
        Some(Destination::File(match path.to_str() {
            Some(text) => PathBuf::from(text.replace("%p", &pid.to_string())),
            None => path,
        }))
    }

    /// Opens the part: a file that no other process and no other copy of this library writes.
    pub(crate) fn open(&self, pid: u32) -> io::Result<Opened> {
        for attempt in 0..MAX_ATTEMPTS {
            let (path, trace) = self.names(pid, attempt);
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            match &trace {
                // The file of a killed process is overwritten.
                Some(_) => options.create(true).truncate(false),
                None => options.create_new(true),
            };
            let file = match options.open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(with_path(&path, &error)),
            };
            if !try_lock(&file).map_err(|error| with_path(&path, &error))? {
                continue;
            }
            file.set_len(0).map_err(|error| with_path(&path, &error))?;
            return Ok(Opened { file, path, trace });
        }
        let (path, _) = self.names(pid, 0);
        Err(io::Error::other(format!("{} and {MAX_ATTEMPTS} names like it are taken", path.display())))
    }

    /// Returns the paths of part and trace for an attempt.
    fn names(&self, pid: u32, attempt: u32) -> (PathBuf, Option<PathBuf>) {
        match self {
            Destination::Folder(folder) => (folder.join(format!("{pid}-{attempt}.{PART}")), None),
            Destination::File(path) => {
                let trace = match attempt {
                    0 => path.clone(),
                    1 => append_extension(path, &pid.to_string()),
                    _ => append_extension(path, &format!("{pid}.{attempt}")),
                };
                (append_extension(&trace, PART), Some(trace))
            }
        }
    }
}

/// Locks a file until it is closed; returns false if another open file holds the lock.
fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

/// Returns the error with the file's name.
pub(crate) fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Appends `.` and an end to a path.
fn append_extension(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    #[test]
    fn a_value_names_a_file_or_a_folder() {
        let of = |value: &str| Destination::of(OsStr::new(value), 17);
        assert_eq!(of(""), None);
        assert_eq!(of("/a/t-%p.json"), Some(Destination::File("/a/t-17.json".into())));
        assert_eq!(of("/nowhere/parts/"), Some(Destination::Folder("/nowhere/parts/".into())));
        assert_eq!(of("/proc"), Some(Destination::Folder("/proc".into())));
        assert!(matches!(of("t.json"), Some(Destination::File(path)) if path.is_absolute()));
    }

    #[test]
    fn processes_at_one_time_write_different_files() {
        let folder = folder("destinations");
        let file = Destination::File(folder.join("t.json"));
        let opened: Vec<Opened> = (0..3).map(|_| file.open(9).unwrap()).collect();
        let names = |opened: &[Opened]| -> Vec<String> {
            opened.iter().map(|one| one.path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(&opened), ["t.json.part", "t.json.9.part", "t.json.9.2.part"]);
        drop(opened);
        // The file of a killed process is reused.
        assert_eq!(names(&[file.open(9).unwrap()]), ["t.json.part"]);
        let parts = Destination::Folder(folder.clone());
        let opened = [parts.open(9).unwrap(), parts.open(9).unwrap()];
        assert_eq!(names(&opened), ["9-0.part", "9-1.part"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let error = Destination::File("/nowhere/t.json".into()).open(1).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/t.json.part: No such file"), "{error}");
    }
}
