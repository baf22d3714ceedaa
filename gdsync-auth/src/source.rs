//! Sources of a key: a variable, a file, or the user's key on this host.

use super::folder;
use super::key::{Key, KeyError, LONGEST_KEY};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the file with a user's key.
const FILE: &str = "key";
/// Random bytes of a new key.
const RANDOM_BYTES: usize = 32;
/// Most bytes read from a key file, including white space.
const MOST_READ: u64 = 2 * LONGEST_KEY as u64;

/// Environment variables that supply a program's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyVariables {
    /// Variable with the key.
    pub key: &'static str,
    /// Variable with the path of a key file.
    pub file: &'static str,
}

impl KeyVariables {
    /// Reads the key from an environment. Returns `None` if neither variable is set.
    ///
    /// # Errors
    /// [`KeyError`], with the variable's name.
    pub fn read(&self, get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Key>, KeyError> {
        let of = |variable| move |problem| KeyError::Variable { variable, problem: Box::new(problem) };
        match (get(self.key), get(self.file)) {
            (Some(_), Some(_)) => Err(KeyError::Both { one: self.key, other: self.file }),
            (Some(key), None) => Key::new(key.as_bytes()).map(Some).map_err(of(self.key)),
            (None, Some(path)) => Key::of_file(Path::new(&path)).map(Some).map_err(of(self.file)),
            (None, None) => Ok(None),
        }
    }
}

impl Key {
    /// Reads the key from a file that only its user may access.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`], [`KeyError::Exposed`], [`KeyError::Content`].
    pub fn of_file(path: &Path) -> Result<Key, KeyError> {
        let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
        // Opening a FIFO would block until another process opens it.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(unreadable)?;
        let facts = file.metadata().map_err(unreadable)?;
        if !facts.is_file() {
            return Err(unreadable(io::Error::other("it is no file")));
        }
        if facts.mode() & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode: facts.mode() & 0o7777 });
        }
        let mut bytes = Vec::new();
        file.take(MOST_READ).read_to_end(&mut bytes).map_err(unreadable)?;
        Key::new(&bytes)
            .map_err(|problem| KeyError::Content { path: path.to_owned(), problem: Box::new(problem) })
    }

    /// Returns the user's key on this host. Creates it if necessary, in a folder that only the user can access. All
    /// processes of the user with the same [`base_folder`](crate::base_folder) share it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_user() -> Result<Key, KeyError> {
        Key::of_user_in(&folder::base_folder())
    }

    /// Like [`Self::of_user`], with another base folder.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_user_in(base: &Path) -> Result<Key, KeyError> {
        let path = folder::private_folder(base)?.join(FILE);
        match Key::of_file(&path) {
            Err(KeyError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                make(&path).map_err(|source| KeyError::NotMade { path: path.clone(), source })?;
                Key::of_file(&path)
            }
            found => found,
        }
    }

    /// The key of this user on this host, if one has been made.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_user_if_made() -> Result<Option<Key>, KeyError> {
        let base = folder::base_folder();
        match Key::of_file(&base.join(format!("gdsync-{}", folder::own_user())).join(FILE)) {
            Err(KeyError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Key::of_user_in(&base).map(Some),
        }
    }
}

/// Creates a key at a path, unless another process did meanwhile. The file is complete before it gets its name, so
/// that no process reads a partial key.
fn make(path: &Path) -> io::Result<()> {
    let mut random = [0; RANDOM_BYTES];
    fill(&mut random)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut suffix = [0; 8];
    fill(&mut suffix)?;
    let unique = Temporary(path.with_extension(format!("new-{:016x}", u64::from_ne_bytes(suffix))));
    let mut file = unique.create()?;
    writeln!(file, "{text}")?;
    match std::fs::hard_link(&unique.0, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Fills a buffer with random bytes from the kernel.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| io::Error::other(format!("the kernel gives no random bytes: {error}")))
}

/// A file whose name is removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn create(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.0)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "a temporary file was not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const VARIABLES: KeyVariables = KeyVariables { key: "T_KEY", file: "T_KEY_FILE" };

    /// An empty folder, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gdsync-auth-{test}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn read(variables: &[(&str, &str)]) -> Result<Option<Key>, KeyError> {
        VARIABLES.read(|name| {
            variables.iter().find(|(one, _)| *one == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn variables_give_a_key_or_a_file_with_one_and_what_is_wrong_is_named() {
        let folder = Folder::new("variables");
        let path = folder.0.join("job.key");
        let name = path.to_str().unwrap();
        assert_eq!(read(&[]).unwrap(), None);
        let text = "0123456789abcdef";
        assert_eq!(read(&[("T_KEY", text)]).unwrap(), Some(Key::new(text.as_bytes()).unwrap()));
        std::fs::write(&path, format!("{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(&[("T_KEY_FILE", name)]).unwrap(), Some(Key::new(text.as_bytes()).unwrap()));
        let refusal = |variables: &[(&str, &str)]| read(variables).unwrap_err().to_string();
        let both = refusal(&[("T_KEY", text), ("T_KEY_FILE", name)]);
        assert_eq!(both, "T_KEY and T_KEY_FILE are both set: unset one of them");
        assert!(refusal(&[("T_KEY", "")]).starts_with("T_KEY: the key has 0 bytes"));
        let absent = refusal(&[("T_KEY_FILE", "/nowhere/key")]);
        assert!(absent.starts_with("T_KEY_FILE: the key file /nowhere/key cannot be read"), "{absent}");
        assert!(refusal(&[("T_KEY_FILE", folder.0.to_str().unwrap())]).contains("it is no file"));
        for mode in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let text = refusal(&[("T_KEY_FILE", name)]);
            assert!(text.contains(&format!("mode {mode:o}")) && text.contains("chmod 600"), "{text}");
        }
        std::fs::write(&path, "short").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        let text = refusal(&[("T_KEY_FILE", name)]);
        assert!(text.contains("the key has 5 bytes") && text.contains(name), "{text}");
    }

    #[test]
    fn a_users_key_is_made_once_when_several_ask_at_once() {
        let folder = Folder::new("user");
        let keys: Vec<Key> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| Key::of_user_in(&folder.0).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        let own = folder::private_folder(&folder.0).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["key"], "nothing else is left behind");
        assert_eq!(std::fs::metadata(own.join(FILE)).unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(own.join(FILE), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Key::of_user_in(&folder.0), Err(KeyError::Exposed { mode: 0o644, .. })));
        let other = Folder::new("other");
        assert_ne!(Key::of_user_in(&other.0).unwrap(), keys[0]);
        assert!(matches!(Key::of_user_in(Path::new("/nowhere")), Err(KeyError::Folder(_))));
    }
}
