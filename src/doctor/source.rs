//! The source of all information: the files of this machine, or a recorded tree of them.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// Bytes read from a file at most; files of the kernel are shorter, and a longer one is cut.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    path: String,
    pub(super) kind: io::ErrorKind,
    reason: String,
}

impl Unread {
    /// True if the file does not exist, as opposed to unreadable.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_missing() {
            write!(f, "there is no {}", self.path)
        } else {
            write!(f, "{} cannot be read: {}", self.path, self.reason)
        }
    }
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Tree { root: root.to_owned() }
    }

    /// Returns the real path of an absolute `path`.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn unread(path: &str, error: &io::Error) -> Unread {
        Unread { path: path.to_owned(), kind: error.kind(), reason: error.to_string() }
    }

    pub(super) fn bytes(&self, path: &str) -> Result<Vec<u8>, Unread> {
        let mut bytes = Vec::new();
        let file = fs::File::open(self.at(path)).map_err(|error| Self::unread(path, &error))?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| Self::unread(path, &error))?;
        Ok(bytes)
    }

    /// Returns a file as text without surrounding white space. Invalid UTF-8 is replaced.
    pub(super) fn text(&self, path: &str) -> Result<String, Unread> {
        Ok(String::from_utf8_lossy(&self.bytes(path)?).trim().to_owned())
    }

    pub(super) fn names(&self, path: &str) -> Result<Vec<String>, Unread> {
        let entries = fs::read_dir(self.at(path)).map_err(|error| Self::unread(path, &error))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Self::unread(path, &error))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    pub(super) fn link(&self, path: &str) -> Result<String, Unread> {
        let target = fs::read_link(self.at(path)).map_err(|error| Self::unread(path, &error))?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Returns the last component of a symbolic link's target.
    pub(super) fn link_name(&self, path: &str) -> Result<String, Unread> {
        let target = self.link(path)?;
        Ok(target.rsplit('/').next().unwrap_or_default().to_owned())
    }

    /// Returns whether a path exists, or an error if that is unknown.
    pub(super) fn exists(&self, path: &str) -> Result<bool, Unread> {
        self.at(path).try_exists().map_err(|error| Self::unread(path, &error))
    }
}
