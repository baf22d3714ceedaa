//! Where the preload library is.

use crate::failure::Failure;
use std::path::PathBuf;

/// Environment variable with the library's path; nothing else is looked at then.
const VARIABLE: &str = "SOFTHCA_UVERBS_LIBRARY";
const NAME: &str = "libsofthca_uverbs.so";

/// Finds the library: where the environment says; in `deps` beside the executable, where cargo builds it (a copy that it leaves
/// beside the executable may be older); beside the executable, as in an unpacked archive; or installed.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let candidates = match std::env::var_os(VARIABLE) {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let executable = std::env::current_exe()?;
            let beside = executable.parent().map(PathBuf::from).unwrap_or_default();
            let installed = beside.join("../lib/gdsync").join(NAME);
            vec![beside.join("deps").join(NAME), beside.join(NAME), installed]
        }
    };
    let Some(found) = candidates.iter().find(|path| path.is_file()) else {
        let places: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        let places = places.join(", ");
        return Err(format!(
            "{NAME} is not there (looked at {places}): build it with `cargo build --workspace`, or say where it is in {VARIABLE}"
        )
        .into());
    };
    let path = found.canonicalize()?;
    // The loader takes both as separators.
    if path.to_string_lossy().contains([' ', ':']) {
        return Err(format!("{} cannot be preloaded: its path has a space or a colon", path.display()).into());
    }
    Ok(path)
}
