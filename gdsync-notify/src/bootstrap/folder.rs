//! The socket at which processes of one host meet, in a folder that only their user can reach.

use super::error::BootstrapError;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Longest path of a socket: `sockaddr_un` has 108 bytes, and the last one is zero (unix(7)).
const MAX_PATH: usize = 107;

fn own_user() -> u32 {
    // SAFETY: no preconditions; cannot fail.
    unsafe { libc::geteuid() }
}

/// The socket of the job with that key. Makes the folder if there is none, and refuses one that
/// other users can reach: in a folder that all users share, another user could prepare a socket.
pub(super) fn socket_path(base: &Path, key: u64) -> Result<PathBuf, BootstrapError> {
    let path = base.join(format!("gdsync-{}", own_user()));
    let refused = |reason: String| BootstrapError::Folder { path: path.clone(), reason };
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
    let socket = path.join(format!("job-{key:016x}"));
    let len = socket.as_os_str().len();
    if len > MAX_PATH {
        return Err(refused(format!(
            "a socket in it has a path of {len} bytes, and {MAX_PATH} are possible: choose another place by TMPDIR"
        )));
    }
    Ok(socket)
}

/// The folder that holds such folders: the session's, or that for temporary files.
pub(super) fn base() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_dir())
        .unwrap_or_else(std::env::temp_dir)
}

/// A socket's name in a folder, removed on drop.
#[derive(Debug)]
pub(super) struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "the job's socket was not removed");
        }
    }
}

/// Listens there. Replaces a socket that an earlier job of that name left behind; fails if a job
/// still listens.
pub(super) fn listen(path: &Path) -> io::Result<(UnixListener, Name)> {
    let bound = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                // Its owner has removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => return Err(error),
            }
            UnixListener::bind(path)
        }
        other => other,
    };
    Ok((bound?, Name(path.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gdsync-folder-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn the_folder_is_made_for_its_user_alone_and_others_are_refused() {
        let base = folder("rights");
        let path = socket_path(&base, 7).unwrap();
        let own = path.parent().unwrap();
        assert_eq!(std::fs::metadata(own).unwrap().mode() & 0o777, 0o700);
        assert_eq!(socket_path(&base, 7).unwrap(), path);
        assert_ne!(socket_path(&base, 8).unwrap(), path);
        for mode in [0o701, 0o770, 0o755] {
            std::fs::set_permissions(own, std::fs::Permissions::from_mode(mode)).unwrap();
            let text = socket_path(&base, 7).unwrap_err().to_string();
            assert!(text.contains(&format!("mode {mode:o}")) && text.contains("TMPDIR"), "{text}");
        }
        std::fs::remove_dir(own).unwrap();
        std::os::unix::fs::symlink("/", own).unwrap();
        assert!(socket_path(&base, 7).unwrap_err().to_string().contains("no folder"));
        std::fs::remove_file(own).unwrap();
        let deep = base.join("d".repeat(100));
        std::fs::create_dir(&deep).unwrap();
        let text = socket_path(&deep, 7).unwrap_err().to_string();
        assert!(text.contains("107 are possible"), "{text}");
        std::fs::remove_dir_all(&base).unwrap();
        assert!(socket_path(&base, 7).is_err(), "there is nothing to make it in");
    }

    #[test]
    fn what_a_dead_job_left_is_replaced_and_a_living_one_is_not() {
        let base = folder("stale");
        let path = socket_path(&base, 1).unwrap();
        // Closed without removing the name.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (listener, name) = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((listener, name));
        assert!(!path.exists());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
