//! Translation of paths between programs and the stand-ins of `gdsync soft`.
//!
//! The files of devices are in a private folder, at the system's paths below it ([`softhca::sysfs`]). Nothing
//! here takes a lock or allocates memory after the first call: the hooks ask for every file that is opened,
//! also in signal handlers.

use crate::memory::PathRoom;
use softhca::sysfs::OWNED;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// The setting with the private folder.
const VARIABLE: &CStr = c"SOFTHCA_FILES";
/// Path of a device without its number.
const DEVICE_PREFIX: &[u8] = b"/dev/infiniband/uverbs";
/// The folder of devices of all kinds.
const DEVICES: &[u8] = b"/dev/infiniband/";
/// The connection manager.
const CM: &[u8] = b"/dev/infiniband/rdma_cm";
/// Returns the private folder; `None` in a program that `gdsync soft` did not start.
pub(crate) fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        // SAFETY: the name is a C string. As for any reader of the environment, the program must not change
        // it meanwhile; the first path of a program is opened before it has threads.
        let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: a value of the environment is a C string.
        let value = unsafe { CStr::from_ptr(value) }.to_bytes();
        (!value.is_empty()).then(|| value.to_vec())
    });
    folder.as_deref().map(|folder| Path::new(OsStr::from_bytes(folder)))
}

/// A path in the private folder.
pub(crate) struct Private {
    bytes: PathRoom,
    /// Bytes of the folder's path, before the program's path.
    lead: usize,
    len: usize,
}

impl Private {
    fn new(folder: &[u8], path: &[u8]) -> Option<Self> {
        let len = folder.len() + path.len();
        let mut bytes = PathRoom::new()?;
        // One more for the zero.
        bytes.get(len)?;
        bytes[..folder.len()].copy_from_slice(folder);
        bytes[folder.len()..len].copy_from_slice(path);
        Some(Private { bytes, lead: folder.len(), len })
    }

    pub(crate) fn as_ptr(&self) -> *const libc::c_char {
        self.bytes.as_ptr().cast()
    }

    /// Returns the path that the program named.
    pub(crate) fn named(&self) -> &[u8] {
        &self.bytes[self.lead..self.len]
    }

    /// Returns whether the path is in the stand-in for sysfs.
    pub(crate) fn is_sysfs(&self) -> bool {
        self.named().starts_with(b"/sys/")
    }

    /// Returns whether the path is a device, for which a symbolic link stands.
    pub(crate) fn is_device(&self) -> bool {
        self.named().len() > DEVICES.len() && self.named().starts_with(DEVICES)
    }
}

/// Returns the index of the device that a path names.
fn device_of(path: &[u8]) -> Option<usize> {
    let number = str::from_utf8(path.strip_prefix(DEVICE_PREFIX)?).ok()?;
    let index = number.parse().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))?;
    (index < softhca::devices::MAX_DEVICES).then_some(index)
}

/// Returns the bytes of a path with one of the prefixes [`OWNED`]. Others are read no further than to the
/// first byte that differs.
///
/// # Safety
/// `path` must be null or a C string. (For memory that is not mapped, a system call returns EFAULT; this
/// function raises a signal.)
unsafe fn owned<'a>(path: *const libc::c_char) -> Option<&'a [u8]> {
    if path.is_null() {
        return None;
    }
    let begins = |prefix: &str| {
        // SAFETY: byte by byte, and a byte that equals one of the prefix did not end the string.
        prefix.bytes().enumerate().all(|(i, byte)| unsafe { *path.add(i) } as u8 == byte)
    };
    // SAFETY: a C string.
    OWNED.iter().any(|prefix| begins(prefix)).then(|| unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Returns the index of the device that a path names.
///
/// # Safety
/// As [`private`].
pub(crate) unsafe fn device(path: *const libc::c_char) -> Option<usize> {
    // SAFETY: guaranteed by the caller.
    device_of(unsafe { owned(path) }?)
}

/// Returns whether a path names the connection manager.
///
/// # Safety
/// As [`private`].
pub(crate) unsafe fn is_cm(path: *const libc::c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    (unsafe { owned(path) }) == Some(CM)
}

/// Returns the path in the private folder for a path of device files; `None` for all others.
///
/// # Safety
/// `path` must be null or a C string.
pub(crate) unsafe fn private(path: *const libc::c_char) -> Option<Private> {
    // SAFETY: guaranteed by the caller.
    let path = unsafe { owned(path) }?;
    Private::new(folder()?.as_os_str().as_bytes(), path)
}

/// Returns the path to show the program for one that the system has found in the private folder.
pub(crate) fn public(path: &[u8]) -> &[u8] {
    let Some(folder) = folder() else { return path };
    match path.strip_prefix(folder.as_os_str().as_bytes()) {
        Some(rest) if rest.starts_with(b"/") => rest,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_owned(path: &CStr) -> bool {
        // SAFETY: a C string.
        unsafe { owned(path.as_ptr()) }.is_some()
    }

    #[test]
    fn paths_of_devices_are_known() {
        for path in [
            c"/dev/infiniband",
            c"/dev/infiniband/rdma_cm",
            c"/sys/class/infiniband/mlx5_0/ports/1/lid",
            c"/sys/class/infiniband_verbs",
            c"/sys/bus/pci/devices/50f7:01:00.0/vendor",
            c"/sys/class/pci_bus/50f7:01/../../50f7:01:00.0",
        ] {
            assert!(is_owned(path), "{path:?}");
        }
        for path in [c"", c"/", c"/dev/null", c"/sys/class/net/lo", c"sys/class/infiniband", c"/dev/infini"] {
            assert!(!is_owned(path), "{path:?}");
        }
        // SAFETY: null is allowed.
        assert!(unsafe { private(std::ptr::null()) }.is_none());
    }

    #[test]
    fn only_numbers_of_devices_name_one() {
        let device = |path: &str| device_of(path.as_bytes());
        assert_eq!(device("/dev/infiniband/uverbs0"), Some(0));
        assert_eq!(device("/dev/infiniband/uverbs7"), Some(7));
        for other in ["uverbs", "uverbs8", "uverbs+1", "uverbs0x", "umad0", ""] {
            assert_eq!(device(&format!("/dev/infiniband/{other}")), None, "{other}");
        }
    }

    #[test]
    fn private_paths_remember_what_was_named() {
        let path = Private::new(b"/tmp/x", b"/dev/infiniband/uverbs1").unwrap();
        // SAFETY: zeros follow the path.
        let whole = unsafe { CStr::from_ptr(path.as_ptr()) };
        assert_eq!(whole, c"/tmp/x/dev/infiniband/uverbs1");
        assert_eq!(path.named(), b"/dev/infiniband/uverbs1");
        assert!(path.is_device());
        assert!(!Private::new(b"/tmp/x", b"/dev/infiniband/").unwrap().is_device());
        assert!(
            Private::new(&[b'a'; libc::PATH_MAX as usize - 4], b"/sys").is_none(),
            "too long with its zero"
        );
    }
}
