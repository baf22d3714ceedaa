//! A user's private folder on a host.

pub use gdsync_sys::local::own_user;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The reason why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the folder {}: {reason}", .path.display())]
pub struct FolderError {
    /// The folder.
    pub path: PathBuf,
    /// The problem and its remedy.
    pub reason: String,
}

/// Returns this user's folder inside `base`, which is created if necessary. Rejects folders that other users can
/// access: in a shared folder, another user could have prepared the content.
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
    // The entry itself, not a link's target.
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

/// Returns the parent of such folders: the user's session folder, or the folder for temporary files.
///
/// Processes of one user find the same folder inside and outside of a session: without `XDG_RUNTIME_DIR`, its
/// conventional value is tried.
pub fn base_folder() -> PathBuf {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{}", own_user()));
    session.into_iter().chain([usual]).find(|path| is_own(path)).unwrap_or_else(std::env::temp_dir)
}

/// Returns true if a path leads to a folder of this user. A session's folder may be inherited from another user, who
/// could replace its content.
fn is_own(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own_user())
}
