//! The key, and codes that only its holders can compute.

use super::folder::FolderError;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Least bytes of a key: 128 bits if they are random.
const SHORTEST_KEY: usize = 16;
/// Most bytes of a key.
pub(crate) const LONGEST_KEY: usize = 4096;
/// Bytes of a code.
pub(crate) const CODE_BYTES: usize = 32;

/// Instructions to create a key.
const RECIPE: &str = "`(umask 077; head -c 32 /dev/urandom | base64 > FILE)` makes one";

/// Reasons why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is too short or too long.
    #[error(
        "the key has {length} bytes, and must have {SHORTEST_KEY} to {LONGEST_KEY} random ones: {RECIPE}"
    )]
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
        if !(SHORTEST_KEY..=LONGEST_KEY).contains(&bytes.len()) {
            return Err(refused);
        }
        let keyed = Hmac::<Sha256>::new_from_slice(bytes).map_err(|_| refused)?;
        Ok(Key { keyed })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 2 of RFC 4231, for the primitive of the codes.
    #[test]
    fn the_primitive_is_hmac_of_sha256() {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn keys_have_a_length_and_no_white_space_around_them() {
        let key = Key::new(b"  0123456789abcdef\n").unwrap();
        assert_eq!(key, Key::new(b"0123456789abcdef").unwrap());
        assert_eq!(format!("{key:?}"), "Key(..)", "it is secret");
        for bad in [&b""[..], b"\n", b"0123456789abcde\n", &[b'x'; LONGEST_KEY + 1]] {
            let text = Key::new(bad).unwrap_err().to_string();
            assert!(text.contains("16 to 4096") && text.contains("/dev/urandom"), "{text}");
        }
        assert!(Key::new(&[7; LONGEST_KEY]).is_ok());
    }

    #[test]
    fn codes_differ_by_key_role_context_and_the_cut_of_the_parts() {
        let (one, other) = (Key::new(&[1; 16]).unwrap(), Key::new(&[2; 16]).unwrap());
        let code = |key: &Key, role, context: &[u8], parts: &[&[u8]]| -> [u8; CODE_BYTES] {
            key.code(role, context, parts).finalize().into_bytes().into()
        };
        let codes = [
            code(&one, 0, b"c", &[b"ab", b"c"]),
            code(&other, 0, b"c", &[b"ab", b"c"]),
            code(&one, 1, b"c", &[b"ab", b"c"]),
            code(&one, 0, b"d", &[b"ab", b"c"]),
            code(&one, 0, b"c", &[b"a", b"bc"]),
            code(&one, 0, b"c", &[b"abc"]),
        ];
        for (i, code) in codes.iter().enumerate() {
            assert!(codes[i + 1..].iter().all(|other| other != code));
        }
        assert_eq!(one.number("p", b"t"), one.clone().number("p", b"t"));
        assert_ne!(one.number("p", b"t"), other.number("p", b"t"));
        assert_ne!(one.number("p", b"t"), one.number("q", b"t"));
    }
}
