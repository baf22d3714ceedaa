//! The preload library, which the command carries.

use gdsync_cli::failure::Failure;
use gdsync_sys::file_limit::within_file_limit;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Environment variable with the path of another library to preload instead.
const VARIABLE: &str = "SOFTHCA_UVERBS_LIBRARY";
const NAME: &str = "libsofthca_uverbs.so";
/// The library from `build.rs`. Empty if the command was built for another machine than that of the build.
static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libsofthca_uverbs.so"));

/// Returns the path of the library for a run whose private folder is `folder`. Processes of the run load it
/// whenever they start a program, so it exists as long as the stand-in for sysfs.
pub(crate) fn provide(folder: &Path) -> Result<PathBuf, Failure> {
    let path = match std::env::var_os(VARIABLE).map(PathBuf::from) {
        Some(path) if !path.is_file() => {
            return Err(
                format!("{} is no file: {VARIABLE} names the library to preload", path.display()).into()
            );
        }
        Some(path) => path,
        None => unpack(folder)?,
    };
    // Programs may start in other folders.
    let path = path.canonicalize()?;
    // The loader takes both as separators.
    if path.to_string_lossy().contains([' ', ':']) {
        return Err(format!(
            "{} cannot be preloaded: its path has a space or a colon; set TMPDIR or {VARIABLE} to one without",
            path.display()
        )
        .into());
    }
    Ok(path)
}

fn unpack(folder: &Path) -> Result<PathBuf, Failure> {
    if EMBEDDED.is_empty() {
        return Err(format!(
            "this command was cross-compiled and carries no {NAME}: build it with `cargo build -p softhca-uverbs --target TARGET`, and name it in {VARIABLE}"
        )
        .into());
    }
    if refuses_programs(folder)? {
        return Err(format!(
            "{} is mounted noexec, so {NAME} cannot be loaded from there: set TMPDIR to a folder that is not",
            folder.display()
        )
        .into());
    }
    let path = folder.join(NAME);
    within_file_limit(|| fs::write(&path, EMBEDDED))
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    Ok(path)
}

/// Returns whether nothing in `folder` can be mapped as code. The loader would only warn of that, and run the
/// command without a card.
fn refuses_programs(folder: &Path) -> Result<bool, Failure> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut facts: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string that ends with a zero, and a valid place; both are this function's.
    match unsafe { libc::statvfs(path.as_ptr(), &mut facts) } {
        0 => Ok(facts.f_flag & libc::ST_NOEXEC != 0),
        _ => Err(format!("{}: {}", folder.display(), std::io::Error::last_os_error()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_debug_information_is_embedded() {
        assert_eq!(EMBEDDED.get(..4), Some(b"\x7fELF".as_slice()));
        let has = |section: &[u8]| EMBEDDED.windows(section.len()).any(|bytes| bytes == section);
        assert!(has(b".text\0") && !has(b".debug_info\0"), "{} bytes", EMBEDDED.len());
    }

    #[test]
    fn folders_that_refuse_programs_are_known() {
        assert!(!refuses_programs(&std::env::current_exe().unwrap()).unwrap());
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        for place in ["/proc", "/sys", "/dev/pts"] {
            // The last mount at a place hides earlier ones.
            let of_place = |line: &&str| line.split(' ').nth(1) == Some(place);
            let Some(mount) = mounts.lines().rfind(of_place) else { continue };
            let options = mount.split(' ').nth(3).unwrap();
            let expected = options.split(',').any(|option| option == "noexec");
            assert_eq!(refuses_programs(Path::new(place)).unwrap(), expected, "{mount}");
        }
        assert!(refuses_programs(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
    }
}
