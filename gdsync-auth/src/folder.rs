//! The folder that a user has for itself on a host.

pub use gdsync_sys::local::own_user;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the folder {}: {reason}", .path.display())]
pub struct FolderError {
    /// The folder.
    pub path: PathBuf,
    /// What is wrong, and what to do.
    pub reason: String,
}

/// The folder of this user inside `base`. Makes it if there is none, and refuses one that other users can reach: in a
/// folder that all users share, another user could prepare what is in it.
///
/// # Errors
/// [`FolderError`].
pub fn private_folder(base: &Path) -> Result<PathBuf, FolderError> {
    let path = base.join(format!("gdsync-{}", own_user()));
    let refused = |reason: String| FolderError { path: path.clone(), reason };
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(refused(format!("{error} (TMPDIR chooses another place)")));
        }
        _ => {}
    }
    // The entry itself, not the target of a link.
    let found = std::fs::symlink_metadata(&path).map_err(|error| refused(error.to_string()))?;
    if !found.is_dir() {
        return Err(refused("it is no folder: remove it, or choose another place by TMPDIR".to_owned()));
    }
    if found.uid() != own_user() || found.mode() & 0o077 != 0 {
        let (owner, mode) = (found.uid(), found.mode() & 0o777);
        return Err(refused(format!(
            "it belongs to user {owner} with mode {mode:o}, and must belong to user {} with mode 700: remove it, or choose another place by TMPDIR",
            own_user()
        )));
    }
    Ok(path)
}

/// The folder that holds such folders: that of the user's session, or the one for temporary files.
///
/// Processes of one user find the same folder whether or not they belong to a session: without `XDG_RUNTIME_DIR`, the
/// place is tried that it names by convention.
pub fn base_folder() -> PathBuf {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{}", own_user()));
    session.into_iter().chain([usual]).find(|path| is_own(path)).unwrap_or_else(std::env::temp_dir)
}

/// Whether a path leads to a folder of this user. That of a session may be inherited from another user, who could
/// replace what is in it.
fn is_own(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own_user())
}
