//! The socket at which processes of one host meet, in a folder that only their user can reach.

use super::error::BootstrapError;
use gdsync_auth::{FolderError, private_folder};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Longest path of a socket: `sockaddr_un` has 108 bytes, and the last one is zero (unix(7)).
const MAX_PATH: usize = 107;

/// Returns the socket of the job with that hash of its name, in the user's own folder.
pub(super) fn socket_path(base: &Path, name_hash: u64) -> Result<PathBuf, BootstrapError> {
    let refused = |path: PathBuf, reason: String| BootstrapError::Folder { path, reason };
    let path = private_folder(base).map_err(|FolderError { path, reason }| refused(path, reason))?;
    let socket = path.join(format!("job-{name_hash:016x}"));
    let len = socket.as_os_str().len();
    if len > MAX_PATH {
        let reason = format!(
            "a socket in it has a path of {len} bytes, and {MAX_PATH} are possible: choose another place by TMPDIR"
        );
        return Err(refused(path, reason));
    }
    Ok(socket)
}

/// A socket's path, removed on drop.
#[derive(Debug)]
pub(super) struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "the job's socket was not removed");
        }
    }
}

/// Listens at the path. Replaces a socket that an earlier job of that name left behind; fails if a job still listens.
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
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
