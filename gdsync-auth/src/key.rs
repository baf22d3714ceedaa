//! The key: codes that only its holders can compute, its sources (a variable, a file, the user's key on this host),
//! and a user's private folder on a host.

pub use gdsync_sys::local::own_user;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Least bytes of a key: 128 bits if they are random.
const MIN_KEY: usize = 16;
pub(crate) const MAX_KEY: usize = 4096;
pub(crate) const CODE_BYTES: usize = 32;

/// Instructions to create a key.
const RECIPE: &str = "`(umask 077; head -c 32 /dev/urandom | base64 > FILE)` makes one";

/// Reasons why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is too short or too long.
    #[error("the key has {length} bytes, and must have {MIN_KEY} to {MAX_KEY} random ones: {RECIPE}")]
    Length {
        /// Bytes of the key, without surrounding white space.
        length: usize,
    },
    /// An environment variable contains an unusable key.
    #[error("{variable}: {problem}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// The problem.
        problem: Box<KeyError>,
    },
    /// Two variables contain a key.
    #[error("{one} and {other} are both set: unset one of them")]
    Both {
        /// A variable.
        one: &'static str,
        /// The other one.
        other: &'static str,
    },
    /// The key file cannot be read.
    #[error("the key file {} cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Other users can read or change the key.
    #[error(
        "the key file {} has mode {mode:o}, so that other users can reach the key: `chmod 600` it",
        .path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file's content is no key.
    #[error("the key file {}: {problem}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: Box<KeyError>,
    },
    /// The user's folder for this host's key cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A key cannot be created for this user.
    #[error("a key cannot be made at {}: {source}", .path.display())]
    NotMade {
        /// The intended path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A shared secret of a job's processes.
#[derive(Clone)]
pub struct Key {
    /// The common start of all codes.
    keyed: Hmac<Sha256>,
}

impl Key {
    /// Creates a key from bytes, without surrounding white space.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    pub fn new(bytes: &[u8]) -> Result<Key, KeyError> {
        let bytes = bytes.trim_ascii();
        let refused = KeyError::Length { length: bytes.len() };
        if !(MIN_KEY..=MAX_KEY).contains(&bytes.len()) {
            return Err(refused);
        }
        let keyed = Hmac::<Sha256>::new_from_slice(bytes).map_err(|_| refused)?;
        Ok(Key { keyed })
    }

    /// Reads the key from a file that only its user may access.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`], [`KeyError::Exposed`], [`KeyError::Content`].
    pub fn of_file(path: &Path) -> Result<Key, KeyError> {
        let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
        // Opening a FIFO would block until another process opens it.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(unreadable(io::Error::other("it is no file")));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode: metadata.mode() & 0o7777 });
        }
        let mut bytes = Vec::new();
        file.take(MAX_READ).read_to_end(&mut bytes).map_err(unreadable)?;
        Key::new(&bytes)
            .map_err(|problem| KeyError::Content { path: path.to_owned(), problem: Box::new(problem) })
    }

    /// Returns the user's key on this host. Creates it if necessary, in a folder that only the user can access. All
    /// processes of the user with the same [`base_folder`] share it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_user() -> Result<Key, KeyError> {
        Key::of_user_in(&base_folder())
    }

    /// Like [`Self::of_user`], with another base folder.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_user_in(base: &Path) -> Result<Key, KeyError> {
        let path = private_folder(base)?.join(KEY_FILE);
        match Key::of_file(&path) {
            Err(KeyError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                create_key_file(&path).map_err(|source| KeyError::NotMade { path: path.clone(), source })?;
                Key::of_file(&path)
            }
            found => found,
        }
    }

    /// Returns the user's key on this host, if it exists.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_user_if_made() -> Result<Option<Key>, KeyError> {
        let base = base_folder();
        match Key::of_file(&base.join(format!("gdsync-{}", own_user())).join(KEY_FILE)) {
            Err(KeyError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Key::of_user_in(&base).map(Some),
        }
    }

    /// Returns a number for a purpose and a text that only holders of the key can compute.
    pub fn number(&self, purpose: &str, text: &[u8]) -> u128 {
        let code: [u8; CODE_BYTES] =
            self.code(b'n', purpose.as_bytes(), &[text]).finalize().into_bytes().into();
        code.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
    }

    /// Returns the code of a message under this key. Roles separate codes of different uses; a length before each
    /// part distinguishes different splits of the same bytes.
    pub(crate) fn code(&self, role: u8, context: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut code = self.keyed.clone();
        code.update(b"gdsync-auth 1");
        code.update(&[role]);
        for part in std::iter::once(&context).chain(parts) {
            code.update(&(part.len() as u64).to_be_bytes());
            code.update(part);
        }
        code
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        let code = |key: &Key| key.code(b'=', b"", &[]).finalize();
        code(self) == code(other)
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    /// Omits the bytes, which are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

const KEY_FILE: &str = "key";
const RANDOM_BYTES: usize = 32;
/// Most bytes read from a key file, including white space.
const MAX_READ: u64 = 2 * MAX_KEY as u64;

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

/// Creates a key at a path, unless another process did meanwhile. The file is complete before it gets its name, so
/// that no process reads a partial key.
fn create_key_file(path: &Path) -> io::Result<()> {
    let text = new_key_text()?;
    let mut suffix = [0; 8];
    fill_random(&mut suffix)?;
    let unique = TemporaryFile(path.with_extension(format!("new-{:016x}", u64::from_ne_bytes(suffix))));
    let mut file = unique.create()?;
    writeln!(file, "{text}")?;
    match std::fs::hard_link(&unique.0, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Returns the text of a new key: random hexadecimal digits.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn new_key_text() -> io::Result<String> {
    let mut random = [0; RANDOM_BYTES];
    fill_random(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| io::Error::other(format!("the kernel gives no random bytes: {error}")))
}

/// A file whose name is removed on drop.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn create(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.0)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "a temporary file was not removed");
        }
    }
}

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
    session.into_iter().chain([usual]).find(|path| belongs_to_user(path)).unwrap_or_else(std::env::temp_dir)
}

/// Returns true if a path leads to a folder of this user. A session's folder may be inherited from another user, who
/// could replace its content.
fn belongs_to_user(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own_user())
}

#[cfg(test)]
mod tests;
